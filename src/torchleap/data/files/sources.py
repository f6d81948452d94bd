"""Anything that holds rows, opened as one lazy frame: Parquet, CSV, Arrow files, and frames in memory."""

import csv
import gzip
import hashlib
import io
import itertools
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import polars as pl

from ..._common.errors import DataError
from ..._common.text import first_line
from .arrow import DAMAGES, Parts, scan
from .foreign import refuse_address, refuse_foreign, refuse_table_folder

PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".ipc", ".feather")
CSV = (".csv", ".tsv", ".txt", ".dat")
PACKED = (".gz", ".zst")
BEGINNING, GROWTH = (
    1 << 20,
    300,
)  # bytes of a packed file that are tried, and what a table may become; CSV becomes 3 to 30 times
BLOCK = 1 << 17  # rows that are read at once
COUNTED = 2_000_000  # rows up to which it is worth while to look for the line of a row
ENCODED = "task.json"  # what marks a folder as our own cache
MOST_ROWS = 1 << 31  # of a frame; polars counts with 32 bits
PIECE = 1 << 22  # bytes whose separators are counted together


@dataclass(frozen=True)
class Source:
    """Rows to be read, block by block.

    Attributes:
        text: Every column holds text, as CSV does.
        files: Where the rows come from; none for a frame in memory.
        root: The folder above which the names of folders mean nothing.
        lines_before: Lines of a CSV file before its first row.
        with_numbers: The same rows with some columns parsed as numbers, which is faster than as text; fails on other text.
        parts: The same rows as several frames, where polars does not itself read them some at a time.
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
        """The names and types of its columns."""
        try:
            return self.frame.collect_schema()
        except DAMAGES as error:
            raise explained(error, self) from error

    def names(self) -> list[str]:
        """The names of its columns."""
        return self.schema().names()

    def head(self, rows: int) -> pl.DataFrame:
        """The first rows."""
        return self._collected(self.frame.head(min(rows, MOST_ROWS)))

    def count(self) -> int:
        """How many rows it has."""
        return int(self._collected(self.frame.select(pl.len())).item())

    def _collected(self, frame: pl.LazyFrame) -> pl.DataFrame:
        try:
            return frame.collect()
        except DAMAGES as error:
            raise explained(error, self) from error

    def blocks(self, names: Sequence[str], size: int = BLOCK) -> Iterator[pl.DataFrame]:
        """Yield these columns of all rows, in order, at most `size` rows at a time."""
        try:
            if self.parts is None:
                yield from self.frame.select(names).collect_batches(chunk_size=size)
                return
            for part in self.parts():
                yield from part.select(names).collect().iter_slices(size)
        except DAMAGES as error:
            raise explained(error, self) from error

    def changed(self, change: Callable[[pl.LazyFrame], pl.LazyFrame]) -> "Source":
        """The same source with something done to its columns."""
        parts = self.parts
        changed = None if parts is None else lambda: map(change, parts())
        return replace(self, frame=change(self.frame), with_numbers=None, parts=changed)

    def row(self, number: int) -> str:
        """How to call a row, counted from 0, in a message."""
        if self.text and len(self.files) == 1 and number < COUNTED:
            line = _line_of(self.files[0], number + self.lines_before, self.separator)
            if line:
                return f"line {line}"
        return f"row {number + 1}"

    def refuse_short_lines(self) -> None:
        """Raise on a line with too few columns, which polars takes for missing values; looks at unpacked CSV without quotes."""
        for file in self.files if self.text else ():
            found = "" if file.suffix in PACKED else _short_line(file, self.separator.encode())
            if found:
                raise DataError(f"{file}, {found}")


def open_source(
    data: Any, *, separator: str | None = None, names: Sequence[str] | None = None
) -> Source:
    """Open a path, a folder, a pattern with * or a frame.

    Args:
        separator: Of CSV; found in the first line if left out.
        names: Of the columns of a CSV file without a header.
    """
    if separator is not None and (
        not isinstance(separator, str) or len(separator.encode()) != 1 or separator in '"\n\r'
    ):
        raise DataError(
            f"separator must be one ASCII character, such as ',' or '\\t', but is {separator!r}."
        )
    if names is not None:
        names = _checked_names(names)
    if isinstance(data, str | os.PathLike):
        refuse_address(str(data))
        return _open_path(Path(data), separator, names)
    return Source("the frame", _as_frame(data).lazy())


def _checked_names(names: Any) -> list[str]:
    found = [] if isinstance(names, str) or not hasattr(names, "__iter__") else list(names)
    if (
        not found
        or not all(isinstance(name, str) for name in found)
        or len(set(found)) < len(found)
    ):
        raise DataError(
            f"names must be the names of all columns, each another one, but are {names!r}."
        )
    return found


def _as_frame(data: Any) -> pl.DataFrame:
    kind = type(data)
    wanted = "Expected a path or a frame of pandas, polars or pyarrow, but found"
    try:
        frame = _converted(data)
    except Exception as error:  # pandas, pyarrow and polars have errors of many classes for a column that they cannot hold
        reason = (str(error).strip() or kind.__name__).splitlines()[0].rstrip(".")
        raise DataError(
            f"The frame of {kind.__module__.split('.')[0]} cannot be read: {reason}."
        ) from error
    if not isinstance(frame, pl.DataFrame):
        raise DataError(f"{wanted} {kind.__module__}.{kind.__name__}.")
    return frame


def _converted(data: Any) -> Any:
    if isinstance(data, pl.LazyFrame):
        return data.collect()
    if isinstance(data, pl.DataFrame):
        return data
    if type(data).__module__.split(".")[0] == "pandas":
        return pl.from_pandas(data)
    is_table = hasattr(data, "schema") or hasattr(data, "columns")  # and not one column of pyarrow
    return pl.DataFrame(data) if is_table and hasattr(data, "__arrow_c_stream__") else None


def _open_path(path: Path, separator: str | None, names: Sequence[str] | None) -> Source:
    try:
        root, files = _files(path)
        empty = not any(file.stat().st_size for file in files)
    except (
        OSError,
        ValueError,
        NotImplementedError,
    ) as error:  # too long a name, or a pattern that pathlib does not know
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{str(path)[:80]!r} cannot be looked for: {getattr(error, 'strerror', None) or error}."
        ) from error
    suffixes = {_suffix(file) for file in files}
    if len(suffixes) > 1:
        raise DataError(
            f"{path} holds files of several kinds: {', '.join(sorted(suffixes))}. Name one kind: {path}/*{min(suffixes)}"
        )
    (suffix,) = suffixes
    if empty:
        raise DataError(f"{path} is empty.")
    for file in files:
        refuse_foreign(file, suffix)
    if suffix in (*PARQUET, *ARROW):
        return _open_arrow(path, root, files, partitioned=suffix in PARQUET)
    refuse_bombs(files)
    return replace(_open_csv(path, files, separator, names), root=root)


def _files(path: Path) -> tuple[Path, tuple[Path, ...]]:
    """The files of a path, a folder with all below it, or a pattern, in the order of their names; and the folder they are in."""
    known = (*PARQUET, *ARROW, *CSV)
    root, hidden = path, True
    if path.is_file():
        return path.parent, (path,)
    if path.is_dir():
        refuse_table_folder(path)
        found = [file for file in path.rglob("*") if _suffix(file) in known]
    elif any(sign in str(path) for sign in "*?["):
        first = next(
            place for place, part in enumerate(path.parts) if any(sign in part for sign in "*?[")
        )
        root, pattern = Path(*path.parts[:first]), Path(*path.parts[first:])
        found = list(root.glob(str(pattern)))
        hidden = not any(
            part.startswith((".", "_")) for part in pattern.parts
        )  # unless the pattern asks for them
    else:
        raise DataError(f"There is no file {path}.")
    files = sorted(
        file for file in found if file.is_file() and not (hidden and _is_hidden(file, root))
    )
    encoded = {folder for folder in {file.parent for file in files} if (folder / ENCODED).exists()}
    files = [file for file in files if file.parent not in encoded]
    if not files:
        raise DataError(
            f"There is no file to read in {path}: expected {', '.join(known)}, perhaps packed as .gz or .zst."
        )
    return root, tuple(files)


def _is_hidden(file: Path, root: Path) -> bool:
    return any(part.startswith((".", "_")) for part in file.relative_to(root).parts)


def _suffix(file: Path) -> str:
    suffixes = [suffix.lower() for suffix in file.suffixes]
    return next((suffix for suffix in reversed(suffixes) if suffix not in PACKED), "") or ".csv"


def _open_arrow(path: Path, root: Path, files: tuple[Path, ...], *, partitioned: bool) -> Source:
    """Open Parquet or Arrow files; of Parquet, each folder NAME=VALUE below the root is a column."""
    keys = [_keys(file.relative_to(root).parent) if partitioned else {} for file in files]
    try:
        frame, parts = scan(files, keys)
    except DAMAGES as error:
        raise explained(error, Source(str(files[0]), pl.LazyFrame())) from error
    return Source(str(path), frame, files=files, root=root, parts=parts)


def _keys(folder: Path) -> dict[str, str]:
    return dict(part.split("=", 1) for part in folder.parts if "=" in part)


def _open_csv(
    path: Path, files: tuple[Path, ...], separator: str | None, names: Sequence[str] | None
) -> Source:
    first = _first_lines(files[0])
    unquoted = re.sub(r'"[^"]*"', "", first.split("\n")[0])
    separator = separator or max("\t,;|", key=unquoted.count)
    try:
        width = len(next(csv.reader(io.StringIO(first), delimiter=separator), [""]))
    except csv.Error as error:
        raise DataError(f"{files[0]}: its first line cannot be read: {error}.") from error
    if names is not None and len(names) != width:
        raise DataError(
            f"{files[0]}: expected the {len(names)} given names, but its first line has {width} columns."
        )

    def scan(numbers: Sequence[str] = ()) -> pl.LazyFrame:
        return pl.scan_csv(
            list(files),
            separator=separator,
            has_header=names is None,
            infer_schema=False,  # all text: what is no number is then found with its row
            schema_overrides=dict.fromkeys(numbers, pl.Float64),
            new_columns=names,
            glob=False,
        )

    source = Source(str(path), scan(), True, files, int(names is None), separator, scan)
    if f"{separator} " in unquoted:  # as the older sets of UCI have it
        return source.changed(
            lambda frame: frame.select(
                pl.all().str.strip_chars().replace("", None).name.map(str.strip)
            )
        )
    return source


def _first_lines(file: Path) -> str:
    """Some lines from the first that is not blank, enough for a quoted cell that is broken into several lines."""
    try:
        lines = pl.read_csv(
            file,
            has_header=False,
            separator="\x01",
            quote_char=None,
            n_rows=50,
            infer_schema=False,
            encoding="utf8-lossy",
            truncate_ragged_lines=True,
            glob=False,
        )
    except DAMAGES as error:
        raise explained(error, Source(str(file), pl.LazyFrame(), True, (file,))) from error
    texts = [
        (text or "").rstrip("\r") for text in (lines.to_series(0).to_list() if lines.width else [])
    ]
    return "\n".join(itertools.dropwhile(lambda text: not text, texts))


def explained(error: Exception, source: Source) -> DataError:
    """What polars found wrong with a source, in one sentence, with the line where that can be found out."""
    message = first_line(error)[:200]
    if isinstance(error, pl.exceptions.NoDataError):
        return DataError(f"{source.name} is empty.")
    if source.text:
        for file in source.files:
            found = _bad_line(file, source.separator)
            if found:
                return DataError(f"{file}, {found}")
    cure = "Is the file whole, and what its ending says?"
    return DataError(f"{source.name} cannot be read: {message}. {cure}")


def _bad_line(file: Path, separator: str) -> str:
    """The first line that is no UTF-8 or has more columns than the first; only looked for after reading has failed."""
    if file.suffix == ".zst":
        return ""
    expected = None
    mark = separator.encode()
    try:
        with _opened(file) as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    line.decode("utf-8")
                except UnicodeDecodeError as error:
                    return f"line {number}: expected UTF-8, but found the byte 0x{line[error.start]:02x}. Convert the file to UTF-8."
                columns = line.count(mark) + 1
                if expected is None:
                    expected = columns
                elif columns > expected and b'"' not in line:
                    return f"line {number}: expected {expected} columns, but found {columns}."
    except (OSError, EOFError, zlib.error) as error:
        return f"which cannot be read to its end ({error}). Is it whole?"
    return ""


def refuse_bombs(files: Sequence[Path]) -> None:
    """Refuse packed files whose beginning unpacks to more than any table of rows does."""
    for file in files:
        if file.suffix in PACKED:
            limit = GROWTH * min(BEGINNING, file.stat().st_size) + BEGINNING
            if _unpacked(file, limit) >= limit:
                raise DataError(
                    f"{file} unpacks to more than {GROWTH} times its size, which no table of rows does. Unpack it, if it is one."
                )


def _unpacked(file: Path, limit: int) -> int:
    """Return how many bytes the beginning of a packed file becomes, at most the limit; damage is found later."""
    found = 0
    with file.open("rb") as content:
        packed = content.read(BEGINNING)
    try:
        if file.suffix == ".gz":
            return len(zlib.decompressobj(wbits=31).decompress(packed, limit))
        from pyarrow import BufferReader, CompressedInputStream

        with CompressedInputStream(BufferReader(packed), "zstd") as stream:
            while found < limit and (block := stream.read(BEGINNING)):
                found += len(block)
    except (
        zlib.error,
        OSError,
        ValueError,
    ):  # the end of what was read is in the middle of a block
        pass
    return found


def _opened(file: Path) -> IO[bytes]:
    return gzip.open(file) if file.suffix == ".gz" else file.open("rb")  # type: ignore[return-value]


def _line_of(file: Path, record: int, separator: str) -> int:
    """The line in which a record begins, both the header's included; 0 if that cannot be found out."""
    if file.suffix == ".zst":
        return 0
    try:
        with _opened(file) as content, io.TextIOWrapper(content, "utf-8", newline="") as text:
            records = csv.reader(text, delimiter=separator)
            before, begun = (
                0,
                False,
            )  # lines before the record; blank ones before the first record are not read
            for cells in records:
                begun = begun or bool(cells)
                if begun and record == 0:
                    return before + 1
                record -= begun
                before = records.line_num
    except (OSError, EOFError, ValueError, csv.Error, zlib.error):
        pass
    return 0


def _short_line(file: Path, mark: bytes) -> str:
    """The first line with fewer columns than the first line; looked for only if there are too few separators in all."""
    separators, lines, last = 0, 0, b"\n"
    with file.open("rb") as content:
        expected = content.readline().count(mark)
        content.seek(0)
        while piece := content.read(PIECE):
            if b'"' in piece:
                return ""
            values = np.frombuffer(piece, np.uint8)
            separators += int(np.count_nonzero(values == mark[0]))
            lines += int(np.count_nonzero(values == ord("\n")))
            last = piece[-1:]
        lines += last != b"\n"
        if separators >= expected * lines:
            return ""
        content.seek(0)
        for number, line in enumerate(content, start=1):
            if line.strip(b"\r\n") and line.count(mark) < expected:
                return f"line {number}: expected {expected + 1} columns, as in the first line, but found {line.count(mark) + 1}."
    return ""


def fingerprint(source: Source) -> list[str]:
    """What changes when a file does: its place, its size, its time of change, and pieces of its content."""
    return [
        f"{file.relative_to(source.root or file.parent)} {_fingerprint(file)}"
        for file in source.files
    ]


def _fingerprint(file: Path, pieces: int = 64, length: int = 1 << 16) -> str:
    state = file.stat()
    found = hashlib.sha256(f"{state.st_size} {state.st_mtime_ns}".encode())
    with file.open("rb") as content:
        for piece in range(pieces):
            content.seek(state.st_size * piece // pieces)
            found.update(content.read(length))
    return found.hexdigest()
