"""New rows for a trained model: encoded by what the train rows of a task have taught, and by nothing else.

The encoders of the task get back what they had learnt; vocabularies no longer grow: what they lack is unseen.
"""

import hashlib
import io
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import polars as pl
import torch

from ..._common.checks import is_whole
from ..._common.errors import DataError, nearest, shown
from ..._common.plain import key_of
from ...fields import Field, Fields
from ...selection import Selection
from ..task import Batch, Task, TaskColumn, _joined
from .codes import new_codes
from .encode import Progress
from .encoders import FIRST, MISSING, UNSEEN, Array, Categories, Learnt, Place, encoder_for, is_text
from .read import SAMPLE_ROWS, _expected_rows, _made_alike
from .schema import Column
from .sources import BLOCK, Source, explained, open_source

FORMAT = 1
MANIFEST, TYPES = (
    "encoding.json",
    "_types.parquet",
)  # what begins with _ is no data to `read` of a folder above
LEARNT = ("width", "slots", "categories", "missing", "common", "numbers")
AT_ONCE = 64 << 20  # bytes of encoded rows that are made together
FILE = re.compile(r"_types\.parquet|_\d{1,9}\.parquet")
LARGE, GROWTH = 64 << 20, 200  # bytes that a file may become in any case, and times its own size
LARGEST = 1 << 20  # places that one column of a row may have
ROOM = (
    1 << 18
)  # unseen values that the table of a vocabulary may hold, beside as many as it has itself


def save_encoding(
    task: Task, folder: str | os.PathLike[str], only: Iterable[str] | Selection | None = None
) -> None:
    """Write what it takes to encode new rows as this task's were, of all columns or only some, to a folder, whole or not at all.

    An encoding that is there is replaced. Loading it runs no code: it is JSON and Parquet.
    """
    columns = (task if only is None else task.only(only)).columns
    taught = [_taught(task, column) for column in columns]
    frames = {
        f"_{number}.parquet": frame.select("value")
        for number, frame in enumerate(taught)
        if "value" in frame.columns
    }
    frames[TYPES] = pl.DataFrame(
        [frame["type"].clear().alias(c.name) for c, frame in zip(columns, taught, strict=True)]
    )
    files = {
        name: io.BytesIO() for name in frames
    }  # for a full disk is an OSError to Python, and many things to polars
    for name, frame in frames.items():
        frame.write_parquet(files[name])
    content = {
        "format": FORMAT,
        "columns": [
            {**asdict(c.column), "learnt": {name: getattr(c, name) for name in LEARNT}}
            for c in columns
        ],
        "files": {
            name: hashlib.sha256(file.getbuffer()).hexdigest() for name, file in files.items()
        },
    }
    files[MANIFEST] = io.BytesIO(
        json.dumps({**content, "key": key_of(content)}, indent=1, allow_nan=False).encode()
    )
    try:
        _write_whole(Path(folder), files)
    except OSError as error:
        raise DataError(
            f"The encoding cannot be written to {folder}: {error.strerror or error}."
        ) from error


def _taught(task: Task, column: TaskColumn) -> pl.DataFrame:
    """The type of a column's train rows and, for categories, the vocabulary."""
    path = task.verified(Path(column.file).with_suffix(".parquet").name)
    try:
        return pl.read_parquet(path, glob=False).select(
            "type", pl.exclude("type")
        )  # an earlier version wrote no type
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(
            f"{path} is gone, damaged or of an earlier version. Remove {task.folder} and read the data again."
        ) from error


def _write_whole(target: Path, files: dict[str, io.BytesIO]) -> None:
    """Write a folder that takes the place of the one before it, if that is an encoding as well."""
    if (
        target.exists()
        and not (target / MANIFEST).exists()
        and (not target.is_dir() or any(target.iterdir()))
    ):
        raise DataError(
            f"{target} is there and is no saved encoding, so it is not replaced. Choose another folder."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as name:
        (made := Path(name, "new")).mkdir()
        for file, content in files.items():
            (made / file).write_bytes(content.getbuffer())
        if target.exists():
            target.replace(Path(name, "old"))
        made.replace(target)


@dataclass
class _Known:
    """One column of new rows: its encoder, with what train rows have taught."""

    column: TaskColumn
    vocabulary: pl.Series  # of categories, in the order of their ids
    type: pl.DataType  # of the train rows

    def __post_init__(self) -> None:
        self.learnt = Learnt(**{name: getattr(self.column, name) for name in LEARNT})
        length, separator = (
            self.column.slots - (self.column.missing > 0),
            self.column.column.separator,
        )
        row = (
            separator.join("0" * length) if separator else [None] * length
        )  # from which the length of vectors is seen
        sample = pl.Series(
            self.column.name,
            [row if self.column.column.kind == "vector" else None],
            dtype=self.type,
        )
        self.encoder = encoder_for(self.column.column, sample, text=is_text(self.type))
        if isinstance(self.encoder, Categories):
            self.encoder.slots = (
                self.column.slots
            )  # of a list: what comes later has no place in a batch
            self._fill(self.encoder)

    def _fill(self, encoder: Categories) -> None:
        """Number the vocabulary; other values will have codes above these, and share one id."""
        encoder.codes, values = new_codes(), self.vocabulary.to_frame("")
        codes = encoder.codes.read(
            values.select(encoder.codes.expression(pl.col("")))[""], self.vocabulary
        )
        encoder.id_of = np.full(len(values) + 2, UNSEEN, dtype=np.int32)
        encoder.id_of[0] = MISSING
        encoder.id_of[codes] = np.arange(FIRST, FIRST + len(values), dtype=np.int32)

    def encoded(self, values: pl.Series, given: pl.Series, place: Place) -> Array:
        """The rows of a block, as batches have them."""
        encoder = self.encoder
        try:
            raw = np.ascontiguousarray(encoder.read(values, given, place), dtype=encoder.dtype)
        except DataError as error:  # what it says of columns= is meant for `read`
            raise DataError(str(error).partition(" If it holds categories")[0]) from error
        if isinstance(encoder, Categories):
            raw = np.minimum(raw, len(encoder.id_of) - 1)
            if (
                encoder.codes.count > 2 * len(encoder.id_of) + ROOM
            ):  # so that memory does not grow with what is unseen
                self._fill(encoder)
        return encoder.encode(raw, self.learnt)


@dataclass(frozen=True)
class Encoding:
    """What train rows have taught, to encode new rows by; these must have its columns, and may have others."""

    columns: tuple[TaskColumn, ...]
    _known: tuple[_Known, ...] = field(repr=False, compare=False)
    _lock: Any = field(
        default_factory=Lock, repr=False, compare=False
    )  # the tables of categories take one block at a time

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "Encoding":
        """Read what `save_encoding` wrote."""
        cure = "Write it again: save_encoding(task, folder)."
        try:
            known = _known(Path(folder), json.loads(_content(Path(folder), MANIFEST)))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DataError(
                f"{folder} holds no whole encoding: there is no {Path(error.filename).name} in it. {cure}"
            ) from error
        except (
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            OSError,
            RecursionError,
            pl.exceptions.PolarsError,
        ) as error:
            raise DataError(
                f"The encoding in {folder} is damaged or of another version ({shown(error, 120)}). {cure}"
            ) from error
        return cls(tuple(one.column for one in known), known)

    @cached_property
    def fields(self) -> Fields:
        """What the model reads: a field for each column, with its width."""
        return Fields([Field(column.name, column.width) for column in self.columns])

    def batches(
        self, data: Any, rows: int = 65536, *, separator: str | None = None, names: Sequence[str] | None = None,
        progress: Progress | None = None,
    ) -> Iterator[Batch]:  # fmt: skip
        """All rows in their order, this many at a time and the last ones fewer; the label is 0, whether the data has one or not.

        The arguments are those of `read`. Names and types of columns are checked at once, values when their block is read.
        Rows must be as `read` saw them: what `criteo` or `movielens_1m` do to their files before is not done here.
        """
        if not is_whole(rows) or rows < 1:
            raise DataError(f"rows must be a whole number of at least 1, but is {rows!r}.")
        opened = open_source(data, separator=separator, names=names)
        source, sample = self._made_alike(opened), opened.head(SAMPLE_ROWS if progress else 1)
        if not len(sample):
            raise DataError(f"{source.name} has columns but no rows.")
        source.refuse_short_lines()
        expected = _expected_rows(source.files, sample, opened) if progress else 0
        return _in_batches(
            self._encoded(source, progress or (lambda *_: None), expected), int(rows)
        )

    def _made_alike(self, source: Source) -> Source:
        """The columns of new rows with the types of train rows, where nothing is lost."""
        found = source.schema()
        lacking = [column.name for column in self.columns if column.name not in found]
        if lacking:
            cure = " If its first line is no header, name the columns: names=[...]." * source.text
            more = (
                f" and {len(lacking) - 1} more that the model reads"
                if len(lacking) > 1
                else ", which the model reads"
            )
            raise DataError(
                f"{source.name} lacks the column {lacking[0]!r}{more}. {nearest(lacking[0], found)}{cure}"
            )
        types = {one.column.name: one.type for one in self._known}
        wanted = [
            pl.col(name).cast(types[name]) if found[name] == pl.Null else pl.col(name)
            for name in types
        ]
        source = source.changed(lambda frame: frame.select(wanted))
        return _made_alike(
            source,
            Source("", pl.LazyFrame(schema=types)),
            {c.name: c.column.kind for c in self.columns},
        )

    def _encoded(self, source: Source, progress: Progress, expected: int) -> Iterator[Batch]:
        schema, start = source.schema(), 0
        size = max(1, min(BLOCK, AT_ONCE // (4 * sum(column.slots for column in self.columns))))
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            try:
                for block in source.blocks(source.names(), size):
                    with self._lock:
                        batch = self._batch(source, schema, block, start, pool)
                    start += len(block)
                    progress("reading", start, max(start, expected))
                    yield batch
            except pl.exceptions.PolarsError as error:
                raise explained(error, source) from error

    def _batch(
        self,
        source: Source,
        schema: pl.Schema,
        block: pl.DataFrame,
        start: int,
        pool: ThreadPoolExecutor,
    ) -> Batch:
        def encoded(one: _Known, values: pl.Series) -> Array:
            return one.encoded(
                values,
                block[one.column.name],
                lambda row: f"{source.name}, {source.row(start + row)}",
            )

        for one in self._known:
            one.encoder.begin(schema[one.column.name])
        computed = block.select(
            [one.encoder.expression().alias(str(number)) for number, one in enumerate(self._known)]
        )
        parts = list(
            zip(self.columns, pool.map(encoded, self._known, computed.get_columns()), strict=True)
        )

        def side_by_side(dtype: Any, *, ids: bool) -> torch.Tensor:
            wanted = [part for column, part in parts if column.is_ids == ids]
            return torch.from_numpy(
                np.concatenate([np.empty((len(block), 0), dtype), *wanted], axis=1)
            )

        return Batch(
            side_by_side(np.int32, ids=True),
            side_by_side(np.float32, ids=False),
            torch.zeros(len(block)),
        )


def _known(folder: Path, content: dict[str, Any]) -> tuple[_Known, ...]:
    """The columns of an encoding that was saved."""
    if content["format"] != FORMAT:
        raise ValueError(f"expected format {FORMAT}, but found {content['format']!r}")
    files = {name: _content(folder, name) for name in content["files"]}
    wrong = [
        name
        for name, found in files.items()
        if hashlib.sha256(found).hexdigest() != content["files"][name]
    ]
    if (
        wrong
        or key_of({name: value for name, value in content.items() if name != "key"})
        != content["key"]
    ):
        raise ValueError(f"{(wrong or [MANIFEST])[0]} is not what was written")
    if not content["columns"]:
        raise ValueError("it has no columns")
    frames = {name: _frame(name, found) for name, found in files.items()}

    def known(number: int) -> _Known:
        record = dict(content["columns"][number])
        column = TaskColumn(
            file=f"_{number}.parquet", **record.pop("learnt"), column=Column(**record)
        )
        if not all(
            is_whole(number) and 0 <= number <= LARGEST for number in (column.slots, column.width)
        ):
            raise ValueError(f"a row of {column.name!r:.80} has {column.slots!r:.40} places")
        values = (
            frames[column.file]["value"] if column.file in frames else pl.Series(dtype=pl.String)
        )
        return _Known(column, values, frames[TYPES].schema[column.name])

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        return tuple(pool.map(known, range(len(content["columns"]))))


def _content(folder: Path, name: str) -> bytes:
    """Return the content of a file of an encoding: one of its own names, in its folder, and not a link or a pipe."""
    if name != MANIFEST and FILE.fullmatch(name) is None:
        raise ValueError(f"{name!r:.80} is not a file of an encoding")
    handle = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError(f"{name} is not a file")
        return file.read()


def _frame(name: str, content: bytes) -> pl.DataFrame:
    """Read a small Parquet file, unless it says that it would become enormous; values of a vocabulary are all different."""
    from pyarrow import parquet

    found = parquet.read_metadata(io.BytesIO(content))
    size = sum(found.row_group(number).total_byte_size for number in range(found.num_row_groups))
    if size > max(LARGE, GROWTH * len(content)) or found.num_rows > GROWTH * len(content):
        raise ValueError(
            f"{name} has {len(content):,} bytes, but would become {size:,} and {found.num_rows:,} rows"
        )
    return pl.read_parquet(content)


def _in_batches(blocks: Iterator[Batch], rows: int) -> Iterator[Batch]:
    """The same rows, cut into batches of one size."""
    parts: list[Batch] = []
    for block in blocks:
        start = 0
        while start < len(block):
            parts.append(block.take(slice(start, start + rows - sum(map(len, parts)))))
            start += len(parts[-1])
            if sum(map(len, parts)) == rows:
                yield _joined(parts)
                parts = []
    if parts:
        yield _joined(parts)
