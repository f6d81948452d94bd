"""Rehearsal: the size of an online test is that at which it succeeds in four of five trials."""

import json
from statistics import NormalDist

import numpy as np
import pytest
import torch

import torchleap as tl
from torchleap.evidence.rehearsal import Rehearsal, costs_saved, rehearse
from torchleap.objectives import METRICS, OBJECTIVES

BINARY = OBJECTIVES["binary"]


def users(count, seed=0, most=9):
    """Rows of users who differ: labels, outputs of two equally good models, and groups."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(1, most, count)
    group = np.repeat(np.arange(count), rows)
    taste = rng.normal(size=count)[group]
    shown = rng.normal(size=len(group))
    label = (rng.random(len(group)) < 1 / (1 + np.exp(2 - taste - shown))).astype(np.float32)
    outputs = [shown + 0.3 * rng.normal(size=len(group)) for _ in range(2)]
    return [torch.from_numpy(each) for each in (label, *outputs, group)]


def predicted(label, output, group=None):
    return BINARY.predictions(label, output.float(), group)


def test_rows_without_groups_need_the_textbook_number():
    label, first, second, _ = users(3_000)
    found = rehearse(BINARY, METRICS["auc"], *(predicted(label, o) for o in (first, second)), 0.01)
    variance = float(label.double().var())
    z = NormalDist().inv_cdf(0.95) + NormalDist().inv_cdf(0.8)
    assert found.outcome.units == pytest.approx(2 * z**2 * variance / 0.01**2, abs=1)
    assert found.outcome.deviation == pytest.approx(variance**0.5)
    assert found.outcome.value == pytest.approx(float(label.mean()))
    assert (found.unit, found.units) == ("rows", len(label))


@pytest.mark.parametrize("metric", ["positive rate", "auc", "gauc"])
def test_tests_of_that_size_succeed_in_four_of_five_trials(metric):
    label, first, second, group = users(60_000)
    chosen = METRICS["auc" if metric == "positive rate" else metric]
    before, after = (predicted(label, output, group) for output in (first, second))
    margin = 0.06
    found = rehearse(BINARY, chosen, before, after, margin, unit="user")
    arm = found.outcome if metric == "positive rate" else found.metric
    values = []
    for trial in range(400):
        own = users(arm.units, seed=trial + 1)
        if metric == "positive rate":
            values.append(float(own[0].mean()))
        else:
            values.append(chosen.compute(predicted(own[0], own[1], own[3])))
    one, other = np.array(values[:200]), np.array(values[200:])
    error = np.sqrt(one.var(ddof=1) + other.var(ddof=1))
    bound = (other - one) - NormalDist().inv_cdf(0.95) * error
    assert (bound > -margin).mean() == pytest.approx(0.8, abs=0.1)
    assert arm.rows == pytest.approx(arm.units * len(label) / 60_000, rel=0.001)


def test_a_relative_margin_is_a_fraction_of_each_value():
    label, first, second, group = users(2_000)
    pair = [predicted(label, output, group) for output in (first, second)]
    found = rehearse(BINARY, METRICS["gauc"], *pair, 0.02, relative=True, unit="user")
    assert found.outcome.margin == pytest.approx(0.02 * found.outcome.value)
    assert found.metric.margin == pytest.approx(0.02 * found.metric.value)
    assert found.relative == 0.02


def test_it_is_three_sentences_and_comes_back_from_json():
    label, first, second, group = users(2_000)
    pair = [predicted(label, output, group) for output in (first, second)]
    found = rehearse(BINARY, METRICS["gauc"], *pair, unit="user", saved=(2.5, 10.0))
    text = str(found)
    assert "groups (user, " in text
    assert "to show at 95 % confidence and 80 % power that the positive rate" in text
    assert "Assumed: each user is in one arm" in text
    assert text.endswith("saves 2.5 of the 10 that the fields with a given cost cost together.")
    assert Rehearsal.from_json(json.loads(json.dumps(found.to_json()))) == found
    alone = rehearse(BINARY, METRICS["auc"], *(predicted(label, o) for o in (first, second)))
    assert "rows are independent (if users have several, read the data with group=)" in str(alone)
    assert "saves" not in str(alone)


def test_a_margin_that_no_test_can_see_has_no_number():
    label, first, second, _ = users(200)
    pair = [predicted(label, output) for output in (first, second)]
    found = rehearse(BINARY, METRICS["auc"], *pair, 1e-9)
    assert found.outcome.units is None
    assert "more users than there are per arm" in str(found)


def test_a_margin_of_0_and_a_single_group_are_refused():
    label, first, second, group = users(200)
    pair = [predicted(label, output) for output in (first, second)]
    with pytest.raises(tl.TorchleapError, match="margin"):
        rehearse(BINARY, METRICS["auc"], *pair, 0.0)
    pair = [predicted(label, output, torch.zeros_like(group)) for output in (first, second)]
    with pytest.raises(tl.DataError, match="at least two groups \\(user\\), to see how"):
        rehearse(BINARY, METRICS["auc"], *pair, unit="user")


def test_costs_are_saved_by_dropped_fields_alone():
    assert costs_saved({"a": 2.0, "b": 1.0}, ["b", "c"]) == (1.0, 3.0)
    assert costs_saved({}, ["b"]) is None
