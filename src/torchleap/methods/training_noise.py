"""TrainingNoise: by how much the losses of two trainings differ by chance."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from ..distributed import ranks
from ..training.fit import Hook, Run
from .base import Search
from .path_points import PathMetric

NEAR = 0.01  # of the lowest loss: evaluations within it show the noise around an optimum
THIRD = math.sqrt(20.0)  # times that of single values is the deviation of third differences


class TrainingNoise(Hook):
    """Watches the loss on validation rows from evaluation to evaluation of a plain training.

    Where a training ends is chance: the weights move around an optimum, and so does the loss. Its
    third differences from evaluation to evaluation show this, without a smooth trend. They say how
    much of a small difference between two trained models is noise. Only evaluations around the
    lowest loss count, and where there are fewer than four of them, the noise is not known.

    Args:
        search: The search.

    Attributes:
        losses: The loss on all validation rows at each evaluation so far.
    """

    def __init__(self, search: Search) -> None:
        self.metric = PathMetric(search)
        self.losses: list[float] = []

    def after_eval(self, run: Run, record: dict[str, float]) -> None:
        """Note the loss."""
        assert run.outputs is not None
        self.losses += ranks.averages([self.metric.loss(run.outputs)])

    @property
    def of_difference(self) -> float:
        """Return the standard deviation of the difference between the losses of two trainings."""
        return math.sqrt(2) * deviation(around_lowest(self.losses))

    def state_dict(self) -> dict[str, Any]:
        """Return the losses so far."""
        return {"losses": list(self.losses)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the losses."""
        self.losses = [float(loss) for loss in state["losses"]]


def around_lowest(losses: Sequence[float]) -> Sequence[float]:
    """Return the lowest loss with its neighbours that are higher by at most one percent of it.

    >>> around_lowest([2.0, 1.005, 1.0, 1.002, 1.3, 1.0])
    [1.005, 1.0, 1.002]
    """
    if not losses:
        return []
    first = last = min(range(len(losses)), key=losses.__getitem__)
    limit = losses[first] + NEAR * abs(losses[first])  # a gain is a loss below 0
    while first > 0 and losses[first - 1] <= limit:
        first -= 1
    while last + 1 < len(losses) and losses[last + 1] <= limit:
        last += 1
    return losses[first : last + 1]


def deviation(losses: Sequence[float]) -> float:
    """Return the standard deviation of the noise in a smooth series, by its third differences.

    Args:
        losses: The series; of fewer than four values nothing is known, so that 0 is returned.

    >>> deviation([1.0, 0.8, 0.7, 0.7, 0.8]) < 1e-6
    True
    """
    if len(losses) < 4:
        return 0.0
    third = torch.tensor(losses, dtype=torch.float64).diff(n=3)
    return float(third.square().mean().sqrt()) / THIRD
