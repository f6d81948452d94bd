"""Rehearsal: how large an online A/B test has to be to see what the certificate rules out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from torch import Tensor

from .._common.checks import check_arguments, number
from .._common.errors import DataError
from .._common.plain import plain
from .._common.text import plural
from ..objectives import METRICS, Metric, Objective, Predictions
from .change import CONFIDENCE, POWER, Floats, by_unit

ROWS = "rows"
HUGE = 1e15  # units per arm, from which a number has no meaning


@dataclass(frozen=True)
class Arm:
    """What an arm of an A/B test measures, and how many units it needs.

    Attributes:
        name: What is measured, such as "positive rate".
        value: Its value in these rows, with the full model.
        margin: The loss that is acceptable, in its own unit.
        deviation: The standard deviation between units, of which the standard error of an arm is
            this over the square root of its units.
        units: The units that each arm needs; None if no number of them is enough.
        rows: The rows that these have, at as many per unit as here.
    """

    name: str
    value: float
    margin: float
    deviation: float
    units: int | None
    rows: int | None


@dataclass(frozen=True)
class Rehearsal:
    """How many users, or rows, per arm an online test of non-inferiority needs, and what it saves.

    Attributes:
        unit: What is assigned to an arm at random: "rows", or the name of the column of groups.
        units: The number of these in the rows at hand.
        outcome: The mean of the label per row: the positive rate, where the label is 0 or 1.
        metric: The metric of the certificate, which each arm can measure on its own rows.
        relative: The fraction of a value that its margin is; None for a margin in its own unit.
        saved: The costs of the dropped fields; None if no costs were given.
        total: The costs of all fields to which a cost was given; None if no costs were given.
    """

    unit: str
    units: int
    outcome: Arm
    metric: Arm
    relative: float | None
    saved: float | None = None
    total: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the rehearsal as plain JSON."""
        found: dict[str, Any] = plain(asdict(self), "rehearsal", nan_as_none=True)
        return found

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Rehearsal":
        """Return the rehearsal that `to_json` wrote."""
        arms = {name: Arm(**content[name]) for name in ("outcome", "metric")}
        return cls(**{**content, **arms})

    def __str__(self) -> str:
        found = [self._sizes(), self._assumptions()]
        if self.saved is not None and self.total is not None:
            found.append(
                f"Dropping these fields saves {self.saved:,.6g} of the {self.total:,.6g} that the "
                "fields with a given cost cost together."
            )
        return " ".join(found)

    def _sizes(self) -> str:
        outcome = self.outcome
        title = METRICS[self.metric.name].title
        size = _size(outcome, self.unit)
        own = _size(self.metric, self.unit)
        fraction = outcome.margin / abs(outcome.value) if outcome.value else math.inf
        return (
            f"An online A/B test needs {size} per arm to show at {100 * CONFIDENCE:.0f} % "
            f"confidence and {100 * POWER:.0f} % power that the {outcome.name} "
            f"({outcome.value:.4g}) loses at most {outcome.margin:.4g} "
            f"({100 * fraction:.2f} % of it), and {own} per arm to show that the {title}, "
            f"measured in each arm, loses at most {self.metric.margin:.4g}."
        )

    def _assumptions(self) -> str:
        if self.unit == ROWS:
            independent = "rows are independent (if users have several, read the data with group=)"
        else:
            independent = f"each {self.unit} is in one arm and has as many rows as here"
        return (
            f"Assumed: {independent}, both models are equally good, the arms are of equal size, "
            "and rows online are like these."
        )


def rehearse(
    objective: Objective,
    metric: Metric,
    before: Predictions,
    after: Predictions,
    margin: float = 0.001,
    *,
    relative: bool = False,
    unit: str = ROWS,
    saved: tuple[float, float] | None = None,
) -> Rehearsal:
    """Return how large an online test of the smaller model against the full one has to be.

    It is a test of non-inferiority of two independent samples: each arm needs
    `(z(0.95) + z(0.8))^2 * 2 * variance / margin^2` units. The variance is that between the groups
    of the rows, or between rows where there are no groups.

    Args:
        objective: The objective of both models.
        metric: The metric of the certificate.
        before: The predictions of the full model.
        after: Those of the smaller one for the same rows.
        margin: The loss that is acceptable, above 0: of the mean of the label, and of the metric,
            each in its own unit.
        relative: Whether the margin is a fraction of each value instead.
        unit: The name of the column of groups, or "rows".
        saved: The costs of the dropped fields, and of all fields; None if none were given.
    """
    check_arguments(margin=number(margin, above=0))
    label = before.label.double().numpy()
    numbers = _unit_numbers(before.group, len(label))
    units = int(numbers.max(initial=-1)) + 1
    if units < 2:
        kind = ROWS if unit == ROWS else f"groups ({unit})"
        raise DataError(
            f"Expected at least two {kind}, to see how they differ, but found {units}. Give more."
        )
    rows_per_unit = len(label) / units
    mean = float(label.mean())
    own = np.bincount(numbers, weights=label - mean, minlength=units) / rows_per_unit
    outcome = _arm(
        "positive rate" if objective.name == "binary" else "mean of the label",
        mean,
        margin * abs(mean) if relative else margin,
        2 * float(own @ own) / (units - 1),
        rows_per_unit,
    )
    first = metric.influence(before)
    second = metric.influence(after)
    both = _variance(first.parts, before, metric) + _variance(second.parts, before, metric)
    of_metric = _arm(
        metric.name,
        first.value,
        margin * abs(first.value) if relative else margin,
        units * both,
        rows_per_unit,
    )
    spared, total = saved or (None, None)
    return Rehearsal(unit, units, outcome, of_metric, margin if relative else None, spared, total)


def costs_saved(costs: Mapping[str, float], dropped: Sequence[str]) -> tuple[float, float] | None:
    """Return the costs of the dropped fields, and of all fields with a cost; None without costs.

    Args:
        costs: The costs that the user gave, by field.
        dropped: The names of the dropped fields.
    """
    if not costs:
        return None
    spared = sum(cost for name, cost in costs.items() if name in dropped)
    return float(spared), float(sum(costs.values()))


def _unit_numbers(group: Tensor | None, rows: int) -> Any:
    """Return the number of the unit of each row, (rows,)."""
    if group is None:
        return np.arange(rows)
    return np.unique(group.numpy(), return_inverse=True)[1]


def _variance(parts: Floats, rows: Predictions, metric: Metric) -> float:
    """Return the variance of a metric over the choice of units."""
    sums = parts if rows.group is None else by_unit(parts, rows, metric)[0]
    return float(sums @ sums)


def _arm(name: str, value: float, margin: float, doubled: float, rows_per_unit: float) -> Arm:
    """Return the size of an arm.

    Args:
        name: What is measured.
        value: Its value.
        margin: The loss that is acceptable.
        doubled: The sum of the variances between units in both arms.
        rows_per_unit: The mean number of rows of a unit.
    """
    normal = NormalDist()
    size = normal.inv_cdf(CONFIDENCE) + normal.inv_cdf(POWER)
    wanted = size**2 * doubled / margin**2 if margin > 0 else math.inf
    units = None
    rows = None
    if wanted < HUGE:
        units = max(2, math.ceil(wanted))
        rows = math.ceil(units * rows_per_unit)
    return Arm(name, value, margin, math.sqrt(doubled / 2), units, rows)


def _size(arm: Arm, unit: str) -> str:
    """Return the number of units of an arm in words."""
    if arm.units is None:
        return "more users than there are"
    if unit == ROWS:
        return plural(arm.units, "row")
    return f"{arm.units:,} groups ({unit}, {arm.rows:,} rows)"
