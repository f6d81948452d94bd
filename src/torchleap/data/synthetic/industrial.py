"""An endless search-ranking log with hundreds of fields, of which it is known what each is for.

The log is drawn in chunks of fixed size, each from its own seed, so that any cut through it gives the same rows.
"""

import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ..._common.checks import is_number, is_seed, is_whole, refuse_settings
from ..._common.errors import TorchleapError
from ..._common.files import make_folder, replace_file
from .industrial_fields import (
    USEFUL,
    USELESS,
    Column,
    Floats,
    Kind,
    Role,
    Slot,
    Values,
    dims_possible,
    fewest_fields,
    partner,
    shuffled,
    slots_of,
    widths_of,
)

if TYPE_CHECKING:
    from polars import DataFrame, Series

    from ..task import Task

MOST_FIELDS = 100_000
CHUNK = 4_000  # rows; 160 times two queries that have 25 rows together
QUERIES = 320  # in a chunk
GROUP = 8_000  # rows in a row group of a file
DAY = 86_400  # seconds
FIRST_SECOND = 1_767_225_600  # 2026-01-01
ROWS_BEFORE_DEATH = 1_000
COPY_NOISE = 0.1  # standard deviation for numbers and vectors, share of wrong ids
SIGNAL = 1.4  # standard deviation of the log odds, for a Bayes AUC of 0.8
BASE_RATE = 0.15
STRENGTH: dict[Role, float] = {"main": 1.0, "pair": 1.5, "sparse main": 0.6, "drift": 1.0}


@dataclass(frozen=True)
class IndustrialLog:
    """A search-ranking log with a known truth; `frame`, `stream` and `write` give any rows of it.

    Fields are statistics (numbers), ids, which follow Zipf's law, and behaviour embeddings, given as vectors or as ids with wide
    tables. The label is drawn from the logistic of the sum of all effects: of a number itself, of a direction of a vector, or of
    a hash of an id. Names, widths and order depend on `fields` and `dims` alone; the seed decides about effects and rows.

    The roles: "main" fields have an effect, those of a "pair" only through their product, "drift" fields one that fades out or
    grows with time; "redundant" fields are noisy copies of a main field; "sparse" fields are 0 in nearly all rows; "dead" fields
    are null from the first row on, or after 1,000 rows; "noise" and "constant" fields say nothing.

    Args:
        dims: Dimensions of all fields together, in the model: about half of the wide ones are tables of ids.
        drift_days: After so many days the fading effects are gone and the growing ones have their full size.
        switch_days: After so many days they change at once, instead of slowly.
        active: The share of rows in which a sparse field is not 0.

    >>> log = IndustrialLog(fields=64, dims=1_000, seed=0)
    >>> len(log.widths), sum(log.widths.values()), log.role["main_number_1_000"]
    (64, 1000, 'main')
    """

    fields: int = 512
    dims: int = 12_000
    queries_per_day: int = 4_000
    drift_days: float = 10.0
    users: int = 20_000
    active: float = 0.01
    seed: int = 0
    switch_days: float | None = None

    def __post_init__(self) -> None:
        least = fewest_fields()
        enough = is_whole(self.fields) and least <= self.fields <= MOST_FIELDS
        low, high = dims_possible(slots_of(self.fields)) if enough else (1, sys.maxsize)
        rules = {
            "fields": (
                f"a whole number of at least {least}, to hold every role, and at most {MOST_FIELDS:,}",
                enough,
            ),
            "dims": (
                f"{low:,} to {high:,} for {self.fields} fields (fewer or more fields take fewer or more)",
                is_whole(self.dims) and low <= self.dims <= high,
            ),
            "queries_per_day": (
                "a whole number of at least 1",
                is_whole(self.queries_per_day) and self.queries_per_day >= 1,
            ),
            "drift_days": (
                "a number above 0",
                is_number(self.drift_days) and 0 < self.drift_days < math.inf,
            ),
            "switch_days": (
                "a number of at least 0, or None",
                self.switch_days is None or (is_number(self.switch_days) and self.switch_days >= 0),
            ),
            "users": ("a whole number of at least 1", is_whole(self.users) and self.users >= 1),
            "active": (
                "a share above 0 and up to 1",
                is_number(self.active) and 0 < self.active <= 1,
            ),
            "seed": ("a whole number from 0 to 4,294,967,295", is_seed(self.seed)),
        }
        refuse_settings(
            {
                f"{name} must be {text}, but is {getattr(self, name)!r}": ok
                for name, (text, ok) in rules.items()
            }
        )

    @cached_property
    def columns(self) -> dict[str, Column]:
        """Everything about each field, in field order, which says nothing about the roles."""
        return {
            column.name: column
            for column in sorted(self._columns.values(), key=lambda column: shuffled(column.name))
        }

    @cached_property
    def role(self) -> dict[str, Role]:
        """What each field is for, in field order."""
        return {name: column.role for name, column in self.columns.items()}

    @cached_property
    def kind(self) -> dict[str, Kind]:
        """How each field is given."""
        return {name: column.kind for name, column in self.columns.items()}

    @cached_property
    def widths(self) -> dict[str, int]:
        """The dimensions of each field in the model: 1 for a number, the table's width for ids, the length of a vector."""
        return {name: column.width for name, column in self.columns.items()}

    @cached_property
    def cardinality(self) -> dict[str, int]:
        """The rows of the table that each field of ids needs; ids are below it."""
        return {
            name: column.cardinality
            for name, column in self.columns.items()
            if column.kind == "ids"
        }

    @property
    def schema(self) -> dict[str, dict[str, Any]]:
        """What `read` is to make of each field."""
        kinds = {"number": {"kind": "numeric"}, "vector": {"kind": "vector"}}
        ids = {"kind": "categorical"}
        return {
            n: kinds[kind] if kind in kinds else {**ids, "width": self.widths[n]}
            for n, kind in self.kind.items()
        }

    @property
    def useful(self) -> tuple[str, ...]:
        """The fields that the label depends on, if only for some time."""
        return tuple(name for name, role in self.role.items() if role in USEFUL)

    @property
    def useless(self) -> tuple[str, ...]:
        """The fields that say nothing about the label; redundant ones are neither."""
        return tuple(name for name, role in self.role.items() if role in USELESS)

    @cached_property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The fields that matter through their product alone."""
        firsts = [slot for slot in self._columns if slot[0] == "pair" and slot[2] % 2 == 0]
        return tuple(
            (self._columns[slot].name, self._columns[partner(slot)].name) for slot in firsts
        )

    @cached_property
    def source(self) -> dict[str, str]:
        """The main field that each redundant one is a copy of."""
        copies = [slot for slot in self._columns if slot[0] == "redundant"]
        return {self._columns[slot].name: self._columns[partner(slot)].name for slot in copies}

    @cached_property
    def drift(self) -> dict[str, Literal["fades", "grows"]]:
        """Where the effect of each drifting field goes."""
        drifting = [column for column in self.columns.values() if column.role == "drift"]
        return {column.name: "grows" if column.number % 2 else "fades" for column in drifting}

    @cached_property
    def effect(self) -> dict[str, float]:
        """The standard deviation over all rows that a useful field, or its pair, adds to the log odds when it is fully there."""
        useful = [self.columns[name] for name in self.useful]
        raw = {c.name: STRENGTH[c.role] * (1.4, 1.0, 0.7)[c.number // 2 % 3] for c in useful}
        second = {b for _, b in self.pairs}  # a pair counts once
        total = math.sqrt(sum(size**2 for name, size in raw.items() if name not in second))
        return {name: SIGNAL * size / total for name, size in raw.items()}

    def frame(self, rows: int, start: int = 0) -> "DataFrame":
        """The rows from `start` on: label, user, query, time, and the fields in order."""
        return next(self._cut(_whole("rows", rows, 0), _whole("start", start, 0)))

    def stream(self, chunk: int = 8_192, start: int = 0) -> "Iterator[DataFrame]":
        """The rows from `start` on, `chunk` at a time, without end."""
        return self._cut(_whole("chunk", chunk, 1), _whole("start", start, 0))

    def write(
        self, path: str | os.PathLike[str], rows: int, progress: Callable[[int], None] | None = None
    ) -> None:
        """Write the first rows to a Parquet file, which appears whole or not at all.

        Args:
            progress: Is told the number of rows done, after each row group.
        """
        target = Path(path)
        if target.suffix != ".parquet":
            raise TorchleapError(
                f"Expected a path that ends in .parquet, but found {str(path)!r}. Give the file that ending."
            )
        _whole("rows", rows, 0)
        make_folder(target.parent)
        with replace_file(target) as temporary:
            self._write_groups(temporary, rows, progress or (lambda done: None))

    def signals(self, frame: "DataFrame") -> dict[str, Floats]:
        """What the label sees of each useful field: a number a row, of mean 0 and variance 1 where the field is not sparse 0."""
        return {
            name: self._signal(self.columns[name], frame[name].to_numpy()) for name in self.useful
        }

    def log_odds(self, frame: "DataFrame") -> Floats:
        """The true log odds of the label; no model can do better."""
        return self._log_odds(self.signals(frame), frame["time"].to_numpy())

    @cached_property
    def _columns(self) -> dict[Slot, Column]:
        """The fields in the order in which they are drawn: sources before their copies."""
        slots = slots_of(self.fields)
        widths = widths_of(slots, self.dims)
        return {slot: Column(*slot, width=widths[slot]) for slot in slots}

    def _cut(self, rows: int, start: int) -> "Iterator[DataFrame]":
        concat: Callable[..., DataFrame] = _need("polars").concat
        number, before = divmod(start, CHUNK)
        waiting = [self._chunk(number)[before:]]
        while True:
            while sum(map(len, waiting)) < rows:
                number += 1
                waiting.append(self._chunk(number))
            together = concat(waiting)
            waiting = [together[rows:]]
            yield together[:rows]

    def _write_groups(self, path: Path, rows: int, progress: Callable[[int], None]) -> None:
        parquet = _need("pyarrow.parquet")
        schema = self.frame(0).to_arrow().schema
        plain = {
            "compression": "zstd",
            "use_dictionary": list(self.cardinality),
        }  # other values hardly repeat
        with parquet.ParquetWriter(path, schema, **plain) as writer:
            for done, frame in zip(range(0, rows, GROUP), self.stream(GROUP), strict=False):
                part = frame[: rows - done]
                writer.write_table(part.to_arrow(), row_group_size=GROUP)
                progress(done + len(part))

    def _chunk(self, number: int) -> "DataFrame":
        """All rows of one chunk; a function of settings and number alone."""
        rng = _rng(self.seed, 1, number)
        rows = self._draw_queries(number, rng)
        values: dict[str, Values] = {}
        for column in self._columns.values():
            values[column.name] = self._draw(column, number, values, rng)
        signals = {name: self._signal(self.columns[name], values[name]) for name in self.useful}
        odds = self._log_odds(signals, rows["time"])
        label = rng.random(CHUNK, dtype=np.float32) < 1 / (1 + np.exp(-odds))
        ordered = {"label": label.astype(np.int8), **rows} | {
            name: values[name] for name in self.columns
        }
        frame: DataFrame = _need("polars").DataFrame(
            [_series(name, found) for name, found in ordered.items()]
        )
        return frame

    def _draw_queries(self, number: int, rng: Generator) -> dict[str, Values]:
        """User, query and time: queries of 5 to 20 rows that fill the chunk exactly."""
        half = rng.integers(5, 21, QUERIES // 2)
        sizes = rng.permutation(np.concatenate([half, 25 - half]))
        query = number * QUERIES + np.arange(QUERIES)
        moment = query + rng.random(
            QUERIES
        )  # in queries since the first; rising, since each stays in its own slot
        time = FIRST_SECOND + (moment * (DAY / self.queries_per_day)).astype(np.int64)
        user = (self.users * rng.random(QUERIES) ** 2).astype(
            np.int64
        )  # some search more than others
        return {
            "user": np.repeat(user, sizes),
            "query": np.repeat(query, sizes),
            "time": np.repeat(time, sizes),
        }

    def _draw(
        self, column: Column, number: int, drawn: Mapping[str, Values], rng: Generator
    ) -> Values:
        """The values of a field in a chunk; fewer than the chunk has rows if the rest is null."""
        if column.role == "constant":
            return column.zeros(CHUNK) + 1
        if column.role == "dead":
            return column.draw(ROWS_BEFORE_DEATH if number == 0 and column.number % 2 else 0, rng)
        if column.role == "redundant":
            return self._copy(column, drawn[self.source[column.name]], rng)
        if column.role in ("sparse main", "sparse noise"):
            values, places = (
                column.zeros(CHUNK),
                np.flatnonzero(rng.random(CHUNK, dtype=np.float32) < self.active),
            )
            values[places] = column.draw(len(places), rng)
            return values
        return column.draw(CHUNK, rng)

    def _copy(self, column: Column, source: Values, rng: Generator) -> Values:
        other = column.draw(CHUNK, rng)
        if column.kind == "ids":
            wrong = rng.random(CHUNK, dtype=np.float32) < COPY_NOISE
            return column.relabel(np.where(wrong, other, source))
        other *= np.float32(COPY_NOISE)
        other += source @ self._basis[column.name] if column.kind == "vector" else source
        return other

    def _signal(self, column: Column, values: Values) -> Floats:
        if column.kind == "number":
            return values
        if column.kind == "vector":
            return (values @ self._basis[column.name])[:, 0]
        key, mean, size = self._hash[column.name]
        return np.where(values > 0, (_normal_of(values, key) - mean) / size, 0).astype(np.float32)

    def _log_odds(self, signals: Mapping[str, Floats], time: Values) -> Floats:
        """The sum of all effects (rows,)."""
        spread = math.sqrt(
            1 + math.pi / 8 * SIGNAL**2
        )  # how much a normal of this size flattens the logistic
        days = (time - FIRST_SECOND) / DAY
        slowly = (1 - np.cos(np.pi * np.clip(days / self.drift_days, 0, 1))) / 2
        faded = slowly if self.switch_days is None else days >= self.switch_days
        total = np.full(len(time), spread * math.log(BASE_RATE / (1 - BASE_RATE)))
        for a, b in self.pairs:
            total += self.effect[a] * signals[a] * signals[b]
        for name, role in self.role.items():
            if role in ("main", "sparse main"):
                total += (
                    self.effect[name]
                    / (math.sqrt(self.active) if role == "sparse main" else 1)
                    * signals[name]
                )
            elif role == "drift":
                total += (
                    self.effect[name]
                    * (faded if self.drift[name] == "grows" else 1 - faded)
                    * signals[name]
                )
        return total.astype(np.float32)

    @cached_property
    def _basis(self) -> dict[str, Floats]:
        """For each useful vector the direction that matters, (width, 1); for each copy of one its rotation, (width, width)."""
        found = {}
        for column in self._columns.values():
            if column.kind == "vector" and column.role in (*USEFUL, "redundant"):
                wanted = (column.width, column.width if column.role == "redundant" else 1)
                found[column.name] = np.linalg.qr(
                    _rng(self.seed, 0, shuffled(column.name)).standard_normal(wanted)
                ).Q.astype(np.float32)
        return found

    @cached_property
    def _hash(self) -> dict[str, tuple[np.uint64, float, float]]:
        """For each useful field of ids its key, and mean and standard deviation of the effects that the key gives."""
        found = {}
        for column in self._columns.values():
            if column.kind == "ids" and column.role in USEFUL:
                key, ids = (
                    _rng(self.seed, 0, shuffled(column.name)).integers(2**64, dtype=np.uint64),
                    np.arange(1, column.cardinality),
                )
                effects, share = (
                    _normal_of(ids, key),
                    np.log1p(1 / ids) / math.log(column.cardinality),
                )
                mean = float(share @ effects)
                found[column.name] = (key, mean, math.sqrt(share @ (effects - mean) ** 2))
        return found


def _normal_of(ids: Values, key: np.uint64) -> NDArray[np.float64]:
    """A standard normal number for each id: the same for the same id and key, so that there is no need for a table."""
    bits = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + key  # splitmix64
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    first, second = (bits >> np.uint64(32)) / 2**32, (bits & np.uint64(0xFFFFFFFF)) / 2**32
    normal: NDArray[np.float64] = np.sqrt(-2 * np.log1p(-first)) * np.cos(
        2 * np.pi * second
    )  # Box and Muller
    return normal


def _rng(*numbers: int) -> Generator:
    return Generator(np.random.SFC64(np.random.SeedSequence(numbers)))


def _series(name: str, values: Values) -> "Series":
    """A column of a chunk; rows beyond the values are null."""
    polars = _need("polars")
    found: Series = polars.Series(name, values)
    missing = CHUNK - len(values)
    return (
        found.append(polars.repeat(None, missing, dtype=found.dtype, eager=True))
        if missing
        else found
    )


def _need(package: str) -> Any:
    """A package of the extra `data`, imported where it is used."""
    try:
        return import_module(package)
    except ImportError as error:
        raise TorchleapError(
            f"The log needs the package {package}. Install it: pip install 'torchleap[data]'."
        ) from error


def _whole(name: str, value: int, least: int) -> int:
    refuse_settings(
        {
            f"{name} must be a whole number of at least {least}, but is {value!r}": is_whole(value)
            and value >= least
        }
    )
    return value


def industrial(
    rows: int = 100_000,
    *,
    fields: int = 64,
    dims: int = 1_000,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> "Task":
    """The industrial log as a task: written and encoded once, split by time, with queries as the groups of GAUC.

    Args:
        folder: Where to keep it; the user's cache if left out.
    """
    from ..._common.plain import key_of
    from ..files.cache import cache_folder, once
    from ..files.read import read

    log = IndustrialLog(fields=fields, dims=dims, seed=seed)
    tell = progress or (lambda *_: None)
    kept = cache_folder(None, folder)
    key = f"industrial_{key_of([rows, fields, dims, seed, np.__version__])}"

    def make(temporary: Path) -> None:
        log.write(temporary / "log.parquet", rows, lambda done: tell("making", done, rows))

    path = once(kept, key, make, complete="log.parquet") / "log.parquet"
    return read(
        path,
        label="label",
        columns=log.schema,
        only=tuple(log.role),
        time="time",
        group="query",
        progress=progress,
    )
