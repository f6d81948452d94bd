"""The data of the page's script: fields with their values and texts, axis, order and curve."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .._common.checks import is_number
from . import colours, numbers
from .charts.outcome import curve_points
from .planner import budget
from .record import decision, dig, has_gates, has_prices, metric_named, scored, threshold

DECISIONS = {"kept": "kept", "protected": "kept, protected", "dropped": "dropped"}
STEPS = (1, 2, 2.5, 5, 10, 20)  # of round numbers, times a power of ten


class Column(NamedTuple):
    """A column of the table of fields.

    Attributes:
        key: The key in a field's record.
        title: The heading.
        write: Returns the text of a number; None if the column has text.
    """

    key: str
    title: str
    write: Callable[[Any], str] | None = None


COLUMNS = (
    Column("name", "Field"),
    Column("decision", "Decision"),
    Column("score", "Score", numbers.score),
    Column("width", "Width", numbers.count),
    Column("sparsity", "Sparsity", numbers.percent),
    Column("kind", "Kind"),
    Column("group", "Group"),
    Column("role", "True role"),
    Column("divergence", "Divergence", numbers.score),
    Column("price", "Price", numbers.score),
    Column("cost", "Cost", numbers.anything),
    Column("missing", "Missing", numbers.percent),
    Column("ids", "Ids", numbers.count),
    Column("bytes", "Memory", numbers.size),
)


def script_data(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data that the page's script works with."""
    columns = columns_of(record)
    places = {field["name"]: place for place, field in enumerate(record["fields"])}
    removal = dig(record, "curve", "order") or []
    metric = metric_named(record, str(dig(record, "curve", "metric") or "metric"))
    return {
        "fields": [_field(field, columns) for field in record["fields"]],
        "columns": [
            {"key": column.key, "title": column.title, "number": column.write is not None}
            for column in columns
        ],
        "order": _order(record),
        "axis": axis_of(record),
        "budget": budget(record),
        "method": str(record.get("method") or "leap"),
        "metric": metric.title,
        "higherIsBetter": metric.higher_is_better,
        "curve": [point for point in curve_points(record) if is_number(point["fields"])],
        "removal": [places[name] for name in removal if name in places],
    }


def is_known(record: Mapping[str, Any], key: str) -> bool:
    """Return whether any field of a record has a value at a key."""
    return any(field.get(key) is not None for field in record["fields"])


def columns_of(record: Mapping[str, Any]) -> list[Column]:
    """Return the columns that the record has values for."""
    hidden = () if has_prices(record) else ("price",)
    write: Callable[[Any], str] = numbers.gate
    if not has_gates(record):
        write = numbers.alike([field["score"] for field in scored(record)])
    columns = []
    for column in COLUMNS:
        if column.key == "score":
            column = column._replace(write=write)
        known = column.key in ("name", "decision") or is_known(record, column.key)
        if known and column.key not in hidden:
            columns.append(column)
    return columns


def _field(field: Mapping[str, Any], columns: list[Column]) -> dict[str, Any]:
    """Return a field with its values, to sort by, and their texts, in the order of the columns."""
    made = decision(field)
    values = {**field, "decision": DECISIONS[made]}
    shown = []
    for column in columns:
        value = values.get(column.key)
        shown.append(column.write(value) if column.write else value)
    return {
        "values": [values.get(column.key) for column in columns],
        "shown": shown,
        "decision": made,
        "protected": bool(field.get("protected")),
        "group": field.get("group"),
        "cost": field.get("cost") if is_number(field.get("cost")) else field.get("width"),
        "colours": {
            "width": colours.ramp(field.get("width"), colours.WIDTHS),
            "sparsity": colours.ramp(field.get("sparsity"), colours.SPARSITIES),
            "decision": colours.DECISIONS[made],
        },
    }


def _order(record: Mapping[str, Any]) -> list[int]:
    """Return the places of the fields, best score first, those without a score last."""
    places = {id(field): place for place, field in enumerate(record["fields"])}
    ranked = [places.pop(id(field)) for field in scored(record)]
    return [*ranked, *places.values()]


def axis_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return where the bars of the ladder begin and end, and round numbers between."""
    scores = [float(field["score"]) for field in scored(record)]
    low = min(0.0, *scores, 0.0)
    high = max(0.0, *scores, 0.0)
    if has_gates(record):
        low, high = 0.0, 1.0
    elif high == low:
        high = low + 1.0
    step = _round_step((high - low) / 4)
    ticks = []
    for place in range(round(low / step) - 1, round(high / step) + 2):
        tick = place * step
        if low <= tick <= high * (1 + 1e-9):
            ticks.append({"at": tick, "text": f"{tick:.6g}".replace("-", numbers.MINUS)})
    return {"low": low, "high": high, "ticks": ticks, "threshold": threshold(record)}


def _round_step(size: float) -> float:
    """Return the next number of 1, 2, 2.5 or 5 times a power of ten.

    >>> _round_step(0.25), _round_step(0.3), _round_step(70)
    (0.25, 0.5, 100.0)
    """
    power = 10.0 ** len(str(int(size))) if size >= 1 else 1.0
    while power > size:
        power /= 10
    return next(power * step for step in STEPS if power * step >= size * (1 - 1e-9))
