"""rank: the one place that says in which order fields are kept and dropped, ties included."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .._common.errors import SelectionError
from ..fields import Field, Fields


@dataclass(frozen=True)
class Group:
    """Fields that share a gate, and so are kept or dropped together; most groups have one field.

    Args:
        fields: The members, in field order.
        score: The best score of a member.
        protected: Whether a member is protected, which protects all of them.
    """

    fields: tuple[Field, ...]
    score: float
    protected: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the members, in field order."""
        return tuple(member.name for member in self.fields)

    @property
    def width(self) -> int:
        """Return the number of dimensions of all members."""
        return sum(member.width for member in self.fields)

    @property
    def cost(self) -> float:
        """Return the cost of all members, in the unit of `Field.cost`."""
        return sum(member.cost or 0.0 for member in self.fields)


def rank(
    fields: Fields, scores: Mapping[str, float], together: Iterable[tuple[str, ...]] = ()
) -> list[Group]:
    """Return all groups in the order in which a budget takes them.

    Protected groups come first, then the best scores. Ties go to the lower cost, then to the name
    that sorts first.

    Args:
        fields: All fields.
        scores: The score of each field by its name.
        together: Fields that are worth something only together, see `Path.together`: they are one
            group, unless one of them is protected.

    >>> fields = Fields([Field("a", 4), Field("b", 2), Field("c", 1, protected=True)])
    >>> [group.names for group in rank(fields, {"a": 0.5, "b": 0.5, "c": 0.1})]
    [('c',), ('b',), ('a',)]
    """
    _check_scores(fields, scores)
    members: dict[int, list[Field]] = {}
    for member, gate in zip(fields, _joined(fields, together), strict=True):
        members.setdefault(gate, []).append(member)
    groups = []
    for sharing in members.values():
        score = max(scores[member.name] for member in sharing)
        protected = any(member.protected for member in sharing)
        groups.append(Group(tuple(sharing), score, protected))
    return sorted(groups, key=lambda g: (not g.protected, -g.score, g.cost, min(g.names)))


def _joined(fields: Fields, together: Iterable[tuple[str, ...]]) -> list[int]:
    """Return the group of each field: its gate, or the first gate of the fields that belong to it.

    Args:
        fields: All fields.
        together: The fields that belong together.
    """
    groups = list(fields.gates)
    for names in together:
        places = [fields.index(name) for name in names]
        if any(fields[name].protected for name in names):
            continue
        joined = {groups[place] for place in places}
        groups = [min(joined) if group in joined else group for group in groups]
    return groups


def removal_order(fields: Fields, scores: Mapping[str, float]) -> list[str]:
    """Return the names in the order in which fields are dropped: that of `rank`, from its end.

    Protected fields are never dropped, and one group always stays.
    """
    groups = rank(fields, scores)
    stays = max(1, sum(group.protected for group in groups))
    return [name for group in reversed(groups[stays:]) for name in reversed(group.names)]


def _check_scores(fields: Fields, scores: Mapping[str, float]) -> None:
    """Refuse scores that are not one finite number for each field."""
    for name in scores:
        fields.index(name)  # raises with the nearest names
    missing = [repr(name) for name in fields.names if name not in scores]
    if missing:
        listed = ", ".join(missing[:5])
        raise SelectionError(f"Expected a score for every field, but {listed} has none.")
    for name in fields.names:
        if not math.isfinite(scores[name]):
            raise SelectionError(f"Expected finite scores, but that of {name!r} is {scores[name]}.")
