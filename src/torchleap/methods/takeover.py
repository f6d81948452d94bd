"""What the other fields take over from fields that are dropped, as far as they can linearly."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..data.task import Batch
from ..fields import Fields
from ..models import Ranker
from ..objectives import Objective
from .base import Search
from .contributions import Contributions, Mask, losses_of
from .sample import chunks
from .shuffled import SplitNet, rows_at_once

COLUMNS = 256  # of all fields together that take over, at most: wide fields are projected
FIT_ROWS = 1 << 12  # from which the takeover is learned, at most
RIDGE = 1e-3  # of the mean square of a column: the penalty on its coefficient
FOLDS = 2  # parts of the rows, each of which is predicted from the others


@torch.no_grad()
def rises_after_takeover(
    search: Search,
    model: Ranker,
    sample: Batch,
    found: Contributions,
    masks: Sequence[Mask],
    stay: Sequence[str],
) -> Tensor:
    """Return how much the loss of each row rises without some fields, (M, N), after a takeover.

    A model that is trained without a field reads from others what they know of it. The output that
    the model loses with a field is therefore predicted from the columns of the other fields, by
    least squares with the curvature of the loss as weights, and the prediction is added again. Each
    half of the rows is predicted from the other one, and a prediction that fails there is shrunk.
    Labels play no part in this, so that chance in them cannot be learned.

    Args:
        search: The search.
        model: A model of it, which is left in eval mode.
        sample: The rows.
        found: How the outputs of the model change for these rows, by mask.
        masks: The sets of fields that are dropped together.
        stay: The fields that the model reads at present.
    """
    objective = search.task.objective
    before = objective.row_losses(found.outputs, sample.label)
    regained = torch.zeros_like(found.changes)
    if objective.output_width == 1 and len(sample) > FOLDS:
        columns = Columns(search.task.fields, stay, model)
        x = columns.of(sample)  # (N, C)
        weight = curvature(objective, found.outputs, sample.label)
        rng = torch.Generator().manual_seed(search.seed)
        fold = torch.randperm(len(sample), generator=rng) % FOLDS
        for part in range(FOLDS):
            others = (fold != part).nonzero().flatten()[:FIT_ROWS]
            lost = found.changes[:, others]  # (M, n)
            solved = _coefficients(x[others], weight[others], lost, columns, masks)
            regained[:, fold == part] = (x[fold == part] @ solved).T
        regained *= _trust(regained, found.changes, weight)[:, None]
    after = losses_of(objective, found.outputs - found.changes + regained, sample.label)
    return (after - before).double()


class Columns:
    """The columns of some fields, standardised; those of wide fields are projected.

    A wide field keeps the directions that weigh most in the first layers of the model.

    Args:
        fields: All fields.
        names: The fields that are used.
        model: The model, in eval mode.

    Attributes:
        places: The columns of each field.
    """

    def __init__(self, fields: Fields, names: Sequence[str], model: Ranker) -> None:
        self.model = model
        self.places: dict[str, slice] = {}
        self._read: list[slice] = []
        self._directions: list[Tensor | None] = []
        weight = SplitNet(model.net, fields.dims, hooks=False).weight  # (H, D)
        most = most_columns([fields[name].width for name in names], COLUMNS)
        start = 0
        for name in names:
            read = fields.columns(name)
            width = fields[name].width
            self._read.append(read)
            self._directions.append(None)
            if width > most:
                own = weight[:, read]
                self._directions[-1] = torch.linalg.eigh(own.T @ own).eigenvectors[:, -most:]
                width = most
            self.places[name] = slice(start, start + width)
            start += width
        self.count = start

    def of(self, batch: Batch) -> Tensor:
        """Return the columns of some rows, (N, C), each with mean 0 and deviation 1."""
        found = []
        for part in chunks(batch, rows_at_once(sum(one.stop - one.start for one in self._read))):
            x = self.model.inputs(*part.inputs).float()  # (B, D)
            blocks = []
            for read, directions in zip(self._read, self._directions, strict=True):
                block = x[:, read]
                blocks.append(block if directions is None else block @ directions)
            found.append(torch.cat(blocks, dim=1))
        values = torch.cat(found)
        mean = values.mean(0)
        deviation = values.std(0)
        is_constant = deviation <= 1e-6 * (mean.abs() + 1e-6)
        return (values - mean) / torch.where(is_constant, torch.inf, deviation)


def most_columns(widths: Sequence[int], total: int) -> int:
    """Return the largest width of a field with which all fields together have at most `total`.

    Args:
        widths: The widths of the fields.
        total: The number of columns of all fields; each field has at least one.

    >>> most_columns([1, 4, 100], 20), most_columns([2, 2], 100)
    (15, 2)
    """
    most = 1
    for width in sorted(set(widths)):
        if sum(min(own, width) for own in widths) <= total:
            most = width
    narrow = sum(own for own in widths if own <= most)
    wider = sum(own > most for own in widths)
    if wider:
        most = max(most, (total - narrow) // wider)
    return most


def curvature(objective: Objective, outputs: Tensor, label: Tensor) -> Tensor:
    """Return the second derivative of each row's loss by its output, (N,), at least 0.

    Args:
        objective: The objective.
        outputs: The raw outputs, (N,).
        label: The label of each row, (N,).
    """
    with torch.enable_grad():
        free = outputs.detach().reshape(-1).requires_grad_()
        loss = objective.loss(free, label, reduction="sum")
        [slope] = torch.autograd.grad(loss, free, create_graph=True)
        [found] = torch.autograd.grad(slope.sum(), free)
    return found.clamp_min(0.0)


def _coefficients(
    x: Tensor, weight: Tensor, lost: Tensor, columns: Columns, masks: Sequence[Mask]
) -> Tensor:
    """Return the coefficients that predict what each mask loses from the fields outside it, (C, M).

    Args:
        x: The columns of some rows, (n, C).
        weight: The weight of each row, (n,).
        lost: The change of the output of each row by each mask, (M, n).
        columns: Says where the columns of each field are.
        masks: The masks.
    """
    weighted = x * weight[:, None]
    moments = (weighted.T @ x / len(x)).double()  # (C, C)
    ridge = RIDGE * moments.diagonal().mean().clamp_min(1e-30)
    moments += ridge * torch.eye(len(moments), dtype=torch.float64)
    toward = (weighted.T @ lost.T / len(x)).double()  # (C, M)
    solved = torch.zeros_like(toward)
    for number, mask in enumerate(masks):
        outside = torch.ones(columns.count, dtype=torch.bool)
        for name in mask:
            if name in columns.places:
                outside[columns.places[name]] = False
        own = moments[outside][:, outside]
        solved[outside, number] = torch.linalg.solve(own, toward[outside, number])
    return solved.to(x)


def _trust(regained: Tensor, lost: Tensor, weight: Tensor) -> Tensor:
    """Return the factor of each prediction that makes it the best, (M,), from 0 to 1.

    Args:
        regained: The predictions for rows that they were not learned from, (M, N).
        lost: The changes of the outputs that they predict, (M, N).
        weight: The weight of each row, (N,).
    """
    weighted = regained * weight
    size = (weighted * regained).sum(1).clamp_min(1e-30)
    return ((weighted * lost).sum(1) / size).clamp(0.0, 1.0)
