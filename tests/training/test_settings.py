"""Settings of a training: they are checked at once, and know how many steps there will be."""

import pytest

import torchleap as tl
from torchleap.objectives import METRICS
from torchleap.training.fit import Training


@pytest.mark.parametrize(
    ("settings", "rows", "per_epoch", "planned"),
    [
        ({"batch": 100, "epochs": 3}, 1000, 10, 30),
        ({"batch": 100, "epochs": 3}, 1001, 11, 33),
        ({"batch": 100, "epochs": 3, "steps": 12}, 1000, 10, 12),
        ({"batch": 100, "epochs": 3, "steps": 99}, 1000, 10, 30),
        ({"batch": 100, "epochs": 50, "steps": 1}, 100, 1, 1),
    ],
)
def test_steps_are_planned_by_rows_epochs_and_the_limit(settings, rows, per_epoch, planned):
    training = Training(**settings)
    assert training.steps_per_epoch(rows) == per_epoch
    assert training.planned_steps(rows) == planned


def test_every_metric_can_choose_the_best_weights():
    for name in METRICS:
        assert Training(metric=name).metric == name


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"metric": "accuracy"}, "metric must be one of auc, .*, but is 'accuracy'"),
        ({"metric": ["auc"]}, r"metric must be .*, but is \['auc'\]"),
        ({"schedule": "steep"}, "schedule must be one of constant, cosine, linear, but is 'steep'"),
        ({"precision": 16}, "precision must be one of float32, bfloat16, but is 16"),
        ({"steps": 0}, "steps must be a whole number of at least 1 or None, but is 0"),
        ({"eval_every": 2.5}, "eval_every must be a whole number .*, but is 2.5"),
        ({"time_limit": 0}, "time_limit must be a number above 0 or None, but is 0"),
        ({"checkpoint_minutes": -1}, "checkpoint_minutes must be a number above 0"),
        ({"clip": float("inf")}, "clip must be a number above 0 or None, but is inf"),
        ({"lr": float("nan")}, "lr must be a number above 0, but is nan"),
        ({"weight_decay": -1}, "weight_decay must be a number of at least 0, but is -1"),
        ({"seed": 1 << 32}, "seed must be a whole number from 0 to 4,294,967,295"),
    ],
)
def test_a_setting_out_of_its_range_is_refused(settings, problem):
    with pytest.raises(tl.TorchleapError, match=problem):
        Training(**settings)


def test_all_bad_settings_are_reported_at_once():
    with pytest.raises(tl.TorchleapError, match=r"batch must .*; patience must .*; warmup must"):
        Training(batch=0, patience=0, warmup=-1)
