"""The cast of the industrial log: which fields there are, what each is for, how it is given and how wide it is."""

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
Values = NDArray[
    Any
]  # (rows,) float32 for numbers and int32 for ids, (rows, width) float32 for vectors
Floats = NDArray[np.float32]

KINDS: tuple[Kind, ...] = get_args(Kind)
USEFUL: tuple[Role, ...] = ("main", "pair", "sparse main", "drift")
USELESS: tuple[Role, ...] = ("noise", "sparse noise", "constant", "dead")
CAST: dict[Role, tuple[tuple[int, int, int], tuple[int, int, int]]] = {
    # numbers, ids and vectors that every log has, and how many more there are in each further hundred fields
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
NARROWEST: dict[Kind, int] = {"number": 1, "ids": 4, "vector": 16}
USUAL: dict[Kind, tuple[int, ...]] = {
    "ids": (16, 8, 64, 32, 128, 8, 16, 256, 64),
    "vector": (64, 16, 128, 16, 256, 64),
}
WIDEST = 256
MEAN_WIDTH = (
    128  # of ids and vectors, at most: then there is always an id that can take what is left
)
COPIES = 3  # of one field, at most


@dataclass(frozen=True)
class Column:
    """One field of the log: what it is for and how it is given."""

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
        """The number of ids, of which 0 is the default, and none for other kinds; wide tables have more, a copy as its source."""
        if self.kind != "ids":
            return 0
        wide, narrow, of_pairs = (1_000, 10_000, 100_000), (10, 100, 1_000, 10_000), (10, 30)
        choices = of_pairs if self.role == "pair" else wide if self.width >= 64 else narrow
        place = self.number // COPIES if self.role == "redundant" else self.number
        return choices[place % len(choices)]

    def zeros(self, rows: int) -> Values:
        """Rows of the default; they cost no memory until they are written to."""
        shape = (rows, self.width) if self.kind == "vector" else (rows,)
        return np.zeros(shape, np.int32 if self.kind == "ids" else np.float32)

    def draw(self, rows: int, rng: Generator) -> Values:
        """Independent rows: numbers and vectors of mean 0 and variance 1, ids from 1 by Zipf's law."""
        if self.kind == "number":
            return rng.standard_normal(rows, dtype=np.float32)
        if self.kind == "ids":
            ids: Values = np.exp(
                rng.random(rows, dtype=np.float32) * np.float32(math.log(self.cardinality))
            )
            return ids.clip(1, self.cardinality - 1).astype(
                np.int32
            )  # rounding may reach the cardinality
        vectors = rng.random(
            (rows, self.width), dtype=np.float32
        )  # four times as fast as normal ones
        vectors -= np.float32(0.5)
        vectors *= np.float32(math.sqrt(12))
        return vectors

    def relabel(self, ids: Values) -> Values:
        """Other names for the same ids; a step that is prime to their number never makes two of them one."""
        many = self.cardinality - 1
        step = next(
            step
            for step in count(many // 3 + self.number)
            if step % many > 1 and math.gcd(step, many) == 1
        )
        return (1 + step * ids.astype(np.int64) % many).astype(np.int32)


def fewest_fields() -> int:
    """How many fields a log has at least: every role in every kind."""
    return sum(sum(always) for always, _ in CAST.values())


def slots_of(fields: int) -> list[Slot]:
    """Who plays: each role in each kind, in the shares of `CAST`; sources come before their copies."""
    always = {
        (role, kind): CAST[role][0][place] for role in CAST for place, kind in enumerate(KINDS)
    }
    shares = [CAST[role][1][KINDS.index(kind)] for role, kind in always]
    upto = np.rint(np.cumsum(shares) * (fields - sum(always.values())) / sum(shares)).astype(int)
    counts = {
        key: number + int(more)
        for (key, number), more in zip(always.items(), np.diff(upto, prepend=0), strict=True)
    }
    for kind in KINDS:
        counts["noise", "number"] += counts["pair", kind] % 2
        counts["pair", kind] -= counts["pair", kind] % 2
    return [(role, kind, number) for (role, kind), many in counts.items() for number in range(many)]


def partner(slot: Slot) -> Slot:
    """The other one of a pair, or the source of a copy."""
    role, kind, number = slot
    return (role, kind, number ^ 1) if role == "pair" else ("main", kind, number // COPIES)


def dims_possible(slots: list[Slot]) -> tuple[int, int]:
    """The fewest and the most dimensions that these fields can have together."""
    wide = sum(kind != "number" for _, kind, _ in slots)
    return sum(NARROWEST[kind] for _, kind, _ in slots), len(slots) - wide + MEAN_WIDTH * wide


def widths_of(slots: list[Slot], dims: int) -> dict[Slot, int]:
    """A width for each field, so that they sum to `dims`; a copy is as wide as its source.

    Pairs stay narrow: a product of two wide fields takes more rows to learn than one has.
    """
    widths = {slot: NARROWEST[slot[1]] for slot in slots}
    free = {
        slot: [slot]
        for slot in sorted(slots, key=shuffled)
        if slot[1] != "number" and slot[0] not in ("pair", "redundant")
    }
    for slot in slots:
        if slot[0] == "redundant" and slot[1] != "number":
            free[partner(slot)].append(slot)
    vectors, ids = (
        [family for slot, family in free.items() if slot[1] == kind] for kind in ("vector", "ids")
    )
    numbers, given = (
        sum(width for slot, width in widths.items() if slot[1] == kind)
        for kind in ("number", "vector")
    )
    _widen(widths, vectors, USUAL["vector"], (dims - numbers) // 2 - given)
    left = _widen(widths, ids, USUAL["ids"], dims - sum(widths.values()))
    taker = next(slot for (slot, *copies) in ids if not copies and widths[slot] + left <= WIDEST)
    return widths | {taker: widths[taker] + left}


def _widen(
    widths: dict[Slot, int], families: list[list[Slot]], usual: tuple[int, ...], budget: int
) -> int:
    """Widen the families in place to the usual widths and then to the widest, while the budget lasts; returns what is left."""
    for wishes in (usual, (WIDEST,)):
        for family, wish in zip(families, cycle(wishes), strict=False):
            cost = len(family) * (wish - widths[family[0]])
            if 0 < cost <= budget:
                budget -= cost
                widths.update(dict.fromkeys(family, wish))
    return budget


def shuffled(name: object) -> int:
    """A key to sort by that has nothing to do with the meaning of the name."""
    return crc32(repr(name).encode())
