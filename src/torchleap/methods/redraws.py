"""Redraws: how measurements on a path would have turned out on other rows, and with another chance.

A path measures losses and metrics row by row. Other draws of the same rows, in which some rows come
several times and others not at all, move these means as other rows of the same kind would, without
another pass through a model.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..fields import Fields
from ..objectives import Metric
from ..selection import Path, PathPoint, Worth, rank
from .base import Replica, Scores, Search
from .contributions import Samples

LIMIT = 1 << 26  # numbers of all draws together; of more rows, fewer draws are kept


class Redraws:
    """Draws of the rows that a path is measured on, with replacement (the bootstrap).

    Where rows have groups, such as users, all rows of a group are drawn together.

    Args:
        search: The search.
        samples: The rows on which contributions are measured.
        count: The number of draws; 0 draws nothing.

    Attributes:
        every: The distance of the validation rows that are in the sample.
        valid: How often each validation row is in each draw, less once, (N, R).
        train: The same for the train rows of the sample, (n, R).
    """

    def __init__(self, search: Search, samples: Samples, count: int) -> None:
        rows = search.task.valid
        self.count = min(count, LIMIT // max(1, len(rows)))
        rng = torch.Generator().manual_seed(search.seed * 1_000_003 + 17)
        self.every = max(1, -(-len(rows) // max(1, len(samples.valid))))
        self.valid = draws(len(rows), self.count, rng, rows.group)
        self.train = draws(len(samples.train), self.count, rng, samples.train.group)

    def moves(self, on_valid: Tensor, on_train: Tensor, optimism: float) -> Tensor:
        """Return by how much each draw changes the worth of some masks, (M, R).

        Args:
            on_valid: The rise of the loss of each validation row of the sample, (M, N).
            on_train: The same for its train rows, (M, n).
            optimism: As in `WorthMeter`.
        """
        valid = moved_means(on_valid, self.valid[:: self.every])
        return valid - optimism * (moved_means(on_train, self.train) - valid)


def draws(rows: int, count: int, rng: torch.Generator, group: Tensor | None = None) -> Tensor:
    """Return how often each row is in each draw with replacement, less once, (rows, count).

    Args:
        rows: The number of rows.
        count: The number of draws.
        rng: The random numbers.
        group: The group of each row, whose rows are drawn together, (rows,); None without.
    """
    unit = torch.arange(rows)
    if group is not None:
        unit = torch.unique(group, return_inverse=True)[1]
    units = int(unit.max()) + 1 if rows else 0
    found = torch.empty(rows, count)
    for place in range(count):
        drawn = torch.randint(max(1, units), (units,), generator=rng)
        found[:, place] = torch.bincount(drawn, minlength=units)[unit].float() - 1
    return found


def moved_means(values: Tensor, draw: Tensor) -> Tensor:
    """Return by how much each draw changes the mean of some values, (M, N) x (N, R) -> (M, R)."""
    centred = values - values.mean(1, keepdim=True)
    return (centred.to(draw) @ draw) / max(1, len(draw))


def replica_of(
    path: Path,
    scores: Scores,
    moves: Mapping[str, float],
    gains: Sequence[float],
    fields: Fields,
    metric: Metric,
) -> Replica:
    """Return the scores and the path of one draw.

    At each point as many fields are open as on the path, but those with the best scores of the
    draw. What is known of the errors is that of the path.

    Args:
        path: The path as it was measured.
        scores: The scores of the draw.
        moves: By how much the draw changes the worth of each field.
        gains: By how much it changes the gain of the metric at each point.
        fields: The fields.
        metric: The metric of the points.
    """
    order = [name for group in rank(fields, scores, path.together) for name in group.names]
    points: list[PathPoint] = []
    best = -torch.inf
    before = set(fields.names)
    usual = statistics.median([one.error for one in path.points if one.error > 0] or [0.0])
    for point, gain in zip(path.points, gains, strict=True):
        value = metric.gain(point.metric) + gain
        best = max(best, value)
        chosen = set(order[: len(point.kept)])
        kept = tuple(name for name in fields.names if name in chosen)
        points.append(
            replace(
                point,
                kept=kept,
                closed=tuple(name for name in reversed(order) if name in before - chosen),
                dims=sum(fields[name].width for name in kept),
                cost=sum(fields[name].cost or 0.0 for name in kept),
                metric=metric.gain(value),
                behind=best - value,
                error=0.0 if best == value else point.error or usual,
            )
        )
        before = chosen
    own = replace(path, points=tuple(points), worth=_moved(path.worth, moves))
    kept_at_best = set(own.best.kept) if points else set()
    gates = {name: float(name in kept_at_best) for name in path.gates}
    return Replica(scores, replace(own, gates=gates))


def _moved(worth: Mapping[str, Worth], moves: Mapping[str, float]) -> dict[str, Worth]:
    found = {}
    for name, own in worth.items():
        move = moves.get(name, 0.0)
        found[name] = Worth(own.nats + move, own.low + move, own.high + move)
    return found
