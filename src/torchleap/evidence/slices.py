"""Slices: the change of the metric in parts of the rows, so that no average hides a damage.

All slices are scanned by a fast and nearly exact count, if need be in a sample of the rows. The
worst of them are then judged exactly, in all rows. Their p-values are adjusted by Holm's method
for all slices that were scanned, which holds whichever of them are judged.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .._common.text import plural
from ..data.task import Rows
from ..objectives import Metric, Predictions
from .certificate import ENOUGH_ROWS, SliceChange
from .change import CONFIDENCE, Change, Floats, change_of, mean_change
from .partitions import Codes, Flags, Partition, partitions, partitions_by
from .scan import LEAST_GROUPS, Pairs, scan_of

KEPT = 20  # slices in a certificate
JUDGED = 40  # slices that are judged exactly, at most
JUDGED_ROWS = 10_000_000  # in all of them together, about
SCANNED = {"auc": 200_000_000, "gauc": 60_000_000, "log_loss": 500_000_000}  # rows times fields


@dataclass(frozen=True)
class Examined:
    """The slices of some rows.

    Attributes:
        worst: The worst ones, the worst first.
        count: How many were examined.
        notes: What else the reader should know, one sentence each.
    """

    worst: tuple[SliceChange, ...]
    count: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Candidate:
    """A slice as the scan has found it.

    Attributes:
        place: The place of its field in the task.
        turn: The number of its partition among those by this field.
        code: Its number in the partition.
        worst: How many standard errors the gain is above a loss of the margin; low is bad.
    """

    place: int
    turn: int
    code: int
    worst: float


def examine(
    rows: Rows,
    pairs: Pairs,
    metric: Metric,
    margin: float,
    *,
    dropped: Collection[str] = (),
    by: Sequence[str] = (),
) -> Examined:
    """Return the slices in which the metric loses most, with a statement that holds for all.

    Args:
        rows: The rows.
        pairs: The predictions of both models for the rows; of repeated trainings, several, whose
            mean change counts.
        metric: The metric.
        margin: The loss that is acceptable in a slice.
        dropped: The names of dropped fields.
        by: The names of fields that the user names.
    """
    among = _sample(rows, metric, pairs[0][0].group)
    found, few = _candidates(rows, pairs, metric, margin, dropped, by, among)
    judged: list[tuple[str, str, int, Change]] = []
    seen = 0
    for one in sorted(found, key=lambda one: one.worst):
        if len(judged) == JUDGED or seen > JUDGED_ROWS:
            break
        partition = _partition(rows, one, dropped, by)
        inside = partition.codes == one.code
        change = _change_inside(inside, pairs, metric)
        size = int(inside.sum())
        seen += size
        if change is not None:
            judged.append((partition.name(one.code), partition.field, size, change))
    judged.sort(key=lambda one: (one[3].p_of_loss(margin), one[3].gain))
    adjusted = holm([one[3].p_of_loss(margin) for one in judged], len(found))
    worst = []
    for (name, field, size, change), p in zip(judged[:KEPT], adjusted, strict=False):
        worst.append(
            SliceChange(
                name=name,
                field=field,
                dropped=field in dropped,
                rows=size,
                change=change.after - change.before,
                lowest=change.lowest(1 - (1 - CONFIDENCE) / len(found)),
                p=p,
                is_damaged=p < 1 - CONFIDENCE,
            )
        )
    return Examined(tuple(worst), len(found), _notes(len(found), few, rows, among))


def holm(p_values: Sequence[float], tests: int) -> list[float]:
    """Return the p-values adjusted by Holm's method; those of tests not given count as 1.

    >>> holm([0.01, 0.02], tests=3)
    [0.03, 0.04]

    Args:
        p_values: The p-values in rising order.
        tests: The number of all tests.
    """
    adjusted = []
    highest = 0.0
    for place, p in enumerate(p_values):
        highest = max(highest, min(1.0, (tests - place) * p))
        adjusted.append(highest)
    return adjusted


def _sample(rows: Rows, metric: Metric, group: Tensor | None) -> Codes | None:
    """Return the numbers of the rows to scan, whole groups of them; None for all rows."""
    most = SCANNED[metric.name] // len(rows.task.columns)
    if len(rows) <= most:
        return None
    rng = np.random.default_rng(0)
    if group is None:
        return np.sort(rng.choice(len(rows), most, replace=False))
    _, numbers = np.unique(group.numpy(), return_inverse=True)
    is_taken = rng.random(int(numbers.max()) + 1) < most / len(rows)
    return np.flatnonzero(is_taken[numbers])


def _candidates(
    rows: Rows,
    pairs: Pairs,
    metric: Metric,
    margin: float,
    dropped: Collection[str],
    by: Sequence[str],
    among: Codes | None,
) -> tuple[list[_Candidate], int]:
    """Return all slices that can be judged, each set of rows once, and the number of others."""
    if among is not None:
        pairs = [(_part(one, among), _part(other, among)) for one, other in pairs]
    scan = scan_of(metric, pairs)
    count = len(rows) if among is None else len(among)
    marks = np.random.default_rng(0).random(count)  # whose sum tells sets of rows apart
    known = {(count, _sum_of(marks))}
    found = []
    few = 0
    turns: dict[str, int] = {}
    places = {column.name: place for place, column in enumerate(rows.task.columns)}
    for partition in partitions(rows, dropped=dropped, by=by):
        turn = turns.get(partition.field, 0)
        turns[partition.field] = turn + 1
        codes = partition.codes if among is None else partition.codes[among]
        sizes = np.bincount(codes, minlength=partition.count)
        sums = np.bincount(codes, weights=marks, minlength=partition.count)
        with np.errstate(divide="ignore", invalid="ignore"):  # slices without rows of a class
            scanned = scan(codes, partition.count)
        distance = (scanned.gain + margin) / np.maximum(scanned.error, 1e-300)
        for code in partition.examined:
            key = (int(sizes[code]), float(sums[code]))
            if not sizes[code] or key in known:
                continue
            known.add(key)
            if scanned.rarer[code] < ENOUGH_ROWS or np.isnan(distance[code]):
                few += 1
                continue
            place = places[partition.field]
            found.append(_Candidate(place, turn, code, float(distance[code])))
    return found, few


def _sum_of(marks: Floats) -> float:
    """Return the sum in the order in which bincount adds."""
    return float(np.bincount(np.zeros(len(marks), dtype=np.int64), weights=marks)[0])


def _partition(
    rows: Rows, one: _Candidate, dropped: Collection[str], by: Sequence[str]
) -> Partition:
    """Return the partition of all rows that has a slice."""
    return list(partitions_by(rows, one.place, dropped=dropped, by=by))[one.turn]


def _change_inside(inside: Flags, pairs: Pairs, metric: Metric) -> Change | None:
    """Return the change in some rows; None where they are too few groups to say anything."""
    numbers = np.flatnonzero(inside)
    changes = []
    for before, after in pairs:
        changes.append(change_of(metric, _part(before, numbers), _part(after, numbers)))
    change = changes[0] if len(changes) == 1 else mean_change(changes)
    return change if change.effective >= LEAST_GROUPS else None


def _part(predictions: Predictions, numbers: Codes) -> Predictions:
    """Return the predictions of some rows."""
    rows = torch.from_numpy(numbers)
    group = predictions.group
    return Predictions(
        predictions.label[rows],
        predictions.output[rows],
        predictions.prediction[rows],
        None if group is None else group[rows],
    )


def _notes(count: int, few: int, rows: Rows, among: Codes | None) -> tuple[str, ...]:
    """Return what the reader should know about the slices."""
    if not count and not few:
        return ()
    text = f"The rows were examined in {plural(count, 'slice')}"
    if among is not None:
        text += f", in a sample of {len(among):,} rows, and the worst of them in all {len(rows):,}"
    if few:
        text += (
            f"; {few:,} more cannot be judged, with fewer than {ENOUGH_ROWS} rows of the rarer "
            "class"
        )
    return (f"{text}.",)
