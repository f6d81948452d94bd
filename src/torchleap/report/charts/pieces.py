"""The parts that charts share: the frame, its fonts and greys, lines across it, and fading."""

from dataclasses import dataclass, field
from typing import Any

from .. import colours

Spec = dict[str, Any]
Rows = list[dict[str, Any]]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
# after the system's own font, the Chinese, Japanese and Korean fonts that systems come with
FONT = (
    "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', 'Noto Sans', "
    "'PingFang SC', 'Hiragino Sans', 'Apple SD Gothic Neo', 'Microsoft YaHei', 'Yu Gothic', "
    "'Malgun Gothic', 'Noto Sans CJK SC', 'Noto Sans SC', 'WenQuanYi Micro Hei', sans-serif"
)
QUIET = {
    "labelColor": "var(--muted)",
    "titleColor": "var(--muted)",
    "labelFont": FONT,
    "titleFont": FONT,
    "labelFontSize": 12,
}
AXIS = {
    **QUIET,
    "gridColor": "var(--line)",
    "tickColor": "var(--line)",
    "domain": False,
    "titleFontWeight": "normal",
    "titleFontSize": 12,
    "titlePadding": 8,
    "tickCount": 5,
    "labelOverlap": True,
    "labelFlush": False,
}
LEGEND = {
    **QUIET,
    "orient": "top",
    "title": None,
    "symbolStrokeWidth": 2,
    "labelLimit": 0,
    "offset": 10,
}
DETAILS = {"content": "data"}  # show all values of a point when the mouse is over it


@dataclass(frozen=True)
class Charts:
    """Specifications by name, in the order of the page, and the data that they refer to by name."""

    specs: dict[str, Spec] = field(default_factory=dict)
    data: dict[str, Rows] = field(default_factory=dict)

    def __or__(self, other: "Charts") -> "Charts":
        """Return the charts of both, those of the other one last."""
        return Charts(self.specs | other.specs, self.data | other.data)

    def picture(self, name: str, width: int = 560) -> Spec:
        """Return one chart with its data, in fixed colours and size, for a static picture."""
        spec = {**self.specs[name], "background": "white", "padding": 12}
        if spec.get("width") == "container":
            spec["width"] = width
        parts = [part.get("data", {}) for part in (spec, *spec.get("layer", []))]
        used = {data["name"] for data in parts if "name" in data}
        spec["datasets"] = {key: self.data[key] for key in used}
        filled: Spec = colours.in_print(spec)
        return filled


def framed(height: int | Spec, **parts: Any) -> Spec:
    """Return a chart of these parts in the frame that all charts share.

    Args:
        height: The height in pixels, or the height of a step as Vega-Lite takes it.
        parts: The other parts of the specification, such as `layer`.
    """
    return {
        "$schema": SCHEMA,
        "width": "container",
        "height": height,
        "autosize": {"type": "fit", "contains": "padding"},
        "background": "transparent",
        "config": {
            "font": FONT,
            "point": {"opacity": 1},
            "view": {"stroke": None},
            "axis": AXIS,
            "legend": LEGEND,
        },
        **parts,
    }


def signals(**values: Any) -> list[dict[str, Any]]:
    """Return the signals that the page can set in a chart: the fields to highlight, and others."""
    return [{"name": name, "value": value} for name, value in {"marked": [], **values}.items()]


def fading(usual: float) -> Spec:
    """Return an opacity that fades all other fields while some are highlighted."""
    faded = {
        "test": "length(marked) > 0 && indexof(marked, datum.name) < 0",
        "value": min(0.1, usual / 2),
    }
    highlighted = {"test": "length(marked) > 0", "value": 1}
    return {"condition": [faded, highlighted], "value": usual}


def line_at(value: float | None, axis: str, text: str = "") -> list[Spec]:
    """Return a dashed line across a chart, with a label beside it.

    Args:
        value: The place of the line on the axis; there is no line if it is None.
        axis: "x" or "y".
        text: The label; there is none by default.
    """
    if value is None:
        return []
    place = {axis: {"datum": value}}
    line = {
        "data": {"values": [{}]},
        "mark": {"type": "rule", "color": "var(--ink)", "strokeDash": [4, 4], "strokeWidth": 1},
        "encoding": place,
    }
    if not text:
        return [line]
    label = {
        "data": {"values": [{}]},
        "mark": {
            "type": "text",
            "text": text,
            "color": "var(--ink)",
            "fontSize": 11,
            "align": "right",
            "baseline": "bottom",
            "dy": -3,
            "x": "width",
        },
        "encoding": place,
    }
    return [line, label]


def number_axis(key: str, title: str | None, **more: Any) -> Spec:
    """Return an axis of numbers.

    Args:
        key: The key of its values in the rows of the data.
        title: The title; None leaves it out.
        more: Other parts of the axis, such as `scale`.
    """
    return {"field": key, "type": "quantitative", "title": title, **more}


def count_axis(key: str, title: str) -> Spec:
    """Return an axis of whole numbers, without a grid."""
    return number_axis(key, title, axis={"grid": False, "format": ",d"})


def log_axis(key: str, title: str, scale: Spec, form: str) -> Spec:
    """Return a logarithmic axis, without the grid and the ticks of its many steps."""
    return number_axis(
        key, title, scale=scale, axis={"format": form, "grid": False, "ticks": False}
    )


def lines_over_steps(data: str, y: Spec, colour: Spec | None, *, height: int) -> Spec:
    """Return a chart of lines over training steps.

    Args:
        data: The name of the data, whose rows have "step" and the key of the y-axis.
        y: The y-axis.
        colour: The scale of the colours by "measure"; None draws a single line.
        height: The height in pixels.
    """
    encoding: Spec = {"x": count_axis("step", "training step"), "y": y}
    if colour is not None:
        encoding["color"] = {"field": "measure", "type": "nominal", "scale": colour}
    mark = {
        "type": "line",
        "strokeWidth": 2,
        "color": "var(--accent)",
        "point": {"size": 90, "opacity": 0},
        "tooltip": DETAILS,
    }
    return framed(height, data={"name": data}, mark=mark, encoding=encoding)
