"""Parquet and Arrow files as frames of polars, read by pyarrow.

A damaged size in such a file makes the readers of polars request memory that no machine has, which
ends the process. Those of pyarrow raise an error, and every batch is validated before polars reads
it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source
from pyarrow import ipc
from pyarrow import parquet as pq

from ..._common.errors import DataError
from .delimited import Layout
from .paths import FoundFiles
from .source import DAMAGES, Parts, Source, explained

PART = 1 << 24  # bytes of a file that are read at once, unless one row group has more
LONGEST = 1 << 17  # rows of a batch
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
Read = Callable[[Sequence[str] | None], Iterator[pl.DataFrame]]  # some columns, or all if None


class Groups(NamedTuple):
    """An open file, read one row group of Parquet or one batch of Arrow at a time.

    Attributes:
        total: The number of row groups or batches.
        schema: The columns of the file.
        batches: Returns the rows of some groups, with some columns.
    """

    total: int
    schema: pa.Schema
    batches: Callable[[Sequence[int], Sequence[str]], Iterator[pa.RecordBatch]]


Opener = Callable[[pa.NativeFile], Groups]


def open_parquet(found: FoundFiles, layout: Layout) -> Source:
    """Open Parquet files as one source; each folder NAME=VALUE below their root is a column."""
    keys = [_folder_keys(file.relative_to(found.root).parent) for file in found.files]
    return _open(found, keys, _parquet_groups)


def open_arrow(found: FoundFiles, layout: Layout) -> Source:
    """Open Arrow files as one source."""
    return _open(found, [{} for _ in found.files], _arrow_groups)


def _open(found: FoundFiles, keys: Sequence[dict[str, str]], opener: Opener) -> Source:
    try:
        frame, parts = _scan(found.files, keys, opener)
    except DAMAGES as error:
        raise explained(error, Source(str(found.files[0]), pl.LazyFrame())) from error
    return Source(str(found.path), frame, files=found.files, root=found.root, parts=parts)


def _folder_keys(folder: Path) -> dict[str, str]:
    """Return the values that the names of folders hold, as in day=1/country=de."""
    return dict(part.split("=", 1) for part in folder.parts if "=" in part)


def _scan(
    files: Sequence[Path], keys: Sequence[dict[str, str]], opener: Opener
) -> tuple[pl.LazyFrame, Parts]:
    """Return files with the same columns as one frame, and as frames that each fit into memory.

    Args:
        files: The files.
        keys: The values in the names of each file's folders, which become columns.
        opener: Opens a file of this format.
    """
    values = _typed(keys)
    with pa.OSFile(str(files[0])) as content:
        stored = _as_frame(opener(content).schema.empty_table())
    for name in values.columns:
        if name in stored.columns:
            twice = f"{name!r} is a column of the file and also a folder {name}=..."
            raise DataError(f"{files[0]}: {twice}. Rename one of them.")
    types = stored.hstack(values.clear()).schema

    def reads() -> Iterator[Read]:
        for number, file in enumerate(files):
            yield from _reads(file, values.slice(number, 1), types, opener)

    def all_rows(names: Sequence[str] | None) -> Iterator[pl.DataFrame]:
        return chain.from_iterable(read(names) for read in reads())

    return _lazy(all_rows, types), lambda: (_lazy(read, types) for read in reads())


def _lazy(read: Read, types: pl.Schema) -> pl.LazyFrame:
    """Return the rows of a function as a frame that polars reads when it needs them."""

    def rows(
        names: list[str] | None, predicate: pl.Expr | None, most: int | None, size: int | None
    ) -> Iterator[pl.DataFrame]:
        left = most
        for block in read(names):
            if left is not None:
                block = block.head(left)
                left -= len(block)
            yield block if predicate is None else block.filter(predicate)
            if left == 0:
                return

    return register_io_source(rows, schema=types)


def _reads(file: Path, values: pl.DataFrame, types: pl.Schema, opener: Opener) -> Iterator[Read]:
    """Yield one function per part of a file; each is to be called before the next is requested.

    Args:
        file: The file.
        values: The values of its folders, one row.
        types: The columns that the file must have together with these values.
        opener: Opens a file of this format.
    """
    with _opened(file, opener) as groups:
        present = _as_frame(groups.schema.empty_table()).hstack(values.clear()).schema
        _refuse_other_columns(file, present, types)
        stored = [name for name in types if name not in values.columns]
        constants = [pl.lit(value).first().alias(value.name) for value in values]

        def read(numbers: Sequence[int], names: Sequence[str] | None) -> Iterator[pl.DataFrame]:
            wanted = list(types) if names is None else list(names)
            own = [name for name in stored if name in wanted]
            if not own:
                own = stored[:1]  # which shows how many rows there are
            for batch in groups.batches(numbers, own):
                batch.validate(full=True)
                yield _as_frame(batch).with_columns(constants).select(wanted)

        step = max(1, groups.total * PART // max(1, file.stat().st_size))
        for start in range(0, groups.total, step):
            yield partial(read, range(start, min(groups.total, start + step)))


@contextmanager
def _opened(file: Path, opener: Opener) -> Iterator[Groups]:
    with pa.OSFile(str(file)) as content:
        yield opener(content)


def _parquet_groups(content: pa.NativeFile) -> Groups:
    parquet = pq.ParquetFile(content)

    def batches(numbers: Sequence[int], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        found: Iterator[pa.RecordBatch] = parquet.iter_batches(LONGEST, list(numbers), list(names))
        return found

    return Groups(parquet.num_row_groups, parquet.schema_arrow, batches)


def _arrow_groups(content: pa.NativeFile) -> Groups:
    table = ipc.open_file(content)

    def batches(numbers: Sequence[int], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        places = [table.schema.get_field_index(name) for name in names]
        chosen = ipc.open_file(content, options=ipc.IpcReadOptions(included_fields=places))
        return (chosen.get_batch(number) for number in numbers)

    return Groups(table.num_record_batches, table.schema, batches)


def _as_frame(data: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    """Return rows as a frame of polars, without the writer's metadata, which polars would trust."""
    str(data.schema)  # raises if a name is not UTF-8
    plain = pa.schema([_plain_field(field) for field in data.schema])
    if not plain.equals(data.schema, check_metadata=True):
        data = data.cast(plain)
    frame = pl.from_arrow(data)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _plain_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _plain_type(field.type))


def _plain_type(kind: Any) -> pa.DataType:
    """Return a type without metadata and extensions, at any depth."""
    if isinstance(kind, pa.BaseExtensionType):
        return _plain_type(kind.storage_type)
    if pa.types.is_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(_plain_field(kind.value_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field), kind.list_size)
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(field) for field in kind])
    return kind


def _typed(keys: Sequence[dict[str, str]]) -> pl.DataFrame:
    """Return the values of folders, one row per file, as numbers or dates where all of them are."""
    names = list(dict.fromkeys(chain.from_iterable(keys)))
    if not names:
        return pl.DataFrame()
    texts = {name: [_value(own.get(name)) for own in keys] for name in names}
    frame = pl.DataFrame(texts, schema=dict.fromkeys(names, pl.String))
    return pl.read_csv(StringIO(frame.write_csv()), try_parse_dates=True, infer_schema_length=None)


def _value(text: str | None) -> str | None:
    """Return the value in the name of a folder; None if there is none."""
    if text is None or unquote(text) == NO_VALUE:
        return None
    return unquote(text)


def _refuse_other_columns(file: Path, found: pl.Schema, expected: pl.Schema) -> None:
    wrong = [f"it lacks {name!r}" for name in expected if name not in found]
    wrong += [f"it has {name!r}" for name in found if name not in expected]
    for name, dtype in expected.items():
        if name in found and found[name] != dtype:
            wrong.append(f"{name!r} holds {found[name]}, not {dtype}")
    if wrong:
        problem = f"{file} has other columns than the first file: {'; '.join(wrong[:3])}"
        raise DataError(f"{problem}. Give all files the same columns.")
