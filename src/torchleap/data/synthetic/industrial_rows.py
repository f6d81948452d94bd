"""Rows of the industrial log: how fields, effects and labels are drawn, chunk by chunk."""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from .industrial_fields import USEFUL, Floats, LogField, Values, scrambled

if TYPE_CHECKING:
    from .industrial import IndustrialLog

CHUNK = 4_000  # rows; 160 times two queries that have 25 rows together
QUERIES = 320  # in a chunk
DAY = 86_400  # seconds
FIRST_SECOND = 1_767_225_600  # 2026-01-01
ROWS_BEFORE_DEATH = 1_000
COPY_NOISE = 0.1  # the standard deviation for numbers and vectors, the fraction of wrong ids
SIGNAL = 1.4  # the standard deviation of the log odds, for a Bayes AUC of 0.8
BASE_RATE = 0.15
EFFECTS, ROWS = 0, 1  # the two streams of random numbers of a seed


class LogRows:
    """The rows of a log, chunk by chunk.

    Args:
        log: The fields, their roles and the size of their effects.
    """

    def __init__(self, log: "IndustrialLog") -> None:
        self.log = log

    def chunk(self, number: int) -> dict[str, Values]:
        """Return the columns of one chunk, a function of the log's settings and the number alone.

        A field has fewer values than the chunk has rows if the rest is null.
        """
        rng = _rng(self.log.seed, ROWS, number)
        rows = self._draw_queries(number, rng)
        values: dict[str, Values] = {}
        for column in self.log.slots.values():
            values[column.name] = self._draw(column, number, values, rng)
        odds = self.log_odds(self.signals(values), rows["time"])
        label = rng.random(CHUNK, dtype=np.float32) < 1 / (1 + np.exp(-odds))
        fields = {name: values[name] for name in self.log.columns}
        return {"label": label.astype(np.int8), **rows, **fields}

    def _draw_queries(self, number: int, rng: Generator) -> dict[str, Values]:
        """Return user, query and time: queries of 5 to 20 rows that fill the chunk exactly."""
        half = rng.integers(5, 21, QUERIES // 2)
        sizes = rng.permutation(np.concatenate([half, 25 - half]))
        query = number * QUERIES + np.arange(QUERIES)
        moment = query + rng.random(QUERIES)  # in queries since the first; rises with the query
        time = FIRST_SECOND + (moment * (DAY / self.log.queries_per_day)).astype(np.int64)
        uneven = rng.random(QUERIES) ** 2  # some users search more than others
        user = (self.log.users * uneven).astype(np.int64)
        return {
            "user": np.repeat(user, sizes),
            "query": np.repeat(query, sizes),
            "time": np.repeat(time, sizes),
        }

    def _draw(
        self, column: LogField, number: int, drawn: Mapping[str, Values], rng: Generator
    ) -> Values:
        """Return the values of a field in a chunk.

        Args:
            column: The field.
            number: The number of the chunk.
            drawn: The fields of the chunk that were drawn before.
            rng: The random numbers of the chunk.
        """
        if column.role == "constant":
            return column.zeros(CHUNK) + 1
        if column.role == "dead":
            dies_later = number == 0 and column.number % 2
            return column.draw(ROWS_BEFORE_DEATH if dies_later else 0, rng)
        if column.role == "redundant":
            return self._copy(column, drawn[self.log.source[column.name]], rng)
        if column.role in ("sparse main", "sparse noise"):
            values = column.zeros(CHUNK)
            is_active = rng.random(CHUNK, dtype=np.float32) < self.log.active
            places = np.flatnonzero(is_active)
            values[places] = column.draw(len(places), rng)
            return values
        return column.draw(CHUNK, rng)

    def _copy(self, column: LogField, source: Values, rng: Generator) -> Values:
        """Return a noisy copy of a field: ids under other names, vectors rotated."""
        other = column.draw(CHUNK, rng)
        if column.kind == "ids":
            wrong = rng.random(CHUNK, dtype=np.float32) < COPY_NOISE
            return column.relabel(np.where(wrong, other, source))
        other *= np.float32(COPY_NOISE)
        if column.kind == "vector":
            source = source @ self._basis[column.name]
        other += source
        return other

    def signals(self, values: Mapping[str, Values]) -> dict[str, Floats]:
        """Return the number per row through which each useful field affects the label."""
        columns = [self.log.columns[name] for name in self.log.useful]
        return {column.name: self._signal(column, values[column.name]) for column in columns}

    def _signal(self, column: LogField, values: Values) -> Floats:
        if column.kind == "number":
            return values
        if column.kind == "vector":
            return (values @ self._basis[column.name])[:, 0]
        key, mean, size = self._hash[column.name]
        effects = (_normal_of(values, key) - mean) / size
        return np.where(values > 0, effects, 0).astype(np.float32)

    def log_odds(self, signals: Mapping[str, Floats], time: Values) -> Floats:
        """Return the sum of all effects, (rows,).

        Args:
            signals: The signal of each useful field, (rows,).
            time: The time of each row in seconds.
        """
        log = self.log
        spread = math.sqrt(1 + math.pi / 8 * SIGNAL**2)  # a normal of this size flattens the odds
        faded = self._faded(time)
        total = np.full(len(time), spread * math.log(BASE_RATE / (1 - BASE_RATE)))
        for a, b in log.pairs:
            total += log.effect[a] * signals[a] * signals[b]
        for name, role in log.role.items():
            if role == "main":
                total += log.effect[name] * signals[name]
            elif role == "sparse main":
                total += log.effect[name] / math.sqrt(log.active) * signals[name]
            elif role == "drift":
                strength = faded if log.drift[name] == "grows" else 1 - faded
                total += log.effect[name] * strength * signals[name]
        return total.astype(np.float32)

    def _faded(self, time: Values) -> Values:
        """Return how far drifting effects have changed, from 0 to 1, (rows,)."""
        days = (time - FIRST_SECOND) / DAY
        if self.log.switch_days is not None:
            return np.asarray(days >= self.log.switch_days) * 1
        passed = np.clip(days / self.log.drift_days, 0, 1)
        return np.asarray((1 - np.cos(np.pi * passed)) / 2)

    @cached_property
    def _basis(self) -> dict[str, Floats]:
        """For each useful vector the direction that matters, and for each copy its rotation.

        The direction is (width, 1), the rotation (width, width).
        """
        found = {}
        for column in self.log.slots.values():
            if column.kind != "vector" or column.role not in (*USEFUL, "redundant"):
                continue
            directions = column.width if column.role == "redundant" else 1
            rng = _rng(self.log.seed, EFFECTS, scrambled(column.name))
            drawn = rng.standard_normal((column.width, directions))
            found[column.name] = np.linalg.qr(drawn).Q.astype(np.float32)
        return found

    @cached_property
    def _hash(self) -> dict[str, tuple[np.uint64, float, float]]:
        """For each useful field of ids its key, and mean and deviation of the key's effects."""
        found = {}
        for column in self.log.slots.values():
            if column.kind != "ids" or column.role not in USEFUL:
                continue
            rng = _rng(self.log.seed, EFFECTS, scrambled(column.name))
            key = rng.integers(2**64, dtype=np.uint64)
            ids = np.arange(1, column.cardinality)
            effects = _normal_of(ids, key)
            frequency = np.log1p(1 / ids) / math.log(column.cardinality)
            mean = float(frequency @ effects)
            found[column.name] = (key, mean, math.sqrt(frequency @ (effects - mean) ** 2))
        return found


def _normal_of(ids: Values, key: np.uint64) -> NDArray[np.float64]:
    """Return a standard normal number for each id, the same for the same id and key.

    It is computed from a hash (splitmix64), so that there is no need for a table.
    """
    bits = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + key
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    first = (bits >> np.uint64(32)) / 2**32
    second = (bits & np.uint64(0xFFFFFFFF)) / 2**32
    radius = np.sqrt(-2 * np.log1p(-first))  # Box and Muller
    normal: NDArray[np.float64] = radius * np.cos(2 * np.pi * second)
    return normal


def _rng(*numbers: int) -> Generator:
    return Generator(np.random.SFC64(np.random.SeedSequence(numbers)))
