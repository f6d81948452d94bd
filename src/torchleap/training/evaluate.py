"""Evaluate a model on rows of a task: its outputs, and the metrics of the task's objective."""

import torch
from torch import Tensor, nn

from ..data.task import Rows, Task
from ..distributed import ranks

LARGE_BATCH = 1 << 15  # rows at once without training, at most
LARGE_INPUT = (
    1 << 23
)  # bytes of their input, about: with more, fresh memory costs more than it saves


def large_batch(task: Task) -> int:
    """Return the number of rows to pass through a model at once where nothing is trained."""
    return min(LARGE_BATCH, max(1, LARGE_INPUT // (4 * task.fields.dims)))


@torch.no_grad()
def predict(model: nn.Module, rows: Rows, *, shard: tuple[int, int] = (0, 1)) -> Tensor:
    """Return the raw outputs of rows in their order, computed in eval mode.

    Args:
        model: A model of (ids, numbers), as in `torchleap.models`; its mode is restored.
        rows: The rows.
        shard: The number of a consecutive part of the rows and the count of parts, such as
            (rank, ranks); only this part is computed. By default it is all rows.
    """
    number, count = shard
    start = len(rows) * number // count
    stop = len(rows) * (number + 1) // count
    was_training = model.training
    model.eval()
    try:
        batches = rows.between(start, stop, large_batch(rows.task))
        outputs = [model(*batch.inputs).float() for batch in batches]
    finally:
        model.train(was_training)
    if not outputs:
        return torch.zeros(0)
    return torch.cat(outputs)


def predict_together(model: nn.Module, rows: Rows) -> Tensor:
    """Return the raw outputs of all rows, of which each rank computes a part.

    Args:
        model: A model as in `predict`.
        rows: The rows.
    """
    own = predict(model, rows, shard=(ranks.rank(), ranks.count()))
    return torch.cat(ranks.all_gather(own))


def evaluate(model: nn.Module, rows: Rows, *, together: bool = False) -> dict[str, float]:
    """Return the metrics of a model on some rows by name, such as AUC and log loss.

    Metrics that compare rows within groups are there if the rows have groups.

    Args:
        model: A model of (ids, numbers), as in `torchleap.models`.
        rows: The rows.
        together: Whether each rank computes a part of the rows; all ranks then have to call this.
    """
    outputs = predict_together(model, rows) if together else predict(model, rows)
    return rows.task.objective.evaluate(rows.label, outputs, rows.group)
