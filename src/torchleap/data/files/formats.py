"""The file formats that can be read, by the ending of a file's name.

A new format is a module with a function that opens its files as a Source, and one entry here for
each of its endings.
"""

from collections.abc import Callable
from dataclasses import dataclass

from .arrow import open_arrow, open_parquet
from .delimited import Layout, open_delimited
from .paths import FoundFiles
from .source import Source


@dataclass(frozen=True)
class Format:
    """A format of files with rows.

    Attributes:
        title: The name of such a file in messages, with its article.
        open: Opens files as one source.
        magic: The first bytes of every file, by which a file with another ending is recognised;
            None for text.
    """

    title: str
    open: Callable[[FoundFiles, Layout], Source]
    magic: bytes | None = None


PARQUET = Format("a Parquet file", open_parquet, magic=b"PAR1")
ARROW = Format("an Arrow file", open_arrow, magic=b"ARROW1")
DELIMITED = Format("delimited text", open_delimited)

FORMATS = {
    ".parquet": PARQUET,
    ".pq": PARQUET,
    ".arrow": ARROW,
    ".ipc": ARROW,
    ".feather": ARROW,
    ".csv": DELIMITED,
    ".tsv": DELIMITED,
    ".txt": DELIMITED,
    ".dat": DELIMITED,
}


def format_of(ending: str) -> Format:
    """Return the format of an ending such as ".csv"; a file of an unknown one is read as text."""
    return FORMATS.get(ending, DELIMITED)
