"""Change: by how much a metric differs between two models, and how sure that is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from ..objectives import Metric, Predictions
from ..objectives.binary import jackknife_factors
from .quantiles import t_above, t_quantile

Floats = npt.NDArray[np.float64]

CONFIDENCE = 0.95  # of one-sided bounds and of two-sided intervals
POWER = 0.8  # with which a given number of rows should decide
LEAST_FREEDOM = 1.0
P_STEPS = 30  # of a bisection for a p-value
ROUNDING = 1e-9  # of a margin: a gain so near to it is on it


@dataclass(frozen=True)
class Change:
    """The gain of a metric from one model to another on the same rows; below 0 it is a loss.

    What is independent are the rows, or where rows have groups (users, queries) the groups. The
    parts of both models are subtracted for each of them, so that what both have in common cancels.

    Attributes:
        metric: The metric; a gain is positive whichever direction of it is better.
        before: Its value for the first model.
        after: Its value for the second model.
        parts: How far each independent unit moves the gain, (U,); the squares add up to its
            variance.
        trainings: The gains of repeated trainings, whose mean `after - before` is; a single one
            says nothing about the chance in a training.
        folds: The gains of the folds of a cross-fit, whose mean `after - before` is.
        effective: Where rows have groups, how many groups of equal size would say as much. If one
            has most of the rows, it is hardly above 1, and little is known of other groups.
    """

    metric: Metric
    before: float
    after: float
    parts: Floats
    trainings: tuple[float, ...] = ()
    folds: tuple[float, ...] = ()
    effective: float = math.inf

    @property
    def gain(self) -> float:
        """Return the gain: positive where the second model is better."""
        return self.metric.gain(self.after - self.before)

    @property
    def units(self) -> int:
        """Return the number of independent rows or groups."""
        return len(self.parts)

    @property
    def row_error(self) -> float:
        """Return the standard error of the gain by the chance of the rows."""
        return float(np.sqrt(np.sum(self.parts**2)))

    @property
    def training_deviation(self) -> float:
        """Return the standard deviation of the gain between trainings; NaN for a single one."""
        if len(self.trainings) < 2:
            return math.nan
        return float(np.std(self.trainings, ddof=1))

    @property
    def training_error(self) -> float:
        """Return the standard error of the gain by the chance of trainings; 0 if not known."""
        if len(self.trainings) < 2:
            return 0.0
        return self.training_deviation / math.sqrt(len(self.trainings))

    @property
    def fold_error(self) -> float:
        """Return the standard error of the gain by the chance of the folds; 0 without folds.

        Folds share train rows, so that their gains are alike and their spread says too little.
        Together with the error of the rows, the spread over `folds - 1` in place of `folds` makes
        the variance that Nadeau and Bengio (2003) correct it to.
        """
        if len(self.folds) < 2:
            return 0.0
        return float(np.std(self.folds, ddof=1)) / math.sqrt(len(self.folds) - 1)

    @property
    def error(self) -> float:
        """Return the standard error of the gain, by the chance of rows, trainings and folds."""
        return math.hypot(self.row_error, self.training_error, self.fold_error)

    @property
    def freedom(self) -> float:
        """Return the degrees of freedom of the error of the rows.

        Where few units make up most of the variance, such as few positive rows, it is known less
        well than their number suggests: the fourth powers of the parts say how well. Large groups
        limit it even where their parts happen to be small.
        """
        variance = self.row_error**2
        if variance == 0:
            return LEAST_FREEDOM
        doubt = max(
            _variance_of_variance(self.parts),
            2 * variance**2 / max(LEAST_FREEDOM, self.effective - 1),
        )
        if doubt == 0:
            return math.inf
        return max(LEAST_FREEDOM, 2 * variance**2 / doubt)

    def lowest(self, confidence: float = CONFIDENCE) -> float:
        """Return the one-sided bound that the true gain is above, with this confidence."""
        return self.gain - self._reach(confidence, self.training_error)

    def highest(self, confidence: float = CONFIDENCE) -> float:
        """Return the one-sided bound that the true gain is below, with this confidence."""
        return self.gain + self._reach(confidence, self.training_error)

    def lowest_of_another(self, confidence: float = CONFIDENCE) -> float:
        """Return the one-sided bound that the gain of one more training is above.

        It lies below `lowest`, the bound of the mean over all trainings. NaN where there was a
        single training, which says nothing about another one.
        """
        if len(self.trainings) < 2:
            return math.nan
        error = math.hypot(self.training_deviation, self.training_error)
        return self.gain - self._reach(confidence, error)

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Return the two-sided interval of `after - before`, in the metric's own direction."""
        half = self._reach((1 + confidence) / 2, self.training_error)
        change = self.after - self.before
        return change - half, change + half

    def _reach(self, confidence: float, training_error: float) -> float:
        """Return how far a one-sided bound is from the gain.

        Each error is multiplied by the quantile of its own degrees of freedom, and the squares are
        added (Graybill and Wang, 1980). The one quantile of Satterthwaite's degrees of freedom for
        the total error would be too small: with two or three trainings up to 8 % of its 95 % bounds
        miss, because a spread that is small by chance also passes for one that is well known.
        """
        if confidence < 0.5:
            return -self._reach(1 - confidence, training_error)
        reach = t_quantile(confidence, self.freedom) * self.row_error
        if training_error > 0:
            quantile = t_quantile(confidence, len(self.trainings) - 1)
            reach = math.hypot(reach, quantile * training_error)
        if self.fold_error > 0:
            reach = math.hypot(reach, t_quantile(confidence, len(self.folds) - 1) * self.fold_error)
        return reach

    def p_of_loss(self, margin: float = 0.0) -> float:
        """Return the p-value against the true loss being at most the margin: low says it is not."""
        if self.error == 0:
            return 1.0
        if self.error == self.row_error:
            return t_above(-(self.gain + margin) / self.error, self.freedom)
        low = 0.0
        high = 1.0
        for _ in range(P_STEPS):
            middle = (low + high) / 2
            if self.highest(1 - middle) < -margin:
                high = middle
            else:
                low = middle
        return high

    def units_needed(self, margin: float, gain: float = 0.0, power: float = POWER) -> float:
        """Return how many units decide at this power whether the loss is within a margin.

        The spread between folds falls with more units; that between trainings does not, so that
        no number of units may be enough: infinity.

        Args:
            margin: The loss that is acceptable.
            gain: The true gain that is assumed. Below minus the margin the units show that it is
                not safe.
            power: The probability that so many units decide it.
        """
        distance = abs(gain + margin)
        if distance <= ROUNDING * margin:
            return math.inf
        normal = NormalDist()
        by_power = normal.inv_cdf(power)
        of_units = ((normal.inv_cdf(CONFIDENCE) + by_power) * self.row_error) ** 2
        if self.fold_error > 0:
            quantile = t_quantile(CONFIDENCE, len(self.folds) - 1)
            of_units += ((quantile + by_power) * self.fold_error) ** 2
        left = distance**2
        if self.training_error > 0:
            quantile = t_quantile(CONFIDENCE, len(self.trainings) - 1)
            left -= ((quantile + by_power) * self.training_error) ** 2
        if left <= 0:
            return math.inf
        return self.units * of_units / left


def change_of(
    metric: Metric,
    before: Predictions,
    after: Predictions,
    *,
    relative: float = 0.0,
) -> Change:
    """Return the change between the predictions of two models for the same rows.

    Args:
        metric: The metric.
        before: The predictions of the first model.
        after: Those of the second one.
        relative: A fraction of the metric of the first model that is the margin. The chance in
            that margin is then part of the error.
    """
    first = metric.influence(before)
    second = metric.influence(after)
    kept = 1 - metric.sign * relative
    parts = metric.sign * (second.parts - kept * first.parts)
    effective = math.inf
    if before.group is not None:
        parts, effective = by_unit(parts, before, metric)
    return Change(metric, first.value, second.value, parts, effective=effective)


def mean_change(changes: Sequence[Change]) -> Change:
    """Return the mean of the changes of repeated trainings, all on the same rows.

    Args:
        changes: The change of each training.
    """
    return Change(
        changes[0].metric,
        float(np.mean([one.before for one in changes])),
        float(np.mean([one.after for one in changes])),
        np.mean([one.parts for one in changes], axis=0),
        tuple(one.gain for one in changes),
        effective=changes[0].effective,
    )


def crossfit_change(changes: Sequence[Change]) -> Change:
    """Return the mean of the changes of folds, each measured on rows that no other fold tests on.

    Args:
        changes: The change of each fold, between models that were trained on the other rows.
    """
    count = len(changes)
    return Change(
        changes[0].metric,
        float(np.mean([one.before for one in changes])),
        float(np.mean([one.after for one in changes])),
        np.concatenate([one.parts for one in changes]) / count,
        folds=tuple(one.gain for one in changes),
        effective=sum(one.effective for one in changes),
    )


def by_unit(parts: Floats, rows: Predictions, metric: Metric) -> tuple[Floats, float]:
    """Return the parts of rows, added up over the rows of each group, (N,) -> (U,).

    A group with a large share of the rows has moved the mean towards itself, which is undone as
    the jackknife does.

    Args:
        parts: The part of each row.
        rows: The rows, which have groups.
        metric: The metric.

    Returns:
        The parts of the groups, and how many groups of equal size would say as much.
    """
    assert rows.group is not None
    _, numbers = np.unique(rows.group.numpy(), return_inverse=True)
    units = int(numbers.max()) + 1
    sums: Floats = np.bincount(numbers, weights=parts, minlength=units).astype(np.float64)
    label = rows.label.numpy()
    if metric.needs_group:  # whose parts are those of groups with rows of both classes
        counts = np.bincount(numbers, minlength=units)
        positives = np.bincount(numbers, weights=label, minlength=units)
        return sums, _effective(np.where((positives > 0) & (positives < counts), counts, 0))
    strata = label if metric.by_class else np.zeros(len(parts))
    sums = np.zeros(units)
    effective = math.inf
    for stratum in np.unique(strata):
        own = strata == stratum
        counts = np.bincount(numbers[own], minlength=units)
        total = np.bincount(numbers[own], weights=parts[own], minlength=units)
        sums += total * jackknife_factors(counts / counts.sum())
        effective = min(effective, _effective(counts))
    return sums, effective


def _effective(counts: npt.NDArray[np.generic]) -> float:
    """Return Kish's number of groups: so many of equal size would say as much.

    >>> _effective(np.array([5, 5])), _effective(np.array([98, 1, 1])) < 1.1
    (2.0, True)
    """
    sizes = counts.astype(np.float64)
    return float(sizes.sum() ** 2 / max(1.0, np.sum(sizes**2)))


def _variance_of_variance(parts: Floats) -> float:
    """Return the variance of the sum of the squared parts."""
    squares = parts**2
    return float(max(0.0, np.sum(squares**2) - np.sum(squares) ** 2 / max(1, len(parts))))
