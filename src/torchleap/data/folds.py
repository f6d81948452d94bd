"""Folds: every row is a test row once, and a train or valid row in all other folds.

A fold is a task with the same encoded rows, of which each part has others. The encoding remains
that of the original train rows: their vocabularies and scales, which no label has part in.
"""

import heapq
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .._common.checks import check_arguments, whole
from .._common.errors import DataError, MetricError
from .._common.text import plural
from .rows import PARTS, Division, Rows
from .task import Task

SEQUENTIAL = ("time", "order")  # splits in which the test rows follow the train rows
Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]


def folds_of(task: Task, count: int, *, seed: int = 0) -> list[Task]:
    """Return one task per fold, all with the same encoded rows.

    All rows of the task are divided into folds of about equal size. The task of a fold has its
    rows as test rows; of the others the same fraction validates as in the original task. Where
    rows have groups, no group is in two parts; otherwise each part has its share of both labels.

    >>> folds = folds_of(task, 5)  # doctest: +SKIP
    >>> model = retrain(folds[0]).model  # doctest: +SKIP

    Args:
        task: The task, whose rows were split at random or by group.
        count: The number of folds, at least 2.
        seed: The seed of the division.
    """
    check_arguments(folds=whole(count, at_least=2))
    if task.roles.get("split") in SEQUENTIAL:
        raise DataError(
            f"Expected rows that were split at random or by group, but they were split by "
            f"{task.roles['split']}: folds would train on rows that come after their test rows. "
            "Use the test rows of the split, or read the data with split='random'."
        )
    rows = _AllRows(task)
    rows.check(count)
    rng = np.random.default_rng(seed)
    fold_of_row = rows.deal(np.arange(rows.count), count, rng)
    share = task.rows["valid"] / max(1, task.rows["train"] + task.rows["valid"])
    found = []
    for number in range(count):
        others = np.flatnonzero(fold_of_row != number)
        validates = rows.draw(others, share, rng)
        parts = {
            "train": others[~validates],
            "valid": others[validates],
            "test": np.flatnonzero(fold_of_row == number),
        }
        found.append(_divided(task, parts))
    for number, fold in enumerate(found, start=1):
        _check_comparable(fold, number, count)
    return found


class _AllRows:
    """The labels and groups of all rows of a task, and random divisions of them."""

    def __init__(self, task: Task) -> None:
        parts = [Rows(task, part) for part in PARTS]
        self.task = task
        self.label = np.concatenate([part.label.numpy() for part in parts])
        self.group: NDArray[np.int32] | None = None
        groups = [part.group for part in parts]
        if groups[0] is not None:
            self.group = np.concatenate([group.numpy() for group in groups if group is not None])

    @property
    def count(self) -> int:
        return len(self.label)

    def check(self, folds: int) -> None:
        """Refuse more folds than there are groups, or rows of a class."""
        if self.group is not None:
            groups = len(np.unique(self.group))
            if groups < folds:
                raise DataError(
                    f"Expected at least one group ({self.task.roles['group']}) per fold, but found "
                    f"{plural(groups, 'group')} for {folds} folds. Give fewer folds."
                )
        values, sizes = np.unique(self.label, return_counts=True)
        fewest = int(sizes.min()) if len(values) <= 2 else self.count
        if fewest < folds:
            raise DataError(
                f"Expected at least one row of each class per fold, but the rarer class has "
                f"{plural(fewest, 'row')} for {folds} folds. Give fewer folds."
            )

    def deal(self, rows: Integers, hands: int, rng: np.random.Generator) -> Integers:
        """Return the number of a hand for each of some rows, so that all have about as many."""
        found = np.empty(len(rows), np.int64)
        if self.group is None:
            found[self._mixed(rows, rng)] = np.arange(len(rows)) % hands
            return found
        _, group_of_row, sizes = np.unique(
            self.group[rows], return_inverse=True, return_counts=True
        )
        return _dealt(rng.permutation(len(sizes)), sizes, hands)[group_of_row]

    def draw(self, rows: Integers, share: float, rng: np.random.Generator) -> Flags:
        """Return which of some rows are drawn: about this share of them."""
        if self.group is None:
            steps = np.floor((np.arange(len(rows) + 1) + rng.random()) * share)
            drawn = np.empty(len(rows), np.bool_)
            drawn[self._mixed(rows, rng)] = np.diff(steps) > 0
            return drawn
        _, group_of_row, sizes = np.unique(
            self.group[rows], return_inverse=True, return_counts=True
        )
        order = rng.permutation(len(sizes))
        of_group = np.empty(len(sizes), np.bool_)
        of_group[order] = np.cumsum(sizes[order]) - sizes[order] / 2 < share * len(rows)
        return of_group[group_of_row]

    def _mixed(self, rows: Integers, rng: np.random.Generator) -> Integers:
        """Return the places of rows in random order; those of one of two classes come first."""
        order = rng.permutation(len(rows))
        label = self.label[rows[order]]
        if len(np.unique(label)) > 2:
            return order
        return order[np.argsort(label, kind="stable")]


def _dealt(order: Integers, sizes: Integers, hands: int) -> Integers:
    """Return the hand of each group: the next one goes to the hand with the fewest rows."""
    smallest = [(0, hand) for hand in range(hands)]
    found = np.empty(len(sizes), np.int64)
    for group in order.tolist():
        rows, hand = heapq.heappop(smallest)
        found[group] = hand
        heapq.heappush(smallest, (rows + int(sizes[group]), hand))
    return found


def _divided(task: Task, parts: dict[str, Integers]) -> Task:
    """Return the task with other rows in each part."""
    division = task.division
    if division is not None:  # a fold of a fold
        places = np.concatenate([division.parts[part] for part in PARTS])
        parts = {part: np.sort(places[numbers]) for part, numbers in parts.items()}
        return replace(task, rows=_sizes(parts), division=Division(parts, division.rows))
    return replace(task, rows=_sizes(parts), division=Division(parts, sum(task.rows.values())))


def _sizes(parts: dict[str, Integers]) -> dict[str, int]:
    return {part: len(numbers) for part, numbers in parts.items()}


def _check_comparable(fold: Task, number: int, count: int) -> None:
    """Raise a DataError if models cannot be compared on a part of a fold."""
    for rows in (fold.valid, fold.test):
        try:
            fold.objective.check_comparable(rows.label, rows.group)
        except MetricError as error:
            found = fold.objective.describe(rows.label, rows.part)
            raise DataError(
                f"Models cannot be compared on fold {number} of {count}: {error} There are "
                f"{found}. Give fewer folds, or more rows."
            ) from error
