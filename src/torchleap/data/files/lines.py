"""Lines of CSV files: which one a record begins in, and which one is broken."""

import csv
import io
import zlib
from pathlib import Path

import numpy as np

from .packed import opened

PIECE = 1 << 22  # bytes whose separators are counted together


def line_of_record(file: Path, record: int, separator: str) -> int:
    """Return the line in which a record begins, counted from 1; 0 if that cannot be found.

    Args:
        file: A CSV file.
        record: The number of the record, from 0, the header's included.
        separator: The character between columns.
    """
    if file.suffix == ".zst":
        return 0
    before = 0  # lines before the record
    has_begun = False  # blank lines before the first record are not read
    try:
        with opened(file) as content, io.TextIOWrapper(content, "utf-8", newline="") as text:
            records = csv.reader(text, delimiter=separator)
            for cells in records:
                has_begun = has_begun or bool(cells)
                if has_begun and record == 0:
                    return before + 1
                record -= has_begun
                before = records.line_num
    except (OSError, EOFError, ValueError, csv.Error, zlib.error):
        return 0  # the file is damaged, which the error that names the line reports already
    return 0


def bad_line(file: Path, separator: str) -> str:
    """Return what is wrong with the first broken line of a file that could not be read.

    A line is broken if it is not UTF-8 or has more columns than the first line. The text is
    empty if there is no such line.
    """
    if file.suffix == ".zst":
        return ""
    expected = None
    mark = separator.encode()
    try:
        with opened(file) as lines:
            for number, line in enumerate(lines, start=1):
                columns = line.count(mark) + 1
                problem = _not_utf8(line)
                if expected is None:
                    expected = columns
                elif columns > expected and b'"' not in line:
                    problem = problem or f"expected {expected} columns, but found {columns}."
                if problem:
                    return f"line {number}: {problem}"
    except (OSError, EOFError, zlib.error) as error:
        return f"which cannot be read to its end ({error}). Is it complete?"
    return ""


def _not_utf8(line: bytes) -> str:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"0x{line[error.start]:02x}"
        return f"expected UTF-8, but found the byte {byte}. Convert the file to UTF-8."
    return ""


def short_line(file: Path, mark: bytes) -> str:
    """Return what is wrong with the first line that has fewer columns than the first line.

    The text is empty if there is no such line, or if the file has quotes. Lines are read
    one by one only if there are too few separators in all.

    Args:
        file: A CSV file that is not packed.
        mark: The separator.
    """
    with file.open("rb") as content:
        expected = content.readline().count(mark)
    if not _lacks_separators(file, mark, expected):
        return ""
    with file.open("rb") as content:
        for number, line in enumerate(content, start=1):
            found = line.count(mark)
            if line.strip(b"\r\n") and found < expected:
                return (
                    f"line {number}: expected {expected + 1} columns, as in the first line, "
                    f"but found {found + 1}."
                )
    return ""


def _lacks_separators(file: Path, mark: bytes, per_line: int) -> bool:
    """Return whether a file without quotes has fewer separators than all its lines need."""
    separators = 0
    lines = 0
    last = b"\n"
    with file.open("rb") as content:
        while piece := content.read(PIECE):
            if b'"' in piece:
                return False
            values = np.frombuffer(piece, np.uint8)
            separators += int(np.count_nonzero(values == mark[0]))
            lines += int(np.count_nonzero(values == ord("\n")))
            last = piece[-1:]
    lines += last != b"\n"
    return separators < per_line * lines
