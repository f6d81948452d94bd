"""Access to the record of a report: its check on loading, and the questions that every part has.

The report works on plain dicts rather than on the dataclasses of `torchleap.pipeline.record`, so
that records of earlier versions, in which some parts are missing, can be shown as well.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Any

from .._common.checks import is_number
from .._common.errors import TorchleapError, nearest
from .._common.plain import plain
from ..pipeline.record import FORMAT, RECORDS, KnownMetric
from .shape import misfits

GATED = ("leap", "leap_pressure", "leap_base")  # methods whose scores are gates, without a path
OTHER_SCORES = ("shark",)  # methods that measure worth, but rank fields by something else
MOST_PROBLEMS = 3


def checked(record: Any) -> dict[str, Any]:
    """Return a plain copy of a record, with None for NaN and infinity.

    A record that cannot be shown is refused with its first problems.
    """
    if not isinstance(record, Mapping):
        found = type(record).__name__
        raise TorchleapError(f"Expected the record of a report as a dict, but found {found}.")
    copy: dict[str, Any] = plain(record, "record", nan_as_none=True)
    problems = _problems(copy)
    if problems:
        raise TorchleapError(f"This record cannot be reported: {'; '.join(problems)}.")
    return copy


def _problems(record: Mapping[str, Any]) -> list[str]:
    version = record.get("format")
    if version != FORMAT:
        cure = "make it again with this version"
        return [f"expected format {FORMAT}, but found {version!r}: {cure}"]
    kind = record.get("kind")
    if kind not in RECORDS:
        known = " or ".join(map(repr, RECORDS))
        cure = nearest(str(kind), RECORDS)
        return [f"expected a record of kind {known}, but found {kind!r}. {cure}"]
    problems = _problems_of_names(record) if kind == "select" else []
    return problems or list(islice(misfits(record, RECORDS[kind], "record"), MOST_PROBLEMS))


def _problems_of_names(record: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the names of fields, which a report cannot do without."""
    fields = record.get("fields")
    if not isinstance(fields, list) or not fields:
        return ["expected a list of fields, but there is none"]
    problems = []
    for place, one in enumerate(fields):
        if not isinstance(one, Mapping) or not isinstance(one.get("name"), str):
            problems.append(f"expected a name in each field, but field {place} is {one!r:.80}")
    return problems[:MOST_PROBLEMS]


def dig(record: Any, *path: str) -> Any:
    """Return the value at a path of keys; None if there is none.

    >>> record = {"metrics": {"after": {"auc": 0.8}}}
    >>> dig(record, "metrics", "after", "auc"), dig(record, "savings", "bytes")
    (0.8, None)
    """
    for key in path:
        record = record.get(key) if isinstance(record, Mapping) else None
    return record


def pair(record: Mapping[str, Any], *path: str) -> tuple[float, float] | None:
    """Return the two numbers at a path of keys; None if one of them is unknown.

    >>> pair({"savings": {"bytes": [9, 3]}}, "savings", "bytes")
    (9.0, 3.0)
    """
    found = dig(record, *path)
    if not found or not all(map(is_number, found)):
        return None
    first, second = found
    return float(first), float(second)


def findings(record: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the problems of the data, the worst first, without keys that are None."""
    found = [one for one in record.get("findings") or () if one and one.get("text")]
    return [{key: value for key, value in one.items() if value is not None} for one in found]


def scored(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the fields that have a score, best first; ties are in input order.

    Where the worth is known, it is the order.
    """
    nats = in_nats(record)
    known = [field for field in record["fields"] if is_number(field.get("score"))]
    return sorted(known, key=lambda field: shown_score(field, nats=nats), reverse=True)


def is_masked(record: Mapping[str, Any]) -> bool:
    """Return whether the path is one of masked fields, to which the model did not adapt.

    >>> is_masked({"path": {"adapted": False}}), is_masked({"path": {"metric": "auc"}})
    (True, False)
    """
    return dig(record, "path", "adapted") is False


def in_nats(record: Mapping[str, Any]) -> bool:
    """Return whether fields are shown by their worth, which a search with a path measures.

    >>> in_nats({"path": {"metric": "auc"}, "fields": []}), in_nats({"fields": [{"name": "age"}]})
    (True, False)
    """
    if record.get("path") is not None and not is_masked(record):
        return True
    if record.get("method") in OTHER_SCORES and not is_number(dig(record, "rule", "worth")):
        return False
    return any(is_number(field.get("worth")) for field in record["fields"])


def shown_score(field: Mapping[str, Any], *, nats: bool) -> float:
    """Return the worth of a field if it is known and shown, and otherwise its score.

    Args:
        field: The record of the field.
        nats: Whether fields are shown by their worth, see `in_nats`.
    """
    if nats and is_number(field.get("worth")):
        return float(field["worth"])
    return float(field["score"])


def bounds(part: Mapping[str, Any], low: str, high: str) -> tuple[float, float] | None:
    """Return the interval that two keys of a part hold; None if one of them is unknown.

    >>> bounds({"low": 0.1, "high": 0.2}, "low", "high"), bounds({"low": 0.1}, "low", "high")
    ((0.1, 0.2), None)
    """
    if not is_number(part.get(low)) or not is_number(part.get(high)):
        return None
    return float(part[low]), float(part[high])


def has_gates(record: Mapping[str, Any]) -> bool:
    """Return whether the scores are gates, from 0 (closed) to 1 (open)."""
    if in_nats(record):
        return False
    scores = [field["score"] for field in scored(record)]
    return record.get("method") in GATED and bool(scores) and min(scores) >= 0 and max(scores) <= 1


def has_prices(record: Mapping[str, Any]) -> bool:
    """Return whether open gates pay a price; under a pressure without units they do not."""
    return has_gates(record) and not is_number(dig(record, "settings", "strength"))


def threshold(record: Mapping[str, Any]) -> float | None:
    """Return the gate from which fields are kept; None if that was not the rule."""
    value = dig(record, "rule", "threshold")
    if not is_number(value) or not has_gates(record):
        return None
    return float(value)


def least_worth(record: Mapping[str, Any]) -> float | None:
    """Return the worth from which fields are kept, in nats; None if that was not the rule."""
    value = dig(record, "rule", "worth")
    if not is_number(value) or not in_nats(record):
        return None
    return float(value)


def limit(record: Mapping[str, Any]) -> float | None:
    """Return the score from which fields are kept: a gate or a worth; None for other rules."""
    gate = threshold(record)
    return least_worth(record) if gate is None else gate


def decision(field: Mapping[str, Any]) -> str:
    """Return the decision on a field: kept, protected or dropped."""
    if field.get("protected"):
        return "protected"
    return "kept" if field.get("kept") else "dropped"


def metric_named(record: Mapping[str, Any], name: str) -> KnownMetric:
    """Return the title and the direction of a metric, which records of earlier versions lack.

    >>> metric_named({}, "log_loss")
    KnownMetric(title='log loss', higher_is_better=False)
    >>> metric_named({}, "my_own").title
    'my own'
    """
    known = dig(record, "known_metrics", name) or {}
    if known.get("title") and known.get("higher_is_better") is not None:
        return KnownMetric(known["title"], known["higher_is_better"])
    from ..objectives import METRICS  # imports torch, which takes longer than making the page

    if name in METRICS:
        return KnownMetric.of(METRICS[name])
    return KnownMetric(name.replace("_", " "), higher_is_better=True)


def headline_metric(record: Mapping[str, Any]) -> str:
    """Return the name of the metric that both models are compared by."""
    return str(dig(record, "metrics", "difference", "metric") or "auc")


def created(record: Mapping[str, Any]) -> str:
    """Return the time at which a record was made, to the minute; "" if unknown.

    >>> created({"created": "2026-11-17T07:00:00"})
    '2026-11-17 07:00'
    """
    return str(record.get("created") or "").replace("T", " ")[:16]
