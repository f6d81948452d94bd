"""Reads: which fields a model reads, found by changing one after the other."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ..data.task import Rows

PROBES = 64  # rows whose field is changed


@torch.no_grad()
def unread(models: Sequence[nn.Module], rows: Rows) -> tuple[str, ...]:
    """Return the fields that no output of some models depends on, in input order.

    The values of a field in a few rows are exchanged for others that the field has. A field with
    the same value in all rows cannot be judged, and counts as read.

    Args:
        models: The models, of (ids, numbers); their mode is restored.
        rows: The rows, at least one.
    """
    step = max(1, len(rows) // PROBES)
    starts = range(0, len(rows), step)[:PROBES]
    batch = rows.read([[start, start + 1] for start in starts])
    slots = {**rows.task.slots(ids=True), **rows.task.slots(ids=False)}
    modes = [model.training for model in models]
    for model in models:
        model.eval()
    try:
        expected = [model(*batch.inputs) for model in models]
        found = []
        for column in rows.task.columns:
            others = _other_values(rows, column.name, len(batch))
            if others is None:
                continue
            own = batch.ids if column.is_ids else batch.numbers
            place = slots[column.name]
            kept = own[:, place].clone()
            own[:, place] = torch.from_numpy(others)
            changed = [model(*batch.inputs) for model in models]
            own[:, place] = kept
            if all(map(torch.equal, changed, expected)):
                found.append(column.name)
    finally:
        for model, mode in zip(models, modes, strict=True):
            model.train(mode)
    return tuple(found)


def _other_values(rows: Rows, name: str, count: int) -> npt.NDArray[Any] | None:
    """Return values of a field, the first row's and others in turn; None if all are the same."""
    values = rows.column(name)
    differs = np.flatnonzero((values != values[0]).any(1))
    if not len(differs):
        return None
    picked = differs[np.linspace(0, len(differs) - 1, count).astype(np.int64)]
    found = np.array(values[picked])
    found[1::2] = values[0]
    return found
