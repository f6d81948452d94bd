"""DecoyScores: what fields and their decoys have reached in one search, for the rule `fdr`."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .rank import Group

UPPER = 0.95  # the quantile of the decoys' worth below which a field cannot be told from useless


class Discoveries(NamedTuple):
    """The groups that are kept at a rate of false discoveries.

    Attributes:
        kept: The groups that beat all their decoys, down to the threshold.
        estimate: The estimated share of useless ones among them; at most the rate.
        winners: How many groups beat all their decoys in all, whatever the threshold.
    """

    kept: tuple[Group, ...]
    estimate: float
    winners: int


@dataclass(frozen=True)
class DecoyScores:
    """What each field and each of its decoys has reached in the same search.

    A decoy has the values of its field in another order of the rows, so that it is useless. A
    field that is useless as well is as likely as each of its decoys to be the best of them.

    Attributes:
        reached: What each field has reached, by its name: its worth in standard errors, or its
            score where the method measures no worth.
        by_decoys: The same for its decoys; each field has equally many.
        worth: The worth of its decoys in nats; empty where the method measures none.
    """

    reached: Mapping[str, float]
    by_decoys: Mapping[str, Sequence[float]]
    worth: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def per_field(self) -> int:
        """Return the number of decoys of each field."""
        return len(next(iter(self.by_decoys.values())))

    @property
    def mean_worth(self) -> float | None:
        """Return the mean worth of the decoys, which is the zero of the worth scale."""
        found = self._worths()
        return sum(found) / len(found) if found else None

    @property
    def high_worth(self) -> float | None:
        """Return the 95 % quantile of the decoys' worth: less cannot be told from useless."""
        found = self._worths()
        if not found:
            return None
        return found[math.ceil(UPPER * len(found)) - 1]

    def _worths(self) -> list[float]:
        return sorted(worth for own in self.worth.values() for worth in own)

    def discoveries(self, groups: Iterable[Group], rate: float) -> Discoveries:
        """Return the groups to keep so that at most this share of them is useless, on average.

        A useless group beats all its m decoys with a probability of 1 / (m + 1), so that behind
        each m groups that did not, one is expected that did by chance. From the best group or
        decoy downwards, the estimate is (1 + groups that lost) / (m * groups that won).

        Args:
            groups: The groups to choose from.
            rate: The share of useless groups that is accepted.
        """
        ranked = sorted(map(self._compete, groups), key=lambda one: (-one[0], one[1]))
        lost = 0
        winners: list[Group] = []
        kept = 0
        estimate = 1.0
        for _, has_won, group in ranked:
            if not has_won:
                lost += 1
                continue
            winners.append(group)
            found = (1 + lost) / (self.per_field * len(winners))
            if found <= rate:
                kept = len(winners)
                estimate = found
        return Discoveries(tuple(winners[:kept]), estimate, len(winners))

    def _compete(self, group: Group) -> tuple[float, bool, Group]:
        """Return the best of a group and its decoys, and whether that is the group; a tie is not.

        Of a group of several fields, the best one counts, and so does the best of its decoys.
        """
        own = max(self.reached[name] for name in group.names)
        best_decoy = max(max(self.by_decoys[name]) for name in group.names)
        return max(own, best_decoy), own > best_decoy, group

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> "DecoyScores":
        """Return the scores that `asdict` made plain."""
        return DecoyScores(
            reached=dict(content["reached"]),
            by_decoys={name: tuple(own) for name, own in content["by_decoys"].items()},
            worth={name: tuple(own) for name, own in content["worth"].items()},
        )


def fewest_discoveries(rate: float, per_field: int) -> int:
    """Return how many fields must beat their decoys for an estimate of at most the rate.

    >>> fewest_discoveries(0.1, 1), fewest_discoveries(0.1, 4)
    (10, 3)
    """
    return math.ceil(1 / (rate * per_field) - 1e-9)
