"""The opening of select: the positive rows, how precise an AUC can be, and faults of the data."""

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

INSPECTED = 50_000  # rows in which leaks and other faults show
LISTED = 6  # findings that are printed before training
WIDE = 0.05  # half an interval of the AUC that is worth a warning
TYPICAL = 0.75  # the AUC that such an interval is computed for
NORMAL_95 = 1.96  # standard deviations to either side that hold 95 % of a normal distribution


def findings_of(
    context: typer.Context, task: Task, file: str, settings: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Inspect the first rows of a file; return its faults, with cures that name options.

    Args:
        context: The context of the command.
        task: The task that was read from the file.
        file: The file.
        settings: The settings of the label and of CSV with which it was read.
    """
    from ..data.files.inspection import inspect

    positive = task.roles.get("positive")  # as it was found in all rows
    settings = {**settings, "positive": positive}
    found = inspect(file, **settings, only=task.fields.names, rows=INSPECTED).findings
    options = options_of(context)
    return [asdict(one) | {"cure": in_options(one.cure, options)} for one in found]


def positives_line(task: Task) -> str:
    """Return how many rows are positive, by which value, and in which part."""
    parts = (task.train, task.valid, task.test)
    counts = {rows.part: int(rows.label.sum()) for rows in parts}
    total = sum(counts.values())
    rows = sum(map(len, parts))
    by_part = ", ".join(f"{count:,} {part}" for part, count in counts.items())
    chosen = task.roles.get("positive")
    value = "" if chosen is None else f", where {task.roles['label']} is {chosen!r}"
    fraction = _percent(total / rows)
    return f"{plural(total, 'positive row')} of {rows:,} ({fraction}){value}: {by_part}."


def _percent(fraction: float) -> str:
    if 0 < fraction < 0.001:
        return f"{100 * fraction:.2g} %"
    return f"{100 * fraction:.1f} %"


def expectation(task: Task) -> str:
    """Return a warning about few positive or negative test rows; "" where there are many."""
    positives = int(task.test.label.sum())
    negatives = len(task.test) - positives
    reach = half_interval(positives, negatives)
    if reach <= WIDE:
        return ""
    rarer = "positives" if positives <= negatives else "negatives"
    return (
        f"{min(positives, negatives):,} {rarer} among the test rows place an AUC within about "
        f"±{reach:.2f}: fields that matter a little cannot be distinguished from noise. "
        f"More {rarer} would help most."
    )


def half_interval(positives: int, negatives: int, auc: float = TYPICAL) -> float:
    """Return half of the 95 % interval of an AUC, by Hanley and McNeil (1982); at most 0.5.

    >>> round(half_interval(13, 4000), 2), round(half_interval(1000, 1000), 2)
    (0.15, 0.02)
    """
    if not positives or not negatives:
        return 0.5
    above = auc / (2 - auc) - auc**2
    below = 2 * auc**2 / (1 + auc) - auc**2
    spread = auc * (1 - auc) + (positives - 1) * above + (negatives - 1) * below
    return min(0.5, NORMAL_95 * math.sqrt(spread / (positives * negatives)))


def show_opening(task: Task, found: Sequence[Mapping[str, Any]], file: str, started: float) -> None:
    """Print all that is known before the first step.

    Args:
        task: The task.
        found: The findings about the file.
        file: The file.
        started: The time at which reading began, in seconds: rows encoded since then are new.
    """
    show(repr(task))
    show(positives_line(task))
    expected = expectation(task)
    if expected:
        show(expected, style="yellow")
    show_findings(found, file)
    if task.keep is None and task.folder.stat().st_mtime >= started:
        show(
            f"The encoded rows are kept in {task.folder.parent} for the next run; "
            "torchleap data cache lists and clears them.",
            style="dim",
        )


def show_findings(found: Sequence[Mapping[str, Any]], file: str) -> None:
    """Print the faults of the data, the worst first."""
    if not found:
        return
    if any(one["kind"] == "leak" for one in found):
        show("Warning: the label leaks into the inputs.", style="bold red")
    else:
        show("Check these columns before you trust the result:", style="yellow")
    for one in found[:LISTED]:
        name = f"{one['column']}: " if one["column"] else ""
        style = "red" if one["kind"] == "leak" else "yellow"
        show(f"  {name}{one['text']}. {one['cure']}", style=style)
    if len(found) > LISTED:
        more = len(found) - LISTED
        show(f"  and {more} more: torchleap data inspect {shlex.quote(file)}", style="yellow")
