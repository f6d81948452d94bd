"""Selection: which fields are kept, with the score of each and the rule that decided; as JSON."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Unpack

from .._common.checks import is_number, is_whole
from .._common.errors import FieldError, SelectionError
from .._common.plain import plain, read_json, write_json
from .._common.text import plural, table
from ..fields import Field, Fields
from .path import Path
from .rank import Group, rank
from .rule import Limits, Rule

FORMAT = 1
_KEYS = {"format", "method", "settings", "fields"}
_OPTIONAL_KEYS = {"rule", "replicas"}  # unknown in files of earlier versions
_FIELD_KEYS = {"name", "width", "cost", "protected", "group"}
_DECISION_KEYS = {"score", "kept"}
_EVIDENCE_KEYS = {"kept_in"}  # in files of searches with replicas


@dataclass(frozen=True)
class Selection:
    """Which fields to keep, and why. Immutable; prints as a table.

    >>> fields = Fields({"user_id": 8, "age": 1, "zip": 8})
    >>> selection = select(fields, {"user_id": 0.99, "age": 0.7, "zip": 0.01}, threshold=0.5)
    >>> selection.kept, selection.dropped, selection.dims
    (('user_id', 'age'), ('zip',), 9)

    Args:
        fields: All fields, kept and dropped.
        score: The score of each field, in field order.
        keep: Whether each field is kept, in field order.
        method: The name of the method that gave the scores.
        settings: The settings of the method, and the limit of the rule under the rule's name.
        rule: The rule that decided; None if it is not known.
        kept_in: In how many replicas of the search the same rule keeps each field, in field order;
            empty without replicas.
        replicas: The number of replicas.
    """

    fields: Fields
    score: tuple[float, ...]
    keep: tuple[bool, ...]
    method: str = "leap"
    settings: Mapping[str, Any] = field(default_factory=dict)
    rule: Rule | None = None
    kept_in: tuple[int, ...] = ()
    replicas: int = 0

    def __post_init__(self) -> None:
        if not len(self.fields) == len(self.score) == len(self.keep):
            raise SelectionError(
                f"Expected a score and a decision for each of {plural(len(self.fields), 'field')}, "
                f"but found {len(self.score)} scores and {len(self.keep)} decisions."
            )
        if not any(self.keep):
            raise SelectionError(
                "A selection must keep at least one field, but this one keeps none."
            )
        object.__setattr__(
            self,
            "settings",
            MappingProxyType(plain(self.settings, "settings", refused=SelectionError)),
        )

    @property
    def kept(self) -> tuple[str, ...]:
        """Return the names of the kept fields, in field order."""
        return tuple(name for name, keep in zip(self.fields.names, self.keep, strict=True) if keep)

    @property
    def dropped(self) -> tuple[str, ...]:
        """Return the names of the dropped fields, in field order."""
        kept = set(self.kept)
        return tuple(name for name in self.fields.names if name not in kept)

    @property
    def scores(self) -> dict[str, float]:
        """Return the score of each field by its name, in field order."""
        return dict(zip(self.fields.names, self.score, strict=True))

    @property
    def dims(self) -> int:
        """Return the number of dimensions that are kept."""
        return sum(self.fields[name].width for name in self.kept)

    def jaccard(self, other: "Selection") -> float:
        """Return how alike the kept fields are, from 0 to 1: kept by both over kept by either."""
        ours = set(self.kept)
        theirs = set(other.kept)
        return len(ours & theirs) / len(ours | theirs)

    def __hash__(self) -> int:
        return hash((self.fields, self.score, self.keep, self.method))

    def __reduce__(self) -> tuple[Any, ...]:
        settings = dict(self.settings)  # a mapping proxy cannot be pickled
        stability = (self.kept_in, self.replicas)
        decision = (self.fields, self.score, self.keep, self.method, settings, self.rule)
        return Selection, (*decision, *stability)

    def __str__(self) -> str:
        rows = sorted(
            zip(self.fields, self.score, self.keep, strict=True),
            key=lambda row: (not row[2], -row[1], row[0].name),
        )
        cells = []
        for f, score, keep in rows:
            shown = f"{score:.4f}" if score == 0 or abs(score) >= 1e-3 else f"{score:.1e}"
            cells.append([f.name, shown, str(f.width), "kept" if keep else "dropped"])
        return f"{self!r}\n{table(['field', 'score', 'width', ''], cells)}"

    def __repr__(self) -> str:
        return (
            f"Selection: {len(self.kept):,} of {plural(len(self.fields), 'field')} kept, "
            f"{self.dims:,} of {plural(self.fields.dims, 'dimension')}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict, which `save` writes."""
        records = self.fields.to_json()
        for record, score, keep in zip(records, self.score, self.keep, strict=True):
            record.update(score=score, kept=keep)
        for record, count in zip(records, self.kept_in, strict=False):
            record["kept_in"] = count
        content = {"format": FORMAT, "method": self.method, "settings": dict(self.settings)}
        if self.rule is not None:
            content["rule"] = self.rule.to_json()
        if self.replicas:
            content["replicas"] = self.replicas
        return {**content, "fields": records}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the selection as JSON, atomically."""
        write_json(path, self.to_json(), indent=2)

    @classmethod
    def load(cls, path: str | os.PathLike[str], fields: Fields | None = None) -> "Selection":
        """Read a file that `save` wrote.

        Args:
            path: The JSON file.
            fields: Refuse the file unless it was made for these fields; any fields if left out.
        """
        content = read_json(path, "a selection", SelectionError)
        selection = cls._from_json(content, str(path))
        if fields is not None:
            _refuse_other_fields(selection.fields, fields, str(path))
        return selection

    @classmethod
    def _from_json(cls, content: Any, path: str) -> "Selection":
        _check_content(content, path)
        records = content["fields"]
        for record in records:
            _check_record(record, path)
        rule = None
        try:
            fields = Fields([Field(**_without_decision(record)) for record in records])
            if "rule" in content:
                rule = Rule.from_json(content["rule"])
        except (FieldError, SelectionError) as error:
            raise SelectionError(f"{path}: {error}") from error
        score = tuple(float(record["score"]) for record in records)
        keep = tuple(record["kept"] for record in records)
        replicas = content.get("replicas", 0)
        kept_in = tuple(record["kept_in"] for record in records if "kept_in" in record)
        _check_replicas(kept_in, replicas, len(records), path)
        settings = content["settings"]
        return cls(fields, score, keep, content["method"], settings, rule, kept_in, replicas)


def select(
    fields: Fields,
    scores: Mapping[str, float],
    rule: Rule | None = None,
    *,
    path: Path | None = None,
    method: str = "leap",
    settings: Mapping[str, Any] | None = None,
    **limits: Unpack[Limits],
) -> Selection:
    """Keep the best fields by one rule.

    Protected fields are always kept; fields of one group, and fields that are worth something only
    together, are kept or dropped together; ties go to the cheaper field, then to the name that
    sorts first.

    Args:
        fields: All fields.
        scores: The score of each field by its name; higher is better.
        rule: How many fields to keep; a threshold of 0.5 if neither it nor a keyword is given.
        path: The path of the search, for rules that read it; None if it has none.
        method: The name of the method that gave the scores.
        settings: The settings of that method; they are saved with the selection.
        limits: The rule as a keyword instead, such as `share=0.5`: one of `RULES`.
    """
    if rule is None:
        rule = Rule.of(**limits)
    elif limits:
        raise SelectionError(
            f"Expected one rule, but found {rule} and {' and '.join(limits)}. Give one of them."
        )
    groups = _groups_for(rule, fields, scores, path)
    kept = {name for group in rule.keep(groups, path) for name in group.names}
    return Selection(
        fields,
        tuple(float(scores[name]) for name in fields.names),
        tuple(name in kept for name in fields.names),
        method=method,
        settings={**(settings or {}), **rule.to_json()},
        rule=rule,
    )


def _groups_for(
    rule: Rule, fields: Fields, scores: Mapping[str, float], path: Path | None
) -> list[Group]:
    """Return the groups that a rule decides about, with pairs as groups where it can keep any."""
    alone = rank(fields, scores)
    if path is None or not path.together:
        return alone
    joined = rank(fields, scores, path.together)
    try:
        rule.check(joined)
    except SelectionError:  # the budget is below the smallest group, which is a pair
        return alone
    return joined


def _check_content(content: Any, path: str) -> None:
    """Refuse a file of another format, or with other keys or types."""
    found: Any = type(content).__name__
    if isinstance(content, dict):
        found = content.get("format", "none")
    if type(found) is not int or found != FORMAT:
        raise SelectionError(
            f"{path}: expected a selection of format {FORMAT}, but found {found!r}. "
            "Write it again with save()."
        )
    types = {"method": str, "settings": dict, "fields": list}
    well_typed = all(isinstance(content.get(key), kind) for key, kind in types.items())
    if set(content) - _OPTIONAL_KEYS != _KEYS or not well_typed:
        raise SelectionError(
            f"{path}: expected the keys {sorted(_KEYS)}, but found {sorted(content)}, "
            "or values of other types."
        )


def _check_record(record: Any, path: str) -> None:
    """Refuse a field of a file that lacks a key, has an unknown one, or no usable score."""
    if not isinstance(record, dict) or not {"name", "width", *_DECISION_KEYS} <= set(record):
        raise SelectionError(
            f"{path}: expected name, width, score and kept in each field, but found {record!r}."
        )
    name = record["name"]
    unknown = set(record) - _FIELD_KEYS - _DECISION_KEYS - _EVIDENCE_KEYS
    if unknown:
        raise SelectionError(f"{path}: field {name!r} has the unknown key {min(unknown)!r}.")
    score = record["score"]
    finite = is_number(score) and math.isfinite(score)
    if not finite or not isinstance(record["kept"], bool):
        raise SelectionError(
            f"{path}: field {name!r} needs a finite number as score and true or false as kept."
        )


def _without_decision(record: Mapping[str, Any]) -> dict[str, Any]:
    left_out = _DECISION_KEYS | _EVIDENCE_KEYS
    return {key: value for key, value in record.items() if key not in left_out}


def _check_replicas(kept_in: tuple[Any, ...], replicas: Any, fields: int, path: str) -> None:
    """Refuse counts that are not whole numbers up to the number of replicas, for all fields."""
    expected = fields if replicas else 0
    is_count = is_whole(replicas) and replicas >= 0
    if not is_count or len(kept_in) != expected:
        raise SelectionError(
            f"{path}: expected replicas and, with them, kept_in for all fields, but found "
            f"{replicas!r} replicas and kept_in for {len(kept_in)} of {fields} fields."
        )
    for count in kept_in:
        if not is_whole(count) or not 0 <= count <= replicas:
            raise SelectionError(
                f"{path}: kept_in must be a whole number from 0 to {replicas}, but is {count!r}."
            )


def _refuse_other_fields(found: Fields, expected: Fields, path: str) -> None:
    """Refuse a selection among other names or widths than expected."""
    for f in found:
        if f.name not in expected:
            count = plural(len(expected), "field")
            raise SelectionError(
                f"{path} selects among other fields: {f.name!r} is not one of these {count}."
            )
        width = expected[f.name].width
        if f.width != width:
            raise SelectionError(
                f"{path}: {f.name!r} is {f.width} wide, but here it is {width} wide."
            )
    for name in expected.names:
        if name not in found:
            raise SelectionError(f"{path} selects among other fields: it does not know {name!r}.")
