"""Raw columns: the first pass over a file, which writes each column as an array, row by row.

The rows are in the order of the file, and the memory that they take while they are read is bounded.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import torch

from ..._common.errors import DataError
from .encoders import Array, Encoder, Numbers
from .options import Progress
from .source import Source, explained

CHUNK = 8 << 20  # bytes of a raw column that are looked at together


class Raw:
    """One raw column, written block by block and then read again.

    Args:
        encoder: The encoder of the column.
        path: The file that is written.
    """

    def __init__(self, encoder: Encoder, path: Path) -> None:
        self.encoder = encoder
        self.path = path
        self.file = path.open("wb")
        self._slots = encoder.slots  # a list's encoder learns a smaller number

    @property
    def name(self) -> str:
        """The name of the column in the file."""
        return self.encoder.column.name

    def append(self, source: Source, block: pl.DataFrame, computed: pl.Series, start: int) -> None:
        """Append the rows of a block.

        Args:
            source: The source of the block, for messages.
            block: The rows.
            computed: The computed expression of the encoder.
            start: The number of the first row in the source.
        """

        def place(row: int) -> str:
            return f"{source.name}, {source.row(start + row)}"

        found = self.encoder.read(computed, block[self.name], place)
        self.file.write(np.ascontiguousarray(found, dtype=self.encoder.dtype).data)

    def truncate(self, size: int) -> None:
        """Forget what was written after so many bytes."""
        self.file.seek(size)
        self.file.truncate()

    def chunks(self) -> Iterator[Array]:
        """Yield the raw rows again, some at a time, (rows, slots)."""
        dtype = np.dtype(self.encoder.dtype)
        rows = max(1, CHUNK // (dtype.itemsize * self._slots))
        with self.path.open("rb") as file:
            while len(found := np.fromfile(file, dtype, rows * self._slots)):
                yield found.reshape(-1, self._slots)

    def values(self) -> Array:
        """Return the first value of all rows, (rows,)."""
        return np.concatenate([chunk[:, 0] for chunk in self.chunks()])


def append_source(
    source: Source, raws: Sequence[Raw], progress: Progress, expected_rows: int
) -> int:
    """Append the rows of a source to the raw columns and return their number.

    Args:
        source: The rows.
        raws: The columns.
        progress: Called after each block.
        expected_rows: About how many rows there are, for the progress.
    """
    numbers = _plain_numbers(raws)
    if source.with_numbers is not None and numbers:
        starts = [raw.file.tell() for raw in raws]
        parsed = replace(source, frame=source.with_numbers(numbers))
        try:
            return _append_blocks(parsed, raws, progress, expected_rows)
        except DataError:
            # a number with blanks, or text: read again as text, which finds the row
            for raw, start in zip(raws, starts, strict=True):
                raw.truncate(start)
    return _append_blocks(source, raws, progress, expected_rows)


def _plain_numbers(raws: Sequence[Raw]) -> list[str]:
    """Return the columns that every encoder can read as numbers which polars has parsed."""
    as_text = set()
    for raw in raws:
        if type(raw.encoder) is not Numbers or not raw.encoder.plain:
            as_text.add(raw.name)
    return [raw.name for raw in raws if raw.name not in as_text]


def _append_blocks(
    source: Source, raws: Sequence[Raw], progress: Progress, expected_rows: int
) -> int:
    names = list(dict.fromkeys(raw.name for raw in raws))
    schema = source.schema()
    for raw in raws:
        raw.encoder.begin(schema[raw.name])
    rows = 0
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        written: list[Future[None]] = []  # a block is written while polars parses the next
        for block in source.blocks(names):
            computed = _computed(source, raws, block)
            _wait_for(written)
            written = [
                pool.submit(raw.append, source, block, values, rows)
                for raw, values in zip(raws, computed, strict=True)
            ]
            rows += len(block)
            progress("reading", rows, max(rows, expected_rows))
        _wait_for(written)
    if not rows:
        raise source.without_rows()
    return rows


def _wait_for(futures: Sequence[Future[None]]) -> None:
    for future in futures:
        future.result()


def _computed(source: Source, raws: Sequence[Raw], block: pl.DataFrame) -> list[pl.Series]:
    """Return the expression of each encoder, computed of a block."""
    wanted = [raw.encoder.expression().alias(str(number)) for number, raw in enumerate(raws)]
    try:
        return block.select(wanted).get_columns()
    except pl.exceptions.PolarsError as error:
        raise explained(error, source) from error
