"""The record of a benchmark, from which its report is made."""

import os
import platform
import sys
from collections.abc import Sequence
from datetime import datetime
from importlib.metadata import version
from typing import Any

from .._common.text import plural
from .grid import Grid
from .run import Runner
from .tables import Table


def record_of(
    title: str,
    tables: Sequence[Table],
    curves: Sequence[dict[str, Any]],
    grid: Grid,
    runner: Runner,
) -> dict[str, Any]:
    """Tables and curves with all settings, as plain JSON."""
    return {
        "format": 1,
        "kind": "bench",
        "title": title,
        "created": datetime.now().isoformat(timespec="seconds"),
        "command": None,
        "versions": {name: version(name) for name in ("torchleap", "torch")}
        | {"python": platform.python_version()},
        "machine": f"{platform.machine()}, {plural(os.cpu_count() or 1, 'core')}, {sys.platform}; "
        f"{runner.jobs} x {plural(runner.threads, 'thread')}",
        "settings": {
            "data": {recipe.name: {"kind": recipe.kind, **recipe.settings} for recipe in grid.data},
            "methods": {name: repr(method) for name, method in grid.methods.items()},
            "models": {name: repr(model) for name, model in grid.models.items()},
            "shares": list(grid.shares),
            "search_seeds": grid.search_seeds,
            "retrain_seeds": grid.retrain_seeds,
            "training": dict(grid.training),
        },
        "tables": [table.record() for table in tables],
        "curves": list(curves),
    }
