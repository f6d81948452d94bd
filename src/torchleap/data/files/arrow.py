"""Parquet and Arrow files as frames of polars, read by pyarrow.

A size that is damaged in such a file makes the readers of polars ask for memory that no machine has, which ends the process.
Those of pyarrow raise an error, and every batch is validated before polars sees it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source
from pyarrow import ipc
from pyarrow import parquet as pq

from ..._common.errors import DataError

PART = 1 << 24  # bytes of a file that are read at once, unless one row group has more
LONGEST = 1 << 17  # rows of a batch
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
DAMAGES = (  # whatever the readers raise on a damaged file; panics of polars are not of the class Exception
    *(pl.exceptions.PolarsError, pl.exceptions.PanicException, pa.ArrowException),
    *(OSError, UnicodeDecodeError, MemoryError, RecursionError),
)
Read = Callable[
    [Sequence[str] | None], Iterator[pl.DataFrame]
]  # these columns of some rows, all if None
Parts = Callable[[], Iterator[pl.LazyFrame]]


def scan(files: Sequence[Path], keys: Sequence[dict[str, str]]) -> tuple[pl.LazyFrame, Parts]:
    """Open files with the same columns as one frame, and as a sequence of frames that each fit into memory.

    Args:
        keys: What the names of the folders of each file say, NAME=VALUE: these become columns.
    """
    values = _typed(keys)
    with _opened(files[0]) as (_, schema, _):
        stored = _as_frame(schema.empty_table())
    for name in values.columns:
        if name in stored.columns:
            twice = f"{name!r} is a column of the file and also a folder {name}=..."
            raise DataError(f"{files[0]}: {twice}. Rename one of them.")
    types = stored.hstack(values.clear()).schema

    def reads() -> Iterator[Read]:
        for number, file in enumerate(files):
            yield from _reads(file, values.slice(number, 1), types)

    def all_rows(names: Sequence[str] | None) -> Iterator[pl.DataFrame]:
        return chain.from_iterable(read(names) for read in reads())

    return _lazy(all_rows, types), lambda: (_lazy(read, types) for read in reads())


def _lazy(read: Read, types: pl.Schema) -> pl.LazyFrame:
    def rows(
        names: list[str] | None, predicate: pl.Expr | None, most: int | None, size: int | None
    ) -> Iterator[pl.DataFrame]:
        left = most
        for block in read(names):
            taken = block if left is None else block.head(left)
            yield taken if predicate is None else taken.filter(predicate)
            if left is not None:
                left -= len(taken)
                if not left:
                    return

    return register_io_source(rows, schema=types)


def _reads(file: Path, values: pl.DataFrame, types: pl.Schema) -> Iterator[Read]:
    """Yield one function per part of a file; each is to be called before the next is asked for."""
    with _opened(file) as (groups, schema, batches):
        _refuse_other_columns(
            file, _as_frame(schema.empty_table()).hstack(values.clear()).schema, types
        )
        own = [name for name in types if name not in values.columns]

        def read(numbers: Sequence[int], names: Sequence[str] | None) -> Iterator[pl.DataFrame]:
            wanted = list(types) if names is None else list(names)
            stored = [name for name in own if name in wanted] or own[
                :1
            ]  # which shows how many rows there are
            for batch in batches(numbers, stored):
                batch.validate(full=True)
                block = _as_frame(batch)
                beside = [pl.lit(value).first().alias(value.name) for value in values]
                yield block.with_columns(beside).select(wanted)

        step = max(1, groups * PART // max(1, file.stat().st_size))
        for start in range(0, groups, step):
            yield partial(read, range(start, min(groups, start + step)))


@contextmanager
def _opened(file: Path) -> Iterator[tuple[int, pa.Schema, Callable[..., Iterator[pa.RecordBatch]]]]:
    """Open a file: how many row groups or batches it has, its schema, and what reads columns of some of them."""
    with pa.OSFile(str(file)) as source:
        if file.suffix.lower() in (".arrow", ".ipc", ".feather"):
            table = ipc.open_file(source)

            def batches(numbers: Sequence[int], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
                places = [table.schema.get_field_index(name) for name in names]
                chosen = ipc.open_file(source, options=ipc.IpcReadOptions(included_fields=places))
                return (chosen.get_batch(number) for number in numbers)

            yield table.num_record_batches, table.schema, batches
            return
        parquet = pq.ParquetFile(source)

        def groups(numbers: Sequence[int], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
            found: Iterator[pa.RecordBatch] = parquet.iter_batches(
                LONGEST, list(numbers), list(names)
            )
            return found

        yield parquet.num_row_groups, parquet.schema_arrow, groups


def _as_frame(data: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    """Hand rows over to polars, without the notes of whoever wrote them, which polars would trust."""
    str(data.schema)  # raises if a name is not UTF-8
    plain = pa.schema([_field(field) for field in data.schema])
    frame = pl.from_arrow(
        data if plain.equals(data.schema, check_metadata=True) else data.cast(plain)
    )
    assert isinstance(frame, pl.DataFrame)
    return frame


def _field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _plain(field.type))


def _plain(kind: Any) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    if pa.types.is_list(kind):
        return pa.list_(_field(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(_field(kind.value_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_field(kind.value_field), kind.list_size)
    return pa.struct([_field(field) for field in kind]) if pa.types.is_struct(kind) else kind


def _typed(keys: Sequence[dict[str, str]]) -> pl.DataFrame:
    """Return the values of folders, one row per file, as numbers or dates where all of them are."""
    names = list(dict.fromkeys(name for own in keys for name in own))
    given = {name: [unquote(own[name]) if name in own else None for own in keys] for name in names}
    texts = pl.DataFrame(given, schema=dict.fromkeys(names, pl.String))
    texts = texts.with_columns(pl.all().replace(NO_VALUE, None))
    if not names:
        return texts
    return pl.read_csv(StringIO(texts.write_csv()), try_parse_dates=True, infer_schema_length=None)


def _refuse_other_columns(file: Path, found: pl.Schema, expected: pl.Schema) -> None:
    wrong = [f"it lacks {name!r}" for name in expected if name not in found]
    wrong += [f"it has {name!r}" for name in found if name not in expected]
    for name, dtype in expected.items():
        if name in found and found[name] != dtype:
            wrong.append(f"{name!r} holds {found[name]}, not {dtype}")
    if wrong:
        problem = f"{file} has other columns than the first file: {'; '.join(wrong[:3])}"
        raise DataError(f"{problem}. Give all files the same columns.")
