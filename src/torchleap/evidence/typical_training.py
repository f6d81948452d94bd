"""The typical chance of another training, as one training shows it."""

import math
from collections.abc import Mapping, Sequence

from ..methods.training_noise import around_lowest, deviation
from ..objectives import Metric

FEWEST = 4  # evaluations around the best: a third difference takes four values


def typical_training(history: Sequence[Mapping[str, float]], metric: Metric) -> float | None:
    """Return the standard deviation of a metric's difference between two trainings.

    Where a training ends is chance: around the best evaluation the weights still move, and the
    metric moves with them. The third differences of neighbouring evaluations show by how much,
    without the trend. It is an estimate of the size, not a substitute for repeated trainings, whose
    seeds may end in different optima.

    Args:
        history: The evaluations of a training without gates, as `Run.history` has them.
        metric: The metric.

    Returns:
        The standard deviation; None where fewer than four evaluations lie around the best.
    """
    key = f"valid_{metric.name}"
    losses = [-metric.gain(record[key]) for record in history if key in record]
    near = around_lowest(losses)
    if len(near) < FEWEST:
        return None
    return math.sqrt(2) * deviation(near)
