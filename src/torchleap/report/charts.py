"""The charts of a selection: a record in, Vega-Lite specifications out, from which page and static pictures are drawn.

A specification names its data; `Charts.data` holds it, so that several charts share it. The page sets three signals: `marked`
(names to bring out), `colour` (what the ranks are coloured by) and `removed` (the budget on the curve).
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from .._common.checks import is_number
from . import colours
from .measures import polarisation, thinned
from .pieces import Charts, Rows, Spec, fading, framed, lines_over_steps, log_axis, rule_at, signals
from .record import decision, dig, has_gates, has_prices, scored, threshold

POINTS = 10_000  # of all trajectories together: what a browser draws at once
NAMED = 80  # fields whose names fit into a picture
FEWEST_ACTIVE = 1e-4  # where the axis of sparsity ends
SCORES = {
    "leap": "gate",
    "leap_base": "gate",
    "permutation": "metric lost by shuffling",
    "shark": "estimated rise of the loss",
    "sfs": "gradient by a mask",
    "autofield": "keep logit",
    "lpfs": "size of the gate's parameter",
    "adafs": "mean weight",
    "optfs": "share of embeddings kept",
    "deep_lasso": "norm of the loss gradient",
    "stg": "mean of the stochastic gate",
    "variational_dropout": "keep probability",
    "lasso": "size of the coefficients",
    "forest": "fall of impurity",
    "xgboost": "gain",
    "gbdt": "gain",
    "random": "score by lot",
}
GATE_AXIS = {
    "scale": {"domain": [-0.03, 1.03], "nice": False},
    "axis": {"values": [0, 0.25, 0.5, 0.75, 1], "format": ".2~f"},
}
METRICS = {"auc": "AUC", "gauc": "GAUC", "log_loss": "log loss"}


def score_word(record: Mapping[str, Any]) -> str:
    """What the method's scores are, for an axis."""
    return SCORES.get(str(record.get("method")), "score")


def metric_word(name: Any) -> str:
    """How a metric is written."""
    return METRICS.get(str(name), str(name).replace("_", " "))


def select_charts(record: Mapping[str, Any]) -> Charts:
    """All charts of the page that the record has numbers for."""
    rows = _field_rows(record)
    data: dict[str, Rows] = {"fields": rows}
    specs: dict[str, Spec] = {}
    if rows:
        specs["ranks"] = _ranks(record, len(rows))
        specs |= _by_size(record, rows)
    parts = [
        _trajectories(record),
        _polarisation(record),
        _history(record),
        _return(record),
        _difference(record),
    ]
    for part in parts:
        specs |= part.specs
        data |= part.data
    return Charts(specs, data)


def select_pictures(record: Mapping[str, Any]) -> Charts:
    """The charts as static pictures: with legends in place of switches, and the names of the fields where there is room."""
    drawn = select_charts(record)
    if "ranks" in drawn.specs:
        *rules, points = drawn.specs["ranks"]["layer"]
        encoding = {**points["encoding"], "color": _decision_colour(drawn.data["fields"])}
        drawn.specs["ranks"] |= {"layer": [*rules, {**points, "encoding": encoding}]}
        if len(drawn.data["fields"]) <= NAMED:
            drawn.specs["ladder"] = _ladder(record, drawn.data["fields"])
    return drawn


def _ladder(record: Mapping[str, Any], rows: Rows) -> Spec:
    """A bar for each field, with its name."""
    limit = threshold(record)
    names = {
        "grid": False,
        "labelLimit": 240,
        "labelExpr": "names[datum.value - 1]",
    }  # by rank: a name may be "constructor"
    bars = {
        "data": {"name": "fields"},
        "mark": {"type": "bar", "cornerRadius": 2},
        "encoding": {
            "x": {**_score_axis(record), "scale": {"zero": True}, "stack": None},
            "y": {"field": "rank", "type": "ordinal", "title": None, "axis": names},
            "color": _decision_colour(rows),
        },
    }
    params = signals(names=[row["name"] for row in rows])
    return framed(
        {"step": 17},
        params=params,
        layer=[bars, *(rule_at(limit, "x") if limit is not None else [])],
    )


def _field_rows(record: Mapping[str, Any]) -> Rows:
    return [
        {
            "name": f["name"],
            "rank": rank + 1,
            "score": f["score"],
            "width": f.get("width"),
            "active": max(1 - f["sparsity"], FEWEST_ACTIVE)
            if is_number(f.get("sparsity"))
            else None,
            "divergence": f.get("divergence"),
            "price": f.get("price") if has_prices(record) else None,
            "decision": decision(f),
            "by_width": colours.ramp(f.get("width"), colours.WIDTHS),
            "by_sparsity": colours.ramp(f.get("sparsity"), colours.SPARSITIES),
            "by_decision": colours.DECISIONS[decision(f)],
        }
        for rank, f in enumerate(scored(record))
    ]


def _score_axis(record: Mapping[str, Any]) -> Spec:
    own = GATE_AXIS if has_gates(record) else {"scale": {"zero": True, "nice": True}}
    return {"field": "score", "type": "quantitative", "title": score_word(record), **own}


def _decision_colour(rows: Iterable[Mapping[str, Any]]) -> Spec:
    found = {row["decision"] for row in rows}
    domain = [name for name in colours.DECISIONS if name in found]
    return {
        "field": "decision",
        "type": "nominal",
        "scale": {"domain": domain, "range": [colours.DECISIONS[name] for name in domain]},
    }


def _ranks(record: Mapping[str, Any], fields: int) -> Spec:
    """Every field as a point, best first."""
    limit = threshold(record)
    size = 70 if fields <= 60 else 40 if fields <= 200 else 24
    points = {
        "data": {"name": "fields"},
        "transform": [{"calculate": "datum['by_' + colour]", "as": "fill"}],
        "mark": {
            "type": "point",
            "filled": True,
            "size": size,
            "tooltip": {"content": "data"},
            "cursor": "pointer",
        },
        "encoding": {
            "x": {
                "field": "rank",
                "type": "quantitative",
                "title": "fields, best first",
                "scale": {"domain": [0, fields + 1], "nice": False},
                "axis": {"grid": False, "tickMinStep": 1, "format": ",d"},
            },
            "y": _score_axis(record),
            "color": {"field": "fill", "type": "nominal", "scale": None},
            "opacity": fading(0.9),
        },
    }
    rule = rule_at(limit, "y", f"threshold {limit:g}") if limit is not None else []
    return framed(200, params=signals(colour="decision"), layer=[*rule, points])


def _by_size(record: Mapping[str, Any], rows: Rows) -> dict[str, Spec]:
    """Score by what should not decide it; and the price of each field."""
    log = {"type": "log", "nice": False, "padding": 14}
    sparse_scale = {**log, "reverse": True, "domain": [FEWEST_ACTIVE, 1]}
    width = log_axis("width", "width, in dimensions", {**log, "base": 2}, ",d")
    active = log_axis("active", "rows off the most common value", sparse_scale, ".2~%")
    divergence = log_axis("divergence", "divergence", log, ".3~g")
    price = log_axis("price", "price of an open gate", log, ".3~g")
    axes = {
        "width": (width, None),
        "sparsity": (active, None),
        "divergence": (divergence, None),
        "price": (divergence, price),
    }
    return {
        name: _scatter(record, rows, x, y) for name, (x, y) in axes.items() if _positive(rows, x, y)
    }


def _positive(rows: Rows, *axes: Spec | None) -> bool:
    """Whether at least two fields can be drawn on these axes."""
    needed = [axis["field"] for axis in axes if axis]
    return sum(all(is_number(row[key]) and row[key] > 0 for key in needed) for row in rows) >= 2


def _scatter(record: Mapping[str, Any], rows: Rows, x: Spec, y: Spec | None) -> Spec:
    needed = [axis["field"] for axis in (x, y) if axis]
    limit = threshold(record) if y is None else None
    points = {
        "data": {"name": "fields"},
        "transform": [
            {"filter": " && ".join(f"isNumber(datum.{key}) && datum.{key} > 0" for key in needed)}
        ],
        "mark": {
            "type": "point",
            "size": 45,
            "strokeWidth": 1.8,
            "tooltip": {"content": "data"},
            "cursor": "pointer",
        },
        "encoding": {
            "x": {"type": "quantitative", **x},
            "y": {"type": "quantitative", **y} if y else _score_axis(record),
            "color": _decision_colour(rows),
            "opacity": fading(0.85 if len(rows) <= 100 else 0.55),
        },
    }
    return framed(
        250, params=signals(), layer=[*(rule_at(limit, "y") if limit is not None else []), points]
    )


def _gate_paths(record: Mapping[str, Any]) -> tuple[list[float], dict[str, list[float]]]:
    """The steps, and the gates over them of each field that has all."""
    steps, gates = (
        dig(record, "trajectories", "steps") or [],
        dig(record, "trajectories", "gates") or {},
    )
    whole = {
        name: path
        for name, path in gates.items()
        if len(path) == len(steps) and all(map(is_number, path))
    }
    return (steps, whole) if len(steps) > 1 else ([], {})


def _trajectories(record: Mapping[str, Any]) -> Charts:
    steps, gates = _gate_paths(record)
    if not gates:
        return Charts({}, {})
    places = thinned(len(steps), min(120, POINTS // len(gates)))
    fates = {f["name"]: decision(f) for f in record["fields"]}
    thin = [steps[place] for place in places]
    rows: Rows = [
        {
            "name": name,
            "decision": fates.get(name, "dropped"),
            "gate": [round(path[p], 3) for p in places],
        }
        for name, path in gates.items()
    ]
    rows.sort(
        key=lambda row: list(colours.DECISIONS).index(row["decision"]), reverse=True
    )  # the kept ones on top
    for place, row in enumerate(rows):
        row["line"] = place  # Vega cannot group by a field that is called "constructor"
    limit = threshold(record)
    few = len(gates) <= 100
    transform = [
        {"flatten": ["gate"]},
        {"window": [{"op": "row_number", "as": "place"}]},
        {"calculate": "steps[(datum.place - 1) % length(steps)]", "as": "step"},
    ]
    line: Spec = {
        "mark": {
            "type": "line",
            "strokeWidth": 1.8 if few else 1.2,
            "tooltip": {"content": "data"},
        },
        "encoding": {
            "x": {
                "field": "step",
                "type": "quantitative",
                "title": "training step",
                "axis": {"grid": False, "format": ",d"},
            },
            "y": {"field": "gate", "type": "quantitative", "title": "gate", **GATE_AXIS},
            "detail": {"field": "line", "type": "nominal"},
            "color": _decision_colour(rows),
            "opacity": fading(max(0.3, min(0.85, 5 / math.sqrt(len(gates))))),
        },
    }
    wide = {
        "mark": {"type": "line", "strokeWidth": 9, "tooltip": {"content": "data"}}
    }  # easier to point at
    wide["encoding"] = {**line["encoding"], "opacity": {"value": 0}}
    layers = [*(rule_at(limit, "y") if limit is not None else []), line, *([wide] if few else [])]
    spec = framed(
        320,
        params=signals(steps=thin),
        data={"name": "trajectories"},
        transform=transform,
        layer=layers,
    )
    return Charts({"trajectories": spec}, {"trajectories": rows})


def _polarisation(record: Mapping[str, Any]) -> Charts:
    steps, gates = _gate_paths(record)
    if not gates:
        return Charts({}, {})
    names = ("gates within 0.05 of 0 or 1", "mean of |2g − 1|")  # noqa: RUF001
    rows: Rows = []
    for place in thinned(len(steps), 200):
        values = polarisation([path[place] for path in gates.values()])
        rows += [
            {"step": steps[place], "measure": name, "value": value}
            for name, value in zip(names, values, strict=True)
        ]
    y = {
        "field": "value",
        "type": "quantitative",
        "title": None,
        "scale": {"domain": [0, 1]},
        "axis": {"format": "%"},
    }
    colour = {"domain": list(names), "range": ["var(--accent)", "var(--second)"]}
    return Charts(
        {"polarisation": lines_over_steps("polarisation", y, colour, height=200)},
        {"polarisation": rows},
    )


def _history(record: Mapping[str, Any]) -> Charts:
    """The metric on validation rows and the loss on train rows, over training."""
    specs: dict[str, Spec] = {}
    data: dict[str, Rows] = {}
    titles = {
        "valid_auc": "AUC on validation rows",
        "valid_gauc": "GAUC on validation rows",
        "train_loss": "loss on train rows",
    }
    for key, title in titles.items():
        known = [
            row
            for row in record.get("history") or []
            if is_number(row.get(key)) and is_number(row.get("step"))
        ]
        if len(known) > 1:
            thin = [known[place] for place in thinned(len(known), 300)]
            data[key] = [{"step": row["step"], "value": round(row[key], 6)} for row in thin]
            y = {"field": "value", "type": "quantitative", "title": title, "scale": {"zero": False}}
            specs[key] = lines_over_steps(key, y, None, height=200)
    return Charts(specs, data)


def curve_points(record: Mapping[str, Any]) -> Rows:
    """The curve by masking: dimensions removed and the metric, in order."""
    points = dig(record, "curve", "points") or []
    known = [p for p in points if is_number(p.get("dims")) and is_number(p.get("value"))]
    return sorted(
        ({"dims": p["dims"], "fields": p.get("fields"), "value": p["value"]} for p in known),
        key=lambda p: p["dims"],
    )


def _return(record: Mapping[str, Any]) -> Charts:
    """The metric against the dimensions removed: by masking, and retrained with intervals."""
    points = curve_points(record)
    if len(points) < 2:
        return Charts({}, {})
    retrained: Rows = []
    for point in dig(record, "curve", "retrained") or []:
        low, high = point.get("interval") or (None, None)
        retrained.append(
            {key: point.get(key) for key in ("dims", "value", "label")} | {"low": low, "high": high}
        )
    metric = f"{metric_word(dig(record, 'curve', 'metric') or 'metric')} on validation rows"
    x = {
        "field": "dims",
        "type": "quantitative",
        "title": "dimensions removed",
        "axis": {"grid": False, "format": ",d"},
    }
    y = {"field": "value", "type": "quantitative", "title": metric, "scale": {"zero": False}}
    masked = "fields masked in the searched model"
    again = "trained models" + (
        ", with interval" if any(is_number(row["low"]) for row in retrained) else ""
    )
    names = [masked, again] if retrained else [masked]
    scale = {"domain": names, "range": ["var(--accent)", "var(--second)"][: len(names)]}
    line_mark = {"type": "line", "strokeWidth": 2, "interpolate": "linear"}
    colour = {
        "datum": masked,
        "type": "nominal",
        "scale": scale,
        "legend": {"direction": "vertical"},
    }
    line = {
        "data": {"name": "curve"},
        "mark": line_mark,
        "encoding": {"x": x, "y": y, "color": colour},
    }
    dots = {
        "data": {"name": "curve"},
        "mark": {
            "type": "point",
            "filled": True,
            "size": 36 if len(points) <= 30 else 14,
            "color": "var(--accent)",
            "tooltip": {"content": "data"},
        },
        "encoding": {"x": x, "y": y},
    }
    slider = {
        "data": {"values": [{}]},
        "transform": [{"calculate": "removed", "as": "dims"}],
        "mark": {"type": "rule", "color": "var(--ink)", "strokeWidth": 1.5, "strokeDash": [5, 3]},
        "encoding": {"x": x},
    }
    layers: list[Spec] = [line, dots, *_retrained_layers(retrained, x, y, again, scale)]
    if dig(record, "savings") is not None or scored(record):
        layers.append(slider)
    removed = sum(f.get("width") or 0 for f in record["fields"] if decision(f) == "dropped")
    return Charts(
        {"return": framed(300, params=signals(removed=removed), layer=layers)},
        {"curve": points, "retrained": retrained},
    )


def _retrained_layers(rows: Rows, x: Spec, y: Spec, name: str, scale: Spec) -> list[Spec]:
    if not rows:
        return []
    bars = {
        "data": {"name": "retrained"},
        "transform": [{"filter": "isNumber(datum.low)"}],
        "mark": {"type": "rule", "strokeWidth": 2, "color": "var(--second)"},
        "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
    }
    points = {
        "data": {"name": "retrained"},
        "mark": {
            "type": "point",
            "filled": True,
            "shape": "diamond",
            "size": 120,
            "tooltip": {"content": "data"},
        },
        "encoding": {"x": x, "y": y, "color": {"datum": name, "type": "nominal", "scale": scale}},
    }
    return [bars, points] if any(is_number(row["low"]) for row in rows) else [points]


def _difference(record: Mapping[str, Any]) -> Charts:
    """The change of the metric with its interval, beside zero."""
    value, bounds = (
        dig(record, "metrics", "difference", "value"),
        dig(record, "metrics", "difference", "interval"),
    )
    if not is_number(value) or not bounds or not all(map(is_number, bounds)):
        return Charts({}, {})
    reach = 1.25 * max(abs(value), *map(abs, bounds), 1e-4)
    title = f"change of the {metric_word(dig(record, 'metrics', 'difference', 'metric'))}, pruned minus full"
    axis = {"labelExpr": "datum.value === 0 ? '0' : format(datum.value, '+.4~f')"}
    x = {
        "field": "value",
        "type": "quantitative",
        "title": title,
        "scale": {"domain": [-reach, reach], "nice": False},
        "axis": axis,
    }
    bar = {
        "mark": {
            "type": "rule",
            "strokeWidth": 5,
            "strokeCap": "round",
            "color": "var(--accent)",
            "opacity": 0.35,
        }
    }
    point = {
        "mark": {"type": "point", "filled": True, "size": 130, "color": "var(--accent)"},
        "encoding": {"x": x},
    }
    layers: list[Spec] = [
        *rule_at(0, "x"),
        {
            "data": {"name": "difference"},
            **bar,
            "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}},
        },
        {"data": {"name": "difference"}, **point},
    ]
    return Charts(
        {"difference": framed(84, layer=layers)},
        {"difference": [{"value": value, "low": bounds[0], "high": bounds[1]}]},
    )
