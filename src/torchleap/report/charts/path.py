"""The chart of the path: the metric of a model against the number of fields kept."""

from collections.abc import Mapping
from typing import Any

from ..._common.checks import is_number
from ..._common.text import plural
from .. import numbers
from ..record import bounds, decision, dig, is_masked, metric_named
from .pieces import DETAILS, Charts, Rows, Spec, framed, number_axis, signals

FEWEST_POINTS = 2  # of a path that can be drawn
MOST_NAMES = 3  # of fields in a tooltip
MARGIN = 0.05  # of the range of the metric, above and below it
BELOW = 1.0  # how far the close view reaches below the selection, in ranges of the points above
WORTH_A_SWITCH = 0.6  # of the complete range: a closer view than this has a switch
SIZES = {"best": 260, "selection": 110}  # so that both are seen where they are the same point
AXES = {
    "fields": "fields kept",
    "dims": "dimensions kept",
    "cost": "cost of the kept fields",
}


def path_charts(record: Mapping[str, Any]) -> Charts:
    """Return the chart of the path; none where the record has no path of at least two points."""
    points = path_points(record)
    if len(points) < FEWEST_POINTS:
        return Charts()
    rows = _rows(record, points)
    marks = _marks(record, rows)
    unadapted = ", without adaptation" if is_masked(record) else ""
    y = number_axis(
        "metric",
        f"{path_metric(record)} on validation rows{unadapted}",
        scale={"zero": False, "nice": False, **_limits(record, rows)},
    )
    layers = [
        _band(y),
        _line(y),
        _points(y, len(rows)),
        _planned(),
        _marked(y, marks),
        _hover(rows),
    ]
    params = signals(across="fields", complete=False, planned=_selected(record))
    spec = framed(320, params=params, layer=layers)
    return Charts({"path": spec}, {"path": rows, "path_marks": marks})


def path_points(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the points of the path that have fields and a metric, the most fields first."""
    found = []
    for point in dig(record, "path", "points") or []:
        if point and point.get("kept") and is_number(point.get("metric")):
            found.append(point)
    return found


def path_metric(record: Mapping[str, Any]) -> str:
    """Return the title of the metric of the path."""
    return metric_named(record, str(dig(record, "path", "metric") or "metric")).title


def path_axes(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the quantities that the chart can be drawn against, by key, with their titles."""
    points = path_points(record)
    found = {"fields": AXES["fields"]}
    for key in ("dims", "cost"):
        if all(is_number(point.get(key)) for point in points):
            found[key] = AXES[key]
    if all(point.get("cost") == point.get("dims") for point in points):
        found.pop("cost", None)  # the usual cost: one per dimension
    return found


def path_has_close_view(record: Mapping[str, Any]) -> bool:
    """Return whether the chart begins with the points near the best, rather than with all."""
    rows = _rows(record, path_points(record))
    low, high = _range(rows)
    near_low, near_high = _near(record, rows)
    return near_high - near_low < WORTH_A_SWITCH * (high - low)


def path_best(record: Mapping[str, Any]) -> int:
    """Return the place of the best metric among the points; of several, that of most fields."""
    metrics = [point["metric"] for point in path_points(record)]
    sign = metric_named(record, str(dig(record, "path", "metric"))).sign
    return max(range(len(metrics)), key=lambda place: sign * metrics[place])


def path_selected(record: Mapping[str, Any]) -> int:
    """Return the place of the point with the fields of the selection, or nearly as many."""
    kept = {field["name"] for field in record["fields"] if decision(field) != "dropped"}
    points = path_points(record)

    def distance(place: int) -> tuple[int, int]:
        open_fields = set(points[place]["kept"])
        return abs(len(open_fields) - len(kept)), len(open_fields ^ kept)

    return min(range(len(points)), key=distance)


def _selected(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the size of the selection on each axis."""
    kept = [field for field in record["fields"] if decision(field) != "dropped"]
    return {
        "fields": len(kept),
        "dims": sum(field.get("width") or 0 for field in kept),
        "cost": sum(field.get("cost") or 0 for field in kept),
    }


def _rows(record: Mapping[str, Any], points: list[Mapping[str, Any]]) -> Rows:
    """Return the data of the chart, one row per point."""
    within = _within_tolerance(record, points)
    title = path_metric(record)
    axes = path_axes(record)
    ends = "masked next" if is_masked(record) else "closes next"
    rows: Rows = []
    for place, point in enumerate(points):
        low, high = bounds(point, "low", "high") or (None, None)
        closing = points[place + 1].get("closed") if place + 1 < len(points) else None
        row = {
            "fields": len(point["kept"]),
            "dims": point.get("dims"),
            "cost": point.get("cost"),
            "metric": point["metric"],
            "low": low,
            "high": high,
            "within": within[place],
            "tip": _tip(point, title, axes, {ends: closing or []}),
        }
        rows.append(row)
    return rows


def _tip(
    point: Mapping[str, Any],
    metric: str,
    axes: Mapping[str, str],
    closing: Mapping[str, list[str]],
) -> dict[str, Any]:
    """Return the title and the lines of a tooltip.

    Args:
        point: The point.
        metric: The title of the metric.
        axes: The quantities that the chart has axes for.
        closing: The fields that the next point lacks, under the words for it.
    """
    lines = [(metric, numbers.metric_interval(point["metric"], bounds(point, "low", "high")))]
    if "dims" in axes:
        lines.append(("dimensions", numbers.count(point["dims"])))
    if "cost" in axes:
        lines.append(("cost", numbers.anything(point["cost"])))
    if is_number(point.get("price")):
        lines.append(("price", f"{numbers.worth(point['price'])} nats"))
    for words, names in closing.items():
        if names:
            lines.append((words, _first_names(names)))
    return {"title": plural(len(point["kept"]), "field"), "lines": lines}


def _first_names(names: list[str]) -> str:
    """Return the first names, and how many more there are.

    >>> _first_names(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    shown = ", ".join(names[:MOST_NAMES])
    more = len(names) - MOST_NAMES
    return f"{shown} and {more} more" if more > 0 else shown


def _within_tolerance(record: Mapping[str, Any], points: list[Mapping[str, Any]]) -> list[bool]:
    """Return for each point whether the rule could choose it by its metric.

    Without a tolerance this holds for all points, and always for those before the best one, since
    a rule looks for fewer fields.
    """
    tolerance = dig(record, "rule", "tolerance")
    if tolerance is None:
        return [True] * len(points)
    best = path_best(record)
    found = []
    for place, point in enumerate(points):
        accepted = tolerance if is_number(tolerance) else point.get("error")
        is_near = False
        if is_number(accepted) and is_number(point.get("behind")):
            is_near = point["behind"] <= accepted
        found.append(place <= best or is_near)
    return found


def _marks(record: Mapping[str, Any], rows: Rows) -> Rows:
    """Return the two points that the legend explains: the best one, and the selection."""
    kept = int(_selected(record)["fields"])
    places = {"best": path_best(record), "selection": path_selected(record)}
    marks = []
    for name, place in places.items():
        row = rows[place]
        count = kept if name == "selection" else row["fields"]
        metric = f"{path_metric(record)} {numbers.metric(row['metric'])}"
        if count == row["fields"]:
            text = f"{name}: {plural(count, 'field')}, {metric}"
        else:
            nearest = plural(row["fields"], "field")
            text = f"{name}: {plural(count, 'field')}; nearest point: {nearest}, {metric}"
        sizes = {key: row[key] for key in (*AXES, "metric")}
        marks.append({**sizes, "mark": text, "size": SIZES[name]})
    return marks


def _range(rows: Rows) -> tuple[float, float]:
    """Return the smallest and the largest metric, with the intervals."""
    values = [row[key] for row in rows for key in ("metric", "low", "high")]
    known = [value for value in values if value is not None]
    return min(known), max(known)


def _near(record: Mapping[str, Any], rows: Rows) -> tuple[float, float]:
    """Return the range of the metric around the points down to the best one and the selection."""
    last = max(path_best(record), path_selected(record), FEWEST_POINTS)
    low, high = _range(rows[: last + 1])
    reach = BELOW * (high - low)
    if metric_named(record, str(dig(record, "path", "metric"))).higher_is_better:
        return low - reach, high
    return low, high + reach


def _limits(record: Mapping[str, Any], rows: Rows) -> Spec:
    """Return the ends of the axis of the metric, which follow the switch of the page."""
    complete = _with_margin(*_range(rows))
    if not path_has_close_view(record):
        return {"domain": list(complete)}
    near = _with_margin(*_near(record, rows))
    return {
        "domainMin": {"expr": f"complete ? {complete[0]!r} : {near[0]!r}"},
        "domainMax": {"expr": f"complete ? {complete[1]!r} : {near[1]!r}"},
    }


def _with_margin(low: float, high: float) -> tuple[float, float]:
    margin = MARGIN * (high - low) or 1e-4
    return low - margin, high + margin


def _x() -> Spec:
    """Return the axis of the size, whose quantity the page switches."""
    titles = " : ".join(f"across === '{key}' ? '{title}'" for key, title in AXES.items())
    return number_axis(
        "x",
        None,
        scale={"zero": False, "nice": False, "padding": 12},
        axis={
            "title": {"expr": f"{titles} : ''"},
            "grid": False,
            "format": ",~r",
            "tickCount": 8,
            "tickMinStep": {"expr": "across === 'cost' ? 0 : 1"},
        },
    )


def _layer(mark: Spec, encoding: Spec, data: str = "path") -> Spec:
    """Return a layer over the quantity that was chosen for the x-axis."""
    return {
        "data": {"name": data},
        "transform": [{"calculate": "datum[across]", "as": "x"}],
        "mark": {"clip": True, **mark},
        "encoding": {"x": _x(), **encoding},
    }


def _band(y: Spec) -> Spec:
    layer = _layer(
        {"type": "area", "color": "var(--accent)", "opacity": 0.16},
        {"y": {**y, "field": "low"}, "y2": {"field": "high"}},
    )
    known = {"filter": "isNumber(datum.low) && isNumber(datum.high)"}
    return {**layer, "transform": [known, *layer["transform"]]}


def _line(y: Spec) -> Spec:
    return _layer({"type": "line", "strokeWidth": 2, "color": "var(--accent)"}, {"y": y})


def _points(y: Spec, count: int) -> Spec:
    """Return the points: filled within the tolerance of the rule, and hollow outside it."""
    fill = {
        "condition": {"test": "datum.within", "value": "var(--accent)"},
        "value": "var(--paper)",
    }
    mark = {
        "type": "point",
        "size": 40 if count <= 60 else 16,
        "stroke": "var(--accent)",
        "strokeWidth": 1.5,
    }
    return _layer(mark, {"y": y, "fill": fill})


def _planned() -> Spec:
    """Return the line that follows the slider of the page; it begins at the selection."""
    return {
        "data": {"values": [{}]},
        "transform": [{"calculate": "planned[across]", "as": "x"}],
        "mark": {"type": "rule", "color": "var(--ink)", "strokeWidth": 1.5, "strokeDash": [5, 3]},
        "encoding": {"x": _x()},
    }


def _marked(y: Spec, marks: Rows) -> Spec:
    names = [mark["mark"] for mark in marks]
    by_name: Spec = {"field": "mark", "type": "nominal"}
    encoding = {
        "y": y,
        "color": {
            **by_name,
            "scale": {"domain": names, "range": ["var(--ink)", "var(--second)"]},
            "legend": {"direction": "vertical"},
        },
        "shape": {**by_name, "scale": {"domain": names, "range": ["diamond", "circle"]}},
        "size": {"field": "size", "type": "quantitative", "scale": None},
    }
    return _layer({"type": "point", "filled": True, "opacity": 1}, encoding, "path_marks")


def _hover(rows: Rows) -> Spec:
    """Return invisible bars over the points, which are easier to point at."""
    width = max(4, min(30, 900 // len(rows)))
    return _layer({"type": "rule", "strokeWidth": width, "opacity": 0, "tooltip": DETAILS}, {})
