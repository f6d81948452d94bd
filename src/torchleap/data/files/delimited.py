"""Delimited text, such as CSV and TSV, opened as a source whose columns are all text."""

import csv
import io
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from ..._common.errors import DataError
from .packed import refuse_bombs
from .paths import FoundFiles
from .source import DAMAGES, Source, explained

SEPARATORS = "\t,;|"  # that are recognised in the first line
FIRST_LINES = 50  # enough for a quoted cell that is broken into several lines


@dataclass(frozen=True)
class Layout:
    """How delimited text is laid out, where the user knows; formats that are not text ignore it.

    Args:
        separator: The character between columns; None finds it in the first line.
        names: The names of all columns of a file without a header; None if it has one.
    """

    separator: str | None = None
    names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.separator is not None and not _is_separator(self.separator):
            raise DataError(
                "separator must be one ASCII character, such as ',' or '\\t', "
                f"but is {self.separator!r}."
            )
        if self.names is not None:
            object.__setattr__(self, "names", _checked_names(self.names))


def _is_separator(separator: Any) -> bool:
    if not isinstance(separator, str) or len(separator.encode()) != 1:
        return False
    return separator not in '"\n\r'


def _checked_names(names: Any) -> list[str]:
    found = []
    if hasattr(names, "__iter__") and not isinstance(names, str):
        found = list(names)
    are_texts = all(isinstance(name, str) for name in found)
    if not found or not are_texts or len(set(found)) < len(found):
        raise DataError(
            f"names must be the names of all columns, each different, but are {names!r}."
        )
    return found


def open_delimited(found: FoundFiles, layout: Layout) -> Source:
    """Open files of delimited text as one source."""
    files = found.files
    refuse_bombs(files)
    first = _first_lines(files[0])
    unquoted = re.sub(r'"[^"]*"', "", first.split("\n")[0])
    separator = layout.separator or max(SEPARATORS, key=unquoted.count)
    _check_width(files[0], first, separator, layout.names)

    def scan(numbers: Sequence[str] = ()) -> pl.LazyFrame:
        return pl.scan_csv(
            list(files),
            separator=separator,
            has_header=layout.names is None,
            infer_schema=False,  # all text, so that text among numbers is found with its row
            schema_overrides=dict.fromkeys(numbers, pl.Float64),
            new_columns=layout.names,
            glob=False,
        )

    source = Source(
        str(found.path),
        scan(),
        text=True,
        files=files,
        lines_before=int(layout.names is None),
        separator=separator,
        with_numbers=scan,
    )
    if f"{separator} " in unquoted:  # blanks after separators, as in older data sets of UCI
        source = source.changed(_stripped)
    return replace(source, root=found.root)


def _stripped(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Return a frame of text without blanks around its cells and names; blank cells are null."""
    return frame.select(pl.all().str.strip_chars().replace("", None).name.map(str.strip))


def _check_width(file: Path, first: str, separator: str, names: Sequence[str] | None) -> None:
    """Refuse a first line that is not CSV, or that has not as many columns as there are names."""
    try:
        width = len(next(csv.reader(io.StringIO(first), delimiter=separator), [""]))
    except csv.Error as error:
        raise DataError(f"{file}: its first line cannot be read: {error}.") from error
    if names is not None and len(names) != width:
        raise DataError(
            f"{file}: expected the {len(names)} given names, "
            f"but its first line has {width} columns."
        )


def _first_lines(file: Path) -> str:
    """Return some lines of a file, from the first that is not blank."""
    try:
        lines = pl.read_csv(
            file,
            has_header=False,
            separator="\x01",
            quote_char=None,
            n_rows=FIRST_LINES,
            infer_schema=False,
            encoding="utf8-lossy",
            truncate_ragged_lines=True,
            glob=False,
        )
    except DAMAGES as error:
        broken = Source(str(file), pl.LazyFrame(), text=True, files=(file,))
        raise explained(error, broken) from error
    if not lines.width:
        return ""
    texts = [(text or "").rstrip("\r") for text in lines.to_series(0).to_list()]
    return "\n".join(itertools.dropwhile(lambda text: not text, texts))
