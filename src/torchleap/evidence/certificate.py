"""Certificate: whether a smaller model may replace the full one, by a margin stated in advance."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from .._common.plain import plain
from .._common.text import plural
from ..objectives import METRICS, Metric
from .change import CONFIDENCE, POWER, Change

Verdict = Literal["safe", "not safe", "undecided"]

ENOUGH_ROWS = 10  # of the rarer class, below which no statement is made
HOPELESS = 1_000  # times the rows: no amount of rows like these decides


@dataclass(frozen=True)
class Needed:
    """How much evidence would decide, at 80 % power.

    Attributes:
        units: Independent rows, or groups where rows have groups.
        rows: Rows, with as many per group as now.
        support: Rows of the rarer class, where the objective has classes; otherwise rows.
    """

    units: int
    rows: int
    support: int


@dataclass(frozen=True)
class SliceChange:
    """The change of the metric in a part of the rows.

    Attributes:
        name: What the part consists of, such as "country = NL" or "ctr_7d is active".
        field: The field, or the group of the user, that defines it.
        dropped: Whether that field was dropped.
        rows: Its rows.
        change: The metric after minus before, in these rows.
        lowest: The bound that the gain is above, simultaneously for all slices.
        p: The p-value against a loss of at most the slice margin, adjusted for all slices.
        is_damaged: Whether more than the slice margin is surely lost.
    """

    name: str
    field: str
    dropped: bool
    rows: int
    change: float
    lowest: float
    p: float
    is_damaged: bool


@dataclass(frozen=True)
class Certificate:
    """The verdict on a smaller model, with the evidence.

    "safe": the metric's one-sided 95 % bound excludes a loss larger than the margin. "not safe":
    a larger loss is certain at 95 %, or a slice is damaged. "undecided": the rows are too few.

    Attributes:
        metric: The name of the metric.
        margin: The loss of the metric that is acceptable, in its own unit.
        relative: The fraction of the full model's metric that the margin is; None if it was given
            in the unit of the metric.
        before: The metric of the full model.
        after: The metric of the smaller model.
        low: The lower end of the 95 % interval of `after - before`.
        high: The upper end.
        largest_loss: The loss that the one-sided 95 % bound does not exclude; negative where a
            gain is certain.
        verdict: "safe", "not safe" or "undecided".
        rows: The rows that were used, which nothing else has seen.
        support: Those of the rarer class.
        unit: What is independent: "rows", or the name of the column of groups.
        units: The number of these.
        needed: How much evidence would decide if both models are equally good; None if decided.
        needed_as_measured: The same if the change is as large as measured.
        repeats: The number of trainings behind it.
        folds: The number of folds, each of which was tested by models that were trained on the
            others; 0 where the test rows of the task are used.
        training_deviation: The standard deviation of the change between trainings; None where
            there was one training.
        typical_training: The same as estimated from one training; None if not known.
        reasons: Why it is not "safe", one sentence each.
        notes: What the verdict leaves out, one sentence each.
        slices: The worst slices, the worst first.
        slices_examined: The number of slices that were examined.
        slice_margin: The loss that is acceptable in a slice.
    """

    metric: str
    margin: float
    relative: float | None
    before: float
    after: float
    low: float
    high: float
    largest_loss: float
    verdict: Verdict
    rows: int
    support: int
    unit: str
    units: int
    needed: Needed | None
    needed_as_measured: Needed | None
    repeats: int = 1
    folds: int = 0
    training_deviation: float | None = None
    typical_training: float | None = None
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    slices: tuple[SliceChange, ...] = ()
    slices_examined: int = 0
    slice_margin: float | None = None

    @property
    def is_safe(self) -> bool:
        """Whether the verdict is "safe"."""
        return self.verdict == "safe"

    @property
    def change(self) -> float:
        """Return the metric of the smaller model minus that of the full one."""
        return self.after - self.before

    def to_json(self) -> dict[str, Any]:
        """Return the certificate as plain JSON, with None for NaN and infinity."""
        found: dict[str, Any] = plain(asdict(self), "certificate", nan_as_none=True)
        return found

    def __str__(self) -> str:
        lines = [self.headline(), self.evidence(), *self.reasons, *self.notes]
        return "\n".join(line for line in lines if line)

    def headline(self) -> str:
        """Return the verdict in one sentence."""
        metric = METRICS[self.metric]
        if self.verdict == "safe":
            return f"Safe: {_worse(metric, 'at most', self.margin)}, at 95 % confidence."
        if self.verdict == "not safe":
            return f"Not safe: {self.reasons[0][0].lower()}{self.reasons[0][1:]}"
        loss = f"a loss of {metric.title} above {self.margin:.4g}"
        return f"Undecided: these rows cannot exclude {loss}."

    def evidence(self) -> str:
        """Return what was measured, in one or two sentences."""
        metric = METRICS[self.metric]
        write = metric.format
        text = (
            f"{metric.title} {write(self.before)} => {write(self.after)} "
            f"({self.change:+.4f}, 95 % interval {self.low:+.4f} to {self.high:+.4f}) on "
            f"{plural(self.rows, 'untouched row')}"
        )
        if self.unit != "rows":
            text += f" of {self.units:,} groups ({self.unit})"
        if self.folds:
            text += f", each scored by models that were trained on the other of {self.folds} folds"
        if self.repeats > 1:
            text += f", mean of {self.repeats} trainings"
        return f"{text}."


@dataclass(frozen=True)
class Evidence:
    """The rows behind a change, and what else bears on a verdict.

    Attributes:
        rows: The rows that were used.
        support: Those of the rarer class, as `Objective.support` counts them.
        unit: The name of the column of groups, or "rows".
        slices: The worst slices, the worst first.
        slices_examined: The number of slices.
        slice_margin: The loss that is acceptable in a slice.
        typical_training: The standard deviation of the change between trainings, if it was
            estimated without repeating them.
        blocked: Reasons for which nothing may be called safe, such as a leak of the label.
        notes: What else the reader should know, one sentence each.
    """

    rows: int
    support: int
    unit: str = "rows"
    slices: Sequence[SliceChange] = ()
    slices_examined: int = 0
    slice_margin: float | None = None
    typical_training: float | None = None
    blocked: Sequence[str] = ()
    notes: Sequence[str] = ()


def certificate_of(
    change: Change, margin: float, evidence: Evidence, *, relative: float | None = None
) -> Certificate:
    """Return the certificate of a measured change.

    Args:
        change: The change.
        margin: The loss that is acceptable, in the unit of the metric.
        evidence: The rows behind it, and what else bears on the verdict.
        relative: The fraction of the first model's metric that the margin is, if it was given so.
    """
    verdict, reasons = _verdict(change, margin, evidence)
    needed = as_measured = None
    if verdict == "undecided":
        needed = _needed(change, margin, 0.0, evidence)
        as_measured = _needed(change, margin, change.gain, evidence)
        if not reasons:
            reasons.append(_what_would_decide(change, margin, evidence))
    low, high = change.interval()
    return Certificate(
        metric=change.metric.name,
        margin=margin,
        relative=relative,
        before=change.before,
        after=change.after,
        low=low,
        high=high,
        largest_loss=-change.lowest(),
        verdict=verdict,
        rows=evidence.rows,
        support=evidence.support,
        unit=evidence.unit,
        units=change.units,
        needed=needed,
        needed_as_measured=as_measured,
        repeats=max(1, len(change.trainings)),
        folds=len(change.folds),
        training_deviation=_or_none(change.training_deviation),
        typical_training=evidence.typical_training,
        reasons=tuple(reasons),
        notes=(*_left_out(change, evidence), *evidence.notes),
        slices=tuple(evidence.slices),
        slices_examined=evidence.slices_examined,
        slice_margin=evidence.slice_margin,
    )


def _verdict(change: Change, margin: float, evidence: Evidence) -> tuple[Verdict, list[str]]:
    """Return the verdict, and the reasons for which it is not "safe"."""
    if evidence.support < ENOUGH_ROWS:
        few = (
            f"At least {ENOUGH_ROWS} rows of each class are needed for any statement, but the "
            f"rarer class has {evidence.support:,}."
        )
        return "undecided", [*evidence.blocked, few]
    if change.highest() < -margin:
        lost = _worse(change.metric, "more than", margin)
        certain = f"T{lost[1:]}, at {100 * CONFIDENCE:.0f} % confidence."
        return "not safe", [certain, *evidence.blocked]
    damaged = [one for one in evidence.slices if one.is_damaged]
    if damaged:
        loss = -change.metric.gain(damaged[0].change)
        verb = "loses" if change.metric.higher_is_better else "rises by"
        hidden = f"The {change.metric.title} {verb} {loss:.4f} where {damaged[0].name}."
        return "not safe", [hidden, *evidence.blocked]
    if evidence.blocked:
        return "undecided", list(evidence.blocked)
    if change.error > 0 and change.lowest() > -margin:
        return "safe", []
    if change.error == 0 and change.gain == 0:
        return "safe", []  # the same order of all rows, whichever are drawn
    return "undecided", []


def _needed(change: Change, margin: float, gain: float, evidence: Evidence) -> Needed | None:
    """Return how much evidence would decide; None if no amount of such rows would."""
    units = change.units_needed(margin, gain)
    times = units / max(1, change.units)
    if not math.isfinite(times) or times <= 0:
        return None
    return Needed(
        math.ceil(units), math.ceil(times * evidence.rows), math.ceil(times * evidence.support)
    )


def _what_would_decide(change: Change, margin: float, evidence: Evidence) -> str:
    """Return in a sentence how many rows, of which kind, would decide."""
    needed = _needed(change, margin, 0.0, evidence)
    if needed is None and change.training_error > 0:
        return (
            f"More rows alone would not decide: the {len(change.trainings)} trainings differ too "
            "much for this margin. Give more repeats= or a larger margin."
        )
    if needed is None:
        return "These rows show no chance at all, so nothing can be said of other rows."
    size = plural(needed.rows, "row")
    if evidence.support < evidence.rows:
        size += f", {needed.support:,} of them of the rarer class,"
    if evidence.unit != "rows":
        size += f" of {needed.units:,} groups ({evidence.unit})"
    found = (
        f"If both models are equally good, {size} would show it at {100 * POWER:.0f} % power; "
        f"there are {evidence.rows:,}."
    )
    if needed.rows > HOPELESS * evidence.rows:
        found += " A margin this small is beyond what such rows can resolve: choose a larger one."
    return found


def _left_out(change: Change, evidence: Evidence) -> list[str]:
    """Return what the interval does not cover, in one sentence each."""
    title = change.metric.title
    if len(change.folds) > 1:
        return [
            f"It is about models that are trained like this: the {len(change.folds)} folds have a "
            "model each, and the interval covers the chance of rows and of trainings."
        ]
    if len(change.trainings) > 1:
        # `+ 0.0` makes a rounded -0 a 0
        most = round(-change.lowest_of_another(), 4) + 0.0
        return [
            f"The interval is that of the mean of {len(change.trainings)} trainings; in one more, "
            f"{_worse(change.metric, 'at most', most)} at {100 * CONFIDENCE:.0f} % confidence."
        ]
    text = "The interval covers the chance of the rows, not that of another training"
    typical = evidence.typical_training
    if typical is None:
        return [f"{text}: repeats=3 trains and prunes three times and covers both."]
    return [
        f"{text}, by which the {title} typically varies by {typical:.4f} (one "
        "standard deviation); repeats=3 covers both."
    ]


def _worse(metric: Metric, how: str, loss: float) -> str:
    """Return a loss in words, such as "the AUC loses at most 0.001"."""
    verb = "loses" if metric.higher_is_better else "rises by"
    return f"the {metric.title} {verb} {how} {loss:.4g}"


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
