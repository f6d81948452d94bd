"""Colours for light and dark pages: one accent, greys, and a ramp of five.

The colours of the ramp differ in lightness, so that colour-blind readers can distinguish them.
Charts name a colour as a variable of the page's style sheet, `var(--accent)`: a change of theme,
or printing, then redraws nothing. Static pictures get the light values.
"""

from typing import Any

LIGHT = {
    "paper": "#fcfcfa",
    "card": "#ffffff",
    "ink": "#1c2430",
    "muted": "#5b6675",
    "line": "#e4e6ea",
    "faint": "#f1f3f5",
    "accent": "#1566b0",
    "accent-soft": "#e3eefa",
    "second": "#c2570c",
    "good": "#1a7a46",
    "bad": "#b3261e",
    "off": "#9aa3af",
    "off-soft": "#c9ced6",
    "ramp-0": "#8fd3c1",
    "ramp-1": "#4db1bb",
    "ramp-2": "#2d86b3",
    "ramp-3": "#3b579d",
    "ramp-4": "#3f2673",
}
DARK = {
    "paper": "#12161c",
    "card": "#191f27",
    "ink": "#e8ebef",
    "muted": "#9ba6b4",
    "line": "#2c343f",
    "faint": "#212831",
    "accent": "#62b0f5",
    "accent-soft": "#1c3550",
    "second": "#f2a45c",
    "good": "#5fcf94",
    "bad": "#ff8a80",
    "off": "#76818f",
    "off-soft": "#48525f",
    "ramp-0": "#4b62b4",
    "ramp-1": "#3b8fc4",
    "ramp-2": "#45b8b8",
    "ramp-3": "#8edba6",
    "ramp-4": "#f6ee9b",
}
DECISIONS = {"kept": "var(--accent)", "protected": "var(--second)", "dropped": "var(--off)"}
UNKNOWN = "var(--off-soft)"

WIDTHS = (
    (1, "1 wide"),
    (8, "2 to 8"),
    (32, "9 to 32"),
    (128, "33 to 128"),
    (float("inf"), "over 128"),
)
SPARSITIES = (
    (0.5, "up to 50 %"),
    (0.9, "50 to 90 %"),
    (0.99, "90 to 99 %"),
    (0.999, "99 to 99.9 %"),
    (1.0, "over 99.9 %"),
)


def ramp(value: float | None, steps: tuple[tuple[float, str], ...]) -> str:
    """Return the colour of the step that a value belongs to.

    >>> ramp(64, WIDTHS), ramp(None, WIDTHS)
    ('var(--ramp-3)', 'var(--off-soft)')
    """
    if value is None:
        return UNKNOWN
    for place, (top, _) in enumerate(steps):
        if value <= top:
            return f"var(--ramp-{place})"
    return f"var(--ramp-{len(steps) - 1})"


def legend(steps: tuple[tuple[float, str], ...]) -> list[dict[str, str]]:
    """Return the steps with their colours."""
    return [{"colour": f"var(--ramp-{place})", "text": step[1]} for place, step in enumerate(steps)]


def style_sheet(colours: dict[str, str]) -> str:
    """Return the colours as variables of a style sheet."""
    return " ".join(f"--{name}: {value};" for name, value in colours.items())


def in_print(chart: Any) -> Any:
    """Return a chart with the light colours in place of variables, the names of fields aside."""
    if isinstance(chart, dict):
        return {key: item if key == "name" else in_print(item) for key, item in chart.items()}
    if isinstance(chart, list):
        return [in_print(item) for item in chart]
    if isinstance(chart, str) and chart.startswith("var(--"):
        return LIGHT.get(chart[6:-1], chart)
    return chart
