"""Rule: how many fields a selection keeps: by a budget, a threshold, a worth or a tolerance.

A new rule is one class, and one line each in `RULES` and `Limits`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict, Unpack

from .._common.checks import is_number
from .._common.errors import SelectionError, nearest
from .._common.text import plural
from .decoys import Discoveries, fewest_discoveries
from .path import Path
from .rank import Group

ONE_ERROR = "1se"  # the limit of a tolerance of one standard error


class Limits(TypedDict, total=False):
    """The keyword form of a rule, such as `select(..., share=0.5)`; None is no limit."""

    threshold: float | None
    share: float | None
    dims: float | None
    cost: float | None
    worth: float | None
    tolerance: float | str | None
    fdr: float | None


@dataclass(frozen=True)
class Rule(ABC):
    """How many fields a selection keeps: a kind of limit and its value.

    >>> rule = Rule.of(share=0.5)
    >>> print(rule, rule.to_json())
    share=0.5 {'share': 0.5}

    Args:
        limit: The value, in the unit of the rule.
    """

    limit: Any
    name: ClassVar[str]  # of the keyword
    option: ClassVar[str]  # of the command line
    kind: ClassVar[type] = float  # of the option's value
    help: ClassVar[str]  # of the option

    def __post_init__(self) -> None:
        if not is_number(self.limit) or not math.isfinite(self.limit):
            raise SelectionError(f"{self.name} must be a number, but is {self.limit!r}.")
        if hasattr(self.limit, "item"):
            object.__setattr__(
                self, "limit", self.limit.item()
            )  # JSON does not take numpy's numbers

    def __str__(self) -> str:
        return f"{self.name}={self.limit:g}"

    @staticmethod
    def of(**limits: Unpack[Limits]) -> "Rule":
        """Return the rule of one keyword, such as `share` or `tolerance`: one of `RULES`.

        Without any it is a threshold of 0.5.
        """
        for name in limits:
            if name not in RULES:
                raise SelectionError(f"There is no rule {name!r}. {nearest(name, RULES)}")
        given: dict[str, Any] = {name: limit for name, limit in limits.items() if limit is not None}
        if not given:
            return Threshold(0.5)
        if len(given) > 1:
            *first, last = RULES
            raise SelectionError(
                f"Expected one of {', '.join(first)} and {last}, but found {' and '.join(given)}. "
                "Give one of them."
            )
        [(name, limit)] = given.items()
        return RULES[name](limit)

    @staticmethod
    def from_json(content: Any) -> "Rule":
        """Return the rule that `to_json` wrote."""
        if not isinstance(content, dict) or len(content) != 1 or None in content.values():
            raise SelectionError(
                f"Expected a rule such as {{'share': 0.5}}, but found {content!r}."
            )
        return Rule.of(**content)

    def to_json(self) -> dict[str, Any]:
        """Return the rule as a plain dict of one entry."""
        return {self.name: self.limit}

    def check(self, groups: Sequence[Group]) -> None:  # noqa: B027
        """Refuse a limit that cannot be met, whatever the scores are; `keep` checks this too."""

    @abstractmethod
    def keep(self, groups: Sequence[Group], path: Path | None = None) -> list[Group]:
        """Return the groups that are kept, at least one.

        Args:
            groups: All groups, as `rank` returns them.
            path: The path of the search, if it has one.
        """


class Threshold(Rule):
    """Keep gates of at least the limit; of a path those at its best point."""

    name = "threshold"
    option = "--threshold"
    help = "Keep fields whose gate, or other score, is at least this; 0.5 for gates."

    def keep(self, groups: Sequence[Group], path: Path | None = None) -> list[Group]:
        """Return the groups that are protected or reach the threshold."""
        scores = {group: self.score(group, path) for group in groups}
        kept = [group for group in groups if group.protected or scores[group] >= self.limit]
        if not kept:
            best = max(scores.values())
            raise SelectionError(
                f"No field scores {self.limit} or more; the best score is {best:.4f}. "
                "Lower threshold=, or give share=."
            )
        return kept

    @staticmethod
    def score(group: Group, path: Path | None) -> float:
        """Return the gate of a group at the best point of the path; its score without gates."""
        if path is None or not path.gates:
            return group.score
        return max(path.gates[name] for name in group.names)


class MinimalWorth(Rule):
    """Keep fields that are worth at least the limit, in the unit of the loss."""

    name = "worth"
    option = "--worth"
    help = "Keep fields that are worth at least this: the loss that is paid without one, in nats."

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.limit < 0:
            raise SelectionError(f"worth must be at least 0, but is {self.limit}.")

    def keep(self, groups: Sequence[Group], path: Path | None = None) -> list[Group]:
        """Return the groups that are protected or worth enough."""
        if path is None or not path.worth:
            raise SelectionError(
                "worth= needs a search that measures what each field is worth, but this one has "
                "only scores. Search with method='leap' or 'permutation', or give share=."
            )
        worth = {group: max(path.worth[name].nats for name in group.names) for group in groups}
        kept = [group for group in groups if group.protected or worth[group] >= self.limit]
        if not kept:
            best = max(worth.values())
            raise SelectionError(
                f"No field is worth {self.limit:g} or more; the best one is worth {best:.2g}. "
                "Lower worth=, or give share=."
            )
        return kept


class Tolerance(Rule):
    """Keep the fewest fields whose metric on the path is within a tolerance of the best one.

    The limit is a difference of the metric, or "1se": one standard error of that difference.
    """

    name = "tolerance"
    option = "--tolerance"
    kind = str
    help = (
        "Keep the fewest fields whose validation metric is within this of the best on the path; "
        "1se, the default, is one standard error."
    )

    def __post_init__(self) -> None:
        if self.limit == ONE_ERROR:
            return
        if isinstance(self.limit, str):  # of the command line
            object.__setattr__(self, "limit", _as_number(self.limit))
        super().__post_init__()
        if self.limit < 0:
            raise SelectionError(f"tolerance must be at least 0, but is {self.limit}.")

    def __str__(self) -> str:
        return f"{self.name}={self.limit}"

    def keep(self, groups: Sequence[Group], path: Path | None = None) -> list[Group]:
        """Return the groups that are open at the chosen point of the path, and protected ones."""
        if path is None or not path.points:
            raise SelectionError(
                "tolerance= needs the path of a search that closes fields one after the other, "
                "but this one has none. Search with method='leap' or with path=True, or give "
                "share=."
            )
        tolerance = None if self.limit == ONE_ERROR else self.limit
        point = path.smallest_within(tolerance)
        kept = set(point.kept)
        return [group for group in groups if group.protected or kept & set(group.names)]


def _as_number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise SelectionError(
            f"tolerance must be a number or {ONE_ERROR!r}, but is {text!r}."
        ) from error


class FalseDiscoveries(Rule):
    """Keep as many fields as possible, of which at most this share is useless on average.

    Fields are compared with decoys, which are useless by construction; see `DecoyScores`.
    """

    name = "fdr"
    option = "--fdr"
    help = "Keep fields of which at most this share is useless on average, by decoys; such as 0.1."

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.limit < 1:
            raise SelectionError(f"fdr must lie between 0 and 1, but is {self.limit}.")

    def keep(self, groups: Sequence[Group], path: Path | None = None) -> list[Group]:
        """Return the groups that are protected or surely enough better than their decoys."""
        found = self.discoveries(groups, path)
        chosen = set(found.kept)
        kept = [group for group in groups if group.protected or group in chosen]
        if not kept:
            raise SelectionError(self.why_none(groups, path))
        return kept

    def discoveries(self, groups: Sequence[Group], path: Path | None) -> Discoveries:
        """Return the groups that are kept, but for protected ones, and the estimate."""
        if path is None or path.decoys is None:
            raise SelectionError(
                "fdr= needs a search with decoys, but this one has none. "
                f"Search with fdr={self.limit:g}, or give share=."
            )
        return path.decoys.discoveries((g for g in groups if not g.protected), self.limit)

    def why_none(self, groups: Sequence[Group], path: Path | None) -> str:
        """Return why no field can be kept, and what would help."""
        found = self.discoveries(groups, path)
        assert path is not None
        assert path.decoys is not None
        each = path.decoys.per_field
        needed = fewest_discoveries(self.limit, each)
        return (
            f"{self} with {plural(each, 'decoy')} per field needs at least {needed} fields that "
            f"are clearly better than the decoys, but of {plural(len(groups), 'field')} only "
            f"{found.winners} beat their own decoys, and not clearly or not often enough. "
            "Raise fdr=, search with more decoys per field or more rows, or give share=."
        )


class Budget(Rule):
    """Keep the best groups that fit into a budget; a group that no longer fits is passed over."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.limit <= 0:
            raise SelectionError(f"{self.name} must be above 0, but is {self.limit}.")

    @abstractmethod
    def price(self, group: Group) -> float:
        """Return the part of the budget that a group takes."""

    def budget(self, groups: Sequence[Group]) -> float:
        """Return the amount that may be spent, with room for rounding: 3 x 0.1 fits into 0.3."""
        return float(self.limit) * (1 + 1e-9)

    def check(self, groups: Sequence[Group]) -> None:
        """Refuse a budget below the protected fields, or below the cheapest group."""
        protected = [group for group in groups if group.protected]
        spent = sum(map(self.price, protected))
        if spent > self.budget(groups):
            raise SelectionError(
                f"The protected fields alone take {spent:g} of {self}. "
                "Raise it, or protect fewer fields."
            )
        cheapest = min(map(self.price, groups))
        if cheapest > self.budget(groups):
            raise SelectionError(f"{self} leaves no field at all. Give at least {cheapest:g}.")

    def keep(self, groups: Sequence[Group], path: Path | None = None) -> list[Group]:
        """Return the groups that the budget pays for: protected ones, then the best scores."""
        self.check(groups)
        budget = self.budget(groups)
        spent = 0.0
        kept = []
        for group in groups:
            price = self.price(group)
            if group.protected or spent + price <= budget:
                spent += price
                kept.append(group)
        return kept


class Share(Budget):
    """Keep this fraction of the fields, rounded down, but never less than the protected fields."""

    name = "share"
    option = "--share"
    help = "Keep this share of the fields."

    def __post_init__(self) -> None:
        Rule.__post_init__(self)
        if not 0 < self.limit <= 1:
            raise SelectionError(f"share must lie above 0 and not above 1, but is {self.limit}.")

    def price(self, group: Group) -> float:
        """Return the number of fields."""
        return len(group.fields)

    def budget(self, groups: Sequence[Group]) -> float:
        """Return the number of fields to keep."""
        count = sum(map(self.price, groups))
        return math.floor(count * float(self.limit) + 1e-9)  # 0.29 * 100 is 28.999...

    def check(self, groups: Sequence[Group]) -> None:
        """Refuse a share of less than the smallest group, unless fields are protected."""
        smallest = min(map(self.price, groups))
        if smallest > self.budget(groups) and not any(group.protected for group in groups):
            least = smallest / sum(map(self.price, groups))
            raise SelectionError(f"{self} leaves no field at all. Give at least {least:.3g}.")


class Dims(Budget):
    """Keep at most this many dimensions."""

    name = "dims"
    option = "--dims"
    kind = int
    help = "Keep at most this many dimensions."

    def price(self, group: Group) -> float:
        """Return the number of dimensions."""
        return group.width


class Cost(Budget):
    """Keep at most this much cost, in the unit of `Field.cost`."""

    name = "cost"
    option = "--budget"
    help = "Keep fields of at most this cost in total; see --cost."

    def price(self, group: Group) -> float:
        """Return the cost."""
        return group.cost


RULES: dict[str, type[Rule]] = {
    "threshold": Threshold,
    "share": Share,
    "dims": Dims,
    "cost": Cost,
    "worth": MinimalWorth,
    "tolerance": Tolerance,
    "fdr": FalseDiscoveries,
}
