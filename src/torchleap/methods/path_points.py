"""PathMetric: the metric of the models on a path, with their distance to the best one so far."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..objectives import Difference, Metric, Predictions
from ..selection.path import NORMAL_95
from .base import Search


class Measured(NamedTuple):
    """The metric of a model on the validation rows; its parts are those of a `PathPoint`.

    Attributes:
        metric: The metric.
        low: The lower end of its 95 % interval: the chance of the rows in the difference to the
            first model.
        high: The upper end.
        behind: How much worse it is than the best one before, 0 where it is the best.
        error: The standard error of that difference, 0 where it is the best.
    """

    metric: float
    low: float
    high: float
    behind: float
    error: float


def headline_of(search: Search) -> Metric:
    """Return the metric of the points of a path: the one that the training is judged by."""
    return search.task.objective.metric(search.training.metric)


class PathMetric:
    """Measures one model after the other on the validation rows of a search.

    Args:
        search: The search.

    Attributes:
        first: The outputs of the first model, that of all fields, (N,); None before it.
        best: The outputs of the best model so far, (N,).
    """

    def __init__(self, search: Search) -> None:
        self.task = search.task
        self.metric = headline_of(search)
        self.first: Tensor | None = None
        self.best: Tensor | None = None

    def measure(self, outputs: Tensor) -> Measured:
        """Return the metric of the next model, which is from now on the best one if it is better.

        Args:
            outputs: Its raw outputs for all validation rows, (N,).
        """
        if self.first is None or self.best is None:
            self.first = outputs
            self.best = outputs
        value = self.metric.compute(self._predictions(outputs))
        change = self._change(self.first, outputs)
        gain = self._change(self.best, outputs)
        behind = -self.metric.gain(gain.value)
        error = (gain.high - gain.low) / (2 * NORMAL_95)
        if behind <= 0:
            self.best = outputs
            behind = 0.0
            error = 0.0
        level = value - change.value
        return Measured(value, level + change.low, level + change.high, behind, error)

    def moves(self, outputs: Tensor, draw: Tensor) -> list[float]:
        """Return by how much other draws of the rows change the gain over the first model, R of it.

        Args:
            outputs: The raw outputs of a model for all validation rows, (N,).
            draw: How often each row is in each draw, less once, (N, R).
        """
        assert self.first is not None
        first = self.metric.influence(self._predictions(self.first)).parts
        own = self.metric.influence(self._predictions(outputs)).parts
        moved = torch.from_numpy(own - first).to(draw) @ draw  # (R,)
        return [self.metric.gain(move) for move in moved.tolist()]

    def loss(self, outputs: Tensor) -> float:
        """Return the loss of a model by its raw outputs for all validation rows, (N,)."""
        return float(self.task.objective.loss(outputs, self.task.valid.label))

    def state_dict(self) -> dict[str, Any]:
        """Return the outputs of the first and of the best model."""
        return {"first": self.first, "best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the outputs of the first and of the best model; other keys are not read."""
        self.first = state["first"]
        self.best = state["best"]

    def _change(self, before: Tensor, after: Tensor) -> Difference:
        return self.metric.difference(self._predictions(before), self._predictions(after))

    def _predictions(self, outputs: Tensor) -> Predictions:
        rows = self.task.valid
        return self.task.objective.predictions(rows.label, outputs, rows.group)
