"""Scan: the change of a metric in many slices at once, nearly exact, to find the worst of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..objectives import Metric, Predictions
from ..objectives.binary import GroupAUC, auc_of_sorted, log_likelihoods
from .change import Floats
from .partitions import Codes

LEAST_GROUPS = 2  # of equal size: fewer say nothing about other groups
BINS = 512  # of the scores of a model: rows of one bin count as tied


@dataclass(frozen=True)
class Scanned:
    """The slices of a partition.

    Attributes:
        gain: The gain of the metric in each slice, (S,); NaN where it is not defined, or where a
            single group has nearly all rows.
        error: Its standard error, as if rows were independent.
        rarer: The rows of the rarer class.
    """

    gain: Floats
    error: Floats
    rarer: Floats


Scan = Callable[[Codes, int], Scanned]
Pairs = Sequence[tuple[Predictions, Predictions]]


def scan_of(metric: Metric, pairs: Pairs) -> Scan:
    """Return a function from the slice of each row, and their number, to the change in each.

    Args:
        metric: The metric.
        pairs: The predictions of both models for the rows; of repeated trainings, several.
    """
    return SCANS[metric.name](pairs)


def _auc_scan(pairs: Pairs) -> Scan:
    """Return a scan that counts the rows of each slice in bins of the scores, by class."""
    label = pairs[0][0].label.numpy().astype(np.int64)
    places = []
    for pair in pairs:
        places.append([label * BINS + _bins(one.output.numpy()) for one in pair])

    def scan(codes: Codes, count: int) -> Scanned:
        cells = 2 * codes + label
        sizes = np.bincount(cells, minlength=2 * count).reshape(count, 2)
        ahead = np.zeros(len(codes))
        for before, after in places:
            ahead += _placements(codes, after, sizes) - _placements(codes, before, sizes)
        ahead /= len(places)
        totals = np.bincount(cells, weights=ahead, minlength=2 * count).reshape(count, 2)
        squares = np.bincount(cells, weights=ahead**2, minlength=2 * count).reshape(count, 2)
        means = totals / sizes
        spread = np.maximum(squares / sizes - means**2, 0) / np.maximum(sizes - 1, 1)
        return Scanned(means[:, 1], np.sqrt(spread.sum(1)), sizes.min(1).astype(np.float64))

    return scan


def _bins(scores: npt.NDArray[np.generic]) -> Codes:
    """Return the bin of each score, at the quantiles of all; equal scores share one."""
    edges = np.quantile(scores.astype(np.float64), np.arange(1, BINS) / BINS)
    return np.searchsorted(edges, scores, "left").astype(np.int64)


def _placements(codes: Codes, places: Codes, sizes: Codes) -> Floats:
    """Return the fraction of the other class that each row is on the right side of, (N,).

    Args:
        codes: The slice of each row.
        places: Its place among two classes of bins.
        sizes: The rows of each slice and class, (S, 2).
    """
    cells = codes * (2 * BINS) + places
    counts = np.bincount(cells, minlength=2 * BINS * len(sizes)).reshape(-1, 2, BINS)
    below = counts.cumsum(2) - counts / 2
    right = np.empty(counts.shape)
    right[:, 1] = below[:, 0] / sizes[:, :1]
    right[:, 0] = 1 - below[:, 1] / sizes[:, 1:]
    found: Floats = right.reshape(-1)[cells]
    return found


def _log_loss_scan(pairs: Pairs) -> Scan:
    """Return a scan of the mean change of the rows of each slice."""
    label = pairs[0][0].label.numpy().astype(np.int64)
    gains = np.zeros(len(label))
    for before, after in pairs:
        gains += log_likelihoods(after.label, after.prediction)
        gains -= log_likelihoods(before.label, before.prediction)
    gains /= len(pairs)

    def scan(codes: Codes, count: int) -> Scanned:
        classes = np.bincount(2 * codes + label, minlength=2 * count).reshape(count, 2)
        sizes = classes.sum(1)
        mean = np.bincount(codes, weights=gains, minlength=count) / sizes
        square = np.bincount(codes, weights=gains**2, minlength=count) / sizes
        spread = np.maximum(square - mean**2, 0) / np.maximum(sizes - 1, 1)
        return Scanned(mean, np.sqrt(spread), classes.min(1).astype(np.float64))

    return scan


def _gauc_scan(pairs: Pairs) -> Scan:
    """Return a scan of the mean change within the groups of each slice."""
    first = pairs[0][0]
    assert first.group is not None
    label = first.label.numpy().astype(np.float64)
    groups = np.unique(first.group.numpy(), return_inverse=True)[1]
    units = int(groups.max()) + 1
    models = []
    for pair in pairs:
        for one in pair:
            scores = one.output.numpy().astype(np.float64)
            models.append((scores, np.lexsort((scores, groups))))

    def group_aucs(codes: Codes, scores: Floats, order: Codes) -> tuple[GroupAUC, Codes]:
        by_code = np.argsort(codes[order].astype(np.uint16), kind="stable")  # a radix sort
        order = order[by_code]  # by slice, then by group, then by score
        numbers = codes[order] * units + groups[order]
        found = auc_of_sorted(label[order], scores[order], numbers)
        return found, codes[order[found.starts[found.both]]]

    def scan(codes: Codes, count: int) -> Scanned:
        found = [group_aucs(codes, *model) for model in models]
        known, own = found[0]  # the slice of each group that has both classes
        gain = np.zeros(len(own))
        for turn, (one, _) in enumerate(found):
            gain += one.value if turn % 2 else -one.value
        gain /= len(pairs)
        sizes = known.counts[known.both]
        positives = known.positives[known.both]
        total = np.bincount(own, weights=sizes, minlength=count)
        mean = np.bincount(own, weights=sizes * gain, minlength=count) / total
        shares = sizes / total[own]
        alone = np.bincount(own, weights=shares**2, minlength=count) * LEAST_GROUPS > 1
        spread = np.bincount(own, weights=(shares * (gain - mean[own])) ** 2, minlength=count)
        positive = np.bincount(own, weights=positives, minlength=count)
        gains = np.where(alone, np.nan, mean)
        return Scanned(gains, np.sqrt(spread), np.minimum(positive, total - positive))

    return scan


SCANS: dict[str, Callable[[Pairs], Scan]] = {
    "auc": _auc_scan,
    "gauc": _gauc_scan,
    "log_loss": _log_loss_scan,
}
