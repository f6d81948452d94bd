"""Charts: a record in, Vega-Lite specifications out, for the page and for static pictures.

A specification refers to its data by name; `Charts.data` has it, so that several charts share it.
The page sets three signals: `marked` (the fields to highlight), `colour` (what the ranks are
coloured by) and `removed` (the budget on the curve).
"""

from collections.abc import Mapping
from typing import Any

from .fields import field_charts, field_pictures
from .lines import line_charts, line_pictures
from .outcome import outcome_charts
from .pieces import Charts
from .training import training_charts


def charts_of(record: Mapping[str, Any]) -> Charts:
    """Return all charts of the page that the record has numbers for."""
    if record["kind"] == "bench":
        return line_charts(record)
    return field_charts(record) | training_charts(record) | outcome_charts(record)


def pictures(record: Mapping[str, Any]) -> Charts:
    """Return the charts for static pictures, with legends and titles of their own."""
    if record["kind"] == "bench":
        return line_pictures(record)
    return field_pictures(record) | training_charts(record) | outcome_charts(record)
