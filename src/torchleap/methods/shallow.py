"""Shallow: the base of methods without a deep model, which work on the encoded train rows.

The released benchmarks run them on label-encoded ids with one column per field. With vectors, lists
and ids of many categories, that favours fields with many columns or many values. So each method has
a fair form, which is the default, beside the one `as_published`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .._common.checks import setting
from .._common.errors import TorchleapError
from .._common.optional import need
from ..data.task import Batch, Rows, Task
from .base import Method, Scores, Search

Floats = NDArray[np.floating[Any]]
Doubles = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Shallow(Method):
    """A method that fits train rows and gives a number to each of their columns.

    Args:
        rows: The largest number of train rows to learn from, drawn at random; None is all of them.
        as_published: Whether to do the same as the released benchmark code.
    """

    rows: int | None = setting(1_000_000, at_least=2)
    as_published: bool = False

    def score(self, search: Search) -> Scores:
        """Return the sum of the numbers of a field's columns."""
        batch = some_rows(search.task.train, self.rows, search.seed)
        scores = self.by_field(search.task, batch, search.seed % 2**31)
        return search.by_field(torch.from_numpy(scores))

    def by_field(self, task: Task, batch: Batch, seed: int) -> Doubles:
        """Return the scores, (F,)."""
        by_column = self.by_column(task, batch, seed)
        slots = [column.slots for column in task.columns]
        field_of = np.repeat(np.arange(len(slots)), slots)
        total = np.bincount(field_of, weights=by_column, minlength=len(slots))
        return total.astype(np.float64, copy=False)

    def by_column(self, task: Task, batch: Batch, seed: int) -> Floats:
        """Return a number for each column of ids and numbers, in the order of the fields, (D,)."""
        raise NotImplementedError


def need_package(module: str) -> Any:
    """Import a module of the extra `bench`, where it is used."""
    return need(module, "bench", "This method")


def some_rows(rows: Rows, most: int | None, seed: int) -> Batch:
    """Return all rows, or some that are drawn at random.

    Where they do not fit into memory, blocks of neighbouring rows are drawn.

    Args:
        rows: The train rows.
        most: The largest number of rows; None is all.
        seed: The seed of the draw.
    """
    if most is None or most >= len(rows):
        batch = rows.all()
    else:
        batch = next(iter(rows.batches(most, shuffle=True, seed=seed)))
    if len(batch) < 2 or batch.label.min() == batch.label.max():
        raise TorchleapError(
            f"Expected rows of both labels, but all {len(batch):,} train rows that were drawn "
            "have the same one."
        )
    return batch


def side_by_side(task: Task, batch: Batch, dtype: torch.dtype = torch.float32) -> Any:
    """Return the ids and numbers of all fields in their order, (B, D).

    NOTE[PAPER]: a frequent category has a low id; the released code numbers those of ML-1M in the
    order of their values.
    """
    ids = task.slots(ids=True)
    numbers = task.slots(ids=False)
    blocks = []
    for column in task.columns:
        if column.is_ids:
            block = batch.ids[:, ids[column.name]]
        else:
            block = batch.numbers[:, numbers[column.name]]
        blocks.append(block.to(dtype))
    return torch.cat(blocks, dim=1).numpy()
