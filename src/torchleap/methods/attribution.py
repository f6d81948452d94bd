"""Methods that ask a trained model for gradients: SHARK and SFS."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from .._common.checks import refuse_settings
from ..data.task import Batches
from ..models import Ranker
from .base import Method, Scores, Search, put_before_net
from .permutation import rows_at_once

CHUNK = (
    8 << 20
)  # bytes of some rows' input: with more, fresh memory costs more than what is computed in it; with less, calls do


@dataclass(frozen=True)
class Shark(Method):
    """First-order Taylor expansion of what replacing a field by its mean does to the loss (SHARK).

    With several rounds, each drops as many fields, those with the lowest scores: their values become their means, and the model
    is trained a little more before the next round scores the rest. A field that was dropped later ranks higher. For that, the
    scores of a round are raised by one number for all of them where they would begin below those of the round before; else
    they are what they always are, the expected change of a row's loss when the field was scored last.

    Args:
        signed: Take the mean of the change instead of the mean of its size.
        rounds: How often to score; 1 scores all fields at once.
        epochs: At most so many of training between two rounds.
    """

    asks_trained: ClassVar[bool] = True
    signed: bool = False
    rounds: int = 1
    epochs: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = {"rounds": self.rounds, "epochs": self.epochs}
        refuse_settings(
            {
                f"{name} must be at least 1, but is {value!r}": value >= 1
                for name, value in whole.items()
            }
        )

    def score(self, search: Search) -> Scores:
        """The expected change of a row's loss."""
        model = search.model()
        search.fit(model)
        if self.rounds == 1:
            return search.by_field(self.changes(search, model))
        means = Means(search)
        put_before_net(model, means)
        return search.by_field(self._by_rounds(search, model, means))

    def _by_rounds(self, search: Search, model: Ranker, means: "Means") -> Tensor:
        scores = self.changes(search, model)
        left = list(range(len(scores)))  # fields
        found, shortest = (
            torch.zeros_like(scores),
            1e-6 * float(scores.abs().max()),
        )  # distance between two rounds
        top = -torch.inf
        for number in range(self.rounds):
            left.sort(key=lambda place: float(scores[place]))
            go = round(len(scores) * (number + 1) / self.rounds) - (len(scores) - len(left))
            dropped, left = left[:go], left[go:]
            if dropped:
                found[dropped] = scores[dropped] + max(
                    0.0, top + shortest - float(scores[dropped].min())
                )
                top = float(found[dropped].max())
            if left:
                means.drop(dropped, mean_input(search, model))
                search.fit(model, training=replace(search.training, epochs=self.epochs))
                scores = self.changes(search, model)
        return found

    def changes(self, search: Search, model: Ranker) -> Tensor:
        """Mean over rows of | gradient . (mean - value) |, for each field, (F,)."""
        mean, widths = mean_input(search, model), search.task.fields.widths
        total = torch.zeros(len(widths), dtype=torch.float64)
        for batch in batches_at_once(search):
            x = model.inputs(*batch.inputs).detach().requires_grad_()
            # rows do not see each other in eval(), so the gradient of the sum holds the gradient of each row's own loss
            loss = binary_cross_entropy_with_logits(model.net(x), batch.label, reduction="sum")
            (gradient,) = torch.autograd.grad(loss, x)
            by_column = (mean - x.detach()).mul_(gradient)
            change = torch.stack(
                [block.sum(1) for block in by_column.split(widths, dim=1)], dim=1
            )  # (B, F)
            total += (change if self.signed else change.abs()).sum(0, dtype=torch.float64)
        return total / len(search.task.valid)


def batches_at_once(search: Search) -> Batches:
    """The validation rows, so many at a time that their input and its gradient take little memory."""
    return search.task.valid.batches(rows_at_once(search.task.fields.dims, CHUNK))


@torch.no_grad()
def mean_input(search: Search, model: Ranker) -> Tensor:
    """The mean of each column of the network's input over the validation rows, (D,); the model is in eval mode from then on."""
    model.eval()
    total = sum(model.inputs(*batch.inputs).sum(0).double() for batch in batches_at_once(search))
    return (torch.as_tensor(total) / len(search.task.valid)).float()


class Means(nn.Module):
    """Puts means in place of the values of dropped fields, (B, D) -> (B, D)."""

    def __init__(self, search: Search) -> None:
        super().__init__()
        # buffers, so that a checkpoint keeps them and a compiled model does not take them for constants
        self.register_buffer("field_of", search.column_field())
        self.register_buffer("dropped", torch.zeros(search.task.fields.dims, dtype=torch.bool))
        self.register_buffer("mean", torch.zeros(search.task.fields.dims))

    def forward(self, x: Tensor) -> Tensor:
        """Replace."""
        return torch.where(self.get_buffer("dropped"), self.get_buffer("mean"), x)

    def drop(self, places: list[int], mean: Tensor) -> None:
        """Replace these fields too, by their part of a mean of all columns."""
        new = torch.isin(self.get_buffer("field_of"), torch.tensor(places, dtype=torch.int64))
        self.get_buffer("dropped").logical_or_(new)
        self.get_buffer("mean").copy_(torch.where(new, mean, self.get_buffer("mean")))


@dataclass(frozen=True)
class SFS(Method):
    """The size of the loss' gradient by a mask on each field, over validation batches."""

    asks_trained: ClassVar[bool] = True
    batches: int = 100

    def score(self, search: Search) -> Scores:
        """Mean over batches of | dL / dc |."""
        model = search.model()
        search.fit(model)
        return search.by_field(self.gradients(search, model))

    def gradients(self, search: Search, model: nn.Module) -> Tensor:
        """For each field, (F,)."""
        assert isinstance(model, Ranker)
        field_of = search.column_field()
        total, count = torch.zeros(len(search.task.fields), dtype=torch.float64), 0
        model.eval()
        for batch in search.task.valid.batches(
            search.training.batch, shuffle=True, seed=search.seed
        ):
            mask = torch.ones(len(total), requires_grad=True)
            loss = binary_cross_entropy_with_logits(
                model.net(model.inputs(*batch.inputs).detach() * mask[field_of]), batch.label
            )
            total += torch.autograd.grad(loss, mask)[0].abs().double()
            count += 1
            if count == self.batches:
                break
        return total / count
