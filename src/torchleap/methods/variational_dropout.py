"""Variational dropout of fields, as in EasyRec (Alibaba, 2021): a drop probability for each."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .base import Method, Scores, Search
from .field_gates import FieldGates, train_gates


@dataclass(frozen=True)
class VariationalDropout(Method):
    """A drop probability per field, with differentiable noise and a penalty on open fields.

    Args:
        weight: The weight of the sum of the keep probabilities, which the batch size divides.
        temperature: The temperature of the noise; the lower, the closer each gate is to 0 or 1.
        lr: The learning rate of the probabilities; None is the model's.
    """

    weight: float = 0.01
    temperature: float = 0.1
    lr: float | None = None

    def score(self, search: Search) -> Scores:
        """Return the keep probabilities at the end of training."""
        return train_gates(search, DropGates(search, self), lr=self.lr)


class DropGates(FieldGates):
    """Gates that are drawn per row; a field is dropped with probability 1/2 at the start.

    **Shape**: (B, D) -> (B, D)
    """

    def __init__(self, search: Search, method: VariationalDropout) -> None:
        super().__init__(search)
        self.method = method
        self.batch = search.training.batch
        self.drop = nn.Parameter(torch.zeros(len(search.task.fields)))  # w, a logit

    def gates(self, x: Tensor) -> Tensor:
        """Return nearly 0 or 1 per row in training, (B, F), else the keep probabilities, (F,)."""
        if not self.training:
            return torch.sigmoid(-self.drop)
        noise = torch.logit(torch.rand(len(x), len(self.drop), device=x.device), eps=1e-7)
        return torch.sigmoid(-(self.drop + noise) / self.method.temperature)

    def penalty(self) -> Tensor:
        """Return the weighted sum of the keep probabilities, divided by the batch size.

        So it has the weight that it would have beside the loss of a single row.
        """
        return self.method.weight / self.batch * torch.sigmoid(-self.drop).sum()

    def field_scores(self) -> Tensor:
        """Return the keep probabilities, (F,)."""
        return torch.sigmoid(-self.drop)
