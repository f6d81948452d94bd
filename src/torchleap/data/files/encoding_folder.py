"""The folder of a saved encoding: JSON and Parquet, so that loading it runs no code."""

import hashlib
import io
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
from pyarrow import parquet

from ..._common.errors import DataError
from ..._common.files import replace_folder
from ..._common.plain import as_json, fits_key, parse_json, with_key
from ..columns import TaskColumn
from .learn import as_parquet

FORMAT = 1
MANIFEST = "encoding.json"
TYPES = "_types.parquet"  # `read` of a folder above ignores files that begin with _
FILE = re.compile(r"_types\.parquet|_\d{1,9}\.parquet")
LARGE = 64 << 20  # bytes that any file may become
GROWTH = 200  # times its size that a larger file may become
LARGEST = 1 << 20  # slots that one column of a row may have


class SavedColumn(NamedTuple):
    """What a saved encoding holds about a column.

    Attributes:
        column: Its settings, and the facts that train rows have taught.
        vocabulary: Its categories, in the order of their ids; empty for other columns.
        dtype: The type of the column in the train rows.
    """

    column: TaskColumn
    vocabulary: pl.Series
    dtype: pl.DataType


def write_encoding(folder: Path, columns: Sequence[SavedColumn]) -> None:
    """Write an encoding to a folder, which replaces an encoding there atomically."""
    files = {}
    for number, saved in enumerate(columns):
        if len(saved.vocabulary):
            files[f"_{number}.parquet"] = as_parquet(saved.vocabulary.to_frame("value"))
    types = [pl.Series(saved.column.name, dtype=saved.dtype) for saved in columns]
    files[TYPES] = as_parquet(pl.DataFrame(types))
    content = {
        "format": FORMAT,
        "columns": [saved.column.record(saved.column.column) for saved in columns],
        "files": {name: hashlib.sha256(file).hexdigest() for name, file in files.items()},
    }
    manifest = as_json(with_key(content), indent=1).encode()
    try:
        with replace_folder(
            folder, marker=MANIFEST, what="a saved encoding", refused=DataError
        ) as new:
            for name, file in files.items():
                (new / name).write_bytes(file)
            (new / MANIFEST).write_bytes(manifest)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        raise DataError(f"The encoding cannot be written to {folder}: {reason}.") from error


def read_encoding(folder: Path) -> list[SavedColumn]:
    """Return the columns of an encoding; a ValueError or the like says what is wrong with it."""
    content = parse_json(_content(folder, MANIFEST))
    if content["format"] != FORMAT:
        raise ValueError(f"expected format {FORMAT}, but found {content['format']!r}")
    files = {name: _content(folder, name) for name in content["files"]}
    for name, file in files.items():
        if hashlib.sha256(file).hexdigest() != content["files"][name]:
            raise ValueError(f"{name} is not what was written")
    if not fits_key(content):
        raise ValueError(f"{MANIFEST} is not what was written")
    if not content["columns"]:
        raise ValueError("it has no columns")
    frames = {name: _frame(name, file) for name, file in files.items()}
    return [_saved(record, n, frames) for n, record in enumerate(content["columns"])]


def _saved(record: dict[str, Any], number: int, frames: dict[str, pl.DataFrame]) -> SavedColumn:
    column = TaskColumn.from_record(record, f"_{number}.parquet")
    if column.slots > LARGEST or column.width > LARGEST:
        raise ValueError(f"a row of {column.name!r:.80} has {column.slots!r:.40} slots")
    vocabulary = pl.Series(dtype=pl.String)
    if column.file in frames:
        vocabulary = frames[column.file]["value"]
    return SavedColumn(column, vocabulary, frames[TYPES].schema[column.name])


def _content(folder: Path, name: str) -> bytes:
    """Return the content of a file of the folder, which is not a link, a pipe or elsewhere."""
    if name != MANIFEST and FILE.fullmatch(name) is None:
        raise ValueError(f"{name!r:.80} is not a file of an encoding")
    handle = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError(f"{name} is not a file")
        return file.read()


def _frame(name: str, content: bytes) -> pl.DataFrame:
    """Read a small Parquet file, unless its metadata show that it would become enormous."""
    found = parquet.read_metadata(io.BytesIO(content))
    groups = [found.row_group(number) for number in range(found.num_row_groups)]
    size = sum(group.total_byte_size for group in groups)
    most = GROWTH * len(content)
    if size > max(LARGE, most) or found.num_rows > most:  # a vocabulary has no value twice
        raise ValueError(
            f"{name} has {len(content):,} bytes, but would become {size:,} "
            f"and {found.num_rows:,} rows"
        )
    return pl.read_parquet(content)
