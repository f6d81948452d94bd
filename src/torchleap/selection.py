"""Selection: each field's score and which fields are kept; by threshold, share, dimensions or cost; as JSON."""

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ._common.checks import is_number
from ._common.errors import FieldError, SelectionError
from ._common.files import read_json, write_whole
from ._common.text import plural, table
from .fields import Field, Fields

FORMAT = 1
_FIELD_KEYS = {"name", "width", "cost", "protected", "group"}
_KEYS = {"format", "method", "settings", "fields"}


@dataclass(frozen=True)
class Selection:
    """Which fields to keep, and why. Immutable; prints as a table.

    >>> fields = Fields({"user_id": 8, "age": 1, "zip": 8})
    >>> selection = select(fields, {"user_id": 0.99, "age": 0.7, "zip": 0.01}, threshold=0.5)
    >>> selection.kept, selection.dropped, selection.dims
    (('user_id', 'age'), ('zip',), 9)
    """

    fields: Fields
    score: tuple[float, ...]  # in field order
    keep: tuple[bool, ...]  # in field order
    method: str = "leap"
    settings: Mapping[str, Any] = field(default_factory=dict)

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
        object.__setattr__(self, "settings", MappingProxyType(_plain(self.settings)))

    @property
    def kept(self) -> tuple[str, ...]:
        """The names of the kept fields, in field order."""
        return tuple(name for name, keep in zip(self.fields.names, self.keep, strict=True) if keep)

    @property
    def dropped(self) -> tuple[str, ...]:
        """The names of the dropped fields, in field order."""
        return tuple(
            name for name, keep in zip(self.fields.names, self.keep, strict=True) if not keep
        )

    @property
    def scores(self) -> dict[str, float]:
        """Each field's score, in field order."""
        return dict(zip(self.fields.names, self.score, strict=True))

    @property
    def dims(self) -> int:
        """The number of dimensions that are kept."""
        return sum(width for width, keep in zip(self.fields.widths, self.keep, strict=True) if keep)

    def jaccard(self, other: "Selection") -> float:
        """How alike the kept fields are: shared by both over kept by either, from 0 to 1."""
        ours, theirs = set(self.kept), set(other.kept)
        return len(ours & theirs) / len(ours | theirs)

    def __hash__(self) -> int:
        return hash((self.fields, self.score, self.keep, self.method))

    def __reduce__(self) -> tuple[Any, ...]:
        return Selection, (self.fields, self.score, self.keep, self.method, dict(self.settings))

    def __str__(self) -> str:
        rows = sorted(
            zip(self.fields, self.score, self.keep, strict=True),
            key=lambda row: (not row[2], -row[1], row[0].name),
        )
        cells = [
            [f.name, f"{score:.4f}", str(f.width), "kept" if keep else "dropped"]
            for f, score, keep in rows
        ]
        return f"{self!r}\n{table(['field', 'score', 'width', ''], cells)}"

    def __repr__(self) -> str:
        return (
            f"Selection: {len(self.kept):,} of {plural(len(self.fields), 'field')} kept, "
            f"{self.dims:,} of {plural(self.fields.dims, 'dimension')}"
        )

    def to_json(self) -> dict[str, Any]:
        """A plain dict: what `save` writes."""
        records = [
            {**record, "score": score, "kept": keep}
            for record, score, keep in zip(
                self.fields.to_json(), self.score, self.keep, strict=True
            )
        ]
        return {
            "format": FORMAT,
            "method": self.method,
            "settings": dict(self.settings),
            "fields": records,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write JSON; the file appears whole or not at all."""
        write_whole(path, json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str], fields: Fields | None = None) -> "Selection":
        """Read what `save` wrote.

        Args:
            fields: Refuse the file unless it was made for these fields.
        """
        content = read_json(path, "a selection", SelectionError)
        selection = cls._from_json(content, str(path))
        if fields is not None:
            _refuse_other_fields(selection.fields, fields, str(path))
        return selection

    @classmethod
    def _from_json(cls, content: Any, path: str) -> "Selection":
        if (
            not isinstance(content, dict)
            or type(content.get("format")) is not int
            or content["format"] != FORMAT
        ):
            found = (
                content.get("format", "none")
                if isinstance(content, dict)
                else type(content).__name__
            )
            raise SelectionError(
                f"{path}: expected a selection of format {FORMAT}, but found {found!r}. Write it anew with save()."
            )
        records: Any = content.get("fields")
        well_formed = (
            set(content) == _KEYS
            and isinstance(records, list)
            and isinstance(content["settings"], dict)
        )
        if not well_formed or not isinstance(content["method"], str):
            raise SelectionError(
                f"{path}: expected the keys {sorted(_KEYS)}, but found {sorted(content)}, or values of other types."
            )
        for record in records:
            _check_record(record, path)
        try:
            fields = Fields(
                [
                    Field(**{key: record[key] for key in _FIELD_KEYS & set(record)})
                    for record in records
                ]
            )
        except FieldError as error:
            raise SelectionError(f"{path}: {error}") from error
        score, keep = tuple(float(r["score"]) for r in records), tuple(r["kept"] for r in records)
        return cls(fields, score, keep, method=content["method"], settings=content["settings"])


def _number(value: Any) -> Any:
    """Turn numpy's numbers into Python's."""
    if not is_number(value):
        raise TypeError(f"found {value!r}")
    return value.item()


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as JSON knows them, so that a saved selection equals the one that was saved."""
    try:
        plain: dict[str, Any] = json.loads(
            json.dumps(dict(settings), allow_nan=False, default=_number)
        )
    except (TypeError, ValueError) as error:
        raise SelectionError(
            f"Expected settings of plain numbers, strings, lists and dicts, but {error}."
        ) from error
    return plain


def select(
    fields: Fields,
    scores: Mapping[str, float],
    *,
    threshold: float | None = None,
    share: float | None = None,
    dims: int | None = None,
    cost: float | None = None,
    method: str = "leap",
    settings: Mapping[str, Any] | None = None,
) -> Selection:
    """Keep the best fields by one rule; a threshold of 0.5 if none is given.

    Protected fields are always kept; fields of one group are kept or dropped together; ties go to the cheaper field, then to
    the name that sorts first.

    Args:
        threshold: Keep scores of at least this.
        share: Keep this share of the fields, rounded down.
        dims: Keep at most this many dimensions: best scores first, a field that no longer fits is passed over.
        cost: Keep at most this much cost, in the same way.
    """
    _check_scores(fields, scores)
    rules = {"threshold": threshold, "share": share, "dims": dims, "cost": cost}
    given = {name: value for name, value in rules.items() if value is not None} or {
        "threshold": 0.5
    }
    if len(given) > 1:
        raise SelectionError(
            f"Expected one of threshold, share, dims and cost, but found {' and '.join(given)}. Give one of them."
        )
    ((rule, limit),) = given.items()
    if not is_number(limit) or not math.isfinite(limit):
        raise SelectionError(f"{rule} must be a number, but is {limit!r}.")
    teams = _ranked_teams(fields, scores)
    if rule == "threshold":
        kept = {
            f.name
            for team in teams
            for f in team
            if team[0].protected or max(scores[m.name] for m in team) >= limit
        }
        best = max(scores.values())
        hint = f"No field scores {limit} or more; the best score is {best:.4f}. Lower threshold=, or give share=."
    else:
        kept, hint = _within_budget(fields, teams, rule, limit)
    if not kept:
        raise SelectionError(hint)
    return Selection(
        fields,
        tuple(float(scores[name]) for name in fields.names),
        tuple(name in kept for name in fields.names),
        method=method,
        settings={**(settings or {}), rule: limit},
    )


def _within_budget(
    fields: Fields, teams: list[tuple[Field, ...]], rule: str, limit: float
) -> tuple[set[str], str]:
    """Fill the budget, best team first; and what to say if nothing fits."""
    if rule == "share":
        if not 0 < limit <= 1:
            raise SelectionError(f"share must lie above 0 and not above 1, but is {limit}.")
        price: Callable[[Field], float] = lambda f: 1.0  # noqa: E731
        budget = float(math.floor(len(fields) * limit + 1e-9))  # 0.29 * 100 is 28.999...
    else:
        price = (lambda f: f.width) if rule == "dims" else (lambda f: f.cost or 0.0)
        if limit <= 0:
            raise SelectionError(f"{rule} must be above 0, but is {limit}.")
        budget = limit * (1 + 1e-9)  # three costs of 0.1 are no more than 0.3
    spent = sum(price(f) for team in teams for f in team if f.protected)
    if spent > budget and rule != "share":
        raise SelectionError(
            f"The protected fields alone take {spent:g} of {rule}={limit:g}. Raise it, or protect fewer fields."
        )
    kept = {f.name for team in teams for f in team if f.protected}
    for team in teams:
        extra = sum(price(f) for f in team)
        if not team[0].protected and spent + extra <= budget:
            spent += extra
            kept |= {f.name for f in team}
    cheapest = min(sum(price(f) for f in team) for team in teams)
    least = f"{cheapest / len(fields):.3g}" if rule == "share" else f"{cheapest:g}"
    return kept, f"{rule}={limit:g} leaves no field at all. Give at least {least}."


def _ranked_teams(fields: Fields, scores: Mapping[str, float]) -> list[tuple[Field, ...]]:
    """Fields that share a gate as one team, best score first; ties to the lower cost, then to the first name.

    A team with one protected field is protected as a whole.
    """
    by_gate: dict[int, list[Field]] = {}
    for f, gate in zip(fields, fields.gates, strict=True):
        by_gate.setdefault(gate, []).append(f)
    teams = []
    for members in by_gate.values():
        protected = any(f.protected for f in members)
        teams.append(tuple(Field(f.name, f.width, f.cost, protected, f.group) for f in members))

    def rank(team: tuple[Field, ...]) -> tuple[float, float, str]:
        return (
            -max(scores[f.name] for f in team),
            sum(f.cost or 0.0 for f in team),
            min(f.name for f in team),
        )

    return sorted(teams, key=rank)


def _check_scores(fields: Fields, scores: Mapping[str, float]) -> None:
    for name in scores:
        fields.index(name)  # raises with the nearest names
    missing = [name for name in fields.names if name not in scores]
    if missing:
        raise SelectionError(
            f"Expected a score for every field, but {', '.join(map(repr, missing[:5]))} has none."
        )
    bad = [name for name in fields.names if not math.isfinite(scores[name])]
    if bad:
        raise SelectionError(f"Expected finite scores, but that of {bad[0]!r} is {scores[bad[0]]}.")


def _check_record(record: Any, path: str) -> None:
    if not isinstance(record, dict) or not {"name", "width", "score", "kept"} <= set(record):
        raise SelectionError(
            f"{path}: expected name, width, score and kept in each field, but found {record!r}."
        )
    unknown = set(record) - _FIELD_KEYS - {"score", "kept"}
    if unknown:
        raise SelectionError(
            f"{path}: field {record['name']!r} has the unknown key {sorted(unknown)[0]!r}."
        )
    score = record["score"]
    if not isinstance(record["kept"], bool) or not is_number(score) or not math.isfinite(score):
        raise SelectionError(
            f"{path}: field {record['name']!r} needs a finite number as score and true or false as kept."
        )


def _refuse_other_fields(found: Fields, expected: Fields, path: str) -> None:
    for f in found:
        if f.name not in expected:
            raise SelectionError(
                f"{path} selects among other fields: {f.name!r} is not one of these {plural(len(expected), 'field')}."
            )
        if f.width != expected[f.name].width:
            raise SelectionError(
                f"{path}: {f.name!r} is {f.width} wide, but here it is {expected[f.name].width} wide."
            )
    if len(found) != len(expected):
        missing = next(name for name in expected.names if name not in found)
        raise SelectionError(f"{path} selects among other fields: it does not know {missing!r}.")
