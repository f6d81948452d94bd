"""The data of the page's script: fields with their values and texts, axis, order and curve."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from .._common.checks import is_number
from . import colours, numbers
from .charts.outcome import curve_points
from .charts.path import FEWEST_POINTS, path_metric, path_points
from .nats import nats_axis
from .planner import budget
from .record import (
    bounds,
    decision,
    dig,
    has_gates,
    has_prices,
    in_nats,
    is_masked,
    limit,
    metric_named,
    scored,
    shown_score,
)

DECISIONS = {"kept": "kept", "protected": "kept, protected", "dropped": "dropped"}
STEPS = (1, 2, 2.5, 5, 10, 20)  # of round numbers, times a power of ten


class Column(NamedTuple):
    """A column of the table of fields.

    Attributes:
        key: The key in a field's record.
        title: The heading.
        write: Returns the text of a number; None if the column has text.
        interval: The keys of the ends of its interval, which is shown beside it; None without one.
    """

    key: str
    title: str
    write: Callable[[Any], str] | None = None
    interval: tuple[str, str] | None = None


COLUMNS = (
    Column("name", "Field"),
    Column("decision", "Decision"),
    Column("worth", "Worth in nats", numbers.worth, ("worth_low", "worth_high")),
    Column("score", "Score", numbers.score),
    Column("kept_in", "Kept in", numbers.count),
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
    write = _amounts(record)
    nats = in_nats(record)
    places = {field["name"]: place for place, field in enumerate(record["fields"])}
    removal = dig(record, "curve", "order") or []
    metric = metric_named(record, str(dig(record, "curve", "metric") or "metric"))
    return {
        "fields": [_field(field, columns, write, nats=nats) for field in record["fields"]],
        "columns": [
            {"key": column.key, "title": column.title, "number": column.write is not None}
            for column in columns
        ],
        "sorted": "worth" if nats and is_known(record, "worth") else "score",
        "order": _order(record),
        "axis": axis_of(record),
        "budget": budget(record),
        "method": str(record.get("method") or "leap"),
        "metric": metric.title,
        "higherIsBetter": metric.higher_is_better,
        "curve": [point for point in curve_points(record) if is_number(point["fields"])],
        "removal": [places[name] for name in removal if name in places],
        "path": _path(record, places),
    }


def _path(record: Mapping[str, Any], places: Mapping[str, int]) -> dict[str, Any] | None:
    """Return the points of the path for the planner; None where the path is not drawn.

    Each point has the places of the fields that closed since the point before: together they are
    far shorter than all lists of kept fields.
    """
    points = []
    before = set(places)
    for point in path_points(record):
        kept = set(point["kept"])
        text = numbers.metric_interval(point["metric"], bounds(point, "low", "high"))
        closed = sorted(places[name] for name in before - kept)
        points.append({"closed": closed, "dims": point.get("dims"), "text": text})
        before &= kept
    if len(points) < FEWEST_POINTS:
        return None
    unadapted = ", without adaptation" if is_masked(record) else ""
    return {"metric": path_metric(record), "unadapted": unadapted, "points": points}


def is_known(record: Mapping[str, Any], key: str) -> bool:
    """Return whether any field of a record has a value at a key."""
    return any(field.get(key) is not None for field in record["fields"])


def columns_of(record: Mapping[str, Any]) -> list[Column]:
    """Return the columns that the record has values for."""
    hidden = [] if has_prices(record) else ["price"]
    if _score_is_worth(record):
        hidden.append("score")
    write = _scores(record)
    columns = []
    for column in COLUMNS:
        if column.key == "score":
            column = column._replace(write=write)
        if column.key == "kept_in":
            column = column._replace(write=partial(_of_replicas, record))
        known = column.key in ("name", "decision") or is_known(record, column.key)
        if known and column.key not in hidden:
            columns.append(column)
    return columns


def _of_replicas(record: Mapping[str, Any], count: Any) -> str:
    """Return in how many replicas of all a field is kept, such as "8 of 8"."""
    replicas = max(field.get("replicas") or 0 for field in record["fields"])
    return f"{numbers.count(count)} of {numbers.count(replicas)}"


def _score_is_worth(record: Mapping[str, Any]) -> bool:
    """Return whether the scores say the same as the worth, so that one column is enough."""
    if not is_known(record, "worth"):
        return False
    return all(field.get("score") in (None, field.get("worth")) for field in record["fields"])


def _amounts(record: Mapping[str, Any]) -> Callable[[Any], str]:
    """Return how the numbers beside the bars of the ladder are written."""
    return numbers.worth if in_nats(record) else _scores(record)


def _scores(record: Mapping[str, Any]) -> Callable[[Any], str]:
    """Return how scores are written."""
    if has_gates(record):
        return numbers.gate
    return numbers.alike([field["score"] for field in scored(record)])


def _text(column: Column, values: Mapping[str, Any]) -> str | None:
    """Return the text of one cell; None if it is unknown."""
    value = values.get(column.key)
    if column.interval is not None:
        return numbers.worth_interval(value, bounds(values, *column.interval))
    return column.write(value) if column.write else value


def _field(
    field: Mapping[str, Any], columns: list[Column], write: Callable[[Any], str], *, nats: bool
) -> dict[str, Any]:
    """Return a field for the script.

    It has the values of the columns, to sort by, and their texts; "bar" is the length of its bar
    in the ladder, "whisker" the interval on it, and "amount" the text beside it, by `write`; with
    `nats` they are those of its worth.
    """
    made = decision(field)
    values = {**field, "decision": DECISIONS[made]}
    score = shown_score(field, nats=nats) if is_number(field.get("score")) else None
    return {
        "values": [values.get(column.key) for column in columns],
        "shown": [_text(column, values) for column in columns],
        "score": field.get("score"),
        "bar": score,
        "whisker": bounds(field, "worth_low", "worth_high") if nats else None,
        "amount": "" if score is None else write(score),
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
    """Return where the bars of the ladder begin and end, and round numbers between.

    Its "constant" is that of a logarithmic axis, see `nats_axis`, and None for a linear one.
    """
    if in_nats(record):
        return _axis_of_worth(record)
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
    return {
        "low": low,
        "high": high,
        "constant": None,
        "ticks": ticks,
        "limit": limit(record),
    }


def _axis_of_worth(record: Mapping[str, Any]) -> dict[str, Any]:
    axis = nats_axis(record)
    return {
        "low": axis.low,
        "high": axis.high,
        "constant": axis.constant,
        "ticks": [{"at": tick, "text": numbers.worth(tick)} for tick in axis.ticks],
        "limit": limit(record),
    }


def _round_step(size: float) -> float:
    """Return the next number of 1, 2, 2.5 or 5 times a power of ten.

    >>> _round_step(0.25), _round_step(0.3), _round_step(70)
    (0.25, 0.5, 100.0)
    """
    power = 10.0 ** len(str(int(size))) if size >= 1 else 1.0
    while power > size:
        power /= 10
    return next(power * step for step in STEPS if power * step >= size * (1 - 1e-9))
