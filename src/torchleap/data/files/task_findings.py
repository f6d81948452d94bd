"""Findings about a task itself, for data that no file was inspected for."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..._common.text import plural
from ..batches import Batch
from ..manifest import DEFAULT_OBJECTIVE
from ..task import Rows, Task
from .findings import Finding
from .inspection import inspect

INSPECTED = 50_000  # rows in which leaks and other faults show
VALUES = 20_000_000  # of these rows at most: wide tasks are inspected in fewer rows
COPIED = 0.05  # the fraction of the test rows from which copies of train rows are reported
HASHED = 4_000_000  # values that are hashed together
Hashes = NDArray[np.uint64]


def task_findings(task: Task) -> tuple[Finding, ...]:
    """Return what `inspect` finds in the first train rows of a task, the worst first.

    The columns are inspected as a model sees them: leaks, copies of columns, constants and
    repeated rows show; how numbers were written in a file does not. Test rows are not read.

    Args:
        task: The task.
    """
    if task.objective.name != DEFAULT_OBJECTIVE:
        return ()
    slots = sum(column.slots for column in task.columns)
    rows = min(len(task.train), INSPECTED, max(1, VALUES // slots))
    frame = _frame(task, next(task.train.between(0, rows, rows)))
    label = frame.columns[-1]
    if frame[label].n_unique() < 2:
        return ()
    return inspect(frame, label=label).findings


def copied_rows(task: Task) -> tuple[Finding, ...]:
    """Return a finding if many test rows equal a train row in all columns and in the label.

    Rows of a few narrow columns are equal by chance, which is not reported: as many equal rows as
    independent columns would have, twice.

    Args:
        task: The task. Its test rows are read.
    """
    multipliers = _multipliers(task)
    known = np.unique(np.concatenate(list(_hashes(task.train, multipliers))))
    copied = 0
    for hashes in _hashes(task.test, multipliers):
        copied += int(np.isin(hashes, known).sum())
    rows = len(task.test)
    if copied < COPIED * rows or copied <= 2 * rows * _equal_by_chance(task, len(known)):
        return ()
    verb = "equals" if copied == 1 else "equal"
    text = f"{copied:,} of {plural(rows, 'test row')} {verb} a train row in every column"
    cure = (
        "If they are copies, remove them. If they belong together, as the rows of a user do, "
        "split the rows so that they stay in one part."
    )
    return (Finding("copies", None, text, cure),)


def _frame(task: Task, batch: Batch) -> pl.DataFrame:
    """Return rows as a frame with a column per field, and the label as the last one."""
    columns: dict[str, Any] = {}
    for are_ids, values in ((True, batch.ids), (False, batch.numbers)):
        for name, place in task.slots(ids=are_ids).items():
            own = values[:, place].numpy()
            columns[name] = own[:, 0] if own.shape[1] == 1 else own
    label = str(task.roles["label"])
    while label in columns:
        label += " (label)"
    return pl.DataFrame({**columns, label: batch.label.numpy()})


def _multipliers(task: Task) -> Hashes:
    """Return an odd number for each slot and the label, by which the values of a row are mixed."""
    slots = sum(column.slots for column in task.columns) + 1
    rng = np.random.default_rng(0)
    return 2 * rng.integers(1 << 62, size=slots, dtype=np.uint64) + np.uint64(1)


def _hashes(rows: Rows, multipliers: Hashes) -> Iterator[Hashes]:
    """Yield hashes of the rows, some at a time; equal rows have equal ones."""
    together = max(1, HASHED // len(multipliers))
    for batch in rows.between(0, len(rows), together):
        bits = [
            batch.ids.numpy().view(np.uint32),
            (batch.numbers.numpy() + np.float32(0)).view(np.uint32),  # -0.0 becomes 0.0
            batch.label.numpy()[:, None].view(np.uint32),
        ]
        values = np.concatenate(bits, axis=1).astype(np.uint64) + np.uint64(1)
        mixed = values * multipliers
        mixed ^= mixed >> np.uint64(29)  # or the sum would be linear in the values
        yield (mixed * np.uint64(0x9E3779B97F4A7C15)).sum(axis=1, dtype=np.uint64)


def _equal_by_chance(task: Task, different: int) -> float:
    """Return the chance that a row equals one of so many others if columns are independent."""
    rows = min(len(task.train), INSPECTED)
    batch = next(task.train.between(0, rows, rows))
    equal = 1.0
    for values in (batch.ids, batch.numbers, batch.label[:, None]):
        for column in values.numpy().T:
            _, counts = np.unique(column, return_counts=True)
            equal *= float((counts * (counts - 1.0)).sum()) / max(1, rows * (rows - 1))
    return min(1.0, different * equal)
