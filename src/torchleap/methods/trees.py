"""Random forest, XGBoost and GBDT: the gain of the splits of trees by a field."""

from dataclasses import dataclass

import numpy as np
import torch

from ..data.task import Batch, Task
from .shallow import Doubles, Floats, Shallow, need_package, side_by_side


@dataclass(frozen=True)
class Forest(Shallow):
    """The fall of the impurity by the splits of a random forest (Breiman 2001).

    Trees of any depth split by noise as well, and more so by noise with many columns or values. So
    each column competes with a copy whose rows are shuffled, and the fall that the copy achieves is
    subtracted (Nembrini et al. 2018): useless fields score about 0. `as_published` has no copies.

    Args:
        trees: The number of trees.
        depth: The largest depth of a tree; None sets no limit.
    """

    trees: int = 10
    depth: int | None = None

    def by_column(self, task: Task, batch: Batch, seed: int) -> Floats:
        """Return the fall of the impurity beyond that of the copies, (D,)."""
        ensemble = need_package("sklearn.ensemble")
        forest = ensemble.RandomForestClassifier(
            self.trees, max_depth=self.depth, n_jobs=torch.get_num_threads(), random_state=seed
        )
        x = side_by_side(task, batch)
        label = batch.label.numpy()
        if self.as_published:
            return np.asarray(forest.fit(x, label).feature_importances_)
        copy = x[np.random.default_rng(seed).permutation(len(x))]
        forest.fit(np.concatenate([x, copy], axis=1), label)
        own, of_copies = np.split(forest.feature_importances_, 2)
        return np.asarray(own - of_copies)


@dataclass(frozen=True)
class XGBoost(Shallow):
    """The fall of the loss by the splits of boosted trees (Chen and Guestrin 2016), as a fraction.

    `as_published` takes the mean of a column's splits instead of their sum: a column that is split
    once and well comes before one that is split often, and the means of a field's columns add up
    to more the more columns it has.

    Args:
        trees: The number of trees.
        depth: The largest depth of a tree.
        lr: The learning rate.
    """

    trees: int = 10
    depth: int = 6
    lr: float = 0.3

    def by_column(self, task: Task, batch: Batch, seed: int) -> Floats:
        """Return the fraction of the gain, (D,)."""
        importance = "gain" if self.as_published else "total_gain"
        return gains(self, side_by_side(task, batch), batch, seed, importance)


@dataclass(frozen=True)
class GBDT(Shallow):
    """The same as XGBoost with more and shallower trees (Friedman 2001).

    `as_published` takes those of scikit-learn, which stop when 3 in a row have not helped on a
    tenth of the rows that is held out.

    Args:
        trees: The largest number of trees.
        depth: The largest depth of a tree.
        lr: The learning rate.
    """

    trees: int = 100
    depth: int = 3
    lr: float = 0.1

    def by_column(self, task: Task, batch: Batch, seed: int) -> Floats:
        """Return the fraction of the gain, (D,)."""
        x = side_by_side(task, batch)
        if not self.as_published:  # the same trees from histograms, in a fraction of the time
            return gains(self, x, batch, seed, "total_gain")
        ensemble = need_package("sklearn.ensemble")
        model = ensemble.GradientBoostingClassifier(
            learning_rate=self.lr,
            n_estimators=self.trees,
            max_depth=self.depth,
            n_iter_no_change=3,
            random_state=seed,
        )
        return np.asarray(model.fit(x, batch.label.numpy()).feature_importances_)


def gains(method: XGBoost | GBDT, x: Floats, batch: Batch, seed: int, importance: str) -> Doubles:
    """Return the importance of each column of x as a fraction of the sum, (D,)."""
    xgboost = need_package("xgboost")
    threads = torch.get_num_threads()
    settings = {
        "objective": "binary:logistic",
        "tree_method": "hist",
        "max_depth": method.depth,
        "eta": method.lr,
        "nthread": threads,
        "seed": seed,
    }
    rows = xgboost.QuantileDMatrix(x, batch.label.numpy(), nthread=threads)
    trained = xgboost.train(settings, rows, method.trees)
    found = trained.get_score(importance_type=importance)  # of the columns with splits
    gain = np.array([found.get(f"f{column}", 0.0) for column in range(x.shape[1])])
    return np.asarray(gain / (gain.sum() or 1.0))
