"""Agreement: how often several searches keep the same fields."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from ..selection import Selection


@dataclass(frozen=True)
class Agreement:
    """How far several selections of the same fields agree.

    Attributes:
        selections: The number of selections.
        kept: In how many of them each field is kept, by name in input order.
        jaccard: The mean over all pairs of the fields that both keep, as a fraction of those that
            at least one keeps; 1 where all keep the same.
    """

    selections: int
    kept: dict[str, int]
    jaccard: float


def agreement_of(selections: Sequence[Selection]) -> Agreement:
    """Return how far selections of the same fields agree.

    Args:
        selections: At least two selections.
    """
    sets = [frozenset(one.kept) for one in selections]
    names = selections[0].fields.names
    kept = {name: sum(name in one for one in sets) for name in names}
    pairs = [_jaccard(one, other) for one, other in combinations(sets, 2)]
    return Agreement(len(sets), kept, sum(pairs) / len(pairs))


def _jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    """Return the fraction of the names of either set that both have; 1 for empty sets."""
    if not one | other:
        return 1.0
    return len(one & other) / len(one | other)
