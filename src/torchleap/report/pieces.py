"""What the charts share: the frame, its fonts and greys, the rules across it, and how fields are brought out."""

from dataclasses import dataclass
from typing import Any

from . import colours

Spec = dict[str, Any]
Rows = list[dict[str, Any]]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
# After the system's own font those of Chinese, Japanese and Korean that systems come with.
FONT = (
    "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', 'Noto Sans', 'PingFang SC', 'Hiragino Sans', "
    "'Apple SD Gothic Neo', 'Microsoft YaHei', 'Yu Gothic', 'Malgun Gothic', 'Noto Sans CJK SC', 'Noto Sans SC', "
    "'WenQuanYi Micro Hei', sans-serif"
)


@dataclass(frozen=True)
class Charts:
    """Specifications by name, in the order of the page, and the data that they name."""

    specs: dict[str, Spec]
    data: dict[str, Rows]

    def picture(self, name: str, width: int = 560) -> Spec:
        """One chart with its data and in fixed colours and size, for a static picture."""
        spec = {**self.specs[name], "background": "white", "padding": 12}
        if spec.get("width") == "container":
            spec["width"] = width
        parts = [part.get("data", {}) for part in (spec, *spec.get("layer", []))]
        used = {data["name"] for data in parts if "name" in data}
        filled: Spec = colours.in_print({**spec, "datasets": {key: self.data[key] for key in used}})
        return filled


def framed(height: int | Spec, **parts: Any) -> Spec:
    """What all charts share."""
    quiet = {
        "labelColor": "var(--muted)",
        "titleColor": "var(--muted)",
        "labelFont": FONT,
        "titleFont": FONT,
    }
    axis = {
        **quiet,
        "gridColor": "var(--line)",
        "tickColor": "var(--line)",
        "domain": False,
        "titleFontWeight": "normal",
    }
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
            "axis": {
                **axis,
                "labelFontSize": 12,
                "titleFontSize": 12,
                "titlePadding": 8,
                "tickCount": 5,
                "labelOverlap": True,
                "labelFlush": False,
            },
            "legend": {
                **quiet,
                "labelFontSize": 12,
                "orient": "top",
                "title": None,
                "symbolStrokeWidth": 2,
                "labelLimit": 0,
                "offset": 10,
            },
        },
        **parts,
    }


def signals(**values: Any) -> list[dict[str, Any]]:
    """What the page can set in a chart: the names to bring out, and more."""
    return [{"name": name, "value": value} for name, value in {"marked": [], **values}.items()]


def fading(usual: float) -> Spec:
    """Fade what is not brought out, if anything is."""
    return {
        "condition": [
            {
                "test": "length(marked) > 0 && indexof(marked, datum.name) < 0",
                "value": min(0.1, usual / 2),
            },
            {"test": "length(marked) > 0", "value": 1},
        ],
        "value": usual,
    }


def rule_at(value: float, axis: str, text: str = "") -> list[Spec]:
    """A dashed line across a chart, with a word beside it."""
    line = {
        "data": {"values": [{}]},
        "mark": {"type": "rule", "color": "var(--ink)", "strokeDash": [4, 4], "strokeWidth": 1},
    }
    place = {axis: {"datum": value}}
    label = {
        "type": "text",
        "text": text,
        "color": "var(--ink)",
        "fontSize": 11,
        "align": "right",
        "baseline": "bottom",
        "dy": -3,
    }
    words = {"data": {"values": [{}]}, "mark": {**label, "x": "width"}, "encoding": place}
    return [{**line, "encoding": place}, *([words] if text else [])]


def log_axis(field: str, title: str, scale: Spec, form: str) -> Spec:
    """An axis whose steps multiply; quiet, for its ticks are many."""
    return {
        "field": field,
        "title": title,
        "scale": scale,
        "axis": {"format": form, "grid": False, "ticks": False},
    }


def lines_over_steps(data: str, y: Spec, colour: Spec | None, *, height: int) -> Spec:
    """Lines over steps, one a measure."""
    series = {"color": {"field": "measure", "type": "nominal", "scale": colour}} if colour else {}
    return framed(
        height,
        data={"name": data},
        mark={
            "type": "line",
            "strokeWidth": 2,
            "color": "var(--accent)",
            "point": {"size": 90, "opacity": 0},
            "tooltip": {"content": "data"},
        },
        encoding={
            "x": {
                "field": "step",
                "type": "quantitative",
                "title": "training step",
                "axis": {"grid": False, "format": ",d"},
            },
            "y": y,
            **series,
        },
    )
