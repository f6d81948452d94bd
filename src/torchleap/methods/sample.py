"""Evenly spaced rows of a part of a task, read chunk by chunk."""

import torch

from ..data.batches import joined
from ..data.task import Batch, Rows

CHUNK = 1 << 16  # rows that are read at a time


def spacing(rows: Rows, most: int) -> int:
    """Return the distance of rows of which there are at most so many.

    Args:
        rows: The rows.
        most: How many rows there may be.
    """
    return max(1, -(-len(rows) // max(1, most)))


def evenly_spaced(rows: Rows, most: int) -> Batch:
    """Return every row, or the first one of every few, in their order: those of `spacing`.

    Args:
        rows: The rows.
        most: How many rows are returned at most.
    """
    every = spacing(rows, most)
    found = []
    start = 0
    for batch in rows.between(0, len(rows), CHUNK):
        found.append(batch.take(torch.arange(len(batch))[-start % every :: every]))
        start += len(batch)
    return joined(found)


def chunks(batch: Batch, size: int) -> list[Batch]:
    """Return the rows of a batch in batches of at most so many rows.

    Args:
        batch: The rows.
        size: The rows per batch.
    """
    starts = range(0, len(batch), size)
    return [batch.take(slice(start, start + size)) for start in starts]
