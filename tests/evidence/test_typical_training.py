"""The chance of another training, as the evaluations of one show it."""

import math

import pytest
import torch

from torchleap.evidence.typical_training import typical_training
from torchleap.objectives import METRICS


def history(metric, values):
    return [{"step": step, f"valid_{metric}": value} for step, value in enumerate(values)]


@pytest.mark.parametrize(("metric", "level"), [("auc", 0.8), ("log_loss", 0.4)])
def test_it_is_the_noise_of_the_metric_around_its_best(metric, level):
    noise = 2e-4 * torch.randn(4000, generator=torch.Generator().manual_seed(0)).double()
    trend = 1e-3 * torch.linspace(-1, 1, 4000).double() ** 2
    values = (level + noise - METRICS[metric].sign * trend).tolist()
    far = [level - METRICS[metric].sign * 0.1] * 5
    found = typical_training(history(metric, [*far, *values]), METRICS[metric])
    assert found == pytest.approx(math.sqrt(2) * 2e-4, rel=0.05)


def test_fewer_than_four_evaluations_around_the_best_say_nothing():
    few = history("auc", [0.5, 0.6, 0.8, 0.801, 0.799])
    assert typical_training(few, METRICS["auc"]) is None
    assert typical_training([], METRICS["auc"]) is None
    assert typical_training(history("auc", [0.8] * 9), METRICS["gauc"]) is None


def test_four_evaluations_are_enough():
    found = typical_training(history("auc", [0.8, 0.801, 0.799, 0.8005]), METRICS["auc"])
    assert 0 < found < 0.01
