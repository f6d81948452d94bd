"""The evidence behind a decision: curve, gates over training, metrics, times, and all fields."""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import torch
from torch import nn

from ..data.task import Task
from ..evidence.certify import predictions
from ..evidence.change import change_of
from ..fields import Fields
from ..objectives import METRICS, Metric
from ..plugin import Plugin
from ..selection import Path as FieldPath
from ..selection import Selection, Worth, removal_order
from ..training.evaluate import evaluate
from .record import (
    CurvePoint,
    CurveRecord,
    DifferenceRecord,
    FieldRecord,
    KnownMetric,
    MetricsRecord,
    TaskRecord,
    TrainedPoint,
    TrajectoriesRecord,
)

CURVE_STEPS = 24  # fields are masked in that many steps at most
TIMED_ROWS = 512  # of a batch whose time is measured
TIMED_ROUNDS = 30
BYTES_PER_NUMBER = 4


def headline_of(task: Task) -> Metric:
    """Return the metric that models of a task are compared by."""
    return task.objective.headline(task.roles.get("group"))


def masking_curve(plugin: Plugin, selection: Selection, task: Task) -> list[CurvePoint]:
    """Return the metric on validation rows while fields are masked, the worst first.

    Args:
        plugin: The gates of the trained model.
        selection: The scores by which fields are masked.
        task: The data.
    """
    order = removal_order(selection.fields, selection.scores)
    counts = set(range(len(order) + 1))
    if len(order) > CURVE_STEPS:
        counts = {round(step * len(order) / CURVE_STEPS) for step in range(CURVE_STEPS + 1)}
    metric = headline_of(task)
    points = []
    for count in sorted(counts):
        removed = set(order[:count])
        keep = tuple(name not in removed for name in selection.fields.names)
        masked = replace(selection, keep=keep)
        with plugin.masked(masked):
            value = evaluate(plugin.model, task.valid)[metric.name]
        points.append(CurvePoint(count, selection.fields.dims - masked.dims, value))
    return points


def path_curve(path: FieldPath, task: Task) -> list[CurvePoint]:
    """Return the points of a path as a curve: the metric of the model that adapted to each.

    Args:
        path: The path of a search.
        task: The data.
    """
    fields = task.fields
    return [
        CurvePoint(len(fields) - len(point.kept), fields.dims - point.dims, point.metric)
        for point in path.points
    ]


def curve_record(
    points: Sequence[CurvePoint],
    full: nn.Module,
    small: nn.Module,
    selection: Selection,
    task: Task,
) -> CurveRecord:
    """Return the curve with the two trained models beside it, of all fields and of the kept."""
    metric = headline_of(task).name
    removed = selection.fields.dims - selection.dims
    of_all = evaluate(full, task.valid)[metric]
    of_kept = evaluate(small, task.valid)[metric]
    return CurveRecord(
        metric=metric,
        order=removal_order(selection.fields, selection.scores),
        points=points,
        retrained=[
            TrainedPoint(0, of_all, None, "all fields"),
            TrainedPoint(removed, of_kept, None, "cut and fine-tuned"),
        ],
    )


def trajectories(
    history: Sequence[Mapping[str, float]], fields: Fields
) -> TrajectoriesRecord | None:
    """Return the gates at each evaluation by field; None where the method has no gates.

    Args:
        history: The evaluations of a search, with a key "gate_" + name for each field.
        fields: The fields.
    """
    recorded = [entry for entry in history if any(key.startswith("gate_") for key in entry)]
    if not recorded:
        return None
    gates = {name: [entry[f"gate_{name}"] for entry in recorded] for name in fields.names}
    return TrajectoriesRecord([entry["step"] for entry in recorded], gates)


def compare(full: nn.Module, small: nn.Module, task: Task) -> MetricsRecord:
    """Return all metrics of two models on the test rows, and the difference of the first one.

    An interval without width, of so few rows that none has moved, is None.
    """
    objective = task.objective
    rows = task.test
    before = predictions(full, rows)
    after = predictions(small, rows)
    change = change_of(headline_of(task), before, after)
    low, high = change.interval()
    interval = (low, high) if low < high else None
    return MetricsRecord(
        before=objective.evaluate(rows.label, before.output, rows.group),
        after=objective.evaluate(rows.label, after.output, rows.group),
        difference=DifferenceRecord(change.metric.name, change.after - change.before, interval),
    )


def known_metrics(task: Task) -> dict[str, KnownMetric]:
    """Return descriptions of the metrics of a task by name."""
    return {name: KnownMetric.of(METRICS[name]) for name in task.objective.metrics}


@torch.no_grad()
def scoring_milliseconds(full: nn.Module, small: nn.Module, task: Task) -> tuple[float, float]:
    """Return the median time of a batch of test rows through each model, measured by turns."""
    inputs = next(iter(task.test.batches(timed_rows(task)))).inputs
    models = (full.eval(), small.eval())
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(TIMED_ROUNDS):
        for model, own in zip(models, times, strict=True):
            started = time.perf_counter()
            model(*inputs)
            own.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times[0]), statistics.median(times[1])


def timed_rows(task: Task) -> int:
    """Return the rows of the batch whose time is measured."""
    return min(TIMED_ROWS, len(task.test))


def task_record(task: Task, source: str | None) -> TaskRecord:
    """Return the record of the data.

    Args:
        task: The data.
        source: The file that it was read from, or other words for it; None if unknown.
    """
    return TaskRecord(
        objective=task.objective.name,
        label=task.roles["label"],
        positive=task.roles.get("positive"),
        source=source,
        rows=dict(task.rows),
        fields=len(task.fields),
        dims=task.fields.dims,
        positives={
            rows.part: int(rows.label.sum()) for rows in (task.train, task.valid, task.test)
        },
        group=task.roles.get("group"),
    )


def field_records(
    task: Task,
    selection: Selection,
    plugin: Plugin,
    *,
    has_prices: bool,
    roles: Mapping[str, str],
    worth: Mapping[str, Worth],
) -> list[FieldRecord]:
    """Return the records of all fields in input order.

    Args:
        task: The data.
        selection: The scores and the decision.
        plugin: The gates that know the divergence and the price of each field.
        has_prices: Whether the gates were trained, so that their prices mean something.
        roles: The role of each field where the ground truth is known.
        worth: The worth of each field by name; empty if it was not measured.
    """
    divergences = plugin.gates.divergences().tolist()
    prices = plugin.gates.weights().tolist()
    found = []
    for place, (column, field) in enumerate(zip(task.columns, selection.fields, strict=True)):
        own = worth.get(column.name)
        one = FieldRecord(
            **asdict(field),
            kind=column.column.kind,
            sparsity=column.common,
            missing=column.missing,
            bytes=BYTES_PER_NUMBER * column.categories * column.width,
            divergence=divergences[place],
            price=prices[place] if has_prices else None,
            score=selection.score[place],
            kept=selection.keep[place],
            role=roles.get(column.name),
            ids=column.categories or None,
            worth=None if own is None else own.nats,
            worth_low=None if own is None else own.low,
            worth_high=None if own is None else own.high,
        )
        found.append(one)
    return found
