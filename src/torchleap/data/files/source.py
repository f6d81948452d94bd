"""Source: rows to be read block by block, from files of any format or from a frame in memory."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
import pyarrow as pa

from ..._common.errors import DataError
from ..._common.text import first_line
from .lines import bad_line, line_of_record, short_line
from .packed import PACKED

BLOCK = 1 << 17  # rows that are read at once
SAMPLE_ROWS = 20_000  # from which kinds are inferred
COUNTED = 2_000_000  # rows up to which the line of a row is looked for
MOST_ROWS = 1 << 31  # of a frame; polars counts with 32 bits
PIECES = 64  # of a file that its fingerprint reads
PIECE = 1 << 16  # bytes
GROWTH = 4  # times its size that packed CSV becomes, about
DAMAGES = (  # errors of the readers on a damaged file; panics of polars are not an Exception
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
    pa.ArrowException,
    OSError,
    UnicodeDecodeError,
    MemoryError,
    RecursionError,
)
Change = Callable[[pl.LazyFrame], pl.LazyFrame]
Parts = Callable[[], Iterator[pl.LazyFrame]]


@dataclass(frozen=True)
class Source:
    """Rows to be read, block by block.

    Attributes:
        name: The path as the user gave it, or "the frame", for messages.
        frame: The rows.
        text: Whether every column holds text, as in CSV.
        files: The files that the rows come from; none for a frame in memory.
        lines_before: The number of lines of a CSV file before its first row.
        separator: The character between the columns of CSV.
        with_numbers: Returns the same rows with some columns parsed as numbers, which is faster
            than as text; it fails on other text. None if there is no such way.
        root: The folder above which the names of folders mean nothing.
        parts: Returns the same rows as several frames, for files that polars cannot itself read
            some rows at a time; None for others.
    """

    name: str
    frame: pl.LazyFrame
    text: bool = False
    files: tuple[Path, ...] = ()
    lines_before: int = 0
    separator: str = ","
    with_numbers: Callable[[Sequence[str]], pl.LazyFrame] | None = None
    root: Path | None = None
    parts: Parts | None = None

    def schema(self) -> pl.Schema:
        """Return the names and types of the columns."""
        try:
            return self.frame.collect_schema()
        except DAMAGES as error:
            raise explained(error, self) from error

    def names(self) -> list[str]:
        """Return the names of the columns."""
        return self.schema().names()

    def head(self, rows: int) -> pl.DataFrame:
        """Return the first rows."""
        return self._collected(self.frame.head(min(rows, MOST_ROWS)))

    def sample(self, rows: int = SAMPLE_ROWS) -> pl.DataFrame:
        """Return the first rows; raise a DataError if there are none."""
        found = self.head(rows)
        if not len(found):
            raise self.without_rows()
        return found

    def without_rows(self) -> DataError:
        """Return the error for a source that has no rows."""
        return DataError(f"{self.name} has columns but no rows.")

    def count(self) -> int:
        """Return the number of rows."""
        return int(self._collected(self.frame.select(pl.len())).item())

    def _collected(self, frame: pl.LazyFrame) -> pl.DataFrame:
        try:
            return frame.collect()
        except DAMAGES as error:
            raise explained(error, self) from error

    def blocks(self, names: Sequence[str], size: int = BLOCK) -> Iterator[pl.DataFrame]:
        """Yield some columns of all rows, in order, at most `size` rows at a time."""
        try:
            if self.parts is None:
                yield from self.frame.select(names).collect_batches(chunk_size=size)
                return
            for part in self.parts():
                yield from part.select(names).collect().iter_slices(size)
        except DAMAGES as error:
            raise explained(error, self) from error

    def changed(self, change: Change) -> "Source":
        """Return the same source with a change made to its columns."""
        found = replace(self, frame=change(self.frame), with_numbers=None)
        parts = self.parts
        if parts is None:
            return found
        return replace(found, parts=lambda: map(change, parts()))

    def row(self, number: int) -> str:
        """Return the name of a row, counted from 0, for a message: its line, or its number."""
        if self.text and len(self.files) == 1 and number < COUNTED:
            line = line_of_record(self.files[0], number + self.lines_before, self.separator)
            if line:
                return f"line {line}"
        return f"row {number + 1}"

    def refuse_short_lines(self) -> None:
        """Raise a DataError on a line with too few columns, which polars reads as missing values.

        Only CSV that is not packed and has no quotes is checked.
        """
        if not self.text:
            return
        for file in self.files:
            if file.suffix in PACKED:
                continue
            found = short_line(file, self.separator.encode())
            if found:
                raise DataError(f"{file}, {found}")

    def fingerprint(self) -> list[str]:
        """Return what changes when a file does: its place, size, time and pieces of content."""
        found = []
        for file in self.files:
            place = file.relative_to(self.root or file.parent)
            found.append(f"{place} {_fingerprint(file)}")
        return found


def expected_rows(sources: Sequence[Source], sample: pl.DataFrame) -> int:
    """Return about how many rows are to be read, of CSV by the size of the files.

    Args:
        sources: The sources, of one format.
        sample: The first rows of the first source.
    """
    first = sources[0]
    if not first.text:
        return first.count()
    size = 0  # bytes of the text of the sample
    for column in sample.get_columns():
        if column.dtype == pl.String:
            size += int(column.str.len_bytes().sum() or 0)
    row = size / len(sample) + sample.width  # bytes, with separators
    return int(sum(unpacked_bytes(source) for source in sources) / row)


def unpacked_bytes(source: Source) -> int:
    """Return about how many bytes the files of a source hold when they are unpacked."""
    found = 0
    for file in source.files:
        growth = GROWTH if file.suffix in PACKED else 1
        found += growth * file.stat().st_size
    return found


def _fingerprint(file: Path) -> str:
    state = file.stat()
    found = hashlib.sha256(f"{state.st_size} {state.st_mtime_ns}".encode())
    with file.open("rb") as content:
        for piece in range(PIECES):
            content.seek(state.st_size * piece // PIECES)
            found.update(content.read(PIECE))
    return found.hexdigest()


def explained(error: Exception, source: Source) -> DataError:
    """Return what polars found wrong with a source, with the line where that can be found."""
    if isinstance(error, pl.exceptions.NoDataError):
        return DataError(f"{source.name} is empty.")
    if source.text:
        for file in source.files:
            found = bad_line(file, source.separator)
            if found:
                return DataError(f"{file}, {found}")
    message = first_line(error)[:200]
    cure = "Is the file complete, and of the format that its ending names?"
    return DataError(f"{source.name} cannot be read: {message}. {cure}")
