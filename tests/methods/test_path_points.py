"""The metric of models on a path: beside the first one, and behind the best one so far."""

from dataclasses import replace

import pytest
import torch

import torchleap as tl
from tests.methods.tasks import TRAINING
from torchleap import models
from torchleap.methods import Search
from torchleap.methods.path_points import PathMetric
from torchleap.objectives import METRICS


def outputs_of(task, *noises):
    """Return log odds that follow the labels, the less the more noise there is."""
    label = task.valid.label
    noise = torch.randn(len(label), generator=torch.Generator().manual_seed(0))
    return [2 * label - 1 + amount * noise for amount in noises]


@pytest.mark.parametrize("name", ["auc", "log_loss"])
def test_a_model_is_behind_the_best_one_and_its_interval_is_beside_the_first(task, name):
    search = Search(task, models.benchmark("wide_deep"), replace(TRAINING, metric=name))
    label = task.valid.label
    metric = METRICS[name]
    first, best, worse = outputs_of(task, 1.0, 0.5, 0.8)
    path = PathMetric(search)
    found = [path.measure(output) for output in (first, best, worse)]
    rows = [task.objective.predictions(label, output) for output in (first, best, worse)]
    values = [metric.compute(one) for one in rows]
    assert [one.metric for one in found] == values
    assert found[0] == (values[0], values[0], values[0], 0.0, 0.0)
    assert (found[1].behind, found[1].error) == (0.0, 0.0)
    behind = metric.difference(rows[1], rows[2])
    assert found[2].behind == pytest.approx(abs(values[1] - values[2]))
    assert found[2].error == pytest.approx((behind.high - behind.low) / (2 * 1.96))
    change = metric.difference(rows[0], rows[2])
    assert found[2].low == pytest.approx(values[0] + change.low)
    assert found[2].high == pytest.approx(values[0] + change.high)
    assert path.loss(worse) == pytest.approx(tl.log_loss(label, torch.sigmoid(worse)), rel=1e-5)


def test_the_state_holds_what_the_next_model_is_compared_with(task):
    search = Search(task, models.benchmark("wide_deep"), TRAINING)
    first, best, worse = outputs_of(task, 1.0, 0.5, 0.8)
    path = PathMetric(search)
    path.measure(first)
    path.measure(best)
    resumed = PathMetric(search)
    resumed.load_state_dict(path.state_dict())
    assert resumed.measure(worse) == path.measure(worse)
