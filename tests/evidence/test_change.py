"""Change: parts of rows and of groups, against leaving out one unit after the other."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.slow import change_inside
from torchleap.evidence.change import Change, change_of, mean_change
from torchleap.objectives import METRICS, objective_named

BINARY = objective_named("binary")
ALL = sorted(METRICS)


def pair(rows=120, seed=0, groups=None, rate=0.3):
    """Return the predictions of two models, one a noisy view of the other, with uneven groups."""
    rng = np.random.default_rng(seed)
    label = torch.tensor((rng.random(rows) < rate).astype(np.float32))
    before = torch.tensor(rng.normal(size=rows)) + label
    after = 0.9 * before + torch.tensor(rng.normal(size=rows) * 0.4)
    group = None
    if groups is not None:
        shares = rng.random(groups) ** 2 + 0.1
        group = torch.tensor(rng.choice(groups, rows, p=shares / shares.sum()))
    return tuple(BINARY.predictions(label, one, group) for one in (before, after))


@pytest.mark.parametrize("name", ["auc", "log_loss"])
def test_the_error_of_rows_is_that_of_leaving_out_each(name):
    before, after = pair()
    change = change_of(METRICS[name], before, after)
    gain, error = change_inside(METRICS[name], before, after, list(range(120)))
    assert change.gain == pytest.approx(gain)
    assert change.error == pytest.approx(error, rel=0.02)
    assert change.units == 120


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("seed", range(3))
def test_the_error_of_groups_is_that_of_leaving_out_each(name, seed):
    before, after = pair(rows=300, seed=seed, groups=9)
    change = change_of(METRICS[name], before, after)
    gain, error = change_inside(METRICS[name], before, after, list(range(300)))
    assert change.gain == pytest.approx(gain)
    assert change.error == pytest.approx(error, rel=0.05)
    assert change.units == 9
    assert 2 < change.effective < 9


def test_the_interval_of_redrawn_rows_is_as_wide():
    before, after = pair(rows=400)
    change = change_of(METRICS["auc"], before, after)
    rng = np.random.default_rng(0)
    gains = []
    for _ in range(400):
        rows = torch.tensor(rng.integers(0, 400, 400))
        values = [
            METRICS["auc"].compute(BINARY.predictions(one.label[rows], one.output[rows]))
            for one in (before, after)
        ]
        gains.append(values[1] - values[0])
    assert change.error == pytest.approx(np.std(gains), rel=0.12)


@given(st.integers(0, 50), st.sampled_from(ALL), st.sampled_from([None, 6]))
def test_the_order_of_rows_does_not_matter(seed, name, groups):
    if name == "gauc":
        groups = 6
    before, after = pair(seed=seed, groups=groups)
    shuffled = torch.randperm(120, generator=torch.Generator().manual_seed(seed))
    moved = []
    for one in (before, after):
        group = None if one.group is None else one.group[shuffled]
        moved.append(BINARY.predictions(one.label[shuffled], one.output[shuffled], group))
    change = change_of(METRICS[name], before, after)
    other = change_of(METRICS[name], *moved)
    assert other.gain == pytest.approx(change.gain, abs=1e-12)
    assert other.error == pytest.approx(change.error)
    assert other.freedom == pytest.approx(change.freedom)


@given(st.integers(0, 50), st.sampled_from(["auc", "gauc"]))
def test_metrics_of_an_order_do_not_see_the_scale(seed, name):
    before, after = pair(seed=seed, groups=6)
    stretched = BINARY.predictions(after.label, 3 * after.output - 1, after.group)
    change = change_of(METRICS[name], before, after)
    other = change_of(METRICS[name], before, stretched)
    assert (other.gain, other.error) == pytest.approx((change.gain, change.error))


@given(st.integers(0, 50), st.sampled_from(ALL))
def test_the_way_back_is_the_same_change_with_the_other_sign(seed, name):
    before, after = pair(seed=seed, groups=6)
    there = change_of(METRICS[name], before, after)
    back = change_of(METRICS[name], after, before)
    assert back.gain == pytest.approx(-there.gain)
    assert back.lowest() == pytest.approx(-there.highest())
    same = change_of(METRICS[name], before, before)
    assert (same.gain, same.error) == (0.0, 0.0)
    assert same.p_of_loss(0.0) == 1.0


def test_a_metric_of_a_loss_gains_where_it_falls():
    before, after = pair(rows=2000)
    change = change_of(METRICS["log_loss"], before, after)
    assert change.gain == pytest.approx(change.before - change.after)
    low, high = change.interval()
    assert low < change.after - change.before < high


def test_bounds_p_values_and_units_agree():
    before, after = pair(rows=2000)
    change = change_of(METRICS["auc"], before, after)
    assert change.p_of_loss(-change.highest()) == pytest.approx(0.05, rel=1e-6)
    assert change.lowest() < change.gain < change.highest()
    margin = 0.01
    units = change.units_needed(margin)
    assert units == pytest.approx(2000 * ((1.6449 + 0.8416) * change.row_error / margin) ** 2, 1e-3)
    assert change.units_needed(margin, gain=-margin) == math.inf
    assert change.units_needed(margin / 2) == pytest.approx(4 * units)


def test_a_relative_margin_has_a_chance_of_its_own():
    before, after = pair(rows=2000)
    change = change_of(METRICS["auc"], before, after)
    relative = change_of(METRICS["auc"], before, after, relative=0.01)
    assert relative.gain == change.gain
    expected = METRICS["auc"].influence(after).parts - 0.99 * METRICS["auc"].influence(before).parts
    assert relative.row_error == pytest.approx(np.sqrt((expected**2).sum()))


def test_one_large_group_leaves_little_freedom():
    label = torch.tensor([0.0, 1.0] * 100)
    group = torch.tensor([0] * 180 + [1] * 4 + [2] * 8 + [3] * 8)
    outputs = torch.randn(2, 200, generator=torch.Generator().manual_seed(0))
    rows = [BINARY.predictions(label, one, group) for one in outputs]
    for name in ALL:
        change = change_of(METRICS[name], *rows)
        assert change.effective < 1.3
        assert change.freedom == pytest.approx(1.0)


def test_repeated_trainings_add_their_own_variance():
    changes = [change_of(METRICS["auc"], *pair(seed=0)), change_of(METRICS["auc"], *pair(seed=0))]
    moved = Change(METRICS["auc"], changes[1].before, changes[1].after + 0.02, changes[1].parts, ())
    mean = mean_change([changes[0], moved])
    assert mean.gain == pytest.approx(changes[0].gain + 0.01)
    assert mean.training_deviation == pytest.approx(0.02 / math.sqrt(2))
    assert mean.training_error == pytest.approx(0.01)
    assert mean.error == pytest.approx(math.hypot(changes[0].row_error, 0.01))
    alone = changes[0].gain - changes[0].lowest()
    assert mean.gain - mean.lowest() > math.hypot(alone, 0.01)  # two trainings say little
    assert math.isnan(changes[0].training_deviation)
    assert changes[0].training_error == 0.0


def test_equal_parts_have_no_doubt_and_no_parts_no_freedom():
    even = Change(METRICS["auc"], 0.7, 0.7, np.array([0.1, -0.1, 0.1, -0.1]))
    assert even.freedom == math.inf
    none = Change(METRICS["auc"], 0.7, 0.7, np.zeros(4))
    assert none.freedom == 1.0
