"""Lasso (Tibshirani 1996): the coefficients of a linear regression with an L1 penalty."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from .._common.checks import setting
from ..data.task import Batch, Task
from .shallow import Doubles, Floats, Shallow, need_package, side_by_side

CONSTANT = 1e-9  # a column with a smaller standard deviation contains rounding errors only


@dataclass(frozen=True)
class Lasso(Shallow):
    """The L2 norm of a field's coefficients in a lasso regression of the label.

    Categories are replaced by the mean label of their other rows, and all columns have variance 1,
    so that a coefficient is how far a field moves the prediction. `as_published` treats the ids
    as quantities, which favours fields with few of them.

    Args:
        alpha: The weight of the penalty.
        folds: The number of parts of the rows; the mean label of a category is taken from the
            other parts.
        smoothing: The number of rows with the overall mean label that are added to a category's
            own rows.
    """

    alpha: float = 1e-3
    folds: int = setting(5, at_least=2)
    smoothing: float = setting(20.0, above=0)

    def by_field(self, task: Task, batch: Batch, seed: int) -> Doubles:
        """Return the norms of the coefficients, (F,)."""
        return np.asarray(np.sqrt(super().by_field(task, batch, seed)))

    def by_column(self, task: Task, batch: Batch, seed: int) -> Floats:
        """Return the squares of the coefficients, (D,)."""
        linear = need_package("sklearn.linear_model")
        if self.as_published:
            x = side_by_side(task, batch, torch.float64)
            model = linear.Lasso(alpha=self.alpha).fit(x, batch.label.numpy())
        else:
            x = standardise(self._encoded(task, batch, seed))
            model = linear.Lasso(alpha=self.alpha, precompute=True, copy_X=False)
            model.fit(x, batch.label.double().numpy())
        return np.asarray(model.coef_**2)

    def _encoded(self, task: Task, batch: Batch, seed: int) -> Doubles:
        """Return the columns with mean labels instead of ids, (B, D)."""
        x: Doubles = side_by_side(task, batch, torch.float64)
        label = batch.label.numpy()
        fold = np.random.default_rng(seed).permutation(len(batch)) % self.folds
        slots = task.slots(ids=True)
        start = 0
        for column in task.columns:
            stop = start + column.slots
            if column.is_ids:
                ids = batch.ids[:, slots[column.name]].numpy()
                x[:, start:stop] = out_of_fold(ids, label, fold, smoothing=self.smoothing)
            start = stop
        return x


def out_of_fold(
    ids: NDArray[np.int32], label: Floats, fold: NDArray[np.int64], *, smoothing: float
) -> Doubles:
    """Return how far the mean label of each category lies from that of all rows.

    Both means are over the rows of the other folds. It is the difference, since the other folds of
    a fold with many positive labels have fewer of them: their mean alone would reveal the label.

    **Shape**: ids (B, L), label (B,), fold (B,) -> (B, L); the slots of a list share their
    categories' means.

    >>> ids, label = np.array([[2], [2], [3]]), np.array([1.0, 0.0, 1.0])
    >>> out_of_fold(ids, label, np.array([0, 1, 1]), smoothing=1.0).ravel().tolist()
    [-0.25, 0.0, 0.0]
    """
    shape = (int(fold.max()) + 1, int(ids.max()) + 1)  # (K, C)
    size = shape[0] * shape[1]
    place = (fold[:, None] * shape[1] + ids).ravel()
    labels = np.repeat(label, ids.shape[1])
    count = np.bincount(place, minlength=size).reshape(shape)
    total = np.bincount(place, weights=labels, minlength=size).reshape(shape)
    rows = np.bincount(fold)
    positive = np.bincount(fold, weights=label)
    mean = (positive.sum() - positive) / (len(fold) - rows)  # (K,), of the other folds
    count = count.sum(0) - count
    total = total.sum(0) - total
    deviation = (total - count * mean[:, None]) / (count + smoothing)
    return np.asarray(deviation.ravel()[place].reshape(ids.shape))


def standardise(x: Doubles) -> Doubles:
    """Give each column mean 0 and variance 1, in place; constant columns become 0."""
    x -= x.mean(0)
    deviation = x.std(0)
    x /= np.where(deviation > CONSTANT, deviation, np.inf)
    return x
