"""The charts of all fields: by rank, and by the sizes that should not decide their scores."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..._common.checks import is_number
from .. import colours, numbers
from ..nats import nats_axis
from ..record import (
    bounds,
    decision,
    has_gates,
    has_prices,
    in_nats,
    least_worth,
    limit,
    scored,
    shown_score,
)
from .pieces import (
    DETAILS,
    Charts,
    Rows,
    Spec,
    fading,
    framed,
    line_at,
    log_axis,
    number_axis,
    signals,
)

MOST_NAMED = 80  # fields whose names fit into a picture
FEWEST_ACTIVE = 1e-4  # where the axis of sparsity ends
SCORES = {
    "leap": "gate",
    "leap_pressure": "gate",
    "leap_base": "gate",
    "permutation": "metric lost by shuffling",
    "shark": "size of the estimated change of the loss",
    "sfs": "gradient by a mask",
    "autofield": "keep logit",
    "lpfs": "size of the gate's parameter",
    "adafs": "mean weight",
    "optfs": "fraction of embeddings kept",
    "deep_lasso": "norm of the loss gradient",
    "stg": "mean of the stochastic gate",
    "variational_dropout": "keep probability",
    "lasso": "size of the coefficients",
    "forest": "fall of impurity",
    "xgboost": "gain",
    "gbdt": "gain",
    "random": "random score",
}
WORTH = "worth in nats"
GATE_AXIS = {
    "scale": {"domain": [-0.03, 1.03], "nice": False},
    "axis": {"values": [0, 0.25, 0.5, 0.75, 1], "format": ".2~f"},
}


def score_title(record: Mapping[str, Any]) -> str:
    """Return the meaning of the method's scores, for an axis."""
    if in_nats(record):
        return WORTH
    return SCORES.get(str(record.get("method")), "score")


def field_charts(record: Mapping[str, Any]) -> Charts:
    """Return the charts of all fields that have a score."""
    rows = _field_rows(record)
    if not rows:
        return Charts({}, {"fields": rows})
    specs = {"ranks": _ranks(record, len(rows)), **_by_size(record, rows)}
    return Charts(specs, {"fields": rows})


def field_pictures(record: Mapping[str, Any]) -> Charts:
    """Return the same charts for static pictures.

    They have legends in place of switches, and the names of the fields where these fit.
    """
    drawn = field_charts(record)
    rows = drawn.data["fields"]
    if not rows:
        return drawn
    *lines, points = drawn.specs["ranks"]["layer"]
    encoding = {**points["encoding"], "color": decision_colour(rows)}
    ranks = {**drawn.specs["ranks"], "layer": [*lines, {**points, "encoding": encoding}]}
    drawn |= Charts({"ranks": ranks})
    if len(rows) <= MOST_NAMED:
        drawn |= Charts({"ladder": _ladder(record, rows)})
    return drawn


def decision_colour(rows: Iterable[Mapping[str, Any]]) -> Spec:
    """Return the encoding of decisions by colour, for the decisions that occur."""
    found = {row["decision"] for row in rows}
    shown = {name: colour for name, colour in colours.DECISIONS.items() if name in found}
    scale = {"domain": list(shown), "range": list(shown.values())}
    return {"field": "decision", "type": "nominal", "scale": scale}


def _field_rows(record: Mapping[str, Any]) -> Rows:
    """Return the data of all fields with a score, best first."""
    with_prices = has_prices(record)
    nats = in_nats(record)
    rows = []
    for rank, field in enumerate(scored(record), start=1):
        width = field.get("width")
        sparsity = field.get("sparsity")
        active = None
        if sparsity is not None:
            active = max(1 - sparsity, FEWEST_ACTIVE)
        low, high = bounds(field, "worth_low", "worth_high") or (None, None)
        row = {
            "name": field["name"],
            "rank": rank,
            "score": shown_score(field, nats=nats),
            "low": low,
            "high": high,
            "width": width,
            "active": active,
            "divergence": field.get("divergence"),
            "price": field.get("price") if with_prices else None,
            "decision": decision(field),
            "by_width": colours.ramp(width, colours.WIDTHS),
            "by_sparsity": colours.ramp(sparsity, colours.SPARSITIES),
            "by_decision": colours.DECISIONS[decision(field)],
        }
        rows.append(row)
    return rows


def _score_axis(record: Mapping[str, Any]) -> Spec:
    own: Spec = {"scale": {"zero": True, "nice": True}}
    if has_gates(record):
        own = GATE_AXIS
    elif in_nats(record):
        own = _worth_axis(record)
    return number_axis("score", score_title(record), **own)


def _worth_axis(record: Mapping[str, Any]) -> Spec:
    """Return the scale and the ticks of an axis of worth."""
    axis = nats_axis(record)
    scale = {
        "type": "symlog",
        "constant": axis.constant,
        "domain": [axis.low, axis.high],
        "nice": False,
    }
    return {"scale": scale, "axis": {"values": list(axis.ticks), "format": "~g"}}


def _whiskers(across: Spec, score: Spec, direction: str) -> Spec:
    """Return the intervals of worth as lines.

    Args:
        across: The axis of the fields.
        score: The axis of worth.
        direction: The axis along which the lines run, "x" or "y".
    """
    other = "x" if direction == "y" else "y"
    encoding = {
        other: across,
        direction: {**score, "field": "low"},
        f"{direction}2": {"field": "high"},
        "opacity": fading(0.6),
    }
    return {
        "data": {"name": "fields"},
        "transform": [{"filter": "isNumber(datum.low) && isNumber(datum.high)"}],
        "mark": {"type": "rule", "color": "var(--ink)", "strokeWidth": 1},
        "encoding": encoding,
    }


def _limit_label(record: Mapping[str, Any]) -> str:
    """Return the words beside the line at the limit of the rule."""
    value = limit(record)
    if value is None:
        return ""
    if least_worth(record) is None:
        return f"threshold {value:g}"
    return f"rule: {numbers.worth(value)} nats"


def _ranks(record: Mapping[str, Any], fields: int) -> Spec:
    """Return every field as a point, best first."""
    size = 24
    if fields <= 60:
        size = 70
    elif fields <= 200:
        size = 40
    x = number_axis(
        "rank",
        "fields, best first",
        scale={"domain": [0, fields + 1], "nice": False},
        axis={"grid": False, "tickMinStep": 1, "format": ",d"},
    )
    y = _score_axis(record)
    points = {
        "data": {"name": "fields"},
        "transform": [{"calculate": "datum['by_' + colour]", "as": "fill"}],
        "mark": {
            "type": "point",
            "filled": True,
            "size": size,
            "tooltip": DETAILS,
            "cursor": "pointer",
        },
        "encoding": {
            "x": x,
            "y": y,
            "color": {"field": "fill", "type": "nominal", "scale": None},
            "opacity": fading(0.9),
        },
    }
    whiskers = [_whiskers(x, y, "y")] if in_nats(record) else []
    layers = [*line_at(limit(record), "y", _limit_label(record)), *whiskers, points]
    return framed(200, params=signals(colour="decision"), layer=layers)


def _ladder(record: Mapping[str, Any], rows: Rows) -> Spec:
    """Return a bar for each field, with its name."""
    # Names are looked up by rank, since one of them may be "constructor".
    names = {"grid": False, "labelLimit": 240, "labelExpr": "names[datum.value - 1]"}
    x = _score_axis(record)
    y = {"field": "rank", "type": "ordinal", "title": None, "axis": names}
    whiskers = []
    if in_nats(record):
        whiskers = [_whiskers(y, x, "x")]
    else:
        x = {**x, "scale": {"zero": True}}
    bars = {
        "data": {"name": "fields"},
        "mark": {"type": "bar", "cornerRadius": 2},
        "encoding": {
            "x": {**x, "stack": None},
            "x2": {"datum": 0},
            "y": y,
            "color": decision_colour(rows),
        },
    }
    params = signals(names=[row["name"] for row in rows])
    layers = [bars, *whiskers, *line_at(limit(record), "x")]
    return framed({"step": 17}, params=params, layer=layers)


def _by_size(record: Mapping[str, Any], rows: Rows) -> dict[str, Spec]:
    """Return the score by width, sparsity and divergence, and the price by divergence."""
    log = {"type": "log", "nice": False, "padding": 14}
    sparse = {**log, "reverse": True, "domain": [FEWEST_ACTIVE, 1]}
    width = log_axis("width", "width, in dimensions", {**log, "base": 2}, ",d")
    active = log_axis("active", "rows with a rarer value", sparse, ".2~%")
    divergence = log_axis("divergence", "divergence", log, ".3~g")
    price = log_axis("price", "price of an open gate", log, ".3~g")
    score = _score_axis(record)
    at = limit(record)
    charts = {
        "width": (width, score, at),
        "sparsity": (active, score, at),
        "divergence": (divergence, score, at),
        "price": (divergence, price, None),
    }
    specs = {}
    for name, (x, y, line) in charts.items():
        logarithmic = [axis["field"] for axis in (x, y) if axis is not score]
        if _count_positive(rows, logarithmic) >= 2:
            specs[name] = _scatter(rows, x, y, logarithmic, line)
    return specs


def _count_positive(rows: Rows, keys: Iterable[str]) -> int:
    """Return how many rows have a positive number at each of these keys."""
    return sum(all(is_number(row[key]) and row[key] > 0 for key in keys) for row in rows)


def _scatter(rows: Rows, x: Spec, y: Spec, positive: list[str], line: float | None) -> Spec:
    """Return every field as a point, of those with positive numbers on the logarithmic axes."""
    drawable = [f"isNumber(datum.{key}) && datum.{key} > 0" for key in positive]
    points = {
        "data": {"name": "fields"},
        "transform": [{"filter": " && ".join(drawable)}],
        "mark": {
            "type": "point",
            "size": 45,
            "strokeWidth": 1.8,
            "tooltip": DETAILS,
            "cursor": "pointer",
        },
        "encoding": {
            "x": x,
            "y": y,
            "color": decision_colour(rows),
            "opacity": fading(0.85 if len(rows) <= 100 else 0.55),
        },
    }
    return framed(250, params=signals(), layer=[*line_at(line, "y"), points])
