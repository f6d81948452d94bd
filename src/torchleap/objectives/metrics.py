"""Metric: how good predictions are, which direction is better, how sure a difference is.

A new metric is a function beside its kind (such as `binary.py`) and one entry of `METRICS`, whose
name the objectives that it fits list.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from .._common.errors import MetricError, nearest
from . import binary
from .binary import Difference, Influence

Score = Callable[[Tensor], float]


@dataclass(frozen=True)
class Predictions:
    """The labels of some rows and the outputs of a model for them: see `Objective.predictions`.

    Attributes:
        label: The label of each row, (N,).
        output: The raw outputs of the model, such as log odds: (N,), or (N, K) where a row has
            several. Metrics of an order use them, since a link may round different outputs to the
            same prediction.
        prediction: The outputs behind the link, such as probabilities, in float64.
        group: The group of each row (user, query), (N,); None where there are no groups.
    """

    label: Tensor
    output: Tensor
    prediction: Tensor
    group: Tensor | None = None


@dataclass(frozen=True)
class Metric:
    """A measure of predictions, with its direction.

    >>> METRICS["log_loss"].better(0.41, 0.43), METRICS["auc"].better(0.41, 0.43)
    (True, False)

    Attributes:
        name: Its key in `METRICS`, in records and in settings.
        title: Its name in reports and tables.
        higher_is_better: Whether a model with a higher value is the better one.
        compute: Returns the value for some rows.
        influence: Returns the value with the part that each row, or group, has in it.
        needs_group: Whether it compares rows within groups, and so needs their column.
        by_class: Whether it is a mean over each class by itself, so that a group's share in it is
            that in the rows of each class.
        prepare: Returns a faster `compute` for many outputs of the same rows, which takes the raw
            outputs alone; None if there is no faster way.
        digits: Decimals of a value in reports.
    """

    name: str
    title: str
    higher_is_better: bool
    compute: Callable[[Predictions], float]
    influence: Callable[[Predictions], Influence]
    needs_group: bool = False
    by_class: bool = False
    prepare: Callable[[Tensor], Score] | None = None
    digits: int = 4

    @property
    def sign(self) -> int:
        """Return 1 where higher is better, and -1 where lower is."""
        return 1 if self.higher_is_better else -1

    def gain(self, value: float) -> float:
        """Return a value, or a difference of two, with the sign by which higher is better.

        >>> METRICS["auc"].gain(0.8), METRICS["log_loss"].gain(0.4)
        (0.8, -0.4)
        """
        return self.sign * value

    def difference(self, before: Predictions, after: Predictions) -> Difference:
        """Return the value of the second model minus that of the first, with a 95 % interval.

        Args:
            before: The predictions of the first model.
            after: Those of the second one, for the same rows.
        """
        return binary.difference(self.influence(before), self.influence(after))

    def better(self, one: float, other: float) -> bool:
        """Return whether the first value is strictly better than the second; NaN never is."""
        return self.gain(one) > self.gain(other)

    def best(self, values: Iterable[float]) -> float:
        """Return the best of some values.

        >>> METRICS["auc"].best([0.7, 0.8]), METRICS["log_loss"].best([0.5, 0.4])
        (0.8, 0.4)
        """
        return max(values, key=self.gain)

    def format(self, value: float) -> str:
        """Return a value as reports print it.

        >>> METRICS["auc"].format(0.83124)
        '0.8312'
        """
        return f"{value:.{self.digits}f}"

    def check_group(self, group: object) -> None:
        """Raise a MetricError if the metric needs groups and there are none.

        Args:
            group: The groups of the rows or the name of their column; None if there are none.
        """
        if self.needs_group and group is None:
            raise MetricError(f"metric={self.name!r} needs groups. Read the data with group=.")


def metric_named(metric: str | Metric) -> Metric:
    """Return the metric with this name; a Metric is returned as it is.

    >>> metric_named("log_loss").title
    'log loss'
    """
    if isinstance(metric, Metric):
        return metric
    if metric not in METRICS:
        raise MetricError(f"There is no metric {metric!r}. {nearest(str(metric), METRICS)}")
    return METRICS[metric]


def _auc(rows: Predictions) -> float:
    return binary.auc(rows.label, rows.output)


def _auc_influence(rows: Predictions) -> Influence:
    return binary.auc_influence(rows.label, rows.output)


def _prepared_auc(label: Tensor) -> Score:
    """Return the AUC as a function of the outputs, with the rows of both classes found once."""
    binary.auc(label, label)  # refuses a single class
    positive = (label == 1).numpy()
    negative = (label == 0).numpy()

    def score(output: Tensor) -> float:
        values = output.numpy()
        return binary.auc_of_classes(values[positive], values[negative])

    return score


def _gauc(rows: Predictions) -> float:
    METRICS["gauc"].check_group(rows.group)
    return binary.gauc(rows.label, rows.output, rows.group)


def _gauc_influence(rows: Predictions) -> Influence:
    METRICS["gauc"].check_group(rows.group)
    return binary.gauc_influence(rows.label, rows.output, rows.group)


def _log_loss(rows: Predictions) -> float:
    return binary.log_loss(rows.label, rows.prediction)


def _log_loss_influence(rows: Predictions) -> Influence:
    return binary.log_loss_influence(rows.label, rows.prediction)


def _prepared_log_loss(label: Tensor) -> Score:
    """Return the log loss as a function of the log odds, without the way through probabilities."""
    exact = label.double()

    def score(output: Tensor) -> float:
        return float(binary_cross_entropy_with_logits(output.double(), exact))

    return score


METRICS = {
    "auc": Metric(
        name="auc",
        title="AUC",
        higher_is_better=True,
        compute=_auc,
        influence=_auc_influence,
        by_class=True,
        prepare=_prepared_auc,
    ),
    "gauc": Metric(
        name="gauc",
        title="GAUC",
        higher_is_better=True,
        compute=_gauc,
        influence=_gauc_influence,
        needs_group=True,
    ),
    "log_loss": Metric(
        name="log_loss",
        title="log loss",
        higher_is_better=False,
        compute=_log_loss,
        influence=_log_loss_influence,
        prepare=_prepared_log_loss,
    ),
}
