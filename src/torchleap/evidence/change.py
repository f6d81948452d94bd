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
        effective: Where rows have groups, how many groups of equal size would say as much. If one
            has most of the rows, it is hardly above 1, and little is known of other groups.
    """

    metric: Metric
    before: float
    after: float
    parts: Floats
    trainings: tuple[float, ...] = ()
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
    def error(self) -> float:
        """Return the standard error of the gain, by the chance of rows and of trainings."""
        return math.hypot(self.row_error, self.training_error)

    @property
    def freedom(self) -> float:
        """Return the degrees of freedom of the error, as Satterthwaite combines them.

        Where few units make up most of the variance, such as few positive rows, it is known less
        well than their number suggests: the fourth powers of the parts say how well. Large groups
        limit it even where their parts happen to be small.
        """
        rows = self.row_error**2
        training = self.training_error**2
        if rows + training == 0:
            return LEAST_FREEDOM
        doubt = max(
            _variance_of_variance(self.parts), 2 * rows**2 / max(LEAST_FREEDOM, self.effective - 1)
        )
        if training > 0:
            doubt += 2 * training**2 / (len(self.trainings) - 1)
        if doubt == 0:
            return math.inf
        return max(LEAST_FREEDOM, 2 * (rows + training) ** 2 / doubt)

    def lowest(self, confidence: float = CONFIDENCE) -> float:
        """Return the one-sided bound that the true gain is above, with this confidence."""
        return self.gain - t_quantile(confidence, self.freedom) * self.error

    def highest(self, confidence: float = CONFIDENCE) -> float:
        """Return the one-sided bound that the true gain is below, with this confidence."""
        return self.gain + t_quantile(confidence, self.freedom) * self.error

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Return the two-sided interval of `after - before`, in the metric's own direction."""
        half = t_quantile((1 + confidence) / 2, self.freedom) * self.error
        change = self.after - self.before
        return change - half, change + half

    def p_of_loss(self, margin: float = 0.0) -> float:
        """Return the p-value against the true loss being at most the margin: low says it is not."""
        if self.error == 0:
            return 1.0
        return t_above(-(self.gain + margin) / self.error, self.freedom)

    def units_needed(self, margin: float, gain: float = 0.0, power: float = POWER) -> float:
        """Return how many units decide at this power whether the loss is within a margin.

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
        size = normal.inv_cdf(CONFIDENCE) + normal.inv_cdf(power)
        return self.units * (size * self.row_error / distance) ** 2


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
        changes[0].effective,
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
