"""Anything that holds rows, opened as one lazy frame: Parquet, CSV, Arrow files, and frames in memory."""

import gzip
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from ..errors import DataError

PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".ipc", ".feather")
CSV = (".csv", ".tsv", ".txt", ".dat")
PACKED = (".gz", ".zst")
BLOCK = 1 << 17  # rows that are read at once


@dataclass(frozen=True)
class Source:
    """Rows to be read, block by block.

    Attributes:
        text: Every column holds text, as CSV does.
        files: Where the rows come from; none for a frame in memory.
        lines_before: Lines of a CSV file before its first row.
        with_numbers: The same rows with some columns parsed as numbers, which is faster than as text; fails on other text.
    """

    name: str
    frame: pl.LazyFrame
    text: bool = False
    files: tuple[Path, ...] = ()
    lines_before: int = 0
    separator: str = ","
    with_numbers: Callable[[Sequence[str]], pl.LazyFrame] | None = None

    def names(self) -> list[str]:
        """The names of its columns."""
        try:
            return self.frame.collect_schema().names()
        except (pl.exceptions.PolarsError, OSError) as error:
            raise explained(error, self) from error

    def head(self, rows: int) -> pl.DataFrame:
        """The first rows."""
        try:
            return self.frame.head(rows).collect()
        except (pl.exceptions.PolarsError, OSError) as error:
            raise explained(error, self) from error

    def blocks(self, names: Sequence[str]) -> Iterator[pl.DataFrame]:
        """These columns of all rows, in order, some rows at a time."""
        try:
            yield from self.frame.select(names).collect_batches(chunk_size=BLOCK)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise explained(error, self) from error

    def changed(self, change: Callable[[pl.LazyFrame], pl.LazyFrame]) -> "Source":
        """The same source with something done to its columns."""
        return replace(self, frame=change(self.frame), with_numbers=None)

    def row(self, number: int) -> str:
        """How to call a row, counted from 0, in a message."""
        return f"line {number + 1 + self.lines_before}" if self.text and len(self.files) == 1 else f"row {number + 1}"


def open_source(data: Any, *, separator: str | None = None, names: Sequence[str] | None = None) -> Source:
    """Open a path, a folder, a pattern with * or a frame.

    Args:
        separator: Of CSV; found in the first line if left out.
        names: Of the columns of a CSV file without a header.
    """
    if isinstance(data, str | os.PathLike):
        return _open_path(Path(data), separator, names)
    return Source("the frame", _as_frame(data).lazy())


def _as_frame(data: Any) -> pl.DataFrame:
    if isinstance(data, pl.LazyFrame):
        return data.collect()
    if isinstance(data, pl.DataFrame):
        return data
    kind = type(data)
    if kind.__module__.split(".")[0] == "pandas":
        return pl.from_pandas(data)
    if hasattr(data, "__arrow_c_stream__"):
        return pl.DataFrame(data)
    raise DataError(f"Expected a path or a frame of pandas, polars or pyarrow, but found {kind.__module__}.{kind.__name__}.")


def _open_path(path: Path, separator: str | None, names: Sequence[str] | None) -> Source:
    files = _files(path)
    suffixes = {_suffix(file) for file in files}
    if len(suffixes) > 1:
        raise DataError(
            f"{path} holds files of several kinds: {', '.join(sorted(suffixes))}. Name one kind: {path}/*{min(suffixes)}"
        )
    (suffix,) = suffixes
    sizes = [file.stat().st_size for file in files]
    if not any(sizes):
        raise DataError(f"{path} is empty.")
    if suffix in PARQUET:
        partitioned = any("=" in part for file in files for part in file.parts)
        return Source(str(path), pl.scan_parquet(list(files), hive_partitioning=partitioned), files=files)
    if suffix in ARROW:
        return Source(str(path), pl.scan_ipc(list(files)), files=files)
    return _open_csv(path, files, separator, names)


def _files(path: Path) -> tuple[Path, ...]:
    """The files of a path, a folder with all below it, or a pattern, in the order of their names."""
    if path.is_file():
        found = [path]
    elif path.is_dir():
        known = (*PARQUET, *ARROW, *CSV)
        files = [file for file in path.rglob("*") if file.is_file() and not file.name.startswith((".", "_"))]
        found = sorted(file for file in files if _suffix(file) in known)
    elif any(sign in str(path) for sign in "*?["):
        anchor = Path(path.anchor or ".")
        found = sorted(
            file for file in anchor.glob(str(path.relative_to(path.anchor) if path.anchor else path)) if file.is_file()
        )
    else:
        raise DataError(f"There is no file {path}.")
    if not found:
        raise DataError(
            f"There is no file to read in {path}: expected {', '.join((*PARQUET, *ARROW, *CSV))}, perhaps packed as .gz or .zst."
        )
    return tuple(found)


def _suffix(file: Path) -> str:
    suffixes = [suffix.lower() for suffix in file.suffixes]
    return next((suffix for suffix in reversed(suffixes) if suffix not in PACKED), "") or ".csv"


def _open_csv(path: Path, files: tuple[Path, ...], separator: str | None, names: Sequence[str] | None) -> Source:
    first = _first_line(files[0])
    separator = separator or _separator_of(first)
    width = len(first.split(separator))
    if names is not None and len(names) != width:
        raise DataError(f"{files[0]}: expected the {len(names)} given names, but its first line has {width} columns.")

    def scan(numbers: Sequence[str] = ()) -> pl.LazyFrame:
        return pl.scan_csv(
            list(files),
            separator=separator,
            has_header=names is None,
            infer_schema=False,  # all text: what is no number is then found with its row
            schema_overrides=dict.fromkeys(numbers, pl.Float64),
            new_columns=names,
        )

    source = Source(str(path), scan(), True, files, int(names is None), separator, scan)
    if f"{separator} " in first:  # as the older sets of UCI have it
        return source.changed(lambda frame: frame.select(pl.all().str.strip_chars().name.map(str.strip)))
    return source


def _first_line(file: Path) -> str:
    try:
        text = pl.read_csv(
            file, has_header=False, separator="\x01", quote_char=None, n_rows=1, infer_schema=False, encoding="utf8-lossy"
        )
    except (pl.exceptions.PolarsError, OSError) as error:
        raise explained(error, Source(str(file), pl.LazyFrame(), True, (file,))) from error
    return str(text[0, 0] or "") if len(text) else ""


def _separator_of(line: str) -> str:
    return max("\t,;|", key=lambda sign: line.count(sign))


def explained(error: Exception, source: Source) -> DataError:
    """What polars found wrong with a source, in one sentence, with the line where that can be found out."""
    message = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(error, pl.exceptions.NoDataError):
        return DataError(f"{source.name} is empty.")
    if source.text:
        for file in source.files:
            found = _bad_line(file, source.separator)
            if found:
                return DataError(f"{file}, {found}")
    cure = "Is the file whole, and what its ending says?"
    return DataError(f"{source.name} cannot be read: {message.rstrip('.')}. {cure}")


def _bad_line(file: Path, separator: str) -> str:
    """The first line that is no UTF-8 or has more columns than the first; only looked for after reading has failed."""
    if file.suffix == ".zst":
        return ""
    expected = None
    mark = separator.encode()
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    line.decode("utf-8")
                except UnicodeDecodeError as error:
                    return (
                        f"line {number}: expected UTF-8, but found the byte 0x{line[error.start]:02x}. Convert the file to UTF-8."
                    )
                columns = line.count(mark) + 1
                if expected is None:
                    expected = columns
                elif columns > expected and b'"' not in line:
                    return f"line {number}: expected {expected} columns, but found {columns}."
    except (OSError, EOFError) as error:
        return f"which cannot be read to its end ({error}). Is it whole?"
    return ""


def fingerprint(files: Sequence[Path]) -> list[str]:
    """What changes when a file does: its size, its time of change, and pieces of its content."""
    return [_fingerprint(file) for file in files]


def _fingerprint(file: Path, pieces: int = 64, length: int = 1 << 16) -> str:
    state = file.stat()
    found = hashlib.sha256(f"{state.st_size} {state.st_mtime_ns}".encode())
    with file.open("rb") as content:
        for piece in range(pieces):
            content.seek(state.st_size * piece // pieces)
            found.update(content.read(length))
    return f"{file.name} {found.hexdigest()}"
