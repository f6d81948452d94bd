"""Methods that ask a trained model: full permutation, SHARK and SFS."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ..metrics import auc
from ..models import Ranker
from .base import Method, Scores, Search

ROWS = 1 << 13  # at once


@dataclass(frozen=True)
class Permutation(Method):
    """How much the AUC on validation rows falls when a field's rows are shuffled over the whole set.

    Args:
        repeats: Shuffles of each field, of which the mean counts.
        share: Of the validation rows that are looked at.
    """

    repeats: int = 3
    share: float = 1.0

    def score(self, search: Search) -> Scores:
        """The mean fall of the AUC."""
        model = search.model()
        search.fit(model)
        return search.by_field(self.falls(search, model).mean(1))

    @torch.no_grad()
    def falls(self, search: Search, model: Ranker) -> Tensor:
        """The fall of the AUC for each field and repeat, (F, repeats)."""
        rows = max(2, int(self.share * len(search.task.valid)))
        batch = search.task.valid.all().take(slice(0, rows))
        x, label = model.eval().inputs(*batch.inputs), batch.label  # looked up once for all fields
        dice = torch.Generator().manual_seed(search.seed)
        orders = [torch.randperm(rows, generator=dice) for _ in range(self.repeats)]
        whole = auc(label, _net(model, x))
        columns = [search.task.fields.columns(name) for name in search.task.fields.names]
        return torch.tensor([[whole - auc(label, self._shuffled(model, x, own, order)) for order in orders] for own in columns])

    def _shuffled(self, model: Ranker, x: Tensor, columns: slice, order: Tensor) -> Tensor:
        own = x[:, columns].clone()
        x[:, columns] = own[order]
        found = _net(model, x)
        x[:, columns] = own
        return found


def _net(model: Ranker, x: Tensor) -> Tensor:
    return torch.cat([model.net(part) for part in torch.split(x, ROWS)])


@dataclass(frozen=True)
class Shark(Method):
    """First-order Taylor expansion of what replacing a field by its mean does to the loss (SHARK).

    Args:
        signed: Take the mean of the change instead of the mean of its size.
    """

    signed: bool = False

    def score(self, search: Search) -> Scores:
        """The expected change of a row's loss."""
        model = search.model()
        search.fit(model)
        return search.by_field(self.changes(search, model))

    def changes(self, search: Search, model: Ranker) -> Tensor:
        """Mean over rows of | gradient . (mean - value) |, for each field, (F,)."""
        batch = search.task.valid.all()
        model.eval()
        with torch.no_grad():
            mean = sum(model.inputs(*part).sum(0, dtype=torch.float64) for part in _parts(batch.inputs)) / len(batch)
        field_of = search.column_field()
        total = torch.zeros(len(search.task.fields), dtype=torch.float64)
        for inputs, label in zip(_parts(batch.inputs), torch.split(batch.label, ROWS), strict=True):
            x = model.inputs(*inputs).detach().requires_grad_()
            # rows do not see each other in eval(), so the gradient of the sum holds the gradient of each row's own loss
            loss = binary_cross_entropy_with_logits(model.net(x), label, reduction="sum")
            (gradient,) = torch.autograd.grad(loss, x)
            by_column = gradient.double() * (mean - x.detach())
            change = torch.zeros(len(x), len(total), dtype=torch.float64).index_add_(1, field_of, by_column)
            total += change.sum(0) if self.signed else change.abs().sum(0)
        return total / len(batch)


def _parts(inputs: tuple[Tensor, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(*(torch.split(tensor, ROWS) for tensor in inputs), strict=True)


@dataclass(frozen=True)
class SFS(Method):
    """The size of the loss' gradient by a mask on each field, over validation batches."""

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
        for batch in search.task.valid.batches(search.training.batch, shuffle=True, seed=search.seed):
            mask = torch.ones(len(total), requires_grad=True)
            loss = binary_cross_entropy_with_logits(model.net(model.inputs(*batch.inputs).detach() * mask[field_of]), batch.label)
            total += torch.autograd.grad(loss, mask)[0].abs().double()
            count += 1
            if count == self.batches:
                break
        return total / count
