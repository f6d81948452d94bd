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

TINY = 1e-12
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
    values, counts, _ = auc_by_group(labels, scores, numbers)
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
    return float(-np.mean(log_likelihoods(labels, probabilities)))


class Difference(NamedTuple):
    """The change of a metric between two models on the same rows, with its 95 % interval."""

    value: float
    low: float
    high: float


class Influence(NamedTuple):
    """A metric of some rows, and how far each row moves it from what other rows would give.

    The sum of the squared parts is the variance of the metric over the choice of rows. Parts of
    two models on the same rows can be subtracted, and those of rows that belong together (of a
    user) can be added up before they are squared.

    Attributes:
        value: The metric.
        parts: The part of each row, (N,). That of a group stands at the group's first row where a
            metric compares rows within groups.
    """

    value: float
    parts: Floats


def auc_influence(labels: Rows, scores: Rows) -> Influence:
    """Return the AUC with the part of each row, as DeLong, DeLong and Clarke-Pearson derive it.

    >>> auc_influence([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]).parts.round(3).tolist()
    [0.177, -0.177, -0.177, 0.177]
    """
    value = auc(labels, scores)
    label, score = _checked(labels, scores)
    positive = label == 1
    up, down = _placements(score, positive)
    parts = np.empty(len(label))
    parts[positive] = _parts_of_mean(up)
    parts[~positive] = _parts_of_mean(down)
    return Influence(value, parts)


def gauc_influence(labels: Rows, scores: Rows, groups: Rows) -> Influence:
    """Return the GAUC with the part of each group, which stands at one of the group's rows.

    >>> gauc_influence([0, 1, 0, 1], [1, 2, 2, 1], ["u", "u", "v", "v"]).parts.round(3).tolist()
    [0.354, 0.0, -0.354, 0.0]
    """
    value = gauc(labels, scores, groups)
    label, score = _checked(labels, scores)
    numbers = _group_numbers(groups, len(label))
    own, counts, first = auc_by_group(label, score, numbers)
    parts = np.zeros(len(label))
    shares = counts / counts.sum()
    parts[first] = shares * (own - value) * jackknife_factors(shares)
    return Influence(value, parts)


def log_loss_influence(labels: Rows, probabilities: Rows) -> Influence:
    """Return the log loss with the part of each row.

    >>> log_loss_influence([0, 1], [0.5, 0.5]).parts.tolist()
    [0.0, 0.0]
    """
    losses = -log_likelihoods(labels, probabilities)
    return Influence(float(np.mean(losses)), _parts_of_mean(losses))


def difference(before: Influence, after: Influence) -> Difference:
    """Return the change of a metric between two models on the same rows.

    The interval covers the chance of the rows, or groups: the difference that others of the same
    kind would show.
    """
    value = after.value - before.value
    deviation = float(np.sqrt(np.sum((after.parts - before.parts) ** 2)))
    return Difference(value, value - NORMAL_95 * deviation, value + NORMAL_95 * deviation)


def auc_difference(labels: Rows, before: Rows, after: Rows) -> Difference:
    """Return the AUC of `after` minus the AUC of `before` on the same rows, with DeLong's interval.

    >>> auc_difference([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8], [0.1, 0.4, 0.5, 0.8]).value
    0.25
    """
    return difference(auc_influence(labels, before), auc_influence(labels, after))


def gauc_difference(labels: Rows, before: Rows, after: Rows, groups: Rows) -> Difference:
    """Return the GAUC of `after` minus the GAUC of `before` on the same rows.

    >>> gauc_difference([0, 1, 0, 1], [2, 1, 1, 2], [1, 2, 1, 2], ["u", "u", "v", "v"]).value
    0.5
    """
    return difference(gauc_influence(labels, before, groups), gauc_influence(labels, after, groups))


def log_loss_difference(labels: Rows, before: Rows, after: Rows) -> Difference:
    """Return the log loss of `after` minus the log loss of `before`, both of probabilities.

    >>> round(log_loss_difference([0, 1], [0.5, 0.5], [0.1, 0.9]).value, 4)
    -0.5878
    """
    return difference(log_loss_influence(labels, before), log_loss_influence(labels, after))


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


def jackknife_factors(shares: Floats) -> Floats:
    """Return by what to multiply each unit's part in a weighted mean, (U,).

    Its part as such is `share * (value - mean)`, but a unit draws the mean towards itself. With
    these factors it is what leaving the unit out changes, and the squares add up to the variance.

    >>> jackknife_factors(np.array([0.5, 0.5])).round(3).tolist()
    [1.414, 1.414]

    Args:
        shares: The share of each unit in the mean, which add up to 1; units without one are 0.
    """
    units = max(2, int(np.count_nonzero(shares)))
    found: Floats = np.sqrt((units - 1) / units) / np.maximum(1 - shares, TINY)
    return found


def _parts_of_mean(values: Floats) -> Floats:
    """Return how far each of some independent values moves their mean, (N,).

    The squares add up to the variance of the mean; a single value has no spread.
    """
    count = len(values)
    if count < 2:
        return np.zeros(count)
    found: Floats = (values - values.mean()) / np.sqrt(count * (count - 1))
    return found


def log_likelihoods(labels: Rows, probabilities: Rows) -> Floats:
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


def auc_by_group(
    labels: Floats, scores: Floats, groups: Numbers
) -> tuple[Floats, Numbers, Numbers]:
    """Return the AUC of each group that has both classes, its number of rows, and one of these."""
    order = np.lexsort((scores, groups))
    found = auc_of_sorted(labels[order], scores[order], groups[order])
    one_row = np.minimum.reduceat(order, found.starts)  # the same whatever the scores are
    return found.value, found.counts[found.both], one_row[found.both]


class GroupAUC(NamedTuple):
    """The AUC of groups.

    Attributes:
        value: The AUC of each group that has both classes.
        starts: The first row of each group, (G,).
        counts: The rows of each group, (G,).
        positives: The positive ones of these, (G,).
        both: Whether a group has both classes, (G,).
    """

    value: Floats
    starts: Numbers
    counts: Numbers
    positives: Floats
    both: Flags


def auc_of_sorted(labels: Floats, scores: Floats, groups: Numbers) -> GroupAUC:
    """Return the AUC of groups, whose rows are sorted by group and within it by score."""
    new_group = np.diff(groups, prepend=-1) != 0
    starts = np.flatnonzero(new_group)  # first row of each group
    counts = np.diff(starts, append=len(groups))
    rank = _shared_ranks(scores, new_group) - np.repeat(starts, counts)
    positives = np.add.reduceat(labels, starts)
    negatives = counts - positives
    rank_sum = np.add.reduceat(rank * labels, starts)
    both = (positives > 0) & (negatives > 0)
    pairs_won = rank_sum[both] - positives[both] * (positives[both] + 1) / 2
    value = pairs_won / (positives[both] * negatives[both])
    return GroupAUC(value, starts, counts, positives, both)


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
