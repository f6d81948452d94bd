"""The charts of the outcome: the metric against the dimensions removed, and its change."""

from collections.abc import Mapping
from typing import Any

from ..._common.checks import is_number
from ..record import decision, dig, headline_metric, metric_named, pair, scored
from .path import path_charts
from .pieces import (
    DETAILS,
    Charts,
    Rows,
    Spec,
    count_axis,
    framed,
    line_at,
    number_axis,
    signals,
)

MASKED = "fields masked in the searched model"
VERDICT_COLOURS = {
    "safe": "var(--good)",
    "not safe": "var(--bad)",
    "undecided": "var(--second)",
}


def outcome_charts(record: Mapping[str, Any]) -> Charts:
    """Return the charts of the outcome that the record has numbers for."""
    return _return(record) | _difference(record)


def curve_points(record: Mapping[str, Any]) -> Rows:
    """Return the curve by masking: dimensions removed and the metric, in order."""
    points = []
    for point in dig(record, "curve", "points") or []:
        if is_number(point.get("dims")) and is_number(point.get("value")):
            points.append({key: point.get(key) for key in ("dims", "fields", "value")})
    return sorted(points, key=lambda point: point["dims"])


def _trained_points(record: Mapping[str, Any]) -> Rows:
    """Return the metric of trained models, with the bounds of its interval where known."""
    points = []
    for point in dig(record, "curve", "retrained") or []:
        low, high = point.get("interval") or (None, None)
        values = {key: point.get(key) for key in ("dims", "value", "label")}
        points.append({**values, "low": low, "high": high})
    return points


def _return(record: Mapping[str, Any]) -> Charts:
    """Return the metric against the dimensions removed: by masking, and of trained models.

    There is no such chart beside the path, which shows the same or better with intervals.
    """
    points = curve_points(record)
    if len(points) < 2 or path_charts(record).specs:
        return Charts()
    trained = _trained_points(record)
    metric = metric_named(record, str(dig(record, "curve", "metric") or "metric"))
    x = count_axis("dims", "dimensions removed")
    y = number_axis("value", f"{metric.title} on validation rows", scale={"zero": False})
    names = [MASKED, *_trained_name(trained)]
    colour = {
        "type": "nominal",
        "scale": {"domain": names, "range": ["var(--accent)", "var(--second)"][: len(names)]},
        "legend": {"direction": "vertical"},
    }
    layers = [
        *_masked_layers(len(points), x, y, {"datum": MASKED, **colour}),
        *_trained_layers(trained, x, y, {"datum": names[-1], **colour}),
    ]
    if dig(record, "savings") is not None or scored(record):
        layers.append(_budget_line(x))
    removed = 0
    for field in record["fields"]:
        if decision(field) == "dropped":
            removed += field.get("width") or 0
    spec = framed(300, params=signals(removed=removed), layer=layers)
    return Charts({"return": spec}, {"curve": points, "retrained": trained})


def _has_intervals(rows: Rows) -> bool:
    return any(is_number(row["low"]) for row in rows)


def _trained_name(rows: Rows) -> list[str]:
    """Return the name of the trained models in the legend; none if there are none."""
    if not rows:
        return []
    return ["trained models, with interval" if _has_intervals(rows) else "trained models"]


def _masked_layers(points: int, x: Spec, y: Spec, colour: Spec) -> list[Spec]:
    data = {"name": "curve"}
    line = {
        "data": data,
        "mark": {"type": "line", "strokeWidth": 2, "interpolate": "linear"},
        "encoding": {"x": x, "y": y, "color": colour},
    }
    dot = {
        "type": "point",
        "filled": True,
        "size": 36 if points <= 30 else 14,
        "color": "var(--accent)",
        "tooltip": DETAILS,
    }
    return [line, {"data": data, "mark": dot, "encoding": {"x": x, "y": y}}]


def _trained_layers(rows: Rows, x: Spec, y: Spec, colour: Spec) -> list[Spec]:
    if not rows:
        return []
    data = {"name": "retrained"}
    diamond = {"type": "point", "filled": True, "shape": "diamond", "size": 120, "tooltip": DETAILS}
    points = {"data": data, "mark": diamond, "encoding": {"x": x, "y": y, "color": colour}}
    if not _has_intervals(rows):
        return [points]
    bars = {
        "data": data,
        "transform": [{"filter": "isNumber(datum.low)"}],
        "mark": {"type": "rule", "strokeWidth": 2, "color": "var(--second)"},
        "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
    }
    return [bars, points]


def _budget_line(x: Spec) -> Spec:
    """Return the line that follows the slider of the page."""
    return {
        "data": {"values": [{}]},
        "transform": [{"calculate": "removed", "as": "dims"}],
        "mark": {"type": "rule", "color": "var(--ink)", "strokeWidth": 1.5, "strokeDash": [5, 3]},
        "encoding": {"x": x},
    }


def _difference(record: Mapping[str, Any]) -> Charts:
    """Return the change of the metric with its interval, beside zero and the margin."""
    value = dig(record, "metrics", "difference", "value")
    bounds = pair(record, "metrics", "difference", "interval")
    if not is_number(value) or bounds is None:
        return Charts()
    low, high = bounds
    known = metric_named(record, headline_metric(record))
    margin = dig(record, "certificate", "margin")
    largest = dig(record, "certificate", "largest_loss")
    shown = [one for one in (value, low, high, margin, largest) if is_number(one)]
    reach = 1.25 * max(*map(abs, shown), 1e-4)
    x = number_axis(
        "value",
        f"change of the {known.title}, pruned minus full",
        scale={"domain": [-reach, reach], "nice": False},
        axis={"labelExpr": "datum.value === 0 ? '0' : format(datum.value, '+.4~f')"},
    )
    colour = VERDICT_COLOURS.get(dig(record, "certificate", "verdict"), "var(--accent)")
    data = {"name": "difference"}
    rule = {"type": "rule", "strokeWidth": 5, "strokeCap": "round", "color": colour}
    bar = {
        "data": data,
        "mark": {**rule, "opacity": 0.35},
        "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}},
    }
    dot = {"type": "point", "filled": True, "size": 130, "color": colour}
    layers = [*line_at(0, "x"), bar, {"data": data, "mark": dot, "encoding": {"x": x}}]
    row = {"value": value, "low": low, "high": high}
    if is_number(margin):
        layers = [*_margin_layers(-known.sign * margin, -known.sign * reach, x), *layers]
    if is_number(margin) and is_number(largest):
        row["bound"] = -known.sign * largest
        tick = {"type": "tick", "thickness": 3, "size": 26, "color": colour}
        layers.append({"data": data, "mark": tick, "encoding": {"x": {**x, "field": "bound"}}})
    return Charts(
        {"difference": framed(84 if margin is None else 110, layer=layers)}, {"difference": [row]}
    )


def _margin_layers(margin: float, end: float, x: Spec) -> list[Spec]:
    """Return the line of the margin with its name, and the area of losses beyond it.

    Args:
        margin: The place of the margin on the axis.
        end: The end of the axis on the side of losses.
        x: The axis.
    """
    data = {"values": [{"value": margin, "end": end}]}
    line = {"type": "rule", "color": "var(--bad)", "strokeWidth": 2}
    area = {"type": "rect", "color": "var(--bad)", "opacity": 0.09}
    name = {
        "type": "text",
        "text": "margin",
        "color": "var(--bad)",
        "fontSize": 12,
        "baseline": "top",
        "align": "right" if end < margin else "left",
        "dx": -6 if end < margin else 6,
        "y": 2,
    }
    return [
        {"data": data, "mark": area, "encoding": {"x": x, "x2": {"field": "end"}}},
        {"data": data, "mark": line, "encoding": {"x": x}},
        {"data": data, "mark": name, "encoding": {"x": x}},
    ]
