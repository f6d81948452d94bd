"""The options of `read`, written once and checked together."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from ..._common.checks import is_seed, one_of
from ..._common.errors import DataError
from ...objectives import Objective
from ..columns import Column, plain
from ..manifest import DEFAULT_OBJECTIVE, objective_of
from . import splits
from .encoders.label import LabelRule
from .labels import label_problems
from .schema import Given

Progress = Callable[
    [str, int, int], None
]  # called with the step, how much is done, and of how much


def no_progress(step: str, done: int, total: int) -> None:
    """Ignore the progress of a step."""


@dataclass(frozen=True)
class Roles:
    """The columns that are not inputs, and how the rows are split; a manifest holds it.

    Attributes:
        label: The column to predict.
        threshold: The label is 1 where the column is above this.
        positive: The label is 1 where the column has this value.
        group: The column of the groups of GAUC.
        time: The column with the time of each row.
        split: How the rows are split.
        shares: The fractions of train, valid and test rows.
        seed: The seed of a random split.
    """

    label: str
    threshold: float | None
    positive: str | float | bool | None
    group: str | None
    time: str | None
    split: splits.Split
    shares: tuple[float, float, float]
    seed: int

    def named(self) -> dict[str, str]:
        """Return the columns by their role, without the roles that no column has."""
        columns = {"label": self.label, "group": self.group, "time": self.time}
        return {role: name for role, name in columns.items() if name is not None}


@dataclass(frozen=True)
class ReadOptions:
    """The options of `read`, where they are explained; `valid`, `test` and `names` open files."""

    label: str
    objective: str | Objective = DEFAULT_OBJECTIVE
    threshold: float | None = None
    positive: str | float | None = None
    columns: Given | str | Path | None = None
    only: Iterable[str] | None = None
    drop: Iterable[str] = ()
    width: int | None = None
    min_count: int | None = None
    split: splits.Split | None = None
    shares: Sequence[float] = (0.8, 0.1, 0.1)
    time: str | None = None
    group: str | None = None
    seed: int = 0
    cache: str | os.PathLike[str] | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise DataError(f"{'; '.join(problems)}.")
        objective_of(self.objective)
        splits.check_shares(self.shares)
        min_count = 1 if self.min_count is None else self.min_count
        Column("of any name", "categorical", self.width, min_count=min_count)  # checks the two

    def _problems(self) -> Iterator[str]:
        yield from label_problems(self.threshold, self.positive)
        if self.split is not None and self.split not in get_args(splits.Split):
            yield f"split {one_of(self.split, get_args(splits.Split))}"
        for way, column in (("time", self.time), ("group", self.group)):
            if self.split == way and column is None:
                yield f"split={way!r} needs the name of a column: {way}=..."
        for name, given in (("only", self.only), ("drop", self.drop)):
            is_left_out = name == "only" and given is None
            if not is_left_out and (isinstance(given, str) or not isinstance(given, Iterable)):
                yield f"only= and drop= take several names: a list, not {given!r}"
        if not is_seed(self.seed):
            yield f"seed must be a whole number from 0 to 4,294,967,295, but is {self.seed!r}"
        if self.cache is not None and not isinstance(self.cache, str | os.PathLike):
            yield f"cache= takes the path of a folder, but found {self.cache!r}"

    def roles(self, positive: Any) -> Roles:
        """Return the roles of the columns.

        Args:
            positive: The positive value of the label, found or given.
        """
        train, valid, test = map(float, self.shares)
        default: splits.Split = "random" if self.time is None else "time"
        return Roles(
            self.label,
            plain(self.threshold),
            plain(positive),
            self.group,
            self.time,
            self.split or default,
            (train, valid, test),
            int(self.seed),
        )

    def label_rule(self, roles: Roles) -> LabelRule:
        """Return how the label is made of its column."""
        return LabelRule(roles.label, objective_of(self.objective), roles.threshold, roles.positive)
