"""By how much the losses of two trainings differ."""

import math

import pytest
import torch

from tests.methods.tasks import QUICK
from torchleap import models
from torchleap.methods import Search
from torchleap.methods.training_noise import TrainingNoise, around_lowest, deviation


def test_the_noise_of_a_series_is_found_whatever_its_trend():
    noise = 0.01 * torch.randn(4000, generator=torch.Generator().manual_seed(0)).double()
    steps = torch.arange(4000).double() / 4000
    assert deviation((noise + 3 * steps**2 - steps).tolist()) == pytest.approx(0.01, rel=0.05)


def test_a_short_training_shows_no_noise():
    assert deviation([0.3, 0.1, 0.2]) == 0.0
    assert deviation(around_lowest([])) == 0.0
    assert deviation(around_lowest([0.9, 0.5, 0.8, 0.9])) == 0.0, "it rose at once"


def test_losses_below_0_have_neighbours_too():
    assert around_lowest([-0.5, -0.799, -0.8, -0.795, -0.7]) == [-0.799, -0.8, -0.795]


def test_the_last_losses_of_a_training_are_watched(mixed):
    search = Search(mixed, models.benchmark("mlp"), QUICK)
    hook = TrainingNoise(search)
    run = search.fit(search.model(), hook)
    losses = [record["valid_log_loss"] for record in run.history]
    assert hook.losses == pytest.approx(losses, rel=1e-5)
    near = [1.0, 1.004, 0.998, 1.003, 1.001]
    hook.losses = [9.0, 3.0, *near, 1.2]
    expected = math.sqrt(2) * deviation(near)
    assert hook.of_difference == expected > 0
    other = TrainingNoise(search)
    other.load_state_dict(hook.state_dict())
    assert other.of_difference == expected
