"""The charts of a benchmark: lines with their intervals as bands."""

from collections.abc import Mapping
from typing import Any

from ..._common.checks import is_number
from .pieces import DETAILS, Charts, Rows, Spec, framed, number_axis

# the colours of Okabe and Ito, which colour-blind readers can distinguish
HUES = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#8c8c8c",
    "#b3a000",
)
DASHES = ((1, 0), (7, 4), (2, 3))  # a ninth series has the first hue again, dashed
FEW_POINTS = 16  # of a line, so that each is worth a dot
PICTURE_WIDTH = 560

Curve = Mapping[str, Any]


def line_charts(record: Mapping[str, Any]) -> Charts:
    """Return a chart for each curve; the page has the titles and legends."""
    drawn = Charts()
    for name, curve in curves(record).items():
        drawn |= Charts({name: _chart(name, curve)}, {name: _rows(curve)})
    return drawn


def line_pictures(record: Mapping[str, Any]) -> Charts:
    """Return the same charts with titles and legends, for static pictures."""
    drawn = Charts()
    for name, curve in curves(record).items():
        drawn |= Charts({name: _labelled_chart(name, curve)}, {name: _rows(curve)})
    return drawn


def curves(record: Mapping[str, Any]) -> dict[str, Curve]:
    """Return the curves that have points, by the names of their charts."""
    named = {f"curve-{place}": curve for place, curve in enumerate(record.get("curves") or [])}
    return {name: curve for name, curve in named.items() if _rows(curve)}


def legend(curve: Curve) -> list[dict[str, Any]]:
    """Return the name, the hue and the dashes of each series."""
    found = []
    for place, name in enumerate(_series(curve)):
        hue = HUES[place % len(HUES)]
        dash = DASHES[place // len(HUES) % len(DASHES)]
        found.append({"text": name, "hue": hue, "dash": dash})
    return found


def has_band(curve: Curve) -> bool:
    """Return whether a point of a curve has an interval."""
    return any(is_number(row["low"]) and is_number(row["high"]) for row in _rows(curve))


def _rows(curve: Curve) -> Rows:
    """Return the points of all series, with None for bounds that are not given."""
    rows = []
    for series in curve.get("series") or []:
        for point in series.get("points") or []:
            values = (str(series.get("name")), *point, None, None)
            keys = ("series", "x", "y", "low", "high")
            rows.append(dict(zip(keys, values, strict=False)))
    return rows


def _series(curve: Curve) -> list[str]:
    return list(dict.fromkeys(row["series"] for row in _rows(curve)))


def _chart(
    name: str, curve: Curve, *, height: int = 320, shown: Spec | None = None, **more: Any
) -> Spec:
    """Return the chart of a curve.

    Args:
        name: The name of its data.
        curve: The curve, as in the record.
        height: The height in pixels.
        shown: The legend as Vega-Lite takes it; None leaves it to the page.
        more: Other parts of the specification, such as `title`.
    """
    x = number_axis("x", curve.get("x"), axis={"grid": False}, scale={"zero": False})
    y = number_axis("y", curve.get("y"), scale={"zero": False})
    series = legend(curve)
    names = [one["text"] for one in series]
    by_series = {"field": "series", "type": "nominal", "sort": None, "legend": shown}
    colour = {**by_series, "scale": {"domain": names, "range": [one["hue"] for one in series]}}
    dash = {**by_series, "scale": {"domain": names, "range": [one["dash"] for one in series]}}
    few = len(_rows(curve)) <= FEW_POINTS * len(series)
    line = {
        "mark": {"type": "line", "strokeWidth": 2, "tooltip": None},
        "encoding": {"x": x, "y": y, "color": colour, "strokeDash": dash},
    }
    dot = {  # dots that are invisible can still be pointed at
        "type": "point",
        "filled": True,
        "size": 30 if few else 90,
        "opacity": int(few),
        "tooltip": DETAILS,
    }
    layers = [line, {"mark": dot, "encoding": {"x": x, "y": y, "color": colour}}]
    if has_band(curve):
        layers.insert(0, _band(x, y, colour))
    return framed(height, data={"name": name}, layer=layers, **more)


def _band(x: Spec, y: Spec, colour: Spec) -> Spec:
    low = {**y, "field": "low"}
    return {
        "transform": [{"filter": "isNumber(datum.low) && isNumber(datum.high)"}],
        "mark": {"type": "area", "opacity": 0.13, "tooltip": None},
        "encoding": {"x": x, "y": low, "y2": {"field": "high"}, "color": colour},
    }


def _labelled_chart(name: str, curve: Curve) -> Spec:
    names = _series(curve)
    columns = _columns_of_legend(names)
    shown = {
        "symbolType": "stroke",
        "symbolSize": 400,
        "symbolOpacity": 1,
        "columns": columns,
        "labelLimit": PICTURE_WIDTH - 60,
    }
    title = {
        "text": curve.get("title") or "",
        "anchor": "start",
        "fontSize": 14,
        "color": "var(--ink)",
        "limit": PICTURE_WIDTH,
    }
    lines_of_legend = -(-len(names) // columns)
    return _chart(name, curve, height=340 + 18 * lines_of_legend, shown=shown, title=title)


def _columns_of_legend(names: list[str]) -> int:
    """Return the most columns of a legend that fit into a picture."""
    widths = [50 + sum(map(_width_of, name)) for name in names]
    for columns in range(len(names), 1, -1):
        widest = [max(widths[column::columns]) for column in range(columns)]
        if sum(widest) <= PICTURE_WIDTH:
            return columns
    return 1


def _width_of(letter: str) -> int:
    """Return about how many pixels a letter takes."""
    return 7 if letter.isascii() else 12
