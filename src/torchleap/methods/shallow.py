"""Methods without a deep model: Lasso, random forest, XGBoost and GBDT, on the encoded train rows.

The released benchmarks run them on label-encoded ids with one column a field. With vectors, lists and ids of many categories that
favours whatever has many columns or many values, so each has a fair form, which is the default, beside the one `as_published`.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .._common.checks import refuse_settings
from .._common.errors import TorchleapError
from ..data.task import Batch, Rows, Task
from .base import Method, Scores, Search

CONSTANT = 1e-9  # a column that deviates less holds rounding errors alone

Floats = NDArray[np.floating[Any]]
Doubles = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Shallow(Method):
    """What these methods have in common: some train rows, and a number for each of their columns.

    Args:
        rows: Train rows to learn from, by lot if there are more; None is all of them.
        as_published: Do what the released benchmark code does.
    """

    rows: int | None = 1_000_000
    as_published: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_settings(
            {f"rows must be at least 2, but is {self.rows!r}": self.rows is None or self.rows >= 2}
        )

    def score(self, search: Search) -> Scores:
        """The numbers of a field's columns, added up."""
        batch = _some_rows(search.task.train, self.rows, search.seed)
        return search.by_field(
            torch.from_numpy(self.by_field(search.task, batch, search.seed % 2**31))
        )

    def by_field(self, task: Task, batch: Batch, seed: int) -> Doubles:
        """The scores, (F,)."""
        field_of = np.repeat(
            np.arange(len(task.columns)), [column.slots for column in task.columns]
        )
        total = np.bincount(
            field_of, weights=self.by_column(task, batch, seed), minlength=len(task.columns)
        )
        return total.astype(np.float64, copy=False)

    def by_column(self, task: Task, batch: Batch, seed: int) -> Floats:
        """A number for each column of ids and numbers, in the order of the fields, (D,)."""
        raise NotImplementedError


@dataclass(frozen=True)
class Lasso(Shallow):
    """Coefficients of a linear regression of the label with an L1 penalty; a field's score is the L2 norm of its own.

    Categories are replaced by the mean label of their other rows, and all columns have variance 1, so that a coefficient says how
    far a field moves the prediction. `as_published` takes the ids as if they were quantities, which favours fields with few of
    them.

    Args:
        alpha: Weight of the penalty.
        folds: Parts of the rows; a category's mean label is taken from the other parts.
        smoothing: How many rows with the overall mean label are added to a category's own.
    """

    alpha: float = 1e-3
    folds: int = 5
    smoothing: float = 20.0

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_settings(
            {
                f"folds must be at least 2, but is {self.folds!r}": self.folds >= 2,
                f"smoothing must be above 0, but is {self.smoothing!r}": self.smoothing > 0,
            }
        )

    def by_field(self, task: Task, batch: Batch, seed: int) -> Doubles:
        """The norms, (F,)."""
        return np.asarray(np.sqrt(super().by_field(task, batch, seed)))

    def by_column(self, task: Task, batch: Batch, seed: int) -> Floats:
        """The squares of the coefficients, (D,)."""
        linear = _need("sklearn.linear_model")
        if self.as_published:
            model = linear.Lasso(alpha=self.alpha).fit(
                _side_by_side(task, batch, torch.float64), batch.label.numpy()
            )
        else:
            x = _standardised(self._encoded(task, batch, seed))
            model = linear.Lasso(alpha=self.alpha, precompute=True, copy_X=False).fit(
                x, batch.label.double().numpy()
            )
        return np.asarray(model.coef_**2)

    def _encoded(self, task: Task, batch: Batch, seed: int) -> Doubles:
        """Mean labels instead of ids, (B, D)."""
        x: Doubles = _side_by_side(task, batch, torch.float64)
        fold = np.random.default_rng(seed).permutation(len(batch)) % self.folds
        slots, start = task.slots(ids=True), 0
        for column in task.columns:
            if column.is_ids:
                ids = batch.ids[:, slots[column.name]].numpy()
                x[:, start : start + column.slots] = out_of_fold(
                    ids, batch.label.numpy(), fold, smoothing=self.smoothing
                )
            start += column.slots
        return x


@dataclass(frozen=True)
class Forest(Shallow):
    """What the splits of a random forest by a field take off the impurity.

    Trees of any depth split by noise as well, the more so the more columns or values it has. So each column competes with a copy
    whose rows are shuffled, and what the copy achieves is taken off (Nembrini et al. 2018): useless fields score about 0.
    `as_published` there are no copies.

    Args:
        depth: Of a tree at most; None is any.
    """

    trees: int = 10
    depth: int | None = None

    def by_column(self, task: Task, batch: Batch, seed: int) -> Floats:
        """The fall of the impurity, beyond that of the copies, (D,)."""
        ensemble = _need("sklearn.ensemble")
        forest = ensemble.RandomForestClassifier(
            self.trees, max_depth=self.depth, n_jobs=torch.get_num_threads(), random_state=seed
        )
        x, label = _side_by_side(task, batch), batch.label.numpy()
        if self.as_published:
            return np.asarray(forest.fit(x, label).feature_importances_)
        copy = x[np.random.default_rng(seed).permutation(len(x))]
        found = forest.fit(np.concatenate([x, copy], axis=1), label).feature_importances_
        return np.asarray(found[: x.shape[1]] - found[x.shape[1] :])


@dataclass(frozen=True)
class XGBoost(Shallow):
    """What the splits of boosted trees by a field take off the loss, as a share of all.

    `as_published` it is the mean of a column's splits instead of their sum: a column that is split once and well comes before one
    that is split often, and the means of a field's columns add up to more the more columns it has.
    """

    trees: int = 10
    depth: int = 6
    lr: float = 0.3

    def by_column(self, task: Task, batch: Batch, seed: int) -> Floats:
        """The share of the gain, (D,)."""
        return _gains(
            self,
            _side_by_side(task, batch),
            batch,
            seed,
            "gain" if self.as_published else "total_gain",
        )


@dataclass(frozen=True)
class GBDT(Shallow):
    """The same with more and shallower trees.

    `as_published` they are scikit-learn's, which stop when 3 in a row have not helped on a tenth of the rows that is held out.
    """

    trees: int = 100
    depth: int = 3
    lr: float = 0.1

    def by_column(self, task: Task, batch: Batch, seed: int) -> Floats:
        """The share of the gain, (D,)."""
        if not self.as_published:  # the same trees from histograms, in a fraction of the time
            return _gains(self, _side_by_side(task, batch), batch, seed, "total_gain")
        ensemble = _need("sklearn.ensemble")
        model = ensemble.GradientBoostingClassifier(
            learning_rate=self.lr,
            n_estimators=self.trees,
            max_depth=self.depth,
            n_iter_no_change=3,
            random_state=seed,
        )
        return np.asarray(
            model.fit(_side_by_side(task, batch), batch.label.numpy()).feature_importances_
        )


def out_of_fold(
    ids: NDArray[np.int32], label: Floats, fold: NDArray[np.int64], *, smoothing: float
) -> Doubles:
    """How far the mean label of a category lies from that of all rows, both over the rows of the other folds alone.

    The difference, since in a fold of many positive labels the other folds have fewer: their mean alone would tell the label.

    Shape: ids (B, L), label (B,), fold (B,) -> (B, L); the slots of a list share their categories' means.

    >>> out_of_fold(np.array([[2], [2], [3]]), np.array([1.0, 0.0, 1.0]), np.array([0, 1, 1]), smoothing=1.0).ravel().tolist()
    [-0.25, 0.0, 0.0]
    """
    shape = int(fold.max()) + 1, int(ids.max()) + 1  # (K, C)
    size = shape[0] * shape[1]
    place = (fold[:, None] * shape[1] + ids).ravel()
    count = np.bincount(place, minlength=size).reshape(shape)
    total = np.bincount(place, weights=np.repeat(label, ids.shape[1]), minlength=size).reshape(
        shape
    )
    rows, positive = np.bincount(fold), np.bincount(fold, weights=label)
    mean = (positive.sum() - positive) / (len(fold) - rows)  # (K,), of the other folds
    count, total = count.sum(0) - count, total.sum(0) - total
    deviation = (total - count * mean[:, None]) / (count + smoothing)
    return np.asarray(deviation.ravel()[place].reshape(ids.shape))


def _some_rows(rows: Rows, most: int | None, seed: int) -> Batch:
    """All rows, or that many by lot; where they do not fit into memory, blocks of neighbouring rows are drawn."""
    whole = most is None or most >= len(rows)
    batch = rows.all() if whole else next(iter(rows.batches(most or 0, shuffle=True, seed=seed)))
    if len(batch) < 2 or batch.label.min() == batch.label.max():
        raise TorchleapError(
            f"Expected rows of both labels, but all {len(batch):,} train rows that were drawn have the same one."
        )
    return batch


def _side_by_side(task: Task, batch: Batch, dtype: torch.dtype = torch.float32) -> Any:
    """The ids and numbers of all fields in their order, (B, D).

    NOTE[PAPER]: a frequent category has a low id; the released code numbers those of ML-1M in the order of their values.
    """
    ids, numbers = task.slots(ids=True), task.slots(ids=False)
    blocks = [
        batch.ids[:, ids[c.name]] if c.is_ids else batch.numbers[:, numbers[c.name]]
        for c in task.columns
    ]
    return torch.cat([block.to(dtype) for block in blocks], dim=1).numpy()


def _standardised(x: Doubles) -> Doubles:
    """Mean 0 and variance 1 in place; constant columns are 0."""
    x -= x.mean(0)
    deviation = x.std(0)
    x /= np.where(deviation > CONSTANT, deviation, np.inf)
    return x


def _gains(method: XGBoost | GBDT, x: Floats, batch: Batch, seed: int, importance: str) -> Doubles:
    """The importance of each column, as shares, (D,)."""
    xgboost = _need("xgboost")
    settings = {
        "objective": "binary:logistic",
        "tree_method": "hist",
        "max_depth": method.depth,
        "eta": method.lr,
        "nthread": torch.get_num_threads(),
        "seed": seed,
    }
    rows = xgboost.QuantileDMatrix(x, batch.label.numpy(), nthread=settings["nthread"])
    found = xgboost.train(settings, rows, method.trees).get_score(
        importance_type=importance
    )  # of the columns with splits
    gains = np.array([found.get(f"f{column}", 0.0) for column in range(x.shape[1])])
    return np.asarray(gains / (gains.sum() or 1.0))


def _need(package: str) -> Any:
    """A package of the extra `bench`, imported where it is used."""
    try:
        return import_module(package)
    except ImportError as error:
        name = "xgboost-cpu" if package == "xgboost" else "scikit-learn"
        raise TorchleapError(
            f"This method needs the package {name}. Install it: pip install 'torchleap[bench]'."
        ) from error
