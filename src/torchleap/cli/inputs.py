"""The opening of select: before it trains, it says what is positive, what can be expected of the rows, what looks wrong."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from .._common.text import plural
from .messages import in_options, options_of
from .show import show

if TYPE_CHECKING:
    from ..data.task import Task

LOOKED_AT = 50_000  # rows, in which leaks and other faults show
LISTED = 6  # findings that are shown before training
WIDE = 0.05  # half an interval of the AUC that is worth a warning
TYPICAL = 0.75  # the AUC that such an interval is computed for


def findings_of(
    context: typer.Context, task: Task, file: str, settings: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Inspect the first rows of a file; return what is wrong with the inputs, in the words of the options."""
    from ..data.files.inspection import inspect

    positive = task.roles.get("positive")  # as it was found in all rows
    found = inspect(
        file, **{**settings, "positive": positive}, only=task.fields.names, rows=LOOKED_AT
    ).findings
    options = options_of(context)
    return [asdict(one) | {"cure": in_options(one.cure, options)} for one in found]


def positives_line(task: Task) -> str:
    """Say how many rows are positive, by which value, and in which part."""
    parts = (task.train, task.valid, task.test)
    counts = {rows.part: int(rows.label.sum()) for rows in parts}
    total, rows = sum(counts.values()), sum(map(len, parts))
    by_part = ", ".join(f"{count:,} {part}" for part, count in counts.items())
    chosen = task.roles.get("positive")
    value = "" if chosen is None else f", where {task.roles['label']} is {chosen!r}"
    return (
        f"{plural(total, 'positive row')} of {rows:,} ({_percent(total / rows)}){value}: {by_part}."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.001 or not share else f"{100 * share:.2g} %"


def expectation(task: Task) -> str:
    """Say what can be expected of few positive or negative test rows; return an empty string where there are many."""
    positives, rows = int(task.test.label.sum()), len(task.test)
    reach = half_interval(positives, rows - positives)
    if reach <= WIDE:
        return ""
    rarer = "positives" if positives <= rows - positives else "negatives"
    return (
        f"{min(positives, rows - positives):,} {rarer} among the test rows place an AUC within about ±{reach:.2f}: "
        f"fields that matter a little cannot be distinguished from noise. More {rarer} would help most."
    )


def half_interval(positives: int, negatives: int, auc: float = TYPICAL) -> float:
    """Return half of the 95 % interval of an AUC, by Hanley and McNeil (1982); at most 0.5.

    >>> round(half_interval(13, 4000), 2), round(half_interval(1000, 1000), 2)
    (0.15, 0.02)
    """
    if not positives or not negatives:
        return 0.5
    above, below = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    spread = (
        auc * (1 - auc) + (positives - 1) * (above - auc**2) + (negatives - 1) * (below - auc**2)
    )
    return min(0.5, 1.96 * math.sqrt(spread / (positives * negatives)))


def show_opening(task: Task, found: Sequence[Mapping[str, Any]], file: str, started: float) -> None:
    """Print all of it, before the first step."""
    show(repr(task))
    show(positives_line(task))
    expected = expectation(task)
    if expected:
        show(expected, style="yellow")
    show_findings(found, file)
    if task.keep is None and task.folder.stat().st_mtime >= started:
        show(
            f"The encoded rows are kept in {task.folder.parent} for the next run; torchleap data cache lists and clears them.",
            style="dim",
        )


def show_findings(found: Sequence[Mapping[str, Any]], file: str) -> None:
    """Print what looks wrong, the worst first."""
    if not found:
        return
    leak = any(one["kind"] == "leak" for one in found)
    title = (
        "Warning: the label leaks into the inputs."
        if leak
        else "Worth a look before you trust the result:"
    )
    show(title, style="bold red" if leak else "yellow")
    for one in found[:LISTED]:
        name = f"{one['column']}: " if one["column"] else ""
        show(
            f"  {name}{one['text']}. {one['cure']}",
            style="red" if one["kind"] == "leak" else "yellow",
        )
    if len(found) > LISTED:
        show(
            f"  and {len(found) - LISTED} more: torchleap data inspect {shlex.quote(file)}",
            style="yellow",
        )
