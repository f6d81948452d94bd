"""SHARK (Zhang et al. 2023): the change of the loss when a field is replaced by its mean."""

import copy
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from .._common.checks import setting
from ..data.task import Batches
from ..models import Ranker
from ..selection import Path, Worth
from ..selection.path import NORMAL_95
from .base import Method, Scores, Search, put_before_net
from .path_points import headline_of
from .shuffled import rows_at_once

# Bytes of the input of the rows that are computed at a time: with more, fresh memory costs more
# than the arithmetic in it; with less, the calls do.
CHUNK = 8 << 20


class Changes(NamedTuple):
    """The first-order change of a row's loss when each field is replaced by its mean.

    Attributes:
        size: The mean over the rows of its size, (F,).
        mean: The mean of the change itself, (F,).
        error: The standard error of that mean, (F,).
    """

    size: Tensor
    mean: Tensor
    error: Tensor

    def worth(self, place: int) -> Worth:
        """Return the mean change for one field as its worth.

        Args:
            place: The position of the field.
        """
        nats = float(self.mean[place])
        error = NORMAL_95 * float(self.error[place])
        return Worth(nats, nats - error, nats + error)


@dataclass(frozen=True)
class Shark(Method):
    """The first-order Taylor expansion of the loss between each field and its mean.

    With several rounds, each round drops the same number of fields, those with the lowest scores:
    their values become their means, and the model is trained a little more before the next round
    scores the others. A field that is dropped later ranks higher. Where a round would therefore
    begin below the round before, one number is added to all of its scores; otherwise a score is
    the expected change of a row's loss at the time when the field was last scored.

    The search also has the worth of each field: the mean of that change, with its sign and an
    interval over the rows. It is an estimate from the slope of the loss, and the loss of a trained
    model is flat: it can be far below what the model pays without the field.

    Args:
        signed: Whether a score is the mean of the change instead of the mean of its size.
        rounds: The number of rounds; 1 scores all fields at once.
        epochs: The largest number of epochs of training between two rounds.
    """

    uses_trained_model: ClassVar[bool] = True
    measures_worth: ClassVar[bool] = True
    signed: bool = False
    rounds: int = setting(1, at_least=1)
    epochs: int = setting(1, at_least=1)

    def score(self, search: Search) -> Scores:
        """Return the expected change of a row's loss."""
        model = search.fit_plain()
        if self.rounds == 1:
            changes = self.changes(search, model)
            worth = {place: changes.worth(place) for place in range(len(changes.mean))}
            scores = self._scores(changes)
        else:
            scores, worth = self._scores_in_rounds(search, copy.deepcopy(model))
        names = search.task.fields.names
        in_order = {name: worth[place] for place, name in enumerate(names)}
        search.path = Path(headline_of(search).name, in_order)
        return search.by_field(scores)

    def _scores(self, changes: Changes) -> Tensor:
        return changes.mean if self.signed else changes.size

    def _scores_in_rounds(self, search: Search, model: Ranker) -> tuple[Tensor, dict[int, Worth]]:
        """Return the scores, (F,), which rise from round to round, and the worth by position."""
        means = Means(search)
        put_before_net(model, means)
        changes = self.changes(search, model)
        scores = self._scores(changes)
        worth = {}
        gap = 1e-6 * float(scores.abs().max())  # the smallest distance between two rounds
        found = torch.zeros_like(scores)
        fields = list(range(len(scores)))  # those that are not dropped yet
        highest = -torch.inf
        for number in range(self.rounds):
            fields.sort(key=lambda place: float(scores[place]))
            dropped_so_far = len(scores) - len(fields)
            count = round(len(scores) * (number + 1) / self.rounds) - dropped_so_far
            dropped = fields[:count]
            fields = fields[count:]
            if dropped:
                lift = max(0.0, highest + gap - float(scores[dropped].min()))
                found[dropped] = scores[dropped] + lift
                highest = float(found[dropped].max())
                worth.update({place: changes.worth(place) for place in dropped})
            if fields:
                means.drop(dropped, mean_input(search, model))
                search.fit(model, training=replace(search.training, epochs=self.epochs))
                changes = self.changes(search, model)
                scores = self._scores(changes)
        return found, worth

    def changes(self, search: Search, model: Ranker) -> Changes:
        """Return the statistics over rows of gradient . (mean - value) for each field."""
        mean = mean_input(search, model)
        widths = search.task.fields.widths
        size, total, squares = torch.zeros(3, len(widths), dtype=torch.float64)
        for batch in batches_at_once(search):
            x = model.inputs(*batch.inputs).detach().requires_grad_()
            # In eval mode, rows do not depend on each other: the gradient of the sum contains the
            # gradient of each row's own loss.
            loss = search.task.objective.loss(model.net(x), batch.label, reduction="sum")
            (gradient,) = torch.autograd.grad(loss, x)
            by_column = (mean - x.detach()).mul_(gradient)
            by_field = [block.sum(1) for block in by_column.split(widths, dim=1)]
            change = torch.stack(by_field, dim=1)  # (B, F)
            size += change.abs().sum(0, dtype=torch.float64)
            total += change.sum(0, dtype=torch.float64)
            squares += change.square().sum(0, dtype=torch.float64)
        rows = len(search.task.valid)
        mean = total / rows
        variance = (squares / rows - mean.square()).clamp_min(0) / max(1, rows - 1)  # of the mean
        return Changes(size / rows, mean, variance.sqrt())


def batches_at_once(search: Search) -> Batches:
    """Return the validation rows in batches whose input and gradient take little memory."""
    return search.task.valid.batches(rows_at_once(search.task.fields.dims, CHUNK))


@torch.no_grad()
def mean_input(search: Search, model: Ranker) -> Tensor:
    """Return the mean of each column of the network's input over the validation rows, (D,).

    The model is left in eval mode.
    """
    model.eval()
    total = sum(model.inputs(*batch.inputs).sum(0).double() for batch in batches_at_once(search))
    return (torch.as_tensor(total) / len(search.task.valid)).float()


class Means(nn.Module):
    """A layer that replaces the values of dropped fields by their means.

    **Shape**: (B, D) -> (B, D)
    """

    def __init__(self, search: Search) -> None:
        super().__init__()
        dims = search.task.fields.dims
        # Buffers: a checkpoint saves them, and a compiled model does not treat them as constants.
        self.register_buffer("field_of", search.column_field())
        self.register_buffer("dropped", torch.zeros(dims, dtype=torch.bool))
        self.register_buffer("mean", torch.zeros(dims))

    def forward(self, x: Tensor) -> Tensor:
        """Return the input with means in the columns of dropped fields."""
        return torch.where(self.get_buffer("dropped"), self.get_buffer("mean"), x)

    def drop(self, places: list[int], mean: Tensor) -> None:
        """Replace more fields from now on.

        Args:
            places: The positions of the fields.
            mean: The mean of each column, (D,); those of other fields are not used.
        """
        new = torch.isin(self.get_buffer("field_of"), torch.tensor(places, dtype=torch.int64))
        self.get_buffer("dropped").logical_or_(new)
        self.get_buffer("mean").copy_(torch.where(new, mean, self.get_buffer("mean")))
