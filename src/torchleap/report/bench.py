"""The report of a benchmark: tables, and curves with their intervals as bands."""

from collections.abc import Mapping
from typing import Any

from . import numbers
from .pieces import Charts, Rows, Spec, framed


def bench_charts(record: Mapping[str, Any]) -> Charts:
    """A chart for each curve."""
    specs: dict[str, Spec] = {}
    data: dict[str, Rows] = {}
    for place, curve in enumerate(record.get("curves") or []):
        name = f"curve-{place}"
        rows: Rows = [
            dict(zip(("series", "x", "y", "low", "high"), (series.get("name"), *point, None, None), strict=False))
            for series in curve.get("series") or []
            for point in series.get("points") or []
        ]
        if rows:
            specs[name], data[name] = _curve(name, curve), rows
    return Charts(specs, data)


def _curve(name: str, curve: Mapping[str, Any]) -> Spec:
    x = {"field": "x", "type": "quantitative", "title": curve.get("x"), "axis": {"grid": False}, "scale": {"zero": False}}
    y = {"field": "y", "type": "quantitative", "title": curve.get("y"), "scale": {"zero": False}}
    hues = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8c8c", "#b3a000"]  # Okabe and Ito's
    colour = {"field": "series", "type": "nominal", "scale": {"range": hues}, "sort": None, "legend": {"symbolOpacity": 1}}
    band = {
        "transform": [{"filter": "isNumber(datum.low)"}],
        "mark": {"type": "area", "opacity": 0.15},
        "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": colour},
    }
    line_mark = {"type": "line", "strokeWidth": 2, "point": {"size": 30}, "tooltip": {"content": "data"}}
    line = {"mark": line_mark, "encoding": {"x": x, "y": y, "color": colour}}
    return framed(320, data={"name": name}, layer=[band, line])


def _cell(value: Any) -> str:
    if value is None:
        return numbers.UNKNOWN
    return numbers.metric(value) if isinstance(value, float) and abs(value) < 10 else numbers.anything(value)


def bench_context(record: Mapping[str, Any]) -> dict[str, Any]:
    """What the template shows of a benchmark."""
    tables = [
        {
            "title": table.get("title"),
            "columns": [str(column) for column in table.get("columns") or []],
            "rows": [
                [cell if isinstance(cell, str) else numbers.anything(cell) for cell in row] for row in table.get("rows") or []
            ],
        }
        for table in record.get("tables") or []
    ]
    created = str(record.get("created") or "").replace("T", " ")[:16]
    facts = [fact for fact in (created, str(record.get("machine") or "")) if fact]
    sections = (
        [("tables", "Tables")] * bool(tables) + [("curves", "Curves")] * bool(record.get("curves")) + [("settings", "Settings")]
    )
    return {"tables": tables, "facts": facts, "sections": sections, "script": {}}
