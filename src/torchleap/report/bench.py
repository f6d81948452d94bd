"""The report of a benchmark: tables that can be sorted, and curves with their intervals as bands."""

import re
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from .._common.checks import is_number
from . import numbers
from .pieces import Charts, Rows, Spec, framed

HUES = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#8c8c8c",
    "#b3a000",
)  # Okabe and Ito's
DASHES = ((1, 0), (7, 4), (2, 3))  # a ninth series has the first hue again, dashed
FEW_POINTS = 16  # of a line, so that each is worth a dot
PICTURE = 560  # as wide is a static picture

UNITS = {
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1,
    "min": 60,
    "h": 3600,
    "kB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
}
_UNIT = rf"({'|'.join(UNITS)})(?![a-zA-Z])"
_NUMBER = re.compile(
    rf"[<>~≈]?\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)(?=$|[^\d.:e-])(?:\s*{_UNIT})?(?:\s+(\d+)\s*{_UNIT})?"
)
_NOTHING = ("", "-", "—", numbers.UNKNOWN, "none")


def bench_charts(record: Mapping[str, Any]) -> Charts:
    """A chart for each curve; the page has the titles and legends."""
    drawn = _drawn(record)
    return Charts(
        {name: _curve(name, curve) for name, curve in drawn.items()},
        {key: _rows(drawn[key]) for key in drawn},
    )


def bench_pictures(record: Mapping[str, Any]) -> Charts:
    """The same with titles and legends, to stand alone."""
    drawn = _drawn(record)
    return Charts(
        {name: _labelled(name, curve) for name, curve in drawn.items()},
        {key: _rows(drawn[key]) for key in drawn},
    )


def bench_context(record: Mapping[str, Any]) -> dict[str, Any]:
    """What the template shows of a benchmark."""
    summary, tables = (
        _sentences(record.get("summary")),
        [_table(table) for table in record.get("tables") or []],
    )
    drawn = _drawn(record)
    created = str(record.get("created") or "").replace("T", " ")[:16]
    found = (
        ("summary", "Summary", summary),
        ("tables", "Tables", tables),
        ("curves", "Curves", drawn),
    )
    return {
        "summary": summary,
        "tables": tables,
        "curves": [_shown_curve(name, curve) for name, curve in drawn.items()],
        "facts": [fact for fact in (created, str(record.get("machine") or "")) if fact],
        "sections": [
            *((anchor, heading) for anchor, heading, there in found if there),
            ("settings", "Settings"),
        ],
        "script": {"words": {name: _words(curve) for name, curve in drawn.items()}},
    }


def _sentences(given: Any) -> list[str]:
    return [given] if isinstance(given, str) else [str(sentence) for sentence in given or []]


def _table(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table, whose cells know by what they are sorted."""
    upright = zip_longest(
        table.get("columns") or [], *(table.get("rows") or [])
    )  # a short row ends in empty cells
    columns = [_column(title, cells) for title, *cells in upright]
    return {
        "title": table.get("title") or "Table",
        "columns": [{"title": column["title"], "number": column["number"]} for column in columns],
        "rows": list(zip(*(column["cells"] for column in columns), strict=True)),
        "notes": _sentences(table.get("notes")),
    }


def _column(title: Any, cells: list[Any]) -> dict[str, Any]:
    known = [not _is_nothing(cell) for cell in cells]
    worths = [_worth(cell) if there else None for cell, there in zip(cells, known, strict=True)]
    number = any(known) and all(
        worth is not None for worth, there in zip(worths, known, strict=True) if there
    )
    shown = [_cell(cell) for cell in cells]
    by = (
        worths
        if number
        else [text if there else None for text, there in zip(shown, known, strict=True)]
    )
    return {
        "title": "" if title is None else str(title),
        "number": number,
        "cells": [{"text": text, "by": key} for text, key in zip(shown, by, strict=True)],
    }


def _is_nothing(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and cell.strip().lower() in _NOTHING)


def _cell(value: Any) -> str:
    """How a cell is written.

    >>> _cell(0.80972), _cell(-0.003), _cell(36), _cell(12.5), _cell(None), _cell("-0.1 ± 0.2")
    ('0.8097', '−0.0030', '36', '12.5', '–', '-0.1 ± 0.2')
    """
    if isinstance(value, str):
        return value
    if value is None:
        return numbers.UNKNOWN
    small = isinstance(value, float) and abs(value) < 10
    text = numbers.metric(value) if small else numbers.anything(value)
    return text.replace("-", numbers.MINUS) if is_number(value) else text


def _worth(cell: Any) -> float | None:
    """The number that a cell begins with, in its unit; None if there is none.

    >>> [_worth(text) for text in ("0.8097 ± 0.0006", "−1,664", "12.3 s", "2 min 5 s", "1.5 ms", "<0.01 %", "3.1x", "12 of 24")]
    [0.8097, -1664.0, 12.3, 125.0, 0.0015, 0.01, 3.1, 12.0]
    >>> [_worth(text) for text in ("leap", "2026-11-17", "2.13.0", "07:30", "-")]
    [None, None, None, None, None]
    """
    if is_number(cell):
        return float(cell)
    found = _NUMBER.match(str(cell).strip().replace(numbers.MINUS, "-").replace(",", ""))
    if not found:
        return None
    first, unit, second, smaller = found.groups()
    return float(first) * UNITS.get(unit, 1) + (
        float(second) * UNITS[smaller] if second and unit else 0
    )


def _drawn(record: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The curves that have points, by the names of their charts."""
    named = {f"curve-{place}": curve for place, curve in enumerate(record.get("curves") or [])}
    return {name: curve for name, curve in named.items() if _rows(curve)}


def _rows(curve: Mapping[str, Any]) -> Rows:
    return [
        dict(
            zip(
                ("series", "x", "y", "low", "high"),
                (str(series.get("name")), *point, None, None),
                strict=False,
            )
        )
        for series in curve.get("series") or []
        for point in series.get("points") or []
    ]


def _series(curve: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(row["series"] for row in _rows(curve)))


def _has_band(curve: Mapping[str, Any]) -> bool:
    return any(is_number(row["low"]) and is_number(row["high"]) for row in _rows(curve))


def _look(place: int) -> dict[str, Any]:
    return {"hue": HUES[place % len(HUES)], "dash": DASHES[place // len(HUES) % len(DASHES)]}


def _shown_curve(name: str, curve: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "title": curve.get("title") or "Curve",
        "notes": _sentences(curve.get("notes")),
        "legend": [{"text": series, **_look(place)} for place, series in enumerate(_series(curve))],
        "banded": _has_band(curve),
    }


def _words(curve: Mapping[str, Any]) -> dict[str, str]:
    """What the details of a point call its numbers."""
    return {
        "x": str(curve.get("x") or "x"),
        "y": str(curve.get("y") or "y"),
        "low": "from",
        "high": "to",
    }


def _curve(
    name: str,
    curve: Mapping[str, Any],
    *,
    height: int = 320,
    legend: Spec | None = None,
    **more: Any,
) -> Spec:
    x = {
        "field": "x",
        "type": "quantitative",
        "title": curve.get("x"),
        "axis": {"grid": False},
        "scale": {"zero": False},
    }
    y = {"field": "y", "type": "quantitative", "title": curve.get("y"), "scale": {"zero": False}}
    series = _series(curve)
    looks = [_look(place) for place in range(len(series))]
    by = {"field": "series", "type": "nominal", "sort": None, "legend": legend}
    colour = {**by, "scale": {"domain": series, "range": [look["hue"] for look in looks]}}
    dash = {**by, "scale": {"domain": series, "range": [look["dash"] for look in looks]}}
    band = {
        "transform": [{"filter": "isNumber(datum.low) && isNumber(datum.high)"}],
        "mark": {"type": "area", "opacity": 0.13, "tooltip": None},
        "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": colour},
    }
    few = len(_rows(curve)) <= FEW_POINTS * len(series)
    line = {
        "mark": {"type": "line", "strokeWidth": 2, "tooltip": None},
        "encoding": {"x": x, "y": y, "color": colour, "strokeDash": dash},
    }
    dots = {  # those that are not seen can be pointed at
        "mark": {
            "type": "point",
            "filled": True,
            "size": 30 if few else 90,
            "opacity": int(few),
            "tooltip": {"content": "data"},
        },
        "encoding": {"x": x, "y": y, "color": colour},
    }
    return framed(
        height,
        data={"name": name},
        layer=[*([band] if _has_band(curve) else []), line, dots],
        **more,
    )


def _labelled(name: str, curve: Mapping[str, Any]) -> Spec:
    series = _series(curve)
    widths = [
        50 + sum(7 if letter.isascii() else 12 for letter in text) for text in series
    ]  # about, in pixels
    fitting = (
        many
        for many in range(len(series), 1, -1)
        if sum(max(widths[at::many]) for at in range(many)) <= PICTURE
    )
    columns = next(fitting, 1)
    legend = {
        "symbolType": "stroke",
        "symbolSize": 400,
        "symbolOpacity": 1,
        "columns": columns,
        "labelLimit": PICTURE - 60,
    }
    title = {
        "text": curve.get("title") or "",
        "anchor": "start",
        "fontSize": 14,
        "color": "var(--ink)",
        "limit": PICTURE,
    }
    return _curve(
        name, curve, height=340 + 18 * -(-len(series) // columns), legend=legend, title=title
    )
