"""A synthetic search-ranking log with hundreds of fields and known ground truth.

The log is endless. It is drawn in chunks of fixed size, each from its own seed, so that any cut
through it gives the same rows.
"""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..._common.checks import LARGEST_SEED, check_arguments, check_settings, setting, whole
from ..._common.errors import TorchleapError
from ..._common.files import make_folder, replace_file
from ..._common.optional import need
from ..._common.plain import key_of
from .industrial_fields import (
    FEWEST_FIELDS,
    USEFUL,
    USELESS,
    Floats,
    Kind,
    LogField,
    Role,
    Slot,
    dims_possible,
    partner,
    scrambled,
    slots_of,
    widths_of,
)
from .industrial_rows import CHUNK, SIGNAL, LogRows

if TYPE_CHECKING:
    from polars import DataFrame

    from ..task import Task

MOST_FIELDS = 100_000
GROUP = 8_000  # rows in a row group of a file
STRENGTH: dict[Role, float] = {"main": 1.0, "pair": 1.5, "sparse main": 0.6, "drift": 1.0}
SIZES = (1.4, 1.0, 0.7)  # of the effects of a role, in turn


@dataclass(frozen=True)
class IndustrialLog:
    """A search-ranking log with known ground truth; `frame`, `stream` and `write` give its rows.

    Fields are statistics (numbers), ids, which follow Zipf's law, and behaviour embeddings, given
    as vectors or as ids with wide tables. The label is drawn from the logistic of the sum of all
    effects: of a number itself, of a direction of a vector, or of a hash of an id. Names, widths
    and order depend on `fields` and `dims` alone; the seed determines effects and rows.

    The roles: "main" fields have an effect, those of a "pair" only through their product, "drift"
    fields one that fades out or grows with time; "redundant" fields are noisy copies of a main
    field; "sparse" fields are 0 in nearly all rows; "dead" fields are null from the first row on,
    or after 1,000 rows; "noise" and "constant" fields carry no information.

    Args:
        fields: The number of fields.
        dims: The dimensions of all fields together, in the model; about half of the wide ones are
            tables of ids.
        queries_per_day: The number of queries per day; each has 5 to 20 rows.
        drift_days: The number of days after which fading effects are 0 and growing ones have
            their full size.
        users: The number of users.
        active: The fraction of rows in which a sparse field is not 0.
        seed: The seed of effects and rows.
        switch_days: The number of days after which drifting effects change at once; None changes
            them slowly.

    >>> log = IndustrialLog(fields=64, dims=1_000, seed=0)
    >>> len(log.widths), sum(log.widths.values()), log.role["main_number_1_000"]
    (64, 1000, 'main')
    """

    fields: int = setting(512, at_least=FEWEST_FIELDS, at_most=MOST_FIELDS)
    dims: int = 12_000
    queries_per_day: int = setting(4_000, at_least=1)
    drift_days: float = setting(10.0, above=0)
    users: int = setting(20_000, at_least=1)
    active: float = setting(0.01, above=0, at_most=1)
    seed: int = setting(0, at_least=0, at_most=LARGEST_SEED)
    switch_days: float | None = setting(None, at_least=0)

    def __post_init__(self) -> None:
        check_settings(self)
        low, high = dims_possible(slots_of(self.fields))
        wanted = f"{low:,} to {high:,} for {self.fields} fields"
        more = "fewer or more fields take fewer or more"
        sentence = f"dims must be {wanted} ({more}), but is {self.dims!r}"
        check_arguments({sentence: low <= self.dims <= high})

    @cached_property
    def columns(self) -> dict[str, LogField]:
        """Everything about each field, in field order, which does not depend on the roles."""
        ordered = sorted(self.slots.values(), key=lambda column: scrambled(column.name))
        return {column.name: column for column in ordered}

    @cached_property
    def slots(self) -> dict[Slot, LogField]:
        """The fields in the order in which they are drawn: sources before their copies."""
        slots = slots_of(self.fields)
        widths = widths_of(slots, self.dims)
        return {slot: LogField(*slot, width=widths[slot]) for slot in slots}

    @cached_property
    def role(self) -> dict[str, Role]:
        """The role of each field, in field order."""
        return {name: column.role for name, column in self.columns.items()}

    @cached_property
    def kind(self) -> dict[str, Kind]:
        """The kind of each field: "number", "ids" or "vector"."""
        return {name: column.kind for name, column in self.columns.items()}

    @cached_property
    def widths(self) -> dict[str, int]:
        """The dimensions of each field in the model.

        They are 1 for a number, the width of the table for ids, and the length of a vector.
        """
        return {name: column.width for name, column in self.columns.items()}

    @cached_property
    def cardinality(self) -> dict[str, int]:
        """The rows of the table that each field of ids needs; ids are below it."""
        ids = [column for column in self.columns.values() if column.kind == "ids"]
        return {column.name: column.cardinality for column in ids}

    @property
    def schema(self) -> dict[str, dict[str, Any]]:
        """The settings of each field for `read`."""
        found: dict[str, dict[str, Any]] = {}
        for name, kind in self.kind.items():
            if kind == "ids":
                found[name] = {"kind": "categorical", "width": self.widths[name]}
            else:
                found[name] = {"kind": "vector" if kind == "vector" else "numeric"}
        return found

    @property
    def useful(self) -> tuple[str, ...]:
        """The fields that the label depends on, if only for some time."""
        return tuple(name for name, role in self.role.items() if role in USEFUL)

    @property
    def useless(self) -> tuple[str, ...]:
        """The fields that the label does not depend on; redundant ones are not among them."""
        return tuple(name for name, role in self.role.items() if role in USELESS)

    @cached_property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The fields that matter through their product alone."""
        found = []
        for slot, column in self.slots.items():
            role, _, number = slot
            if role == "pair" and number % 2 == 0:
                found.append((column.name, self.slots[partner(slot)].name))
        return tuple(found)

    @cached_property
    def source(self) -> dict[str, str]:
        """The main field that each redundant one is a copy of."""
        found = {}
        for slot, column in self.slots.items():
            if column.role == "redundant":
                found[column.name] = self.slots[partner(slot)].name
        return found

    @cached_property
    def drift(self) -> dict[str, Literal["fades", "grows"]]:
        """The direction in which the effect of each drifting field changes."""
        drifting = [column for column in self.columns.values() if column.role == "drift"]
        return {column.name: "grows" if column.number % 2 else "fades" for column in drifting}

    @cached_property
    def effect(self) -> dict[str, float]:
        """The standard deviation that a useful field, or its pair, adds to the log odds.

        It is taken over all rows, with drifting effects at their full size.
        """
        raw = {}
        for name in self.useful:
            column = self.columns[name]
            raw[name] = STRENGTH[column.role] * SIZES[column.number // 2 % len(SIZES)]
        second = {b for _, b in self.pairs}  # a pair counts once
        total = math.sqrt(sum(size**2 for name, size in raw.items() if name not in second))
        return {name: SIGNAL * size / total for name, size in raw.items()}

    @cached_property
    def _rows(self) -> LogRows:
        return LogRows(self)

    def frame(self, rows: int, start: int = 0) -> "DataFrame":
        """Return rows from `start` on: label, user, query, time, and the fields in order."""
        check_arguments(rows=whole(rows, at_least=0), start=whole(start, at_least=0))
        return next(self._cut(rows, start))

    def stream(self, chunk: int = 8_192, start: int = 0) -> "Iterator[DataFrame]":
        """Return the rows from `start` on, `chunk` rows at a time, without end."""
        check_arguments(chunk=whole(chunk, at_least=1), start=whole(start, at_least=0))
        return self._cut(chunk, start)

    def write(
        self, path: str | os.PathLike[str], rows: int, progress: Callable[[int], None] | None = None
    ) -> None:
        """Write the first rows to a Parquet file, which is replaced atomically.

        Args:
            path: The file, which ends in .parquet.
            rows: The number of rows.
            progress: Called with the number of rows done, after each row group.
        """
        target = Path(path)
        if target.suffix != ".parquet":
            raise TorchleapError(
                f"Expected a path that ends in .parquet, but found {str(path)!r}. "
                "Give the file that ending."
            )
        check_arguments(rows=whole(rows, at_least=0))
        make_folder(target.parent)
        with replace_file(target) as temporary:
            self._write_groups(temporary, rows, progress or (lambda done: None))

    def _write_groups(self, path: Path, rows: int, progress: Callable[[int], None]) -> None:
        parquet = need("pyarrow.parquet", "data", "The log")
        schema = self.frame(0).to_arrow().schema
        repeated = list(self.cardinality)  # other values hardly repeat
        with parquet.ParquetWriter(
            path, schema, compression="zstd", use_dictionary=repeated
        ) as writer:
            for done, frame in zip(range(0, rows, GROUP), self.stream(GROUP), strict=False):
                part = frame[: rows - done]
                writer.write_table(part.to_arrow(), row_group_size=GROUP)
                progress(done + len(part))

    def signals(self, frame: "DataFrame") -> dict[str, Floats]:
        """Return the number per row through which each useful field affects the label.

        It has mean 0 and variance 1 where the field is not sparse 0.
        """
        return self._rows.signals({name: frame[name].to_numpy() for name in self.useful})

    def log_odds(self, frame: "DataFrame") -> Floats:
        """Return the true log odds of the label; no model can do better."""
        return self._rows.log_odds(self.signals(frame), frame["time"].to_numpy())

    def _cut(self, rows: int, start: int) -> "Iterator[DataFrame]":
        """Yield the rows from `start` on, so many at a time."""
        polars = need("polars", "data", "The log")
        number, before = divmod(start, CHUNK)
        waiting = [self._chunk(number)[before:]]
        while True:
            while sum(map(len, waiting)) < rows:
                number += 1
                waiting.append(self._chunk(number))
            together = polars.concat(waiting)
            waiting = [together[rows:]]
            yield together[:rows]

    def _chunk(self, number: int) -> "DataFrame":
        """Return all rows of one chunk; rows beyond the values of a field are null."""
        polars = need("polars", "data", "The log")
        columns = []
        for name, values in self._rows.chunk(number).items():
            column = polars.Series(name, values)
            missing = CHUNK - len(values)
            if missing:
                column.append(polars.repeat(None, missing, dtype=column.dtype, eager=True))
            columns.append(column)
        found: DataFrame = polars.DataFrame(columns)
        return found


def industrial(
    rows: int = 100_000,
    *,
    fields: int = 64,
    dims: int = 1_000,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> "Task":
    """Return the industrial log as a task: split by time, with queries as the groups of GAUC.

    It is written and encoded once, and kept.

    Args:
        rows: The number of rows.
        fields: The number of fields, as in `IndustrialLog`.
        dims: The dimensions of all fields together, as in `IndustrialLog`.
        seed: The seed of effects and rows.
        folder: The folder in which it is kept; None is the user's cache.
        progress: Called with the step, how many rows or columns are done, and of how many.
    """
    from ..files.cache import cache_folder, once
    from ..files.options import no_progress
    from ..files.read import read

    log = IndustrialLog(fields=fields, dims=dims, seed=seed)
    report = progress or no_progress
    key = f"industrial_{key_of([rows, fields, dims, seed, np.__version__])}"

    def make(temporary: Path) -> None:
        log.write(temporary / "log.parquet", rows, lambda done: report("making", done, rows))

    kept = once(cache_folder(None, folder), key, make, complete="log.parquet")
    return read(
        kept / "log.parquet",
        label="label",
        columns=log.schema,
        only=tuple(log.role),
        time="time",
        group="query",
        progress=progress,
    )
