"""Metrics of labels 0 and 1, and their differences between two models on the same rows."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from .._common.errors import MetricError

Rows = Any  # a tensor, an array or a sequence with one number per row
Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NORMAL_95 = 1.96  # standard deviations to either side that hold 95 % of a normal distribution


def auc(labels: Rows, scores: Rows) -> float:
    """Return the area under the ROC curve: how often a positive row outranks a negative one.

    A tie counts half.

    >>> auc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])
    0.75
    """
    labels, scores = _checked(labels, scores)
    positive = labels == 1
    if positive.all() or not positive.any():
        raise MetricError(
            f"AUC needs rows of both classes, but all {len(labels)} labels are {labels[0]:g}."
        )
    return auc_of_classes(scores[positive], scores[~positive])


def auc_of_classes(positives: npt.NDArray[Any], negatives: npt.NDArray[Any]) -> float:
    """Return the AUC from the scores of the positive and of the negative rows, without any check.

    It sorts values instead of rows, which is several times faster.

    >>> auc_of_classes(np.array([0.35, 0.8]), np.array([0.1, 0.4]))
    0.75
    """
    positives = np.sort(positives)
    negatives = np.sort(negatives)
    lower = np.searchsorted(negatives, positives, "left").sum()
    not_higher = np.searchsorted(negatives, positives, "right").sum()
    return float((lower + not_higher) / (2 * len(positives) * len(negatives)))


def gauc(labels: Rows, scores: Rows, groups: Rows) -> float:
    """Return the mean AUC within the groups (users, queries), weighted by their rows.

    Groups with a single class are left out.

    >>> gauc([0, 1, 0, 1, 1], [0.1, 0.4, 0.9, 0.8, 0.7], ["u", "u", "v", "v", "w"])
    0.5
    """
    labels, scores = _checked(labels, scores)
    numbers = _group_numbers(groups, len(labels))
    values, counts = _auc_by_group(labels, scores, numbers)
    if not counts.size:
        raise MetricError(
            "GAUC needs a group with rows of both classes, but every group has one class. "
            "Use coarser groups."
        )
    return float(np.average(values, weights=counts))


def log_loss(labels: Rows, probabilities: Rows) -> float:
    """Return the mean binary cross-entropy of probabilities.

    >>> round(log_loss([0, 1], [0.1, 0.9]), 4)
    0.1054
    """
    return float(-np.mean(_log_likelihoods(labels, probabilities)))


class Difference(NamedTuple):
    """The change of a metric between two models on the same rows, with its 95 % interval."""

    value: float
    low: float
    high: float


def auc_difference(labels: Rows, before: Rows, after: Rows) -> Difference:
    """Return the AUC of `after` minus the AUC of `before` on the same rows, with DeLong's interval.

    The interval covers the chance of the rows: the difference that other rows of the same kind
    would show.

    >>> auc_difference([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8], [0.1, 0.4, 0.5, 0.8]).value
    0.25
    """
    value = auc(labels, after) - auc(labels, before)
    label, _ = _checked(labels, before)
    positive = label == 1
    old_up, old_down = _placements(_flat(before), positive)
    new_up, new_down = _placements(_flat(after), positive)
    variance = _variance_of_mean(new_up - old_up) + _variance_of_mean(new_down - old_down)
    return _interval(value, variance**0.5)


def gauc_difference(labels: Rows, before: Rows, after: Rows, groups: Rows) -> Difference:
    """Return the GAUC of `after` minus the GAUC of `before` on the same rows.

    The interval covers the chance of the groups: the difference that other groups of the same
    kind would show.

    >>> gauc_difference([0, 1, 0, 1], [2, 1, 1, 2], [1, 2, 1, 2], ["u", "u", "v", "v"]).value
    0.5
    """
    value = gauc(labels, after, groups) - gauc(labels, before, groups)
    label, _ = _checked(labels, before)
    numbers = _group_numbers(groups, len(label))
    old, counts = _auc_by_group(label, _flat(before), numbers)
    new, _ = _auc_by_group(label, _flat(after), numbers)
    weight = counts / counts.sum()
    return _interval(value, float(np.sqrt(np.sum((weight * (new - old - value)) ** 2))))


def log_loss_difference(labels: Rows, before: Rows, after: Rows) -> Difference:
    """Return the log loss of `after` minus the log loss of `before` on the same rows.

    Both are probabilities. The interval is the normal one of the mean of the rows' own differences.

    >>> round(log_loss_difference([0, 1], [0.5, 0.5], [0.1, 0.9]).value, 4)
    -0.5878
    """
    value = log_loss(labels, after) - log_loss(labels, before)
    change = _log_likelihoods(labels, before) - _log_likelihoods(labels, after)
    return _interval(value, _variance_of_mean(change) ** 0.5)


def s_auc(table: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the normalised AUC: each method's AUC over the best method's, averaged over data sets.

    Args:
        table: The AUC by method and data set, with every method on the same data sets.

    >>> s_auc({"leap": {"a": 0.8, "b": 0.6}, "lasso": {"a": 0.6, "b": 0.6}})
    {'leap': 1.0, 'lasso': 0.875}
    """
    sets = list(next(iter(table.values()), {}))
    if not sets:
        raise MetricError(
            "s_auc needs at least one method with one data set, but the table is empty."
        )
    for method, own in table.items():
        if set(own) != set(sets):
            raise MetricError(
                f"s_auc needs every method on {sets}, but {method!r} has {list(own)}."
            )
    values = np.array([[own[name] for name in sets] for own in table.values()])  # (methods, sets)
    if not (values > 0).all():
        raise MetricError(f"s_auc needs AUCs above 0, but found {values.min():g}.")
    return dict(zip(table, (values / values.max(0)).mean(1).tolist(), strict=True))


def _interval(value: float, deviation: float) -> Difference:
    return Difference(value, value - NORMAL_95 * deviation, value + NORMAL_95 * deviation)


def _variance_of_mean(values: Floats) -> float:
    """Return the variance of the mean of some rows; 0 for a single row, which has no spread."""
    if len(values) < 2:
        return 0.0
    return float(np.var(values, ddof=1)) / len(values)


def _log_likelihoods(labels: Rows, probabilities: Rows) -> Floats:
    """Return the log of the probability that each row's own label was given, (N,)."""
    tiny = _resolution(probabilities)
    labels, probabilities = _checked(labels, probabilities)
    low, high = probabilities.min(), probabilities.max()
    if low < 0 or high > 1:
        raise MetricError(
            f"log_loss expects probabilities between 0 and 1, but found {low:.4g} to {high:.4g}. "
            "Apply a sigmoid to logits first."
        )
    clipped = np.clip(probabilities, tiny, 1 - tiny)
    found: Floats = labels * np.log(clipped) + (1 - labels) * np.log1p(-clipped)
    return found


def _resolution(values: Rows) -> float:
    """Return how near to 1 a probability can come in the precision in which it was given."""
    coarse = isinstance(values, Tensor | np.ndarray) and values.dtype.itemsize < 8
    precision = np.float32 if coarse else np.float64
    return float(np.finfo(precision).eps)


def _placements(scores: Floats, positive: Flags) -> tuple[Floats, Floats]:
    """Return each row's place among the rows of the other class.

    Returns:
        For each positive row the fraction of negative rows below it, and for each negative row the
        fraction of positive rows above it.
    """
    own = scores[positive]
    others = scores[~positive]
    return _fraction_below(own, np.sort(others)), 1 - _fraction_below(others, np.sort(own))


def _fraction_below(values: Floats, ordered: Floats) -> Floats:
    """Return the fraction of the ordered values below each value; a tie counts half."""
    lower = np.searchsorted(ordered, values, "left")
    not_higher = np.searchsorted(ordered, values, "right")
    found: Floats = (lower + not_higher) / (2 * len(ordered))
    return found


def _group_numbers(groups: Rows, rows: int) -> Numbers:
    """Return the number of each row's group, counted from 0."""
    if isinstance(groups, Tensor):
        groups = groups.detach().cpu()
        if groups.is_floating_point():  # not integers: different large ids would become equal
            groups = groups.double()  # numpy has no bfloat16
    names = np.asarray(groups).reshape(-1)
    if len(names) != rows:
        raise MetricError(
            f"Expected one group per row, but found {rows} rows and {len(names)} groups."
        )
    try:
        return np.unique(names, return_inverse=True)[1]
    except TypeError as error:
        raise MetricError(
            f"Expected groups of one kind that can be sorted, but found a mixture: {error}. "
            "Fill the missing ones."
        ) from error


def _auc_by_group(labels: Floats, scores: Floats, groups: Numbers) -> tuple[Floats, Numbers]:
    """Return the AUC and the number of rows of each group that has both classes."""
    order = np.lexsort((scores, groups))
    labels = labels[order]
    groups = groups[order]
    new_group = np.diff(groups, prepend=-1) != 0
    starts = np.flatnonzero(new_group)  # first row of each group
    counts = np.diff(starts, append=len(groups))
    rank = _shared_ranks(scores[order], new_group) - np.repeat(starts, counts)
    positives = np.add.reduceat(labels, starts)
    negatives = counts - positives
    rank_sum = np.add.reduceat(rank * labels, starts)
    both = (positives > 0) & (negatives > 0)
    pairs_won = rank_sum[both] - positives[both] * (positives[both] + 1) / 2
    return pairs_won / (positives[both] * negatives[both]), counts[both]


def _shared_ranks(scores: Floats, new_group: Flags) -> Floats:
    """Return the ranks, counted from 1, of scores that are sorted within groups.

    Equal scores of a group share the mean of their ranks.
    """
    new_tie = new_group.copy()
    new_tie[1:] |= scores[1:] != scores[:-1]
    starts = np.flatnonzero(new_tie)
    ends = np.append(starts[1:], len(scores))
    return np.repeat((starts + ends + 1) / 2, ends - starts)


def _checked(labels: Rows, scores: Rows) -> tuple[Floats, Floats]:
    """Return labels and scores as flat arrays, once they are found to be usable."""
    label = _flat(labels)
    score = _flat(scores)
    if len(label) != len(score) or not len(label):
        raise MetricError(
            "Expected one score per label and at least one row, "
            f"but found {len(label)} labels and {len(score)} scores."
        )
    if not np.isin(label, (0.0, 1.0)).all():
        raise MetricError(f"Expected labels 0 and 1, but found {np.unique(label)[:5].tolist()}.")
    unusable = int((~np.isfinite(score)).sum())
    if unusable:
        raise MetricError(
            f"Expected finite scores, but {unusable} of {len(score)} are NaN or infinite."
        )
    return label, score


def _flat(values: Rows) -> Floats:
    if isinstance(values, Tensor):
        values = values.detach().double().cpu()
    return np.asarray(values, dtype=np.float64).reshape(-1)
