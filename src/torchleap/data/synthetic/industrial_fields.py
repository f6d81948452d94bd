"""Fields of the industrial log: their roles, how each is given, and how wide it is."""

import math
from dataclasses import dataclass
from itertools import count, cycle
from typing import Any, Literal, get_args
from zlib import crc32

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Role = Literal[
    "main", "pair", "sparse main", "sparse noise", "noise", "redundant", "constant", "dead", "drift"
]
Kind = Literal["number", "ids", "vector"]
Slot = tuple[Role, Kind, int]  # the last is the running number within role and kind
Values = NDArray[Any]  # (rows,) float32 for numbers, int32 for ids; (rows, width) for vectors
Floats = NDArray[np.float32]

KINDS: tuple[Kind, ...] = get_args(Kind)
USEFUL: tuple[Role, ...] = ("main", "pair", "sparse main", "drift")
USELESS: tuple[Role, ...] = ("noise", "sparse noise", "constant", "dead")
CAST: dict[Role, tuple[tuple[int, int, int], tuple[int, int, int]]] = {
    # the numbers, ids and vectors of every log, and how many more each further hundred fields has
    "main": ((1, 1, 1), (5, 5, 2)),
    "pair": ((2, 2, 2), (3, 2, 1)),
    "sparse main": ((1, 1, 1), (4, 3, 2)),
    "sparse noise": ((1, 1, 1), (10, 6, 3)),
    "noise": ((1, 1, 1), (16, 8, 3)),
    "redundant": ((2, 2, 2), (5, 4, 2)),
    "constant": ((1, 1, 1), (3, 1, 1)),
    "dead": ((2, 1, 1), (4, 2, 1)),
    "drift": ((2, 2, 2), (2, 1, 1)),
}
FEWEST_FIELDS = sum(sum(always) for always, _ in CAST.values())
NARROWEST: dict[Kind, int] = {"number": 1, "ids": 4, "vector": 16}
USUAL: dict[Kind, tuple[int, ...]] = {
    "ids": (16, 8, 64, 32, 128, 8, 16, 256, 64),
    "vector": (64, 16, 128, 16, 256, 64),
}
WIDEST = 256
MEAN_WIDTH = 128  # of ids and vectors, at most, so that some field of ids can take the rest
COPIES = 3  # of one field, at most
WIDE = 64  # the width from which on a table of ids has many rows
CARDINALITIES_OF_PAIRS = (10, 30)
WIDE_CARDINALITIES = (1_000, 10_000, 100_000)
NARROW_CARDINALITIES = (10, 100, 1_000, 10_000)


@dataclass(frozen=True)
class LogField:
    """One field of the log.

    Attributes:
        role: Its role.
        kind: How it is given: as a number, as ids or as a vector.
        number: Its number within role and kind.
        width: Its dimensions in the model.
    """

    role: Role
    kind: Kind
    number: int
    width: int

    @property
    def name(self) -> str:
        """Role, kind, width and number, such as main_ids_16_003."""
        return f"{self.role.replace(' ', '_')}_{self.kind}_{self.width}_{self.number:03d}"

    @property
    def cardinality(self) -> int:
        """The number of ids, the first of which, 0, is the default; 0 for other kinds.

        Wide tables have more, and a copy has as many as its source.
        """
        if self.kind != "ids":
            return 0
        choices: tuple[int, ...] = NARROW_CARDINALITIES
        if self.role == "pair":
            choices = CARDINALITIES_OF_PAIRS
        elif self.width >= WIDE:
            choices = WIDE_CARDINALITIES
        place = self.number
        if self.role == "redundant":
            place //= COPIES
        return choices[place % len(choices)]

    def zeros(self, rows: int) -> Values:
        """Return rows of the default, which take no memory until they are written to."""
        shape = (rows, self.width) if self.kind == "vector" else (rows,)
        return np.zeros(shape, np.int32 if self.kind == "ids" else np.float32)

    def draw(self, rows: int, rng: Generator) -> Values:
        """Return independent rows.

        Numbers and vectors have mean 0 and variance 1; ids from 1 on follow Zipf's law.
        """
        if self.kind == "number":
            return rng.standard_normal(rows, dtype=np.float32)
        if self.kind == "ids":
            exponent = np.float32(math.log(self.cardinality))
            ids: Values = np.exp(rng.random(rows, dtype=np.float32) * exponent)
            most = self.cardinality - 1  # which rounding may exceed
            return ids.clip(1, most).astype(np.int32)
        vectors = rng.random((rows, self.width), dtype=np.float32)  # 4 times as fast as normal
        vectors -= np.float32(0.5)
        vectors *= np.float32(math.sqrt(12))
        return vectors

    def relabel(self, ids: Values) -> Values:
        """Return other names for the same ids.

        The step between names is prime to their number, so that no two become one.
        """
        many = self.cardinality - 1
        for step in count(many // 3 + self.number):
            if step % many > 1 and math.gcd(step, many) == 1:
                break
        return (1 + step * ids.astype(np.int64) % many).astype(np.int32)


def slots_of(fields: int) -> list[Slot]:
    """Return the roles, kinds and numbers of so many fields, in the proportions of `CAST`.

    Sources come before their copies.
    """
    always = {}
    weights = []
    for role, (own, more) in CAST.items():
        for kind, number, weight in zip(KINDS, own, more, strict=True):
            always[role, kind] = number
            weights.append(weight)
    left = fields - sum(always.values())
    upto = np.rint(np.cumsum(weights) * left / sum(weights)).astype(int)
    added = np.diff(upto, prepend=0)
    counts = {key: always[key] + int(more) for key, more in zip(always, added, strict=True)}
    for kind in KINDS:  # a pair takes two; one that is left over becomes noise
        odd = counts["pair", kind] % 2
        counts["noise", "number"] += odd
        counts["pair", kind] -= odd
    return [(role, kind, number) for (role, kind), many in counts.items() for number in range(many)]


def partner(slot: Slot) -> Slot:
    """Return the other one of a pair, or the source of a copy."""
    role, kind, number = slot
    if role == "pair":
        return role, kind, number ^ 1
    return "main", kind, number // COPIES


def dims_possible(slots: list[Slot]) -> tuple[int, int]:
    """Return the fewest and the most dimensions that these fields can have together."""
    fewest = sum(NARROWEST[kind] for _, kind, _ in slots)
    wide = sum(kind != "number" for _, kind, _ in slots)
    return fewest, len(slots) - wide + MEAN_WIDTH * wide


def widths_of(slots: list[Slot], dims: int) -> dict[Slot, int]:
    """Return a width for each field, so that they sum to `dims`; a copy is as wide as its source.

    Pairs stay narrow: a product of two wide fields takes more rows to learn than one has.
    """
    widths = {slot: NARROWEST[slot[1]] for slot in slots}
    families = _families(slots)
    of_vectors = [family for family in families if family[0][1] == "vector"]
    of_ids = [family for family in families if family[0][1] == "ids"]
    numbers = sum(width for slot, width in widths.items() if slot[1] == "number")
    vectors = sum(width for slot, width in widths.items() if slot[1] == "vector")
    _widen(widths, of_vectors, USUAL["vector"], (dims - numbers) // 2 - vectors)
    left = _widen(widths, of_ids, USUAL["ids"], dims - sum(widths.values()))
    for slot, *copies in of_ids:
        if not copies and widths[slot] + left <= WIDEST:
            widths[slot] += left
            break
    return widths


def _families(slots: list[Slot]) -> list[list[Slot]]:
    """Return the fields whose width is free, each with its copies, in a random but fixed order."""
    found: dict[Slot, list[Slot]] = {}
    for slot in sorted(slots, key=scrambled):
        if slot[1] != "number" and slot[0] not in ("pair", "redundant"):
            found[slot] = [slot]
    for slot in slots:
        if slot[0] == "redundant" and slot[1] != "number":
            found[partner(slot)].append(slot)
    return list(found.values())


def _widen(
    widths: dict[Slot, int], families: list[list[Slot]], usual: tuple[int, ...], budget: int
) -> int:
    """Widen families in place to the usual widths and then to the widest, within a budget.

    Returns:
        The dimensions that are left of the budget.
    """
    for wishes in (usual, (WIDEST,)):
        for family, wish in zip(families, cycle(wishes), strict=False):
            cost = len(family) * (wish - widths[family[0]])
            if 0 < cost <= budget:
                budget -= cost
                widths.update(dict.fromkeys(family, wish))
    return budget


def scrambled(name: object) -> int:
    """Return a key to sort by that does not depend on the meaning of a name."""
    return crc32(repr(name).encode())
