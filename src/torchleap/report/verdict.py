"""The verdict: what goes, what it saves and what it costs, in plain words that are no more certain than the numbers."""

from collections.abc import Mapping
from typing import Any

from .._common.checks import is_number
from .._common.text import plural
from . import numbers
from .charts import metric_word
from .record import decision, dig, findings

BETTER_LOW = ("log_loss",)
ENOUGH = 10  # test rows of each class, below which no interval holds
COARSE = 0.005  # a possible loss of this much is worth a warning


def headline(record: Mapping[str, Any]) -> str:
    """One sentence that can be read aloud."""
    total = len(record["fields"])
    dropped = sum(decision(f) == "dropped" for f in record["fields"])
    if leaks(record):
        return f"This result cannot be trusted: {_named(leaks(record))} the label away."
    if not dropped:
        reason = dig(record, "undecided")
        stay = "The only field stays" if total == 1 else f"All {plural(total, 'field')} stay"
        return f"{stay}: {reason}." if reason else f"{stay}."
    subject = f"{dropped:,} of {plural(total, 'field')} can go"
    would = f"{dropped:,} of {plural(total, 'field')} would go"
    metric = metric_word(dig(record, "metrics", "difference", "metric") or "auc")
    return {
        "same": f"{subject}, with no measurable change in {metric}.",
        "few": f"{would}, but {_test_rows(record)} are too few to tell anything.",
        "coarse": f"{would}, but {_test_rows(record)} are too few to tell what that costs.",
        "worse": f"{subject}, at a price in {metric}.",
        "better": f"{subject}, and the {metric} gets better.",
        "unsure": f"{subject}.",
        "unknown": f"{dropped:,} of {plural(total, 'field')} would be dropped.",
    }[outcome(record)]


def outcome(record: Mapping[str, Any]) -> str:
    """Return what dropping the fields does to the metric: same, coarse, worse or better.

    It is "few" where no interval holds for so few rows, "unsure" without an interval, and "unknown" without a metric.
    """
    value, bounds = _gain(record), _gain_bounds(record)
    if value is None:
        return "unknown"
    rarer = _rarer(record)
    if rarer is not None and rarer < ENOUGH:
        return "few"
    if bounds is None:
        return "unsure"
    if bounds[0] <= 0 <= bounds[1]:
        return "same" if bounds[0] > -COARSE else "coarse"
    return "worse" if bounds[1] < 0 else "better"


def leaks(record: Mapping[str, Any]) -> list[str]:
    """Return the columns that give the label away."""
    return [found.get("column", "") for found in findings(record) if found.get("kind") == "leak"]


def _named(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:3])) + (
        f" and {len(names) - 3} more" if len(names) > 3 else ""
    )
    return f"{shown} {'gives' if len(names) == 1 else 'give'}"


def _rarer(record: Mapping[str, Any]) -> int | None:
    """Count the test rows of the rarer class, where they are known."""
    rows, positives = dig(record, "task", "rows", "test"), dig(record, "task", "positives", "test")
    return min(positives, rows - positives) if is_number(rows) and is_number(positives) else None


def _test_rows(record: Mapping[str, Any]) -> str:
    rows, positives = dig(record, "task", "rows", "test"), dig(record, "task", "positives", "test")
    if not is_number(rows):
        return "the test rows"
    return plural(rows, "test row") + (
        f", {positives:,} of them positive," if is_number(positives) else ""
    )


def advice(record: Mapping[str, Any]) -> str:
    """Say what would help where nothing was decided; return an empty string where it was."""
    if not dig(record, "undecided"):
        return ""
    positives, rows = (
        dig(record, "task", "positives", "train"),
        dig(record, "task", "rows", "train"),
    )
    known = (
        f": {positives:,} of {rows:,} train rows are positive"
        if is_number(positives) and is_number(rows)
        else ""
    )
    return f"More rows would help most, of the rarer class above all{known}."


def _sign(record: Mapping[str, Any]) -> int:
    return -1 if dig(record, "metrics", "difference", "metric") in BETTER_LOW else 1


def _gain(record: Mapping[str, Any]) -> float | None:
    """The change of the metric; positive is better."""
    value = dig(record, "metrics", "difference", "value")
    return _sign(record) * float(value) if is_number(value) else None


def _gain_bounds(record: Mapping[str, Any]) -> tuple[float, float] | None:
    bounds = dig(record, "metrics", "difference", "interval")
    if not bounds or not all(map(is_number, bounds)):
        return None
    low, high = sorted(_sign(record) * float(bound) for bound in bounds)
    return low, high


def certainty(record: Mapping[str, Any]) -> str:
    """How sure the verdict on the metric is."""
    value, bounds = (
        dig(record, "metrics", "difference", "value"),
        dig(record, "metrics", "difference", "interval"),
    )
    metric = metric_word(dig(record, "metrics", "difference", "metric") or "auc")
    kind = outcome(record)
    if kind == "unknown":
        return (
            "The pruned model was not measured, so what dropping these fields costs is not known."
        )
    if kind == "unsure":
        return f"The {metric} changes by {numbers.signed(value)}. No interval was computed, so this may be chance."
    if kind == "few":
        return (
            f"The {metric} changes by {numbers.signed(value)}, but of so few rows that says nothing: "
            f"at least {ENOUGH} of each class are needed for any statement, and some hundred for a good one."
        )
    low, high = _gain_bounds(record) or (0.0, 0.0)
    seen = f"The {metric} changes by {numbers.signed(value)} (95 % interval: {numbers.interval(bounds)})."
    if kind == "better":
        return (
            f"{seen} Zero is not in that interval: the smaller model is better by more than chance explains on these rows; "
            "another training may differ."
        )
    if kind == "worse":
        return f"{seen} Zero is not in that interval: the loss is real, though it may be as small as {numbers.metric(-high)}."
    worst = (
        f"a loss of more than {numbers.metric(-low)} is unlikely"
        if low < 0
        else "a loss is unlikely"
    )
    if kind == "same":
        return f"{seen} Zero is in that interval, so no difference can be shown; {worst}."
    return (
        f"{seen} Zero is in that interval, but so is a loss of {numbers.metric(-low)}: "
        "these rows are too few to tell. Measure on more rows before you decide."
    )


def tiles(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Before and after, one tile per quantity."""
    fields = record["fields"]
    kept = [f for f in fields if decision(f) != "dropped"]
    found = [_tile("Fields", len(fields), len(kept), numbers.count)]
    if all(is_number(f.get("width")) for f in fields):
        found.append(
            _tile(
                "Input dimensions",
                sum(f["width"] for f in fields),
                sum(f["width"] for f in kept),
                numbers.count,
            )
        )
    name = dig(record, "metrics", "difference", "metric") or "auc"
    before, after = dig(record, "metrics", "before", name), dig(record, "metrics", "after", name)
    if is_number(before) and is_number(after) and outcome(record) != "few":
        change = numbers.signed(after - before)
        found.append(
            _tile(f"{metric_word(name)} on test rows", before, after, numbers.metric)
            | {"change": change, "left": None}
        )
    batch = dig(record, "savings", "batch")
    speed = f"Time for {plural(batch, 'row')}" if isinstance(batch, int) else "Time for a batch"
    shown = (
        ("Memory of the model", "bytes", numbers.size),
        (speed, "milliseconds", numbers.milliseconds),
    )
    for label, key, write in shown:
        pair = dig(record, "savings", key)
        if pair and all(map(is_number, pair)):
            found.append(_tile(label, pair[0], pair[1], write))
    return found


def _tile(label: str, before: float, after: float, write: Any) -> dict[str, Any]:
    left = min(1.0, after / before) if before else 1.0
    change = numbers.change(before, after)
    return {
        "label": label,
        "before": write(before),
        "after": write(after),
        "change": change,
        "left": round(100 * left, 1),
    }


def savings(record: Mapping[str, Any]) -> str:
    """What is saved, in one sentence; empty if nobody measured it."""
    words = {"bytes": "memory", "parameters": "parameters", "multiply_adds": "arithmetic"}
    saved = []
    for key, word in words.items():
        pair = dig(record, "savings", key)
        if pair and all(map(is_number, pair)) and pair[0] and pair[1] < pair[0]:
            saved.append(f"{numbers.share(round(1 - pair[1] / pair[0], 2))} of the {word}")
    pair = dig(record, "savings", "milliseconds")
    faster = ""
    if pair and all(map(is_number, pair)) and pair[1]:
        ratio = pair[0] / pair[1]
        faster = (
            f" Scoring is {ratio:.1f} times as fast."
            if ratio >= 1.05
            else " Scoring is about as fast as before."
        )
    listed = " and ".join(filter(None, [", ".join(saved[:-1]), *saved[-1:]]))
    return f"Pruning saves {listed}.{faster}" if saved else faster.strip()
