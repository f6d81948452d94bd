"""The words about a certificate: its margin, its evidence, and what would decide."""

from collections.abc import Mapping
from typing import Any

from .._common.checks import is_number
from .._common.text import plural
from . import numbers
from .record import dig, metric_named

ENOUGH_ROWS = 10  # of each class in the test rows, below which no interval holds
CONFIDENCE = "95 %"


def reasons(record: Mapping[str, Any]) -> list[str]:
    """Return why the verdict is not "safe", one sentence each."""
    return list(dig(record, "certificate", "reasons") or [])


def left_out(record: Mapping[str, Any]) -> list[str]:
    """Return what the verdict does not cover, one sentence each."""
    return list(dig(record, "certificate", "notes") or [])


def certificate_rows(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the parts of a certificate as pairs of a name and a value; none without one."""
    certificate = dig(record, "certificate")
    if not certificate:
        return []
    title = metric_named(record, str(dig(certificate, "metric"))).title
    margin = f"{_margin(record)} of {title}"
    if is_number(dig(certificate, "relative")):
        margin += f", {numbers.percent(certificate['relative'])} of it"
    found = [("Accepted loss, the margin", margin)]
    if not is_on_few_rows(record):
        found += _change_rows(certificate)
        found += [] if is_blocked(record) else _bound_rows(certificate)
    found.append(("Untouched test rows", _evidence(certificate)))
    found.append(("Another training", _trainings(certificate)))
    return found


def slice_rows(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the worst slices as cells of a table, the worst first.

    Each has the name of the slice, whether its field is dropped, its rows, the change of the
    metric, the largest loss that is not excluded, and whether it is damaged.
    """
    certificate = dig(record, "certificate")
    if not certificate:
        return []
    found = []
    for one in dig(certificate, "slices") or []:
        lowest = dig(one, "lowest")
        loss = numbers.UNKNOWN
        if is_number(lowest):
            loss = _small(-lowest) if lowest < 0 else "none"
        found.append(
            {
                "name": dig(one, "name"),
                "field": "dropped" if dig(one, "dropped") else "kept",
                "rows": numbers.count(dig(one, "rows")),
                "change": numbers.signed(dig(one, "change")),
                "loss": loss,
                "verdict": "damaged" if dig(one, "is_damaged") else "no damage shown",
                "is_damaged": bool(dig(one, "is_damaged")),
            }
        )
    return found


def slices_note(record: Mapping[str, Any]) -> str:
    """Return what the table of slices is, with the number of slices and the margin."""
    certificate = dig(record, "certificate") or {}
    title = metric_named(record, str(dig(certificate, "metric"))).title
    examined = numbers.count(dig(certificate, "slices_examined"))
    margin = dig(certificate, "slice_margin")
    accepted = f"{margin:.3g}" if is_number(margin) else numbers.UNKNOWN
    return (
        f"The change of the {title} in parts of the test rows, the worst of {examined}: those of "
        "each frequent value of a categorical field, and those where a dropped field differs from "
        "its most common value. Losses that are not excluded hold for all parts together, at "
        f"{CONFIDENCE} confidence. A part is called damaged where more than {accepted} is surely "
        "lost; many parts are too small to show it."
    )


def excluded(record: Mapping[str, Any]) -> str:
    """Return the loss that the one-sided bound of a certificate excludes, beside the margin."""
    largest = dig(record, "certificate", "largest_loss")
    if not is_number(largest):
        return f"The margin is {_margin(record)}."
    loss = f"A loss of more than {_small(largest)}" if largest > 0 else "Any loss"
    return f"{loss} is excluded at {CONFIDENCE} confidence; the margin is {_margin(record)}."


def loss_words(record: Mapping[str, Any], how: str) -> str:
    """Return a loss as large as the margin in words, such as "the AUC loses at most 0.001"."""
    name = str(dig(record, "certificate", "metric"))
    metric = metric_named(record, name)
    verb = "loses" if metric.higher_is_better else "rises by"
    return f"the {metric.title} {verb} {how} {_margin(record)}"


def why_undecided(record: Mapping[str, Any]) -> str:
    """Return why the certificate decides nothing, and how many rows would decide."""
    if is_on_few_rows(record):
        return f"{counted_rows(record)} are too few for any statement"
    certificate = record["certificate"]
    if is_blocked(record):
        return f"the data do not allow to call that safe: {reasons(record)[0].rstrip('.')}"
    short = f"{counted_rows(record)} cannot exclude that {loss_words(record, 'more than')}"
    rows = dig(certificate, "rows")
    for key in ("needed", "needed_as_measured"):
        needed = dig(certificate, key) or {}
        if is_number(dig(needed, "rows")) and is_number(rows) and needed["rows"] > rows:
            return f"{short}: about {_amount(certificate, needed)} would decide"
    return short


def is_blocked(record: Mapping[str, Any]) -> bool:
    """Return whether the bound lies within the margin, but the data forbid the word "safe"."""
    margin = dig(record, "certificate", "margin")
    largest = dig(record, "certificate", "largest_loss")
    if not is_number(margin) or not is_number(largest) or largest >= margin:
        return False
    return dig(record, "certificate", "verdict") == "undecided" and bool(reasons(record))


def is_on_few_rows(record: Mapping[str, Any]) -> bool:
    """Return whether the rarer class has too few test rows for any statement."""
    support = dig(record, "certificate", "support")
    if not is_number(support):
        rows = dig(record, "task", "rows", "test")
        positives = dig(record, "task", "positives", "test")
        if not is_number(rows) or not is_number(positives):
            return False
        support = min(positives, rows - positives)
    return bool(support < ENOUGH_ROWS)


def _change_rows(certificate: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the measured change with its interval, if it is known."""
    before = dig(certificate, "before")
    after = dig(certificate, "after")
    low = dig(certificate, "low")
    high = dig(certificate, "high")
    if not is_number(before) or not is_number(after):
        return []
    change = numbers.signed(after - before)
    if is_number(low) and is_number(high):
        change += f", {CONFIDENCE} interval {numbers.interval([low, high])}"
    return [("Measured change", change)]


def _bound_rows(certificate: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the largest loss that is not excluded, if it is known."""
    largest = dig(certificate, "largest_loss")
    if not is_number(largest):
        return []
    words = f"{_small(largest)}, one-sided at {CONFIDENCE}"
    return [("Largest loss not excluded", words if largest > 0 else "none")]


def _evidence(certificate: Mapping[str, Any]) -> str:
    """Return the rows of a certificate in words."""
    rows = numbers.count(dig(certificate, "rows"))
    support = dig(certificate, "support")
    if is_number(support) and support != dig(certificate, "rows"):
        rows += f", {numbers.count(support)} of the rarer class"
    unit = dig(certificate, "unit")
    if unit and unit != "rows":
        rows += f", of {numbers.count(dig(certificate, 'units'))} groups ({unit})"
    return rows


def _trainings(certificate: Mapping[str, Any]) -> str:
    """Return whether the chance of another training is in the interval, and its size."""
    repeats = dig(certificate, "repeats")
    if is_number(repeats) and repeats > 1:
        deviation = _small(dig(certificate, "training_deviation"))
        return f"covered by {repeats:,.0f} trainings, standard deviation {deviation}"
    folds = dig(certificate, "folds")
    if is_number(folds) and folds:
        return f"covered by {folds:,.0f} folds, whose spread is part of the interval"
    typical = dig(certificate, "typical_training")
    if not is_number(typical):
        return "not covered, of unknown size"
    return f"not covered, typically {_small(typical)} (standard deviation)"


def _amount(certificate: Mapping[str, Any], needed: Mapping[str, Any]) -> str:
    """Return a number of rows, with the groups or the rarer class that make them count."""
    rows = numbers.count(needed["rows"])
    unit = dig(certificate, "unit")
    if unit and unit != "rows" and is_number(dig(needed, "units")):
        return f"{rows} of {numbers.count(needed['units'])} groups ({unit})"
    if is_number(dig(needed, "support")) and needed["support"] < needed["rows"]:
        return f"{rows}, {numbers.count(needed['support'])} of the rarer class,"
    return rows


def _small(value: Any) -> str:
    """Return an amount of a metric: four decimals, or two digits if it is smaller than these."""
    if is_number(value) and 0 < abs(value) < 0.001:
        return f"{value:.2g}"
    return numbers.metric(value)


def _margin(record: Mapping[str, Any]) -> str:
    margin = dig(record, "certificate", "margin")
    return f"{margin:.3g}" if is_number(margin) else numbers.UNKNOWN


def counted_rows(record: Mapping[str, Any]) -> str:
    """Return the number of test rows and of the positive ones in words, or that of all folds."""
    folds = dig(record, "certificate", "folds")
    if is_number(folds) and folds:
        return f"{plural(dig(record, 'certificate', 'rows'), 'row')} in {folds:,.0f} folds"
    rows = dig(record, "task", "rows", "test")
    positives = dig(record, "task", "positives", "test")
    if not is_number(rows):
        return "the test rows"
    counted = plural(rows, "test row")
    return f"{counted}, {positives:,} of them positive," if is_number(positives) else counted
