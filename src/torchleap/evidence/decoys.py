"""Decoys: useless copies of the fields that take part in a search, to see what chance reaches.

A decoy reads the encoded rows of its field in a random order within each part of the task: it has
the width, the sparsity and the vocabulary of the field, but says nothing about the label. Whatever
a search finds in a decoy is therefore chance, and it finds as much in a useless field.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from .._common.errors import SelectionError
from ..data.columns import ShuffledColumn, TaskColumn
from ..data.task import Task
from ..fields import Fields
from ..selection import DecoyScores, Path, PathPoint, Worth
from ..selection.decoys import fewest_discoveries

MOST = 5  # decoys per field: each one adds as many dimensions as the task has
ROUNDING = 1e-9  # nats, below which a worth is 0: that of a constant is rounding
ENOUGH = 4.0  # fields that may be false, times the decoys per field, if all fields are useful


@dataclass(frozen=True)
class Decoys:
    """A task whose fields have decoys behind them, and what belongs to the fields alone.

    Attributes:
        fields: The fields without decoys.
        task: The task with the fields and then all decoys. It reads the same files.
        names: The names of the decoys by field; each field has equally many.
    """

    fields: Fields
    task: Task
    names: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, task: Task, per_field: int, seed: int) -> "Decoys":
        """Return a task with decoys.

        All first decoys have one order of the rows, all second ones another: decoys of fields that
        say the same say the same. A decoy costs as much as its field, and is never protected.

        Args:
            task: The task.
            per_field: The number of decoys of each field.
            seed: The seed of the orders.
        """
        names: dict[str, list[str]] = {name: [] for name in task.fields.names}
        taken = set(names)
        columns: list[TaskColumn] = list(task.columns)
        costs = dict(task.costs)
        for number in range(per_field):
            for column in task.columns:
                own = unused(f"{column.name} (decoy {number + 1})", taken)
                taken.add(own)
                names[column.name].append(own)
                columns.append(_shuffled(column, own, order=seed * (MOST + 1) + number))
                cost = task.fields[column.name].cost
                assert cost is not None
                costs[own] = cost
        by_field = {name: tuple(own) for name, own in names.items()}
        return cls(task.fields, replace(task, columns=tuple(columns), costs=costs), by_field)

    def scores_of_fields(self, scores: Mapping[str, float]) -> dict[str, float]:
        """Return the scores of the fields, without those of decoys."""
        return {name: scores[name] for name in self.fields.names}

    def history_of_fields(self, history: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
        """Return the evaluations of a search without the entries of single decoys."""
        endings = tuple(f"_{name}" for own in self.names.values() for name in own)
        return [
            {key: value for key, value in record.items() if not key.endswith(endings)}
            for record in history
        ]

    def path_of_fields(self, path: Path | None, scores: Mapping[str, float], metric: str) -> Path:
        """Return the path of the fields, with what decoys have reached beside them.

        The model at a point may read decoys too. Points that differ in decoys alone are one.

        Args:
            path: The path of the search with decoys; None if it has none.
            scores: The scores of the search with decoys.
            metric: The name of the metric of a path, if there is none.
        """
        if path is None:
            return Path(metric, {}, decoys=self._scores(scores, {}))
        known = set(self.fields.names)
        return replace(
            path,
            worth={name: path.worth[name] for name in self.fields.names if name in path.worth},
            points=points_of(path.points, self.fields),
            substitutes=tuple(
                one for one in path.substitutes if one.closed in known and one.field in known
            ),
            gates={name: gate for name, gate in path.gates.items() if name in known},
            together=tuple(names for names in path.together if known.issuperset(names)),
            decoys=self._scores(scores, path.worth),
        )

    def _scores(self, scores: Mapping[str, float], worth: Mapping[str, Worth]) -> DecoyScores:
        reached = {name: in_errors(own) for name, own in worth.items()} if worth else scores
        nats = {}
        if worth:
            for name, own in self.names.items():
                nats[name] = tuple(worth[decoy].nats for decoy in own)
        return DecoyScores(
            reached={name: reached[name] for name in self.fields.names},
            by_decoys={
                name: tuple(reached[decoy] for decoy in own) for name, own in self.names.items()
            },
            worth=nats,
        )


def _shuffled(column: TaskColumn, name: str, order: int) -> ShuffledColumn:
    """Return a decoy of a column.

    Args:
        column: The column.
        name: The name of the decoy.
        order: The seed of the order of its rows.
    """
    facts = {fact.name: getattr(column, fact.name) for fact in fields(TaskColumn)}
    facts["column"] = replace(column.column, name=name)
    return ShuffledColumn(**facts, order=order)


def unused(name: str, taken: Iterable[str]) -> str:
    """Return a name that is not taken: the given one, with underscores behind it if need be.

    >>> unused("a", {"a", "a_"})
    'a__'
    """
    while name in taken:
        name += "_"
    return name


def in_errors(worth: Worth) -> float:
    """Return a worth in its standard errors, by which fields of all kinds can be compared.

    >>> in_errors(Worth(2.0, 2.0 - 1.96, 2.0 + 1.96)), in_errors(Worth(0.0, 0.0, 0.0))
    (2.0, 0.0)
    """
    if abs(worth.nats) < ROUNDING:
        return 0.0
    return worth.nats / worth.error if worth.error > 0 else math.copysign(math.inf, worth.nats)


def points_of(points: Sequence[PathPoint], real: Fields) -> tuple[PathPoint, ...]:
    """Return the points of a path without decoys, each set of fields once.

    Of points with the same fields the best one of the path stays, else the last one.

    Args:
        points: The points of a path whose fields include decoys.
        real: The fields that are not decoys.
    """
    found: list[PathPoint] = []
    for point in points:
        kept = tuple(name for name in point.kept if name in real)
        closed = tuple(name for name in point.closed if name in real)
        if not kept:
            break
        own = replace(
            point,
            kept=kept,
            closed=closed,
            dims=sum(real[name].width for name in kept),
            cost=sum(real[name].cost or 0.0 for name in kept),
        )
        if not found or len(found[-1].kept) > len(kept):
            found.append(own)
        elif own.behind == 0 or found[-1].behind > 0:
            found[-1] = replace(own, closed=found[-1].closed)
    return tuple(found)


def suited_decoys(count: int, rate: float) -> int:
    """Return how many decoys each field gets for a rate of false discoveries.

    With m decoys per field the estimate is a multiple of 1 / m of a field, so that few fields need
    several decoys each.

    >>> suited_decoys(100, 0.1), suited_decoys(29, 0.1), suited_decoys(8, 0.1)
    (1, 2, 5)

    Args:
        count: The number of fields that compete, without protected ones.
        rate: The rate, as in the rule `fdr`.

    Raises:
        SelectionError: Not even all fields would be enough for the rate.
    """
    needed = fewest_discoveries(rate, MOST)
    if count < needed:
        raise SelectionError(
            f"fdr={rate:g} needs at least {needed} fields that compete with {MOST} decoys each, "
            f"but there are {count}. Raise fdr= to {1 / (MOST * max(1, count)):.2g} or more, "
            "or give another rule."
        )
    return min(MOST, max(1, math.ceil(ENOUGH / (rate * count) - 1e-9)))
