"""Records: the plain dicts that reports are made from, checked and made safe to write as JSON."""

import math
from collections.abc import Mapping
from itertools import islice
from typing import Any

from .._common.checks import is_number, is_whole
from .._common.errors import TorchleapError, nearest
from .shape import SHAPES, misfits

FORMAT = 1
KINDS = tuple(SHAPES)
GATED = ("leap", "leap_base")  # the methods whose scores are gates, from 0 to 1


def checked(record: Any) -> dict[str, Any]:
    """A plain copy of a record, with None for what is no finite number; or all that is wrong with it."""
    if not isinstance(record, Mapping):
        raise TorchleapError(
            f"Expected the record of a report as a dict, but found {type(record).__name__}."
        )
    copy: dict[str, Any] = _plain(record, "record")
    problems = _problems(copy)
    if problems:
        raise TorchleapError(f"This record cannot be reported: {'; '.join(problems)}.")
    return copy


def _problems(record: Mapping[str, Any]) -> list[str]:
    if record.get("format") != FORMAT:
        return [
            f"expected format {FORMAT}, but found {record.get('format')!r}: make it anew with this version"
        ]
    kind = record.get("kind")
    if kind not in KINDS:
        return [
            f"expected a record of kind {' or '.join(map(repr, KINDS))}, but found {kind!r}. {nearest(str(kind), KINDS)}"
        ]
    fields = record.get("fields")
    if kind == "select" and (not isinstance(fields, list | tuple) or not fields):
        return ["expected a list of fields, but there is none"]
    named: list[Any] = list(fields or ()) if kind == "select" else []
    unnamed = [
        f"expected a name in each field, but field {place} is {field!r:.80}"
        for place, field in enumerate(named)
        if not isinstance(field, Mapping) or not isinstance(field.get("name"), str)
    ]
    return unnamed[:3] or list(islice(misfits(record, SHAPES[kind], "record"), 3))


def _plain(value: Any, where: str) -> Any:
    """The same in JSON's own types."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, where) for item in value]
    if is_number(value):
        number = value.item() if hasattr(value, "item") else value  # numpy's
        return number if is_whole(number) or math.isfinite(number) else None
    raise TorchleapError(
        f"Expected numbers, strings, lists and dicts in a record, but {where} holds {type(value).__name__}."
    )


def dig(record: Any, *path: str) -> Any:
    """What stands at a path of keys; None where there is nothing.

    >>> dig({"metrics": {"after": {"auc": 0.8}}}, "metrics", "after", "auc"), dig({"metrics": None}, "metrics", "after")
    (0.8, None)
    """
    for key in path:
        record = record.get(key) if isinstance(record, Mapping) else None
    return record


def findings(record: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return what looks wrong with the data, the worst first."""
    found = [one for one in record.get("findings") or () if one and one.get("text")]
    return [{key: value for key, value in one.items() if value is not None} for one in found]


def scored(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The fields that have a score, best first; ties in input order."""
    return sorted(
        (f for f in record["fields"] if is_number(f.get("score"))), key=lambda f: -float(f["score"])
    )


def has_gates(record: Mapping[str, Any]) -> bool:
    """Whether the scores are gates, from 0 (closed) to 1 (open)."""
    scores = [f["score"] for f in scored(record)]
    return record.get("method") in GATED and bool(scores) and min(scores) >= 0 and max(scores) <= 1


def has_prices(record: Mapping[str, Any]) -> bool:
    """Whether open gates pay a price; under a strength without units they do not."""
    return has_gates(record) and not is_number(dig(record, "settings", "strength"))


def threshold(record: Mapping[str, Any]) -> float | None:
    """The score from which fields are kept, if that was the rule and scores are gates."""
    value = dig(record, "rule", "threshold")
    return float(value) if is_number(value) and has_gates(record) else None


def decision(field: Mapping[str, Any]) -> str:
    """What happens to a field: kept, protected or dropped."""
    if field.get("protected"):
        return "protected"
    return "kept" if field.get("kept") else "dropped"
