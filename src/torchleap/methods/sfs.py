"""SFS, single-shot feature selection (Wang et al. 2023): the gradient by a mask on each field."""

from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import torch
from torch import Tensor

from .._common.checks import setting
from ..models import Ranker
from .base import Method, Scores, Search


@dataclass(frozen=True)
class SFS(Method):
    """The size of the loss's gradient by a mask on each field, over validation batches.

    Args:
        batches: The largest number of batches of validation rows.
    """

    uses_trained_model: ClassVar[bool] = True
    batches: int = setting(100, at_least=1)

    def score(self, search: Search) -> Scores:
        """Return the mean over batches of |dL / dc|, where c is the mask."""
        return search.by_field(self.gradients(search, search.fit_plain()))

    def gradients(self, search: Search, model: Ranker) -> Tensor:
        """Return the mean size of the gradient for each field, (F,)."""
        field_of = search.column_field()
        total = torch.zeros(len(search.task.fields), dtype=torch.float64)
        count = 0
        model.eval()
        rows = search.task.valid.batches(search.training.batch, shuffle=True, seed=search.seed)
        for batch in islice(rows, self.batches):
            mask = torch.ones(len(total), requires_grad=True)
            x = model.inputs(*batch.inputs).detach()
            loss = search.task.objective.loss(model.net(x * mask[field_of]), batch.label)
            (gradient,) = torch.autograd.grad(loss, mask)
            total += gradient.abs().double()
            count += 1
        return total / count
