"""The words about further trainings: how their changes and their selections differ."""

from collections.abc import Mapping
from typing import Any

from .._common.text import plural
from . import numbers
from .record import dig, metric_named

NAMED = 8  # fields that are kept by some searches alone, which a sentence names


def sentences(record: Mapping[str, Any]) -> list[str]:
    """Return what further trainings have shown, one sentence each; none without them."""
    reruns = dig(record, "reruns")
    if not reruns:
        return []
    found = [_changes(record), _agreement(reruns)]
    return [one for one in found if one]


def _changes(record: Mapping[str, Any]) -> str:
    """Return the change in each run, with the mean that the certificate is about."""
    certificate = dig(record, "certificate") or {}
    changes = list(dig(record, "reruns", "changes") or [])
    where = f"In {plural(len(changes), 'fold')}"
    if dig(record, "reruns", "kind") == "repeats":
        changes = [dig(record, "metrics", "difference", "value"), *changes]
        where = f"In {plural(len(changes), 'training')} on the same fields"
    title = metric_named(record, str(dig(certificate, "metric"))).title
    each = ", ".join(map(numbers.signed, changes))
    ends = [dig(certificate, "low"), dig(certificate, "high")]
    mean = numbers.signed(sum(changes) / len(changes))
    return (
        f"{where} the {title} changes by {each}: {mean} on average, with a 95 % interval from "
        f"{numbers.interval(ends)}."
    )


def _agreement(reruns: Mapping[str, Any]) -> str:
    """Return how far the searches agree; "" where there was only one."""
    searches = dig(reruns, "selections") or 0
    kept = dig(reruns, "kept") or {}
    if searches < 2:
        return ""
    always = sum(count == searches for count in kept.values())
    some = [f"{name} in {count:.0f}" for name, count in kept.items() if 0 < count < searches]
    text = f"{searches:.0f} searches keep {plural(always, 'field')} in common"
    if some:
        named = ", ".join(some[:NAMED])
        more = f" and {len(some) - NAMED:,} more" if len(some) > NAMED else ""
        text += f" and {plural(len(some), 'other')} in part: {named}{more}"
    return f"{text}. Two of them agree in {numbers.percent(reruns['jaccard'])} of their fields."
