"""certify: compare a smaller model with the full one on rows that neither has seen."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .._common.checks import number
from .._common.errors import DataError, MetricError, TorchleapError
from ..data.task import Rows, Task
from ..objectives import Metric, Predictions
from ..training.evaluate import predict
from ..training.trained_on import refuse_same_part, refuse_seen
from .certificate import Certificate, Evidence, certificate_of
from .change import Change, change_of, crossfit_change, mean_change

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
    """
    check_margin(margin)
    rows = task.test
    chosen = task.objective.headline(rows.group)
    if metric is not None:
        chosen = task.objective.metric(metric if isinstance(metric, str) else metric.name)
    chosen.check_group(rows.group)
    pairs = _pairs(full, small)
    check_comparable(rows)
    check_untouched(rows, pairs)
    fraction = margin if relative else 0.0
    changes = []
    for one, other in pairs:
        changes.append(measured(rows, one, other, metric=chosen, relative=fraction))
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
