"""The record of a benchmark, from which its report is made."""

from collections.abc import Mapping, Sequence
from typing import Any

from .._common.text import plural
from ..pipeline.record import BenchRecord, LinesRecord, TableRecord, machine
from .grid import Grid
from .run import Runner
from .tables import Table


def record_of(
    title: str,
    tables: Sequence[Table],
    curves: Sequence[Mapping[str, Any]],
    grid: Grid,
    runner: Runner,
    *,
    command: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the record of a benchmark as plain JSON, which `torchleap.Report` takes.

    Args:
        title: The heading of the report.
        tables: Its tables, in the order of the page.
        curves: Its charts, as the results of `roi` and `stepwise` return them.
        grid: The settings of the benchmark.
        runner: The runner that did its trials.
        command: The command line that repeats it; None if it was run from Python.
        settings: Settings to show in place of the grid's own of the same name; one that is None
            plays no part and is left out.
    """
    shown = {**_settings_of(grid), **(settings or {})}
    record = BenchRecord(
        title=title,
        command=command,
        machine=f"{machine()}; {runner.jobs} x {plural(runner.threads, 'thread')}",
        settings={name: value for name, value in shown.items() if value is not None},
        tables=[TableRecord(**table.record()) for table in tables],
        curves=[LinesRecord.of(curve) for curve in curves],
    )
    return record.to_json()


def _settings_of(grid: Grid) -> dict[str, Any]:
    """Return all settings of a grid as plain values."""
    return {
        "data": {recipe.name: {"kind": recipe.kind, **recipe.settings} for recipe in grid.data},
        "methods": {name: repr(method) for name, method in grid.methods.items()},
        "models": {name: repr(model) for name, model in grid.models.items()},
        "shares": list(grid.shares),
        "search_seeds": grid.search_seeds,
        "retrain_seeds": grid.retrain_seeds,
        "training": dict(grid.training),
    }
