"""Charts: a record in, Vega-Lite specifications out, for the page and for static pictures.

A specification refers to its data by name; `Charts.data` has it, so that several charts share it.
The page sets some signals: `marked` (the fields to highlight), `colour` (what the ranks are
coloured by), `removed` (the budget on the curve), and three of the path: `planned` (the budget),
`across` (the quantity of the x-axis) and `complete` (whether all points are shown).
"""

from collections.abc import Mapping
from typing import Any

from .fields import field_charts, field_pictures
from .lines import line_charts, line_pictures
from .outcome import outcome_charts
from .path import path_charts
from .pieces import Charts
from .training import training_charts


def charts_of(record: Mapping[str, Any]) -> Charts:
    """Return all charts of the page that the record has numbers for."""
    if record["kind"] == "bench":
        return line_charts(record)
    return path_charts(record) | field_charts(record) | _other_charts(record)


def pictures(record: Mapping[str, Any]) -> Charts:
    """Return the charts for static pictures, with legends and titles of their own."""
    if record["kind"] == "bench":
        return line_pictures(record)
    return path_charts(record) | field_pictures(record) | _other_charts(record)


def _other_charts(record: Mapping[str, Any]) -> Charts:
    return training_charts(record) | outcome_charts(record)
