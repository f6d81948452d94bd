"""STG, stochastic gates (Yamada et al. 2020): a clamped Gaussian for each field."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .base import Method, Scores, Search
from .field_gates import FieldGates, train_gates


@dataclass(frozen=True)
class STG(Method):
    """A Gaussian per field, clamped to [0, 1], with a penalty on the probability to be open.

    Args:
        weight: The weight of the mean probability to be open, in the loss.
        deviation: The standard deviation of the noise on each gate.
        lr: The learning rate of the gates; None is the model's.
    """

    weight: float = 0.1
    deviation: float = 0.5  # sigma
    lr: float | None = None

    def score(self, search: Search) -> Scores:
        """Return the means of the Gaussians at the end of training."""
        return train_gates(search, GaussianGates(search, self), lr=self.lr)


class GaussianGates(FieldGates):
    """Gates that are drawn once per batch; they are half open at the start.

    **Shape**: (B, D) -> (B, D)
    """

    def __init__(self, search: Search, method: STG) -> None:
        super().__init__(search)
        self.method = method
        self.mean = nn.Parameter(torch.zeros(len(search.task.fields)))  # mu

    def gates(self, x: Tensor) -> Tensor:
        """Return the gates, (F,), with noise in training only."""
        gates = self.mean + 0.5
        if self.training:
            gates = gates + self.method.deviation * torch.randn_like(self.mean)
        return gates.clamp(0, 1)

    def penalty(self) -> Tensor:
        """Return the weighted mean probability of a gate to be open."""
        probability: Tensor = torch.special.ndtr((self.mean + 0.5) / self.method.deviation)
        return self.method.weight * probability.mean()

    def field_scores(self) -> Tensor:
        """Return the means, (F,)."""
        return self.mean
