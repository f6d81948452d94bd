"""The page of a benchmark: tables that can be sorted, and curves."""

import re
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from .._common.checks import is_number
from . import numbers
from .charts.lines import Curve, curves, has_band, legend
from .record import created

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
    r"[<>~≈]?\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)(?=$|[^\d.:e-])"
    rf"(?:\s*{_UNIT})?(?:\s+(\d+)\s*{_UNIT})?"
)
_EMPTY = ("", "-", "—", numbers.UNKNOWN, "none")


def bench_context(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of the template for a benchmark."""
    summary = _sentences(record.get("summary"))
    tables = [_table(table) for table in record.get("tables") or []]
    drawn = curves(record)
    sections = [("settings", "Settings")]
    if drawn:
        sections.insert(0, ("curves", "Curves"))
    if tables:
        sections.insert(0, ("tables", "Tables"))
    if summary:
        sections.insert(0, ("summary", "Summary"))
    facts = (created(record), str(record.get("machine") or ""))
    return {
        "summary": summary,
        "tables": tables,
        "curves": [_curve(name, curve) for name, curve in drawn.items()],
        "facts": [fact for fact in facts if fact],
        "sections": sections,
        "script": {"words": {name: _words(curve) for name, curve in drawn.items()}},
    }


def _sentences(given: Any) -> list[str]:
    if isinstance(given, str):
        return [given]
    return [str(sentence) for sentence in given or []]


def _curve(name: str, curve: Curve) -> dict[str, Any]:
    return {
        "name": name,
        "title": curve.get("title") or "Curve",
        "notes": _sentences(curve.get("notes")),
        "legend": legend(curve),
        "banded": has_band(curve),
    }


def _words(curve: Curve) -> dict[str, str]:
    """Return the names of a point's numbers in its details."""
    return {
        "x": str(curve.get("x") or "x"),
        "y": str(curve.get("y") or "y"),
        "low": "from",
        "high": "to",
    }


def _table(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table each of whose cells has the value that it is sorted by."""
    # A short row ends in empty cells, and a long one in columns without a title.
    upright = zip_longest(table.get("columns") or [], *(table.get("rows") or []))
    columns = [_column(title, cells) for title, *cells in upright]
    return {
        "title": table.get("title") or "Table",
        "columns": [{"title": column["title"], "number": column["number"]} for column in columns],
        "rows": list(zip(*(column["cells"] for column in columns), strict=True)),
        "notes": _sentences(table.get("notes")),
    }


def _column(title: Any, cells: list[Any]) -> dict[str, Any]:
    """Return a column; it is sorted by number if all cells that are not empty are numbers."""
    known = [cell for cell in cells if not _is_empty(cell)]
    is_numeric = bool(known) and all(_number_in(cell) is not None for cell in known)
    shown = []
    for cell in cells:
        text = _text(cell)
        key: float | str | None = None
        if not _is_empty(cell):
            key = _number_in(cell) if is_numeric else text
        shown.append({"text": text, "by": key})
    return {"title": "" if title is None else str(title), "number": is_numeric, "cells": shown}


def _is_empty(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and cell.strip().lower() in _EMPTY)


def _text(value: Any) -> str:
    """Return the text of a cell.

    >>> _text(0.80972), _text(-0.003), _text(36), _text(12.5), _text(None), _text("-0.1 ± 0.2")
    ('0.8097', '−0.0030', '36', '12.5', '–', '-0.1 ± 0.2')
    """
    if isinstance(value, str):
        return value
    if value is None:
        return numbers.UNKNOWN
    text = numbers.anything(value)
    if isinstance(value, float) and abs(value) < 10:
        text = numbers.metric(value)
    return text.replace("-", numbers.MINUS) if is_number(value) else text


def _number_in(cell: Any) -> float | None:
    """Return the number that a cell begins with, in its unit; None if there is none.

    >>> [_number_in(text) for text in ("0.8097 ± 0.0006", "−1,664", "<0.01 %", "3.1x", "12 of 24")]
    [0.8097, -1664.0, 0.01, 3.1, 12.0]
    >>> [_number_in(text) for text in ("12.3 s", "2 min 5 s", "1.5 ms")]
    [12.3, 125.0, 0.0015]
    >>> [_number_in(text) for text in ("leap", "2026-11-17", "2.13.0", "07:30", "-")]
    [None, None, None, None, None]
    """
    if is_number(cell):
        return float(cell)
    found = _NUMBER.match(str(cell).strip().replace(numbers.MINUS, "-").replace(",", ""))
    if not found:
        return None
    first, unit, second, smaller_unit = found.groups()
    number = float(first) * UNITS.get(unit, 1)
    if second and unit:
        number += float(second) * UNITS[smaller_unit]
    return number
