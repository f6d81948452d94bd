"""The change of repeated trainings and of folds: the bound covers the true mean difference."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from torchleap.evidence.certificate import Evidence, certificate_of
from torchleap.evidence.change import Change, change_of, crossfit_change, mean_change
from torchleap.objectives import METRICS, Predictions

LOG_LOSS = METRICS["log_loss"]
GAIN = -0.01  # the true mean gain of all simulations: a loss


def with_losses(losses):
    """Return predictions of positive rows that have these log losses."""
    probability = np.exp(-losses)
    output = torch.from_numpy(np.log(probability) - np.log1p(-probability))
    return Predictions(torch.ones(len(losses)), output, torch.from_numpy(probability))


def simulated(rng, rows, trainings, by_row, by_training):
    """Return the changes of some trainings on the same rows, with known standard deviations."""
    before = 2.0 + rng.random(rows)
    of_rows = by_row * rng.standard_normal(rows)
    changes = []
    for _ in range(trainings):
        own = by_training * rng.standard_normal() + 0.3 * by_row * rng.standard_normal(rows)
        changes.append(
            change_of(LOG_LOSS, with_losses(before), with_losses(before - GAIN + of_rows + own))
        )
    return changes


def missed(bound_of, draw, draws=600):
    """Return how often the bound lies above the true gain."""
    rng = np.random.default_rng(5)
    return sum(bound_of(draw(rng)) > GAIN for _ in range(draws)) / draws


@pytest.mark.parametrize(
    ("by_row", "by_training", "trainings"),
    [(0.1, 0.0, 3), (0.1, 0.005, 3), (0.1, 0.02, 3), (0.02, 0.02, 2), (0.1, 0.01, 8)],
    ids=["rows alone", "both", "mostly trainings", "two trainings", "eight trainings"],
)
def test_the_bound_covers_the_mean_difference_of_trainings(by_row, by_training, trainings):
    def draw(rng):
        return mean_change(simulated(rng, 300, trainings, by_row, by_training))

    assert missed(Change.lowest, draw) <= 0.06


def test_without_repetitions_the_bound_misses_the_chance_of_training():
    def draw(rng):
        return simulated(rng, 300, 1, 0.1, 0.02)[0]

    assert missed(Change.lowest, draw) > 0.2


def test_the_bound_of_one_more_training_covers_the_true_difference_of_one_more():
    rng = np.random.default_rng(6)
    above = 0
    for _ in range(600):
        change = mean_change(simulated(rng, 300, 3, 0.1, 0.02))
        above += change.lowest_of_another() > GAIN + 0.02 * rng.standard_normal()
    assert above / 600 <= 0.06
    assert change.lowest_of_another() < change.lowest()


@pytest.mark.parametrize("margin", [0.0, 0.005, 0.02, 0.05])
def test_a_p_value_agrees_with_the_bound_of_its_confidence(margin):
    rng = np.random.default_rng(3)
    one = simulated(rng, 50, 1, 0.1, 0.0)[0]
    several = mean_change(simulated(rng, 50, 3, 0.1, 0.02))
    for change in (one, several):
        p = change.p_of_loss(margin)
        assert 0 < p < 1
        assert change.highest(1 - p) == pytest.approx(-margin, abs=1e-6)


def test_a_single_training_says_nothing_about_another():
    change = simulated(np.random.default_rng(0), 50, 1, 0.1, 0.0)[0]
    assert math.isnan(change.lowest_of_another())


def test_folds_add_the_variance_between_them():
    rng = np.random.default_rng(1)
    folds = [simulated(rng, 60, 1, 0.1, 0.0)[0] for _ in range(5)]
    change = crossfit_change(folds)
    gains = [one.gain for one in folds]
    assert change.folds == tuple(gains)
    assert change.units == 300
    assert change.gain == pytest.approx(np.mean(gains))
    assert change.row_error == pytest.approx(math.hypot(*[one.row_error for one in folds]) / 5)
    assert change.fold_error == pytest.approx(np.std(gains, ddof=1) / 2)
    assert change.error == pytest.approx(math.hypot(change.row_error, change.fold_error))
    assert change.lowest() < replace(change, folds=()).lowest()


def least_squares(inputs, label):
    return np.linalg.lstsq(inputs, label, rcond=None)[0]


def crossfit_of_models(rng, rows, folds, weights):
    """Return the change of a cross-fit whose small models lack the last column, which is useful.

    The row losses are those of least squares, shifted and scaled so that log losses can have them.
    """
    inputs = rng.standard_normal((rows, len(weights)))
    label = inputs @ weights + rng.standard_normal(rows)
    changes = []
    for number in range(folds):
        tests = np.arange(rows) % folds == number
        losses = []
        for columns in (len(weights), len(weights) - 1):
            known = inputs[:, :columns]
            model = least_squares(known[~tests], label[~tests])
            losses.append((known[tests] @ model - label[tests]) ** 2)
        before, after = (with_losses(0.01 + loss / 20) for loss in losses)
        changes.append(change_of(LOG_LOSS, before, after))
    return crossfit_change(changes)


def test_the_bound_of_folds_covers_the_mean_difference_of_models_that_share_train_rows():
    """Without chance in the search, the true loss of a model of n rows is known.

    Its mean square error is 1 + p / (n - p - 1), and the variance of the lacking column more.
    """
    rows, folds, weights = 120, 5, np.array([1.0, 0.5, 0.3])
    trained = rows - rows // folds
    of_all = 1 + 3 / (trained - 3 - 1)
    of_fewer = (1 + 0.3**2) * (1 + 2 / (trained - 2 - 1))
    true_gain = (of_all - of_fewer) / 20
    rng = np.random.default_rng(2)
    above = 0
    below = 0
    above_by_rows = 0
    for _ in range(400):
        change = crossfit_of_models(rng, rows, folds, weights)
        above += change.lowest() > true_gain
        below += change.highest() < true_gain
        above_by_rows += replace(change, folds=()).lowest() > true_gain
    assert above / 400 <= 0.06
    assert below / 400 <= 0.06
    assert above_by_rows / 400 > 0.1  # the rows alone leave out that folds share train rows


def test_more_rows_do_not_help_where_trainings_differ_by_more_than_the_margin():
    rng = np.random.default_rng(7)
    change = mean_change(simulated(rng, 300, 3, 0.1, 0.02))
    assert change.units_needed(0.001) == math.inf
    wide = change.units_needed(0.5)
    assert wide > replace(change, trainings=()).units_needed(0.5)
    certificate = certificate_of(change, 0.001, Evidence(rows=300, support=300))
    assert certificate.verdict == "undecided"
    assert certificate.needed is None
    assert certificate.reasons[0].startswith("More rows alone would not decide: the 3 trainings")


def test_the_units_that_decide_are_enough_for_the_bound_of_folds():
    change = crossfit_change(
        [simulated(np.random.default_rng(seed), 60, 1, 0.1, 0.0)[0] for seed in range(5)]
    )
    margin = 0.02
    needed = change.units_needed(margin)
    assert needed > replace(change, folds=()).units_needed(margin)
