"""The verdict: what pruning drops, saves and costs, in words no more certain than the numbers."""

from collections.abc import Callable, Mapping
from typing import Any

from .._common.checks import is_number
from .._common.text import plural
from ..pipeline.record import VERDICTS
from . import certificate, numbers
from .certificate import CONFIDENCE, ENOUGH_ROWS
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

FEW_NAMES = 3
ONE_STANDARD_ERROR = "1se"  # as a tolerance
SAFE, NOT_SAFE, UNDECIDED = VERDICTS
KEPT = "kept"
UNKNOWN = "unknown"
ANSWERS = {
    SAFE: "Yes, it is safe",
    NOT_SAFE: "No, it is not safe",
    UNDECIDED: "Undecided",
    KEPT: "Nothing is dropped",
    UNKNOWN: "Not certified",
}
SAVED = {"bytes": "memory", "parameters": "parameters", "multiply_adds": "arithmetic"}


def headline(record: Mapping[str, Any]) -> str:
    """Return the verdict in one sentence; "can go" is said only of what is safe."""
    leaking = leaks(record)
    if leaking:
        return f"This result cannot be trusted: {_listed(leaking)} the label away."
    total = len(record["fields"])
    dropped = dropped_fields(record)
    if not dropped:
        reason = dig(record, "undecided")
        stay = "The only field stays" if total == 1 else f"All {plural(total, 'field')} stay"
        return f"{stay}: {reason}." if reason else f"{stay}."
    of_all = f"{dropped:,} of {plural(total, 'field')}"
    kind = outcome(record)
    if kind == SAFE:
        loses = certificate.loss_words(record, "at most")
        return f"{of_all} can go: {loses}, at {CONFIDENCE} confidence."
    would = f"{of_all} would be dropped"
    if kind == NOT_SAFE:
        first = next(iter(certificate.reasons(record)), "")
        return f"{would}, but that is not safe: {first[:1].lower()}{first[1:]}"
    if kind == UNDECIDED:
        return f"{would}, but {certificate.why_undecided(record)}."
    return f"{would}."


def outcome(record: Mapping[str, Any]) -> str:
    """Return the verdict of the certificate: safe, not safe or undecided.

    It is "kept" where no field is dropped, and "unknown" in records without a certificate.
    """
    if not dropped_fields(record):
        return KEPT
    verdict = dig(record, "certificate", "verdict")
    return verdict if verdict in VERDICTS else UNKNOWN


def answer(record: Mapping[str, Any]) -> str:
    """Return the answer to the question whether the smaller model can be shipped.

    >>> answer({"fields": [{"kept": False}], "certificate": {"verdict": "undecided"}})
    'Undecided'
    """
    if leaks(record):
        return "No"
    return ANSWERS[outcome(record)]


def appearance(record: Mapping[str, Any]) -> str:
    """Return the outcome as a class of the style sheet; a leak looks like "not safe".

    >>> appearance({"fields": [{"kept": False}], "certificate": {"verdict": "not safe"}})
    'not-safe'
    """
    shown = NOT_SAFE if leaks(record) else outcome(record)
    return shown.replace(" ", "-")


def dropped_fields(record: Mapping[str, Any]) -> int:
    """Return the number of fields that are dropped."""
    return sum(decision(field) == "dropped" for field in record["fields"])


def further_reasons(record: Mapping[str, Any]) -> list[str]:
    """Return the reasons that the headline does not give."""
    found = certificate.reasons(record)
    if outcome(record) == NOT_SAFE:
        return found[1:]
    return [reason for reason in found if reason.rstrip(".") not in headline(record)]


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
    """Return the change of the metric, and how certain it is."""
    value = dig(record, "metrics", "difference", "value")
    if not is_number(value):
        return "The pruned model was not measured, so the cost of dropping these fields is unknown."
    measured = f"The {_metric_title(record)} changes by {numbers.signed(value)}"
    if certificate.is_on_few_rows(record):
        return (
            f"{measured}, but on so few rows that means nothing: at least {ENOUGH_ROWS} of each "
            "class are needed for any statement, and some hundred for a good one."
        )
    bounds = pair(record, "metrics", "difference", "interval")
    if bounds is not None:
        measured += f" ({CONFIDENCE} interval: {numbers.interval(bounds)})"
    kind = outcome(record)
    if kind == UNKNOWN:
        return f"{measured}. There is no certificate, so nothing is called safe."
    if kind == KEPT or certificate.is_blocked(record):
        return f"{measured}."
    return f"{measured}. {certificate.excluded(record)}"


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
    if not is_number(before) or not is_number(after) or certificate.is_on_few_rows(record):
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
