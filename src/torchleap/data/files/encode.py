"""From blocks of rows to encoded columns on disk: one pass over the file, one over what it left.

The first pass writes each column as a raw array, in the order of the file, with bounded memory. Then it is known how many rows
there are, and so which of them train; each column learns from these, and is written as it will be read: train rows first, then
valid, then test.
"""

import io
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from ..._common.errors import DataError, shown
from ..._common.plain import key_of
from . import splits
from .cache import checksums
from .encoders import (
    Array,
    Categories,
    Encoder,
    Learnt,
    Numbers,
    Place,
    is_plain,
    is_text,
    stable_hash,
)
from .labels import cure_of
from .schema import Column
from .sources import ENCODED, Source, explained

FORMAT = 2
RULES = 3  # raised when the same file is encoded into other numbers, so that what was encoded before is not taken for it
MANIFEST = ENCODED
CHUNK = 8 << 20  # bytes of a raw column that are looked at together
Progress = Callable[[str, int, int], None]  # what is done, how many rows are, of how many


@dataclass(frozen=True)
class Roles:
    """The columns that are no features, and what is to be made of them."""

    label: str
    threshold: float | None
    positive: str | float | bool | None
    group: str | None
    time: str | None
    split: splits.Split
    shares: tuple[float, float, float]
    seed: int


@dataclass
class Raw:
    """One raw column in the making."""

    encoder: Encoder
    path: Path
    file: BinaryIO

    def chunks(self) -> Iterator[Array]:
        """The raw rows again, some at a time."""
        dtype, slots = np.dtype(self.encoder.dtype), self.encoder_slots
        rows = max(1, CHUNK // (dtype.itemsize * slots))
        with self.path.open("rb") as file:
            while len(found := np.fromfile(file, dtype, rows * slots)):
                yield found.reshape(-1, slots)

    def __post_init__(self) -> None:
        self.encoder_slots = self.encoder.slots  # a list's encoder learns a smaller number


class Label(Encoder):
    """The label: 0 or 1, or what a threshold or a positive value makes of it."""

    dtype, slots = np.float32, 1

    def __init__(self, roles: Roles, *, text: bool) -> None:
        super().__init__(Column(roles.label, "numeric"), text=text)
        self.roles = roles

    def expression(self) -> pl.Expr:
        given = pl.col(self.roles.label)
        given = (
            given.cast(pl.String).str.strip_chars()
            if self.text
            else given.fill_nan(None)
            if self.floats
            else given
        )
        number = given.cast(pl.Float64, strict=False).fill_nan(None)
        if self.roles.positive is not None:
            number = self._is_positive(given, number).cast(pl.Float64)
        if self.roles.threshold is not None:
            number = (number > self.roles.threshold).cast(pl.Float64)
        return number.alias(self.roles.label)

    def _is_positive(self, given: pl.Expr, number: pl.Expr) -> pl.Expr:
        chosen = self.roles.positive
        text = given.cast(pl.String)
        if isinstance(chosen, str):
            same = text.str.strip_chars() == chosen.strip()
            as_number = _number_of(chosen)
            return (
                same if as_number is None else same | (number == as_number).fill_null(value=False)
            )
        same = (
            text.str.to_lowercase() == str(chosen).lower()
        )  # True is written in many ways, and so is 1
        return (number == float(chosen or 0)).fill_null(value=False) | same

    def read(self, values: pl.Series, given: pl.Series, place: Place) -> Array:
        wrong = (~values.is_in([0.0, 1.0]) | values.is_null()).arg_true()
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"{place(row)}, column {self.roles.label!r}: expected the label 0 or 1, but found {shown(given[row])}. "
                f"{cure_of(given, row)}"
            )
        return values.to_numpy().astype(np.float32).reshape(-1, 1)


def _number_of(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


class Moments(Encoder):
    """When each row happened: a number, a date, or either as text; the first block decides which."""

    dtype: type[np.generic] = np.float64
    slots = 1
    first: pl.Series | None = None  # a value of the first block, which shows how dates are written
    way: Callable[[pl.Series], pl.Series]

    def read(self, values: pl.Series, given: pl.Series, place: Place) -> Array:
        found = given.cast(pl.String).str.strip_chars() if is_text(given.dtype) else given
        if self.first is None:
            self.first = found.drop_nulls().head(1)
            self.way = self._dates if is_text(found.dtype) and _are_dates(found) else _physical
            exact = found.dtype.is_signed_integer() or found.dtype.is_temporal() or _are_long(found)
            self.dtype = np.int64 if exact else np.float64  # a float would round nanoseconds
        moments = self.way(found).cast(
            pl.Int64 if self.dtype == np.int64 else pl.Float64, strict=False
        )
        wrong = (moments.is_null() | ~moments.is_finite()).arg_true()
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"{place(row)}, column {self.column.name!r}: expected a time or a number, but found {shown(given[row])}."
            )
        return moments.to_numpy().reshape(-1, 1)

    def _dates(self, found: pl.Series) -> pl.Series:
        assert self.first is not None
        try:
            return pl.concat([self.first, found]).str.to_datetime(strict=False)[1:].to_physical()
        except pl.exceptions.PolarsError:  # not one of them is a date
            return pl.Series([None] * len(found), dtype=pl.Int64)


def _physical(found: pl.Series) -> pl.Series:
    return found.to_physical() if found.dtype.is_temporal() else found


def _are_long(found: pl.Series) -> bool:
    """Whether it is text of whole numbers that a float cannot hold."""
    numbers = found.cast(pl.Int64, strict=False) if found.dtype == pl.String else found.clear()
    return len(numbers) > 0 and not numbers.null_count() and bool((numbers > 2**53).any())


def _are_dates(found: pl.Series) -> bool:
    texts = found.drop_nulls()
    return texts.cast(pl.Float64, strict=False).null_count() > len(texts) / 2


def encode(
    sources: Sequence[Source],
    encoders: Sequence[Encoder],
    roles: Roles,
    folder: Path,
    progress: Progress,
    expected_rows: int,
) -> None:
    """Write the encoded columns and the manifest of a task.

    Args:
        sources: One that is to be split, or one for each part.
    """
    extra = _extra(roles, sources[0])
    raws = [
        _raw(encoder, folder / f"raw_{number}")
        for number, encoder in enumerate([*encoders, *extra.values()])
    ]
    try:
        rows = [_read(source, raws, progress, expected_rows) for source in sources]
        for source in sources:
            source.refuse_short_lines()
    finally:
        for raw in raws:
            raw.file.close()
    by_name = dict(zip(extra, raws[len(encoders) :], strict=True))
    codes = _codes(rows, by_name, roles)
    sizes = [int((codes == part).sum()) for part in range(3)]
    _check_label(by_name["label"], codes, roles)
    progress("encoding", 0, len(encoders))
    done = itertools.count(1)

    def finish(number: int) -> dict[str, Any]:
        record = _finish(raws[number], codes, sizes, folder, number)
        progress("encoding", next(done), len(encoders))
        return record

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        columns = list(pool.map(finish, range(len(encoders))))
    for name in ("label", "group"):
        if name in by_name:
            _write_parts(by_name[name].chunks(), codes, sizes, folder / f"{name}.bin")
            by_name[name].path.unlink()
    if "time" in by_name:
        by_name["time"].path.unlink()
    content = {
        "format": FORMAT,
        "rows": dict(zip(splits.PARTS, sizes, strict=True)),
        "roles": asdict(roles),
        "columns": columns,
        "files": checksums(folder),
        "source": [str(Path(source.name).absolute()) for source in sources if source.files],
    }
    sealed = {**content, "key": key_of(content)}
    (folder / MANIFEST).write_text(
        json.dumps(sealed, indent=1, allow_nan=False) + "\n", encoding="utf-8"
    )


def _extra(roles: Roles, source: Source) -> dict[str, Encoder]:
    schema = source.schema()
    for role, name in (("label", roles.label), ("group", roles.group), ("time", roles.time)):
        if name is not None and not is_plain(schema[name]):
            raise DataError(
                f"Column {name!r} cannot be the {role}: expected numbers, text or dates, but it holds {schema[name]}."
            )
    if roles.group is not None and isinstance(schema[roles.group], pl.Duration):
        raise DataError(
            f"Column {roles.group!r} cannot be the group: it holds durations. Make them numbers or text."
        )
    extra: dict[str, Encoder] = {"label": Label(roles, text=source.text)}
    if roles.group is not None:
        extra["group"] = Categories(Column(roles.group, "categorical"), text=source.text)
    if roles.split == "time":
        assert roles.time is not None
        extra["time"] = Moments(Column(roles.time, "numeric"), text=source.text)
    return extra


def _raw(encoder: Encoder, path: Path) -> Raw:
    return Raw(encoder, path, path.open("wb"))


def _read(source: Source, raws: Sequence[Raw], progress: Progress, expected_rows: int) -> int:
    """The first pass: append the rows of a source to the raw columns."""
    starts = [raw.file.tell() for raw in raws]
    as_text = {
        raw.encoder.column.name
        for raw in raws
        if type(raw.encoder) is not Numbers or not raw.encoder.plain
    }
    numbers = [raw.encoder.column.name for raw in raws if raw.encoder.column.name not in as_text]
    if source.with_numbers is not None and numbers:
        try:
            return _read_blocks(
                replace(source, frame=source.with_numbers(numbers)), raws, progress, expected_rows
            )
        except (
            DataError
        ):  # perhaps a number with blanks, perhaps text: read again in the way that can tell
            for raw, start in zip(raws, starts, strict=True):
                raw.file.seek(start)
                raw.file.truncate()
    return _read_blocks(source, raws, progress, expected_rows)


def _read_blocks(
    source: Source, raws: Sequence[Raw], progress: Progress, expected_rows: int
) -> int:
    names = list(dict.fromkeys(raw.encoder.column.name for raw in raws))
    schema = source.schema()
    for raw in raws:
        raw.encoder.begin(schema[raw.encoder.column.name])
    rows = 0
    with ThreadPoolExecutor(
        torch.get_num_threads()
    ) as writers:  # write a block while polars parses the next
        written: list[Future[None]] = []
        for block in source.blocks(names):
            computed = _computed(source, raws, block)
            for column in written:
                column.result()
            written = [
                writers.submit(_append, source, raw, block, computed[str(i)], rows)
                for i, raw in enumerate(raws)
            ]
            rows += len(block)
            progress("reading", rows, max(rows, expected_rows))
        for column in written:
            column.result()
    if not rows:
        raise DataError(f"{source.name} has columns but no rows.")
    return rows


def _computed(source: Source, raws: Sequence[Raw], block: pl.DataFrame) -> pl.DataFrame:
    try:
        return block.select(
            [raw.encoder.expression().alias(str(number)) for number, raw in enumerate(raws)]
        )
    except pl.exceptions.PolarsError as error:
        raise explained(error, source) from error


def _append(source: Source, raw: Raw, block: pl.DataFrame, computed: pl.Series, start: int) -> None:
    def place(row: int) -> str:
        return f"{source.name}, {source.row(start + row)}"

    found = raw.encoder.read(computed, block[raw.encoder.column.name], place)
    raw.file.write(np.ascontiguousarray(found, dtype=raw.encoder.dtype).data)


def _codes(rows: Sequence[int], raws: dict[str, Raw], roles: Roles) -> splits.Codes:
    """Which part each row belongs to."""
    if len(rows) > 1:
        return np.repeat(np.arange(3, dtype=np.int8), [*rows, *([0] * (3 - len(rows)))])
    if roles.split == "time":
        codes = splits.by_time(
            np.concatenate([raw[:, 0] for raw in raws["time"].chunks()]), roles.shares
        )
    elif roles.split == "group":
        encoder = raws["group"].encoder
        assert isinstance(encoder, Categories)
        hashes = np.concatenate([np.zeros(1, np.uint64), stable_hash(encoder.codes.values())])
        groups = np.concatenate([raw[:, 0] for raw in raws["group"].chunks()])
        codes = splits.by_group(hashes, groups, roles.shares, roles.seed)
    elif roles.split == "order":
        codes = splits.by_order(rows[0], roles.shares)
    else:
        codes = splits.at_random(rows[0], roles.shares, roles.seed)
    empty = [
        name
        for part, name in enumerate(splits.PARTS)
        if roles.shares[part] > 0 and not (codes == part).any()
    ]
    if empty:
        raise DataError(
            f"No row is left for {' and '.join(empty)}: {rows[0]:,} rows, split by {roles.split}. "
            "Give more rows, or other shares."
        )
    return codes


def _check_label(raw: Raw, codes: splits.Codes, roles: Roles) -> None:
    train = np.concatenate([chunk[:, 0] for chunk in raw.chunks()])[codes == 0]
    if train.min() == train.max():
        raise DataError(
            f"The label {roles.label!r} is {train[0]:g} in all {len(train):,} train rows: expected both 0 and 1."
        )


def _finish(
    raw: Raw, codes: splits.Codes, sizes: Sequence[int], folder: Path, number: int
) -> dict[str, Any]:
    """The second pass over one column: learn from train rows, write all."""

    def train_rows() -> Iterator[Array]:
        start = 0
        for chunk in raw.chunks():
            yield _rows_of(chunk, codes[start : start + len(chunk)], 0)
            start += len(chunk)

    encoder = raw.encoder
    learnt = encoder.learn(train_rows, sizes[0])
    _write_parts(
        (encoder.encode(chunk, learnt) for chunk in raw.chunks()),
        codes,
        sizes,
        folder / f"{number}.bin",
    )
    raw.path.unlink()
    if learnt.vocabulary is not None:
        content = io.BytesIO()  # for a full disk is an OSError to Python, and many things to polars
        learnt.vocabulary.write_parquet(content)
        (folder / f"{number}.parquet").write_bytes(content.getbuffer())
    return {**asdict(encoder.column), "learnt": _plain(learnt)}


def _plain(learnt: Learnt) -> dict[str, Any]:
    return {
        name: getattr(learnt, name)
        for name in ("width", "slots", "categories", "missing", "common", "numbers")
    }


def _write_parts(
    chunks: Iterator[Array], codes: splits.Codes, sizes: Sequence[int], path: Path
) -> None:
    """Write rows so that those of each part lie together, in the order of the file."""
    start, at = 0, [0, sizes[0], sizes[0] + sizes[1]]
    with path.open("wb") as file:
        for chunk in chunks:
            own = codes[start : start + len(chunk)]
            start += len(chunk)
            for part in range(3):
                rows = _rows_of(chunk, own, part)
                if len(rows):
                    file.seek(at[part] * rows.dtype.itemsize * rows.shape[1])
                    file.write(np.ascontiguousarray(rows).data)
                    at[part] += len(rows)


def _rows_of(chunk: Array, codes: NDArray[np.int8], part: int) -> Array:
    if codes[0] == codes[-1] == part and (codes == part).all():
        return chunk
    return np.asarray(chunk[codes == part])
