"""auc, gauc, log_loss and s_auc: vectorised over rows and groups, ties included."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from .errors import MetricError

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
        raise MetricError(f"AUC needs rows of both classes, but all {len(labels)} labels are {labels[0]:g}.")
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
    if isinstance(groups, Tensor):
        groups = (groups.double() if groups.is_floating_point() else groups).detach().cpu()  # numpy has no bfloat16
    names = np.asarray(groups).reshape(-1)
    if len(names) != len(labels):
        raise MetricError(f"Expected one group a row, but found {len(labels)} rows and {len(names)} groups.")
    try:
        numbers = np.unique(names, return_inverse=True)[1]
    except TypeError as error:
        raise MetricError(
            f"Expected groups of one kind that can be sorted, but found a mixture: {error}. Fill the missing."
        ) from error
    values, counts = _auc_by_group(labels, scores, numbers)
    if not counts.size:
        raise MetricError("GAUC needs a group with rows of both classes, but every group has one class. Use coarser groups.")
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
        raise MetricError("s_auc needs at least one method with one data set, but the table is empty.")
    for method in methods:
        if set(table[method]) != set(sets):
            raise MetricError(f"s_auc needs every method on {sets}, but {method!r} has {list(table[method])}.")
    values = np.array([[table[method][name] for name in sets] for method in methods])  # (methods, sets)
    if not (values > 0).all():
        raise MetricError(f"s_auc needs AUCs above 0, but found {values.min():g}.")
    return dict(zip(methods, (values / values.max(0)).mean(1).tolist(), strict=True))


def _auc_by_group(labels: Floats, scores: Floats, groups: npt.NDArray[np.int64]) -> tuple[Floats, npt.NDArray[np.int64]]:
    """AUC and number of rows of each group that has both classes, from ranks within the group."""
    order = np.lexsort((scores, groups))
    labels, scores, groups = labels[order], scores[order], groups[order]
    starts = np.flatnonzero(np.diff(groups, prepend=-1))  # first row of each group
    counts = np.diff(starts, append=len(groups))
    new_tie = np.diff(groups, prepend=-1) != 0
    new_tie[1:] |= scores[1:] != scores[:-1]
    tie_starts = np.flatnonzero(new_tie)
    tie_ends = np.append(tie_starts[1:], len(groups))
    rank = np.repeat((tie_starts + tie_ends + 1) / 2, tie_ends - tie_starts) - np.repeat(starts, counts)  # 1-based, ties shared
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
        raise MetricError(f"Expected finite scores, but {int((~np.isfinite(score)).sum())} of {len(score)} are NaN or infinite.")
    return label, score


def _resolution(values: Rows) -> float:
    """How near to 1 a probability can come in the precision that it was given in, float32 at the least."""
    coarse = values.dtype.itemsize < 8 if isinstance(values, Tensor | np.ndarray) else False
    return float(np.finfo(np.float32 if coarse else np.float64).eps)


def _flat(values: Rows) -> Floats:
    if isinstance(values, Tensor):
        values = values.detach().double().cpu()
    return np.asarray(values, dtype=np.float64).reshape(-1)
