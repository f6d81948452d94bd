"""Objective: what a model is trained for, from the label to the metrics that compare models.

A new objective is one entry of `OBJECTIVES`; a Task carries it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from .._common.errors import MetricError, nearest
from .metrics import METRICS, Metric, Predictions, Score

Reduction = Literal["mean", "sum"]


class Loss(Protocol):
    """A loss of raw outputs and labels: a scalar, the mean or the sum over rows."""

    def __call__(self, outputs: Tensor, label: Tensor, reduction: Reduction = "mean") -> Tensor:
        """Return the loss of some rows."""
        ...


@dataclass(frozen=True)
class Objective:
    """A kind of label, with the loss that fits it and the metrics that compare its models.

    >>> binary = objective_named("binary")
    >>> label, output = torch.tensor([0.0, 1.0, 1.0]), torch.tensor([-1.0, 2.0, 0.5])
    >>> round(float(binary.loss(output, label)), 4)
    0.3048
    >>> binary.evaluate(label, output)["auc"]
    1.0
    >>> binary.headline(group=None).name, binary.headline(group="user").name
    ('auc', 'gauc')

    Attributes:
        name: Its key in `OBJECTIVES`.
        title: Its name in reports.
        label_text: The labels that it takes, for messages and help: "expected the label 0 or 1".
        is_label: Returns for each number whether it can be a label, (N,) -> (N,).
        output_width: Outputs of the model per row.
        loss: The training loss of raw outputs.
        link: Turns raw outputs into predictions, such as log odds into probabilities.
        metrics: Names of its metrics, in the order of records.
        headline_name: The metric that a model is judged by.
        group_headline_name: The same where rows have groups.
        support: Returns how many rows a comparison rests on: the fewer they are, the less it means.
        describe: Returns a count of the rows of a part, as in "90 test rows, 12 of them positive".
    """

    name: str
    title: str
    label_text: str
    is_label: Callable[[Tensor], Tensor]
    output_width: int
    loss: Loss
    link: Callable[[Tensor], Tensor]
    metrics: tuple[str, ...]
    headline_name: str
    group_headline_name: str
    support: Callable[[Tensor], int]
    describe: Callable[[Tensor, str], str]

    def metric(self, name: str) -> Metric:
        """Return one of its metrics; raise a MetricError that names the nearest for any other name.

        >>> objective_named("binary").metric("log_loss").higher_is_better
        False
        """
        if name not in self.metrics:
            raise MetricError(
                f"There is no metric {name!r} for the {self.name} objective. "
                f"{nearest(str(name), self.metrics)}"
            )
        return METRICS[name]

    def headline(self, group: object) -> Metric:
        """Return the metric that a model is judged by.

        Args:
            group: The groups of the rows or the name of their column; None if there are none.
        """
        name = self.headline_name if group is None else self.group_headline_name
        return METRICS[name]

    def metrics_for(self, group: object) -> tuple[Metric, ...]:
        """Return its metrics that rows with or without groups have, in the order of records.

        Args:
            group: The groups of the rows or the name of their column; None if there are none.
        """
        found = [METRICS[name] for name in self.metrics]
        return tuple(metric for metric in found if group is not None or not metric.needs_group)

    def predictions(
        self, label: Tensor, output: Tensor, group: Tensor | None = None
    ) -> Predictions:
        """Return labels and raw outputs with the predictions that the link makes of them.

        Args:
            label: The label of each row, (N,).
            output: The raw outputs, (N, output_width); a single output per row may be (N,).
            group: The group of each row, (N,); None where there are no groups.
        """
        rows = label.numel()
        full_shape = (rows, self.output_width)
        shape = (rows,) if self.output_width == 1 else full_shape
        if tuple(output.shape) not in (shape, full_shape):
            raise MetricError(
                f"Expected outputs of shape {shape} for {rows} labels of the {self.name} "
                f"objective, but found {tuple(output.shape)}."
            )
        output = output.detach().reshape(shape)
        return Predictions(label.reshape(rows), output, self.link(output.double()), group)

    def evaluate(
        self, label: Tensor, output: Tensor, group: Tensor | None = None
    ) -> dict[str, float]:
        """Return the value of each metric by name; those of groups only where there are groups.

        Args:
            label: The label of each row, (N,).
            output: The raw outputs of the model, as in `predictions`.
            group: The group of each row, (N,); None where there are no groups.
        """
        rows = self.predictions(label, output, group)
        return {metric.name: metric.compute(rows) for metric in self.metrics_for(group)}

    def row_losses(self, output: Tensor, label: Tensor) -> Tensor:
        """Return the loss of each row by itself, (N,), for intervals of the mean loss.

        Args:
            output: The raw outputs of the rows, (N,) or (N, output_width).
            label: The label of each row, (N,).
        """

        def own_loss(one: Tensor, own_label: Tensor) -> Tensor:
            return self.loss(one.unsqueeze(0), own_label.unsqueeze(0))

        return torch.vmap(own_loss)(output, label)

    def scorer(self, metric: Metric, label: Tensor, group: Tensor | None = None) -> Score:
        """Return a metric as a function of raw outputs, for many outputs of the same rows.

        >>> score = objective_named("binary").scorer(METRICS["auc"], torch.tensor([0.0, 1.0]))
        >>> score(torch.tensor([0.2, 0.1])), score(torch.tensor([0.1, 0.2]))
        (0.0, 1.0)
        """
        metric.check_group(group)
        if metric.prepare is not None:
            return metric.prepare(label)
        return lambda output: metric.compute(self.predictions(label, output, group))

    def check_labels(self, label: Tensor) -> None:
        """Raise a MetricError if a label is not one of this objective's."""
        wrong = ~self.is_label(label)
        if wrong.any():
            raise MetricError(
                f"Expected labels {self.label_text} for the {self.name} objective, "
                f"but found {sorted(set(label[wrong].tolist()))[:5]}."
            )

    def check_comparable(self, label: Tensor, group: Tensor | None = None) -> None:
        """Raise a MetricError if models cannot be compared on these rows, as in a single class.

        Every metric has to be defined for a perfect model, which predicts the labels themselves.
        """
        self.check_labels(label)
        perfect = Predictions(label, label, label, group)
        for metric in self.metrics_for(group):
            metric.compute(perfect)


def objective_named(objective: str | Objective) -> Objective:
    """Return the objective with this name; an Objective is returned as it is.

    >>> objective_named("binary").title
    'binary classification'
    """
    if isinstance(objective, Objective):
        return objective
    if objective not in OBJECTIVES:
        raise MetricError(
            f"There is no objective {objective!r}. {nearest(str(objective), OBJECTIVES)}"
        )
    return OBJECTIVES[objective]


def binary_loss(outputs: Tensor, label: Tensor, reduction: Reduction = "mean") -> Tensor:
    """Return the log loss of log odds; mixed precision computes it in float32.

    Args:
        outputs: The log odds of the rows.
        label: 0 or 1 for each row, of the same shape.
        reduction: "mean" or "sum" over the rows.
    """
    return binary_cross_entropy_with_logits(outputs.float(), label, reduction=reduction)


def _is_zero_or_one(label: Tensor) -> Tensor:
    return (label == 0) | (label == 1)


def _rarer_class(label: Tensor) -> int:
    """Return the number of rows of the rarer class."""
    positives = int(label.sum())
    return min(positives, len(label) - positives)


def _count_positives(label: Tensor, part: str) -> str:
    """Return the number of rows, and of positive ones, of a part such as "test"."""
    return f"{len(label):,} {part} rows, {int(label.sum()):,} of them positive"


OBJECTIVES = {
    "binary": Objective(
        name="binary",
        title="binary classification",
        label_text="0 or 1",
        is_label=_is_zero_or_one,
        output_width=1,
        loss=binary_loss,
        link=torch.sigmoid,
        metrics=("auc", "log_loss", "gauc"),
        headline_name="auc",
        group_headline_name="gauc",
        support=_rarer_class,
        describe=_count_positives,
    ),
}
