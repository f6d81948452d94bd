"""The page: a record in, one standalone HTML file out; the template, its style sheet and its script lie beside this file."""

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from .._common.checks import is_number
from .._common.errors import FieldError, SelectionError, TorchleapError
from ..fields import Field, Fields
from ..selection import rank
from . import charts, colours, numbers, verdict
from .bench import bench_charts, bench_context
from .measures import rank_correlation
from .pieces import FONT, Charts
from .record import decision, dig, findings, has_gates, has_prices, scored, threshold

HERE = Path(__file__).parent
DECISIONS = {"kept": "kept", "protected": "kept, protected", "dropped": "dropped"}

Column = tuple[
    str, str, Callable[[Any], str] | None
]  # key in a field, heading, how its value is written; None is text
COLUMNS: tuple[Column, ...] = (
    ("name", "Field", None),
    ("fate", "Decision", None),
    ("score", "Score", numbers.score),
    ("width", "Width", numbers.count),
    ("sparsity", "Sparsity", numbers.share),
    ("kind", "Kind", None),
    ("group", "Group", None),
    ("role", "Known truth", None),
    ("divergence", "Divergence", numbers.score),
    ("price", "Price", numbers.score),
    ("cost", "Cost", numbers.anything),
    ("missing", "Missing", numbers.share),
    ("ids", "Ids", numbers.count),
    ("bytes", "Memory", numbers.size),
)


def render(record: Mapping[str, Any]) -> str:
    """The whole page."""
    jinja2 = needed("jinja2")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    if record["kind"] == "bench":
        drawn, context = bench_charts(record), bench_context(record)
    else:
        drawn = charts.select_charts(record)
        context = _select(record, drawn)
    page: str = environment.get_template("page.html").render(
        record=record,
        charts=drawn.specs,
        numbers=numbers,
        font=FONT,
        settings=_settings(record),
        light=colours.style_sheet(colours.LIGHT),
        dark=colours.style_sheet(colours.DARK),
        style=(HERE / "page.css").read_text(encoding="utf-8"),
        script=(HERE / "page.js").read_text(encoding="utf-8"),
        library=_library(),
        data=embedded({"specs": drawn.specs, "data": drawn.data, **context.pop("script")}),
        **context,
    )
    return page


def embedded(value: Any) -> str:
    r"""JSON that can stand inside a script element, whatever its strings hold.

    >>> embedded("</script>")
    '"\\u003c/script\\u003e"'
    """
    text = json.dumps(
        value, allow_nan=False, separators=(",", ":")
    )  # ascii: U+2028 and U+2029 are escaped already
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def needed(name: str) -> Any:
    """A package of the extra; or the line that installs it."""
    try:
        return __import__(name)
    except ImportError as error:
        raise TorchleapError(
            f"A report needs the package {name}. Install it: pip install 'torchleap[report]'."
        ) from error


@cache
def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script."""
    bundle: str = needed("vl_convert").javascript_bundle(snippet="window.vegaEmbed=vegaEmbed;")
    return bundle.replace("</script", "<\\/script")


def _select(record: Mapping[str, Any], drawn: Charts) -> dict[str, Any]:
    columns = _columns(record)
    names = {f["name"]: place for place, f in enumerate(record["fields"])}
    return {
        "headline": verdict.headline(record),
        "certainty": _unbroken(verdict.advice(record) or verdict.certainty(record)),
        "findings": [
            found | {"parts": _parts(found.get("cure", ""))} for found in findings(record)
        ],
        "savings": "" if dig(record, "undecided") else _unbroken(verdict.savings(record)),
        "outcome": verdict.outcome(record),
        "tiles": verdict.tiles(record),
        "facts": _facts(record),
        "word": charts.score_word(record),
        "gated": has_gates(record),
        "threshold": threshold(record),
        "legends": _legends(record),
        "correlations": _correlations(record),
        "adaptive": _price_follows_divergence(record),
        "roles": _roles(record),
        "metrics": _metrics(record),
        "cuts": sorted(record.get("cuts") or [], key=_weight_of_cut),
        "sections": _sections(record, drawn),
        "script": {
            "fields": [_field(f, columns) for f in record["fields"]],
            "columns": [
                {"key": key, "title": title, "number": write is not None}
                for key, title, write in columns
            ],
            "order": _order(record),
            "axis": _axis(record),
            "budget": _budget(record),
            "method": str(record.get("method") or "leap"),
            "metric": charts.metric_word(dig(record, "curve", "metric") or "metric"),
            "curve": [point for point in charts.curve_points(record) if is_number(point["fields"])],
            "removal": [
                names[name] for name in dig(record, "curve", "order") or [] if name in names
            ],
        },
    }


def _parts(text: str) -> list[tuple[str, str]]:
    """Split a text into plain words, each with the option behind them, which no line may break.

    >>> _parts("Leave it out: --drop 'a b'.")
    [('Leave it out: ', "--drop 'a b'"), ('.', '')]
    """
    found = re.split(r"(--[a-z-]+ (?:'[^']*'|[^\s,;]*[^\s,;.]))", text)
    return list(zip(found[::2], [*found[1::2], ""], strict=True))


def _unbroken(text: str) -> str:
    """No line ends between a number and its per cent."""
    return text.replace(" %", "\u00a0%")


def _columns(record: Mapping[str, Any]) -> list[Column]:
    """The columns that the record knows something about."""
    write = (
        numbers.gate if has_gates(record) else numbers.alike([f["score"] for f in scored(record)])
    )
    known = [
        column for column in COLUMNS if column[0] in ("name", "fate") or _known(record, column[0])
    ]
    return [
        (key, title, write if key == "score" else own)
        for key, title, own in known
        if key != "price" or has_prices(record)
    ]


def _known(record: Mapping[str, Any], key: str) -> bool:
    return any(f.get(key) is not None for f in record["fields"])


def _field(f: Mapping[str, Any], columns: list[Column]) -> dict[str, Any]:
    """A field for the script: its values to sort by, and what is shown."""
    fate = decision(f)
    values = {**f, "fate": DECISIONS[fate]}
    return {
        "values": [values.get(key) for key, _, _ in columns],
        "shown": [
            write(values.get(key)) if write else values.get(key) for key, _, write in columns
        ],
        "decision": fate,
        "protected": bool(f.get("protected")),
        "group": f.get("group"),
        "cost": f.get("cost") if is_number(f.get("cost")) else f.get("width"),
        "colours": {
            "width": colours.ramp(f.get("width"), colours.WIDTHS),
            "sparsity": colours.ramp(f.get("sparsity"), colours.SPARSITIES),
            "decision": colours.DECISIONS[fate],
        },
    }


def _order(record: Mapping[str, Any]) -> list[int]:
    """The places of the fields, best score first, those without a score last."""
    place = {id(f): index for index, f in enumerate(record["fields"])}
    ranked = [place[id(f)] for f in scored(record)]
    return ranked + [index for index in range(len(place)) if index not in set(ranked)]


def _axis(record: Mapping[str, Any]) -> dict[str, Any]:
    """Where the bars of the ladder begin and end, and round numbers between."""
    scores = [float(f["score"]) for f in scored(record)] or [0.0]
    low, high = (0.0, 1.0) if has_gates(record) else (min(0.0, *scores), max(0.0, *scores))
    high = high if high > low else low + 1.0
    step = _round_step((high - low) / 4)
    ticks = [place * step for place in range(round(low / step) - 1, round(high / step) + 2)]
    shown = [
        {"at": tick, "text": f"{tick:.6g}".replace("-", numbers.MINUS)}
        for tick in ticks
        if low <= tick <= high * (1 + 1e-9)
    ]
    return {"low": low, "high": high, "ticks": shown, "threshold": threshold(record)}


def _round_step(size: float) -> float:
    """The next step of 1, 2, 2.5 or 5 times a power of ten.

    >>> _round_step(0.25), _round_step(0.3), _round_step(70)
    (0.25, 0.5, 100.0)
    """
    power = 10.0 ** len(str(int(size))) if size >= 1 else 1.0
    while power > size:
        power /= 10
    return next(
        power * factor for factor in (1, 2, 2.5, 5, 10, 20) if power * factor >= size * (1 - 1e-9)
    )


def _budget(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The teams of fields that are kept or dropped together, in the order in which a budget takes them."""
    keys = ("name", "width", "cost", "protected", "group")
    try:
        fields = Fields(
            [
                Field(**{key: f[key] for key in keys if f.get(key) is not None})
                for f in record["fields"]
            ]
        )
        scores = {f["name"]: f.get("score") for f in record["fields"]}
        if not all(map(is_number, scores.values())):
            return None
        teams = rank(fields, scores)
    except (FieldError, SelectionError, TypeError):
        return None
    least = sum(team.width for team in teams if team.protected) or min(team.width for team in teams)
    kept = sum(f["width"] for f in record["fields"] if decision(f) != "dropped")
    shown = [
        {"members": [fields.index(name) for name in team.names], "width": team.width}
        for team in teams
    ]
    return {
        "teams": shown,
        "least": least,
        "most": fields.dims,
        "start": min(max(kept, least), fields.dims),
    }


def _facts(record: Mapping[str, Any]) -> list[str]:
    """One line on what was done to what."""
    rows = dig(record, "task", "rows") or {}
    listed = ", ".join(f"{numbers.count(n)} {part}" for part, n in rows.items() if is_number(n))
    created = str(record.get("created") or "").replace("T", " ")[:16]
    source = dig(record, "task", "source")
    return [
        fact
        for fact in (
            f"Method {record['method']}" if record.get("method") else "",
            f"model {record['model']}" if record.get("model") else "",
            f"label {dig(record, 'task', 'label')}" if dig(record, "task", "label") else "",
            f"{listed} rows" if listed else "",
            _positives(record),
            Path(source).name if source and " " not in source else source,
            created,
        )
        if fact
    ]


def _positives(record: Mapping[str, Any]) -> str:
    """Say how many of all rows are positive."""
    counts, rows = dig(record, "task", "positives") or {}, dig(record, "task", "rows") or {}
    if not counts or not all(
        is_number(found.get(part)) for found in (counts, rows) for part in counts
    ):
        return ""
    positives, total = sum(counts.values()), sum(rows[part] for part in counts)
    return f"{numbers.count(positives)} positive ({numbers.share(positives / total) if total else numbers.UNKNOWN})"


def _legends(record: Mapping[str, Any]) -> dict[str, list[dict[str, str]]]:
    found = {decision(f) for f in record["fields"]}
    legends = {}
    if _known(record, "sparsity"):
        legends["sparsity"] = colours.legend(colours.SPARSITIES)
    if _known(record, "width"):
        legends["width"] = colours.legend(colours.WIDTHS)
    legends["decision"] = [
        {"colour": colour, "text": DECISIONS[name]}
        for name, colour in colours.DECISIONS.items()
        if name in found
    ]
    return legends


def _correlations(record: Mapping[str, Any]) -> dict[str, str]:
    """How the score goes with what should not decide it."""
    found = {}
    for key in ("width", "sparsity", "divergence"):
        known = [f for f in scored(record) if is_number(f.get(key))]
        value = (
            rank_correlation([f["score"] for f in known], [f[key] for f in known])
            if known
            else None
        )
        if value is not None:
            found[key] = f"{value:+.2f}".replace("-", numbers.MINUS)
    return found


def _weight_of_cut(cut: Mapping[str, Any]) -> float:
    """The largest cuts come first."""
    return -abs(cut["parameters"]) if is_number(cut.get("parameters")) else 0.0


def _price_follows_divergence(record: Mapping[str, Any]) -> bool:
    """Whether fields pay by how far they move, rather than all the same."""
    known = [
        f for f in scored(record) if is_number(f.get("price")) and is_number(f.get("divergence"))
    ]
    value = (
        rank_correlation([f["price"] for f in known], [f["divergence"] for f in known])
        if known
        else None
    )
    return value is not None and value > 0.9


def _roles(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Kept and dropped by known truth, where it is known."""
    if not _known(record, "role"):
        return []
    roles = sorted({str(f.get("role") or "unknown") for f in record["fields"]})
    rows = []
    for role in roles:
        members = [f for f in record["fields"] if str(f.get("role") or "unknown") == role]
        dropped = sum(decision(f) == "dropped" for f in members)
        rows.append(
            {"role": role.replace("_", " "), "kept": len(members) - dropped, "dropped": dropped}
        )
    return rows


def _metrics(record: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """All metrics before and after."""
    before, after = dig(record, "metrics", "before") or {}, dig(record, "metrics", "after") or {}
    both = [name for name in before if is_number(before[name]) and is_number(after.get(name))]
    return [
        (
            charts.metric_word(name),
            numbers.metric(before[name]),
            numbers.metric(after[name]),
            numbers.signed(after[name] - before[name]),
        )
        for name in both
    ]


def _settings(record: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Everything that was set, in groups."""
    run = {
        "method": record.get("method"),
        "model": record.get("model"),
        "seed": record.get("seed"),
        "rule": record.get("rule"),
        "machine": record.get("machine"),
    }
    task = {**(record.get("task") or {})}
    for key, word in (("rows", "rows"), ("positives", "positives")):
        task.update(
            {f"{part} {word}": numbers.count(n) for part, n in (task.pop(key, None) or {}).items()}
        )
    groups: dict[str, Mapping[str, Any]] = {
        "Run": {key: value for key, value in run.items() if value is not None},
        "Data": {key: value for key, value in task.items() if value is not None},
        "Benchmark" if record["kind"] == "bench" else "Method": record.get("settings") or {},
        "Model": record.get("model_settings") or {},
        "Training": record.get("training") or {},
        "Versions": record.get("versions") or {},
    }
    tables = [
        (title, [(key, numbers.anything(value)) for key, value in pairs.items()])
        for title, pairs in groups.items()
        if pairs
    ]
    times = [(key, numbers.seconds(value)) for key, value in (record.get("seconds") or {}).items()]
    return [*tables, ("Time", times)] if times else tables


def _sections(record: Mapping[str, Any], drawn: Charts) -> list[tuple[str, str]]:
    """The anchors and headings that the page has."""
    found = [("verdict", "Verdict"), ("gates", "Gates" if has_gates(record) else "Scores")]
    if {"trajectories", "valid_auc", "valid_gauc", "train_loss"} & set(drawn.specs):
        found.append(("training", "Training"))
    if {"width", "sparsity", "divergence"} & set(drawn.specs):
        found.append(("size", "Width and sparsity"))
    if "return" in drawn.specs or _budget(record):
        found.append(("budget", "Budget"))
    return [*found, ("fields", "Fields"), ("settings", "Settings")]
