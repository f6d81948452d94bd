"""The verdict: what pruning drops, saves and costs, in words no more certain than the numbers."""

from collections.abc import Callable, Mapping
from typing import Any

from .._common.checks import is_number
from .._common.text import plural
from . import numbers
from .record import (
    decision,
    dig,
    findings,
    headline_metric,
    is_masked,
    least_worth,
    metric_named,
    pair,
    threshold,
)

ENOUGH_ROWS = 10  # of each class in the test rows, below which no interval holds
COARSE = 0.005  # a possible loss of this much is worth a warning
FEW_NAMES = 3
ONE_STANDARD_ERROR = "1se"  # as a tolerance
SAVED = {"bytes": "memory", "parameters": "parameters", "multiply_adds": "arithmetic"}


def headline(record: Mapping[str, Any]) -> str:
    """Return the verdict in one sentence."""
    leaking = leaks(record)
    if leaking:
        return f"This result cannot be trusted: {_listed(leaking)} the label away."
    total = len(record["fields"])
    dropped = sum(decision(field) == "dropped" for field in record["fields"])
    if not dropped:
        reason = dig(record, "undecided")
        stay = "The only field stays" if total == 1 else f"All {plural(total, 'field')} stay"
        return f"{stay}: {reason}." if reason else f"{stay}."
    can = f"{dropped:,} of {plural(total, 'field')} can go"
    would = f"{dropped:,} of {plural(total, 'field')} would be dropped"
    metric = _metric_title(record)
    return {
        "same": f"{can}, with no measurable change in {metric}.",
        "few": f"{would}, but {_test_rows(record)} are too few for any statement.",
        "coarse": f"{would}, but {_test_rows(record)} are too few to measure the cost.",
        "worse": f"{can}, at a price in {metric}.",
        "better": f"{can}, and the {metric} gets better.",
        "unsure": f"{can}.",
        "unknown": f"{would}.",
    }[outcome(record)]


def outcome(record: Mapping[str, Any]) -> str:
    """Return the effect of dropping the fields on the metric: same, coarse, worse or better.

    It is "few" where no interval holds for so few rows, "unsure" without an interval, and
    "unknown" without a metric.
    """
    if not is_number(dig(record, "metrics", "difference", "value")):
        return "unknown"
    rarer = _rarer_class(record)
    if rarer is not None and rarer < ENOUGH_ROWS:
        return "few"
    bounds = _gain_bounds(record)
    if bounds is None:
        return "unsure"
    low, high = bounds
    if low > 0:
        return "better"
    if high < 0:
        return "worse"
    return "same" if low > -COARSE else "coarse"


def leaks(record: Mapping[str, Any]) -> list[str]:
    """Return the columns that give the label away."""
    return [one.get("column", "") for one in findings(record) if one.get("kind") == "leak"]


def advice(record: Mapping[str, Any]) -> str:
    """Return what would help where nothing was decided; "" where the rule decided."""
    if not dig(record, "undecided"):
        return ""
    positives = dig(record, "task", "positives", "train")
    rows = dig(record, "task", "rows", "train")
    known = ""
    if is_number(positives) and is_number(rows):
        known = f": {positives:,} of {rows:,} train rows are positive"
    return f"More rows would help most, of the rarer class above all{known}."


def rule(record: Mapping[str, Any]) -> str:
    """Return how the rule decided, in one sentence; "" for a budget, or where nothing was decided.

    >>> rule({"rule": {"tolerance": "1se"}, "path": {"metric": "auc"}, "fields": []})
    'The fewest fields are kept whose AUC is at most one standard error worse than the best.'
    """
    if dig(record, "undecided"):
        return ""
    gate = threshold(record)
    if gate is not None:
        return f"Fields with a gate of at least {gate:g} are kept."
    gate = dig(record, "rule", "threshold")
    if is_number(gate) and dig(record, "path", "points"):
        return f"Fields with a gate of at least {gate:g} at the best point of the path are kept."
    worth = least_worth(record)
    if worth is not None:
        return f"Fields that are worth at least {numbers.worth(worth)} nats are kept."
    if is_number(dig(record, "rule", "fdr")):
        return false_discoveries(record)
    accepted = tolerance(record)
    if not accepted:
        return ""
    metric = metric_named(record, str(dig(record, "path", "metric") or headline_metric(record)))
    unadapted = ""
    if is_masked(record):
        unadapted = ", with the others masked and without adaptation,"
    return (
        f"The fewest fields are kept whose {metric.title}{unadapted} is at most {accepted} worse "
        "than the best."
    )


def false_discoveries(record: Mapping[str, Any]) -> str:
    """Return what share of the kept fields may be useless, and what decoys are worth.

    >>> false_discoveries({"rule": {"fdr": 0.1}, "decoys": {"per_field": 2}})
    'Of the kept fields at most 10 % are useless on average, by 2 decoys per field.'
    """
    accepted = numbers.percent(dig(record, "rule", "fdr"))
    each = plural(dig(record, "decoys", "per_field") or 1, "decoy")
    found = f"Of the kept fields at most {accepted} are useless on average, by {each} per field."
    mean = dig(record, "decoys", "mean_worth")
    high = dig(record, "decoys", "high_worth")
    if is_number(mean) and is_number(high):
        found += (
            f" Decoys, which are useless, have a mean worth of {numbers.worth(mean)} nats, and "
            f"95 % of them at most {numbers.worth(high)}: less cannot be told from useless."
        )
    return found


def tolerance(record: Mapping[str, Any]) -> str:
    """Return the difference to the best metric that the rule accepts; "" for another rule.

    >>> tolerance({"rule": {"tolerance": 0.001}}), tolerance({"rule": {"share": 0.5}})
    ('0.001', '')
    """
    value = dig(record, "rule", "tolerance")
    if value == ONE_STANDARD_ERROR:
        return "one standard error"
    return f"{value:g}" if is_number(value) else ""


def certainty(record: Mapping[str, Any]) -> str:
    """Return how certain the verdict on the metric is."""
    kind = outcome(record)
    if kind == "unknown":
        return "The pruned model was not measured, so the cost of dropping these fields is unknown."
    change = numbers.signed(dig(record, "metrics", "difference", "value"))
    measured = f"The {_metric_title(record)} changes by {change}"
    if kind == "unsure":
        return f"{measured}. No interval was computed, so this may be chance."
    if kind == "few":
        return (
            f"{measured}, but on so few rows that means nothing: at least {ENOUGH_ROWS} of each "
            "class are needed for any statement, and some hundred for a good one."
        )
    bounds = numbers.interval(dig(record, "metrics", "difference", "interval"))
    return f"{measured} (95 % interval: {bounds}). {_meaning(record, kind)}"


def _meaning(record: Mapping[str, Any], kind: str) -> str:
    """Return the meaning of the interval, by the outcome."""
    low, high = _gain_bounds(record) or (0.0, 0.0)
    if kind == "better":
        return (
            "Zero is not in that interval: the smaller model is better by more than chance "
            "explains on these rows; another training may differ."
        )
    if kind == "worse":
        least = numbers.metric(-high)
        return (
            f"Zero is not in that interval: the loss is real, though it may be as small as {least}."
        )
    loss = numbers.metric(-low)
    if kind == "coarse":
        return (
            f"Zero is in that interval, but so is a loss of {loss}: these rows are too few to "
            "measure it. Measure on more rows before you decide."
        )
    worst = f"a loss of more than {loss} is unlikely" if low < 0 else "a loss is unlikely"
    return f"Zero is in that interval, so no difference can be shown; {worst}."


def tiles(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return before and after of each quantity that was measured, one tile each."""
    fields = record["fields"]
    kept = [field for field in fields if decision(field) != "dropped"]
    found = [_tile("Fields", len(fields), len(kept), numbers.count)]
    if all(is_number(field.get("width")) for field in fields):
        before = sum(field["width"] for field in fields)
        after = sum(field["width"] for field in kept)
        found.append(_tile("Input dimensions", before, after, numbers.count))
    found += _metric_tile(record)
    batch = dig(record, "savings", "batch")
    timed = f"Time for {plural(batch, 'row')}" if isinstance(batch, int) else "Time for a batch"
    measured = (
        ("Memory of the model", "bytes", numbers.size),
        (timed, "milliseconds", numbers.milliseconds),
    )
    for label, key, write in measured:
        sizes = pair(record, "savings", key)
        if sizes:
            found.append(_tile(label, *sizes, write))
    return found


def _metric_tile(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tile of the metric; none if it was not measured, or on too few rows."""
    name = headline_metric(record)
    before = dig(record, "metrics", "before", name)
    after = dig(record, "metrics", "after", name)
    if not is_number(before) or not is_number(after) or outcome(record) == "few":
        return []
    tile = _tile(f"{_metric_title(record)} on test rows", before, after, numbers.metric)
    return [{**tile, "change": numbers.signed(after - before), "left": None}]


def _tile(label: str, before: float, after: float, write: Callable[[Any], str]) -> dict[str, Any]:
    left = min(1.0, after / before) if before else 1.0
    return {
        "label": label,
        "before": write(before),
        "after": write(after),
        "change": numbers.change(before, after),
        "left": round(100 * left, 1),
    }


def savings(record: Mapping[str, Any]) -> str:
    """Return what pruning saves, in one or two sentences; "" if it was not measured."""
    saved = []
    for key, word in SAVED.items():
        before, after = pair(record, "savings", key) or (0, 0)
        if after < before:
            saved.append(f"{numbers.percent(round(1 - after / before, 2))} of the {word}")
    sentences = []
    if saved:
        *first, last = saved
        listed = f"{', '.join(first)} and {last}" if first else last
        sentences.append(f"Pruning saves {listed}.")
    before, after = pair(record, "savings", "milliseconds") or (0, 0)
    if after:
        ratio = before / after
        faster = f"{ratio:.1f} times as fast" if ratio >= 1.05 else "about as fast as before"
        sentences.append(f"Scoring is {faster}.")
    return " ".join(sentences)


def _listed(names: list[str]) -> str:
    """Return the first names with the verb that they need."""
    shown = ", ".join(map(repr, names[:FEW_NAMES]))
    if len(names) > FEW_NAMES:
        shown += f" and {len(names) - FEW_NAMES} more"
    return f"{shown} {'gives' if len(names) == 1 else 'give'}"


def _metric_title(record: Mapping[str, Any]) -> str:
    return metric_named(record, headline_metric(record)).title


def _rarer_class(record: Mapping[str, Any]) -> int | None:
    """Return the number of test rows of the rarer class; None if unknown."""
    rows = dig(record, "task", "rows", "test")
    positives = dig(record, "task", "positives", "test")
    if not is_number(rows) or not is_number(positives):
        return None
    return int(min(positives, rows - positives))


def _test_rows(record: Mapping[str, Any]) -> str:
    rows = dig(record, "task", "rows", "test")
    positives = dig(record, "task", "positives", "test")
    if not is_number(rows):
        return "the test rows"
    counted = plural(rows, "test row")
    return f"{counted}, {positives:,} of them positive," if is_number(positives) else counted


def _gain_bounds(record: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the interval of the change of the metric, with the sign by which higher is better."""
    bounds = pair(record, "metrics", "difference", "interval")
    if bounds is None:
        return None
    sign = metric_named(record, headline_metric(record)).sign
    low, high = sorted(sign * bound for bound in bounds)
    return low, high
