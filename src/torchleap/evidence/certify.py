"""certify: compare a smaller model with the full one on rows that neither has seen."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .._common.checks import check_arguments, number
from .._common.errors import DataError, MetricError, TorchleapError
from ..data.task import Rows, Task
from ..objectives import Metric, Predictions
from ..training.evaluate import predict
from ..training.trained_on import refuse_same_part, refuse_seen
from .certificate import ENOUGH_ROWS, Certificate, Evidence, certificate_of
from .change import Change, change_of, crossfit_change, mean_change
from .partitions import check_names
from .reads import unread
from .slices import examine

ROWS = "rows"  # the independent units where there are no groups


class FoldChange(NamedTuple):
    """The change of a metric in one fold.

    Attributes:
        rows: The rows that the fold is tested on, which no other fold is.
        change: The change on these rows, of models that were trained on the others.
    """

    rows: Rows
    change: Change


def certify(
    task: Task,
    full: nn.Module | Sequence[nn.Module],
    small: nn.Module | Sequence[nn.Module],
    margin: float = 0.001,
    *,
    relative: bool = False,
    metric: str | Metric | None = None,
    blocked: Sequence[str] = (),
    typical_training: float | None = None,
    repeated: Sequence[Change] = (),
    folds: Sequence[FoldChange] = (),
    slices: bool = True,
    slice_margin: float | None = None,
    slice_by: str | Sequence[str] = (),
) -> Certificate:
    """Return whether a smaller model may replace the full one, by the test rows of a task.

    The verdict is "safe" if the evidence excludes, at 95 % confidence, that the metric loses more
    than the margin; "not safe" if it shows that it does; otherwise "undecided", with the number of
    rows that would decide. Where rows have groups, chance is that of the groups.

    >>> certificate = certify(task, full, small, margin=0.001)  # doctest: +SKIP
    >>> certificate.verdict  # doctest: +SKIP
    'safe'

    Args:
        task: The data. Only its test rows are read, which must have been used for nothing else.
        full: The model of all fields; several are repeated trainings with different seeds.
        small: The smaller model; of several, each is compared with the full one in its place.
        margin: The loss of the metric that is acceptable, above 0.
        relative: Whether the margin is a fraction of the full model's metric.
        metric: The metric, or its name; None is that of the task: GAUC with groups, else AUC.
        blocked: Reasons for which nothing may be called safe, one sentence each.
        typical_training: The standard deviation of the metric's difference between two trainings,
            for the note on what a single training leaves out; None if it is not known.
        repeated: The changes of further trainings on the test rows, as `measured` returns them,
            whose models are not at hand.
        folds: The changes of a cross-fit, which then are the evidence in place of both models.
        slices: Whether to look for parts of the rows in which the metric loses more than
            `slice_margin`: those of each value of a categorical field, and those where a dropped
            field differs from its most common value. Such a loss makes the verdict "not safe".
        slice_margin: The loss that is acceptable in a slice, in the unit of the metric; None is
            the margin.
        slice_by: Names of fields by all of whose values the rows are divided as well; numbers are
            divided into fifths.
    """
    by = (slice_by,) if isinstance(slice_by, str) else tuple(slice_by)
    check_margin(margin)
    check_slicing(task, slice_margin, by)
    rows = task.test
    chosen = task.objective.headline(rows.group)
    if metric is not None:
        chosen = task.objective.metric(metric if isinstance(metric, str) else metric.name)
    chosen.check_group(rows.group)
    pairs = _pairs(full, small)
    check_comparable(rows)
    check_untouched(rows, pairs)
    fraction = margin if relative else 0.0
    predicted = [(predictions(one, rows), predictions(other, rows)) for one, other in pairs]
    changes = [change_of(chosen, *pair, relative=fraction) for pair in predicted]
    changes += repeated
    change = changes[0] if len(changes) == 1 else mean_change(changes)
    label = rows.label
    if folds:
        change = crossfit_change([one.change for one in folds])
        label = torch.cat([one.rows.label for one in folds])
    evidence = Evidence(
        rows=len(label),
        support=task.objective.support(label),
        unit=unit_of(task),
        blocked=blocked,
        typical_training=typical_training,
    )
    absolute = margin * abs(change.before) if relative else margin
    if slices and evidence.support >= ENOUGH_ROWS:
        within = absolute if slice_margin is None else slice_margin
        dropped = unread([other for _, other in pairs], rows)
        found = examine(rows, predicted, chosen, within, dropped=dropped, by=by)
        evidence = replace(
            evidence,
            slices=found.worst,
            slices_examined=found.count,
            slice_margin=within,
            notes=found.notes,
        )
    return certificate_of(change, absolute, evidence, relative=margin if relative else None)


def measured(
    rows: Rows,
    full: nn.Module,
    small: nn.Module,
    *,
    metric: Metric | None = None,
    relative: float = 0.0,
) -> Change:
    """Return the change of a metric from the model of all fields to the smaller one.

    Args:
        rows: The rows to measure on.
        full: The model of all fields.
        small: The smaller model.
        metric: The metric; None is the headline metric of the task.
        relative: A fraction of the metric of the first model that the margin is.
    """
    if metric is None:
        metric = rows.task.objective.headline(rows.group)
    return change_of(metric, predictions(full, rows), predictions(small, rows), relative=relative)


def check_margin(margin: object) -> None:
    """Raise a TorchleapError if a margin is not a number above 0."""
    problem = number(margin, above=0)
    if problem:
        raise TorchleapError(
            f"margin {problem}. Give the loss of the metric that is acceptable: margin=0.001."
        )


def check_slicing(task: Task, slice_margin: float | None, slice_by: Sequence[str]) -> None:
    """Raise an error unless slices can be made by these settings of `certify`.

    Args:
        task: The data.
        slice_margin: The loss that is acceptable in a slice; None is the margin.
        slice_by: Names of fields.

    Raises:
        TorchleapError: The slice margin is not a number above 0, or rows cannot be divided by a
            field.
    """
    if slice_margin is not None:
        check_arguments(slice_margin=number(slice_margin, above=0))
    check_names(task, slice_by)


def predictions(model: nn.Module, rows: Rows) -> Predictions:
    """Return the predictions of a model for rows, with their labels and groups."""
    outputs: Tensor = predict(model, rows)
    return rows.task.objective.predictions(rows.label, outputs, rows.group)


def unit_of(task: Task) -> str:
    """Return what is independent in the rows of a task: the name of its groups, or "rows"."""
    group = task.roles.get("group")
    return ROWS if group is None else str(group)


def check_comparable(rows: Rows) -> None:
    """Raise a DataError if models cannot be compared on these rows, such as those of one class."""
    objective = rows.task.objective
    try:
        objective.check_comparable(rows.label, rows.group)
    except MetricError as error:
        found = objective.describe(rows.label, rows.part)
        raise DataError(
            f"Models cannot be compared on these {rows.part} rows: {error} There are {found}. "
            "Give more rows, or split them otherwise."
        ) from error
    if rows.group is not None and len(torch.unique(rows.group)) < 2:
        raise DataError(
            f"Expected at least two groups among the {rows.part} rows, to see how groups differ, "
            "but found one. Give rows of more groups, or read the data without group=."
        )
    if rows.group is not None and _lie_in_one_group(rows.label, rows.group):
        raise DataError(
            f"Expected {rows.part} rows of each class in at least two groups, to see how groups "
            "differ, but one class is found in one group. Give rows of more groups, or read the "
            "data without group=."
        )


def _lie_in_one_group(label: Tensor, group: Tensor) -> bool:
    """Return whether all rows of a class belong to one group."""
    classes = torch.unique(label)
    return any(len(torch.unique(group[label == one])) < 2 for one in classes)


def check_untouched(rows: Rows, pairs: Sequence[tuple[nn.Module, nn.Module]]) -> None:
    """Raise a DataError if a model was trained on the rows that are to certify it.

    Args:
        rows: The test rows.
        pairs: The full and the smaller model of each training.
    """
    refuse_same_part(rows)
    for full, small in pairs:
        refuse_seen(full, rows, "full")
        refuse_seen(small, rows, "smaller")


def _pairs(
    full: nn.Module | Sequence[nn.Module], small: nn.Module | Sequence[nn.Module]
) -> list[tuple[nn.Module, nn.Module]]:
    """Return the models to compare with each other."""
    before = [full] if isinstance(full, nn.Module) else list(full)
    after = [small] if isinstance(small, nn.Module) else list(small)
    if not before or len(before) != len(after):
        raise DataError(
            f"Expected as many smaller models as full ones, but found {len(after)} and "
            f"{len(before)}. Give each training its own pair."
        )
    return list(zip(before, after, strict=True))
