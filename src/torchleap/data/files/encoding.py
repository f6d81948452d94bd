"""Encoding: new rows for a trained model, encoded by what the train rows of a task have taught."""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from ..._common.checks import is_whole
from ..._common.errors import DataError, nearest, shown
from ...fields import Field, Fields
from ...selection import Selection
from ..batches import Batch, joined
from ..columns import TaskColumn
from ..task import Task
from .alike import made_alike
from .encoders import Array
from .encoding_folder import MANIFEST, SavedColumn, read_encoding, write_encoding
from .known_column import KnownColumn
from .open import open_source
from .options import Progress, no_progress
from .source import BLOCK, SAMPLE_ROWS, Source, expected_rows, explained

__all__ = ["MANIFEST", "Encoding", "save_encoding"]

AT_ONCE = 64 << 20  # bytes of encoded rows that are made together
DAMAGES = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    OSError,
    pl.exceptions.PolarsError,
)


def save_encoding(
    task: Task, folder: str | os.PathLike[str], only: Iterable[str] | Selection | None = None
) -> None:
    """Write to a folder all that it takes to encode new rows as this task's were encoded.

    An encoding in the folder is replaced atomically. Loading it runs no code: it is JSON and
    Parquet.

    Args:
        task: The task.
        folder: The folder.
        only: The columns to write; None writes all.
    """
    if only is not None:
        task = task.only(only)
    write_encoding(Path(folder), [_saved(task, column) for column in task.columns])


def _saved(task: Task, column: TaskColumn) -> SavedColumn:
    """Return what the folder of a task holds about a column."""
    path = task.verified(Path(column.file).with_suffix(".parquet").name)
    try:
        stored = pl.read_parquet(path, glob=False)
        dtype = stored["type"].dtype  # which an earlier version did not write
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(
            f"{path} is gone, damaged or of an earlier version. "
            f"Remove {task.folder} and read the data again."
        ) from error
    vocabulary = pl.Series(dtype=pl.String)
    if "value" in stored.columns:
        vocabulary = stored["value"]
    return SavedColumn(column, vocabulary, dtype)


@dataclass(frozen=True)
class Encoding:
    """What train rows have taught, to encode new rows by.

    New rows must have its columns, and may have others.
    """

    columns: tuple[TaskColumn, ...]
    _known: tuple[KnownColumn, ...] = field(repr=False, compare=False)
    _lock: Any = field(default_factory=Lock, repr=False, compare=False)  # one block at a time

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "Encoding":
        """Return the encoding that `save_encoding` wrote to a folder."""
        cure = "Write it again: save_encoding(task, folder)."
        try:
            saved = read_encoding(Path(folder))
            with ThreadPoolExecutor(torch.get_num_threads()) as pool:
                known = tuple(pool.map(KnownColumn, saved))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DataError(
                f"{folder} does not hold a complete encoding: "
                f"there is no {Path(error.filename).name} in it. {cure}"
            ) from error
        except DAMAGES as error:
            raise DataError(
                f"The encoding in {folder} is damaged or of another version "
                f"({shown(error, 120)}). {cure}"
            ) from error
        return cls(tuple(one.column for one in known), known)

    @cached_property
    def fields(self) -> Fields:
        """The fields that the model reads: one for each column, with its width."""
        return Fields([Field(column.name, column.width) for column in self.columns])

    def batches(
        self,
        data: Any,
        rows: int = 65536,
        *,
        separator: str | None = None,
        names: Sequence[str] | None = None,
        progress: Progress | None = None,
    ) -> Iterator[Batch]:
        """Return all rows in their order, in batches with the label 0.

        Names and types of columns are checked at once, values when their block is read. Rows must
        be as `read` saw them: the changes that `criteo` or `movielens_1m` make to their files are
        not made here.

        Args:
            data: A file, a folder, a pattern or a frame, as for `read`.
            rows: The number of rows per batch; the last batch has fewer.
            separator: The character between the columns of CSV; None finds it in the first line.
            names: The names of the columns of CSV files without a header; None if they have one.
            progress: Called with the step, how many rows are done, and of about how many.
        """
        if not is_whole(rows) or rows < 1:
            raise DataError(f"rows must be a whole number of at least 1, but is {rows!r}.")
        opened = open_source(data, separator=separator, names=names)
        source = self._made_alike(opened)
        sample = opened.sample(1 if progress is None else SAMPLE_ROWS)
        source.refuse_short_lines()
        expected = 0
        if progress is not None:
            expected = expected_rows([opened], sample)
        return _in_batches(self._encoded(source, progress or no_progress, expected), int(rows))

    def _made_alike(self, source: Source) -> Source:
        """Return the columns of new rows with the types of train rows, where nothing is lost."""
        found = source.schema()
        self._refuse_lacking(source, found.names())
        types = pl.Schema({one.column.name: one.dtype for one in self._known})
        wanted = []
        for name, dtype in types.items():
            column = pl.col(name)
            wanted.append(column.cast(dtype) if found[name] == pl.Null else column)
        chosen = source.changed(lambda frame: frame.select(wanted))
        return made_alike(chosen, types, {one.name: one.column.kind for one in self.columns})

    def _refuse_lacking(self, source: Source, present: Sequence[str]) -> None:
        lacking = [column.name for column in self.columns if column.name not in present]
        if not lacking:
            return
        more = ", which the model reads"
        if len(lacking) > 1:
            more = f" and {len(lacking) - 1} more that the model reads"
        cure = nearest(lacking[0], present)
        if source.text:
            cure += " If its first line is not a header, name the columns: names=[...]."
        raise DataError(f"{source.name} lacks the column {lacking[0]!r}{more}. {cure}")

    def _encoded(self, source: Source, progress: Progress, expected: int) -> Iterator[Batch]:
        """Yield the rows in blocks of a size that fits into memory."""
        schema = source.schema()
        bytes_per_row = 4 * sum(column.slots for column in self.columns)
        size = max(1, min(BLOCK, AT_ONCE // bytes_per_row))
        start = 0
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            try:
                for block in source.blocks(source.names(), size):
                    with self._lock:
                        batch = self._batch(source, schema, block, start, pool)
                    start += len(block)
                    progress("reading", start, max(start, expected))
                    yield batch
            except pl.exceptions.PolarsError as error:
                raise explained(error, source) from error

    def _batch(
        self,
        source: Source,
        schema: pl.Schema,
        block: pl.DataFrame,
        start: int,
        pool: ThreadPoolExecutor,
    ) -> Batch:
        def place(row: int) -> str:
            return f"{source.name}, {source.row(start + row)}"

        def encoded(one: KnownColumn, values: pl.Series) -> Array:
            return one.encoded(values, block[one.column.name], place)

        expressions = []
        for number, one in enumerate(self._known):
            one.encoder.begin(schema[one.column.name])
            expressions.append(one.encoder.expression().alias(str(number)))
        computed = block.select(expressions).get_columns()
        parts = list(pool.map(encoded, self._known, computed))
        ids = self._side_by_side(parts, np.int32, len(block), ids=True)
        numbers = self._side_by_side(parts, np.float32, len(block), ids=False)
        return Batch(ids, numbers, torch.zeros(len(block)))

    def _side_by_side(
        self, parts: Sequence[Array], dtype: type[np.generic], rows: int, *, ids: bool
    ) -> Tensor:
        """Return the parts of all columns with ids, or of all with numbers, as one tensor."""
        chosen = [np.empty((rows, 0), dtype)]
        for column, part in zip(self.columns, parts, strict=True):
            if column.is_ids == ids:
                chosen.append(part)
        return torch.from_numpy(np.concatenate(chosen, axis=1))


def _in_batches(blocks: Iterator[Batch], rows: int) -> Iterator[Batch]:
    """Yield the same rows, cut into batches of one size."""
    parts: list[Batch] = []
    lacking = rows
    for block in blocks:
        start = 0
        while start < len(block):
            part = block.take(slice(start, start + lacking))
            parts.append(part)
            start += len(part)
            lacking -= len(part)
            if not lacking:
                yield joined(parts)
                parts = []
                lacking = rows
    if parts:
        yield joined(parts)
