"""auc, gauc, their differences, log_loss and s_auc: vectorised over rows and groups, ties included."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ._common.errors import MetricError

Rows = Any  # a tensor, an array or a sequence of numbers
Floats = npt.NDArray[np.float64]


def auc(labels: Rows, scores: Rows) -> float:
    """Area under the ROC curve: how often a positive row outranks a negative one; a tie counts half.

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
    """The same from the scores of the positive and of the negative rows, which are not checked.

    Values are sorted in place of rows, which is several times faster.

    >>> auc_of_classes(np.array([0.35, 0.8]), np.array([0.1, 0.4]))
    0.75
    """
    positives, negatives = np.sort(positives), np.sort(negatives)
    lower = np.searchsorted(negatives, positives, "left").sum()
    not_higher = np.searchsorted(negatives, positives, "right").sum()
    return float((lower + not_higher) / (2 * len(positives) * len(negatives)))


def gauc(labels: Rows, scores: Rows, groups: Rows) -> float:
    """AUC within each group (user, query), averaged by the group's rows; groups with one class are left out.

    >>> gauc([0, 1, 0, 1, 1], [0.1, 0.4, 0.9, 0.8, 0.7], ["u", "u", "v", "v", "w"])
    0.5
    """
    labels, scores = _checked(labels, scores)
    numbers = _group_numbers(groups, len(labels))
    values, counts = _auc_by_group(labels, scores, numbers)
    if not counts.size:
        raise MetricError(
            "GAUC needs a group with rows of both classes, but every group has one class. Use coarser groups."
        )
    return float(np.average(values, weights=counts))


def log_loss(labels: Rows, probabilities: Rows) -> float:
    """Mean binary cross-entropy of probabilities.

    >>> round(log_loss([0, 1], [0.1, 0.9]), 4)
    0.1054
    """
    tiny = _resolution(probabilities)
    labels, probabilities = _checked(labels, probabilities)
    if probabilities.min() < 0 or probabilities.max() > 1:
        raise MetricError(
            f"log_loss expects probabilities between 0 and 1, but found {probabilities.min():.4g} to {probabilities.max():.4g}. "
            "Apply a sigmoid to logits first."
        )
    clipped = np.clip(probabilities, tiny, 1 - tiny)
    return float(-np.mean(labels * np.log(clipped) + (1 - labels) * np.log1p(-clipped)))


class Difference(NamedTuple):
    """How much a metric changed on the same rows, with its 95 % interval."""

    value: float
    low: float
    high: float


def auc_difference(labels: Rows, before: Rows, after: Rows) -> Difference:
    """AUC of `after` minus AUC of `before` on the same rows, with DeLong's interval: what other rows might have shown.

    >>> auc_difference([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8], [0.1, 0.4, 0.5, 0.8]).value
    0.25
    """
    value = auc(labels, after) - auc(labels, before)
    label, _ = _checked(labels, before)
    positive = label == 1
    placed = [_placements(_flat(scores), positive) for scores in (before, after)]
    # how each row's place among the rows of the other class has changed
    up, down = (placed[1][of] - placed[0][of] for of in (0, 1))
    variance = sum(
        float(np.var(change, ddof=1)) / len(change) for change in (up, down) if len(change) > 1
    )
    return _interval(value, variance**0.5)


def gauc_difference(labels: Rows, before: Rows, after: Rows, groups: Rows) -> Difference:
    """GAUC of `after` minus GAUC of `before` on the same rows; the interval is for other groups of the same kind."""
    value = gauc(labels, after, groups) - gauc(labels, before, groups)
    label, _ = _checked(labels, before)
    numbers = _group_numbers(groups, len(label))
    (old, counts), (new, _) = (
        _auc_by_group(label, _flat(scores), numbers) for scores in (before, after)
    )
    share = counts / counts.sum()
    return _interval(value, float(np.sqrt(np.sum((share * (new - old - value)) ** 2))))


def _interval(value: float, deviation: float) -> Difference:
    return Difference(value, value - 1.96 * deviation, value + 1.96 * deviation)


def _placements(scores: Floats, positive: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """For each positive row the share of negative ones below it, for each negative one the share of positive ones above."""
    own, others = scores[positive], scores[~positive]
    below = _share_below(own, np.sort(others))
    return below, 1 - _share_below(others, np.sort(own))


def _share_below(values: Floats, ordered: Floats) -> Floats:
    """The share of the ordered values below each one; a tie counts half."""
    found: Floats = (
        np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")
    ) / (2 * len(ordered))
    return found


def s_auc(table: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Normalized AUC: each method's AUC over the best method's, averaged over data sets.

    Args:
        table: method -> data set -> AUC, every method on the same data sets.

    >>> s_auc({"leap": {"a": 0.8, "b": 0.6}, "lasso": {"a": 0.6, "b": 0.6}})
    {'leap': 1.0, 'lasso': 0.875}
    """
    methods = list(table)
    sets = list(next(iter(table.values()), {}))
    if not sets:
        raise MetricError(
            "s_auc needs at least one method with one data set, but the table is empty."
        )
    for method in methods:
        if set(table[method]) != set(sets):
            raise MetricError(
                f"s_auc needs every method on {sets}, but {method!r} has {list(table[method])}."
            )
    values = np.array(
        [[table[method][name] for name in sets] for method in methods]
    )  # (methods, sets)
    if not (values > 0).all():
        raise MetricError(f"s_auc needs AUCs above 0, but found {values.min():g}.")
    return dict(zip(methods, (values / values.max(0)).mean(1).tolist(), strict=True))


def _group_numbers(groups: Rows, rows: int) -> npt.NDArray[np.int64]:
    """A number for each row's group."""
    if isinstance(groups, Tensor):
        groups = (
            (groups.double() if groups.is_floating_point() else groups).detach().cpu()
        )  # numpy has no bfloat16
    names = np.asarray(groups).reshape(-1)
    if len(names) != rows:
        raise MetricError(
            f"Expected one group a row, but found {rows} rows and {len(names)} groups."
        )
    try:
        return np.unique(names, return_inverse=True)[1]
    except TypeError as error:
        raise MetricError(
            f"Expected groups of one kind that can be sorted, but found a mixture: {error}. Fill the missing."
        ) from error


def _auc_by_group(
    labels: Floats, scores: Floats, groups: npt.NDArray[np.int64]
) -> tuple[Floats, npt.NDArray[np.int64]]:
    """AUC and number of rows of each group that has both classes, from ranks within the group."""
    order = np.lexsort((scores, groups))
    labels, scores, groups = labels[order], scores[order], groups[order]
    starts = np.flatnonzero(np.diff(groups, prepend=-1))  # first row of each group
    counts = np.diff(starts, append=len(groups))
    new_tie = np.diff(groups, prepend=-1) != 0
    new_tie[1:] |= scores[1:] != scores[:-1]
    tie_starts = np.flatnonzero(new_tie)
    tie_ends = np.append(tie_starts[1:], len(groups))
    rank = np.repeat((tie_starts + tie_ends + 1) / 2, tie_ends - tie_starts) - np.repeat(
        starts, counts
    )  # 1-based, ties shared
    positives = np.add.reduceat(labels, starts)
    negatives = counts - positives
    rank_sum = np.add.reduceat(rank * labels, starts)
    both = (positives > 0) & (negatives > 0)
    above = rank_sum[both] - positives[both] * (positives[both] + 1) / 2
    return above / (positives[both] * negatives[both]), counts[both]


def _checked(labels: Rows, scores: Rows) -> tuple[Floats, Floats]:
    label, score = _flat(labels), _flat(scores)
    if len(label) != len(score) or not len(label):
        raise MetricError(
            f"Expected one score a label and at least one row, but found {len(label)} labels and {len(score)} scores."
        )
    if not np.isin(label, (0.0, 1.0)).all():
        raise MetricError(f"Expected labels 0 and 1, but found {np.unique(label)[:5].tolist()}.")
    if not np.isfinite(score).all():
        raise MetricError(
            f"Expected finite scores, but {int((~np.isfinite(score)).sum())} of {len(score)} are NaN or infinite."
        )
    return label, score


def _resolution(values: Rows) -> float:
    """How near to 1 a probability can come in the precision that it was given in, float32 at the least."""
    coarse = values.dtype.itemsize < 8 if isinstance(values, Tensor | np.ndarray) else False
    return float(np.finfo(np.float32 if coarse else np.float64).eps)


def _flat(values: Rows) -> Floats:
    if isinstance(values, Tensor):
        values = values.detach().double().cpu()
    return np.asarray(values, dtype=np.float64).reshape(-1)
