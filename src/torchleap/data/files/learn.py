"""Learn an encoding from train rows, and write all rows encoded: the second pass over a file.

After the first pass it is known how many rows there are, and so which of them train. Each column
learns from these, and is written as it will be read: train rows first, then valid, then test.
"""

import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from ..._common.errors import DataError
from ..columns import Column
from ..manifest import Manifest
from ..rows import CONTENTS, PARTS
from . import splits
from .contents import Contents
from .encoders import Array, Categories, Encoder, is_plain, stable_hash
from .encoders.label import Label, LabelRule
from .encoders.times import Times
from .options import Progress, Roles
from .raw import Raw, append_source
from .source import Source

RULES = 3  # raised when the same file is encoded into other numbers, so that caches are not used


@dataclass(frozen=True)
class Learner:
    """Everything that it takes to write the encoded rows of a task.

    Attributes:
        sources: One source that is to be split, or one for each part.
        encoders: The encoders of the input columns.
        roles: The columns that are not inputs, and how the rows are split.
        label: How the label is made of its column.
        progress: Called with the step, how much of it is done, and of how much.
        expected_rows: About how many rows there are, for the progress.
    """

    sources: Sequence[Source]
    encoders: Sequence[Encoder]
    roles: Roles
    label: LabelRule
    progress: Progress
    expected_rows: int

    def write(self, folder: Path) -> None:
        """Write the encoded columns of a task to an empty folder, and its manifest last."""
        others = self._other_encoders()
        raws = self._open_raws(folder, others)
        rows = self._read(raws)
        inputs = raws[: len(self.encoders)]
        by_role = dict(zip(others, raws[len(self.encoders) :], strict=True))
        codes = self._split(rows, by_role)
        parts = Parts(codes)
        self._check_label(by_role["label"], codes)
        contents = Contents(sum(rows))
        contents.add(by_role["label"])
        columns = self._learn_columns(inputs, parts, contents, folder)
        parts.write(contents.chunks(), folder / CONTENTS)
        for role, raw in by_role.items():
            if role != "time":
                parts.write(raw.chunks(), folder / f"{role}.bin")
            raw.path.unlink()
        Manifest(
            rows=dict(zip(PARTS, parts.sizes, strict=True)),
            roles=asdict(self.roles),
            columns=columns,
            source=[str(Path(one.name).absolute()) for one in self.sources if one.files],
            objective=self.label.objective,
        ).write(folder)

    def _other_encoders(self) -> dict[str, Encoder]:
        """Return the encoders of the columns that are not inputs, by their role."""
        source = self.sources[0]
        roles = self.roles
        schema = source.schema()
        for role, name in roles.named().items():
            if not is_plain(schema[name]):
                raise DataError(
                    f"Column {name!r} cannot be the {role}: expected numbers, text or dates, "
                    f"but it holds {schema[name]}."
                )
        if roles.group is not None and isinstance(schema[roles.group], pl.Duration):
            raise DataError(
                f"Column {roles.group!r} cannot be the group: it holds durations. "
                "Make them numbers or text."
            )
        found: dict[str, Encoder] = {"label": Label(self.label, text=source.text)}
        if roles.group is not None:
            found["group"] = Categories(Column(roles.group, "categorical"), text=source.text)
        if roles.split == "time":
            assert roles.time is not None
            found["time"] = Times(Column(roles.time, "numeric"), text=source.text)
        return found

    def _open_raws(self, folder: Path, others: dict[str, Encoder]) -> list[Raw]:
        encoders = [*self.encoders, *others.values()]
        return [Raw(encoder, folder / f"raw_{n}") for n, encoder in enumerate(encoders)]

    def _read(self, raws: Sequence[Raw]) -> list[int]:
        """Write the raw columns, and return the number of rows of each source."""
        rows = []
        try:
            for source in self.sources:
                rows.append(append_source(source, raws, self.progress, self.expected_rows))
            for source in self.sources:
                source.refuse_short_lines()
        finally:
            for raw in raws:
                raw.file.close()
        return rows

    def _split(self, rows: Sequence[int], by_role: dict[str, Raw]) -> splits.Codes:
        """Return which part each row belongs to.

        Args:
            rows: The number of rows of each source.
            by_role: The raw columns that are not inputs.
        """
        if len(rows) > 1:
            absent = [0] * (len(PARTS) - len(rows))
            return np.repeat(np.arange(3, dtype=np.int8), [*rows, *absent])
        codes = self._split_one(rows[0], by_role)
        empty = []
        for part, name in enumerate(PARTS):
            if self.roles.shares[part] > 0 and not (codes == part).any():
                empty.append(name)
        if empty:
            raise DataError(
                f"No row is left for {' and '.join(empty)}: {rows[0]:,} rows, "
                f"split by {self.roles.split}. Give more rows, or other shares."
            )
        return codes

    def _split_one(self, rows: int, by_role: dict[str, Raw]) -> splits.Codes:
        """Return which part each row of a single source belongs to."""
        shares = self.roles.shares
        if self.roles.split == "time":
            return splits.by_time(by_role["time"].values(), shares)
        if self.roles.split == "order":
            return splits.by_order(rows, shares)
        if self.roles.split == "random":
            return splits.at_random(rows, shares, self.roles.seed)
        encoder = by_role["group"].encoder
        assert isinstance(encoder, Categories)
        missing = np.zeros(1, np.uint64)  # the hash of rows without a group
        hashes = np.concatenate([missing, stable_hash(encoder.codes.values())])
        return splits.by_group(hashes, by_role["group"].values(), shares, self.roles.seed)

    def _check_label(self, raw: Raw, codes: splits.Codes) -> None:
        train = raw.values()[codes == 0]
        if train.min() == train.max():
            raise DataError(
                f"The label {self.roles.label!r} is {train[0]:g} in all {len(train):,} train rows: "
                "expected both 0 and 1."
            )

    def _learn_columns(
        self, raws: Sequence[Raw], parts: "Parts", contents: Contents, folder: Path
    ) -> list[dict[str, Any]]:
        """Learn and write all input columns, several at a time, and return their records."""
        done = itertools.count(1)
        self.progress("encoding", 0, len(raws))

        def learn(number: int) -> dict[str, Any]:
            contents.add(raws[number])
            record = _learn_column(raws[number], parts, folder, number)
            self.progress("encoding", next(done), len(raws))
            return record

        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            return list(pool.map(learn, range(len(raws))))


class Parts:
    """The rows of each part of a task.

    Args:
        codes: The part of each row, in the order of the file.
    """

    def __init__(self, codes: splits.Codes) -> None:
        self.codes = codes
        self.sizes = [int((codes == part).sum()) for part in range(len(PARTS))]

    def train(self, chunks: Iterable[Array]) -> Iterator[Array]:
        """Yield the train rows among all rows, which come some at a time."""
        start = 0
        for chunk in chunks:
            yield self._of_part(chunk, start, 0)
            start += len(chunk)

    def write(self, chunks: Iterable[Array], path: Path) -> None:
        """Write rows so that those of each part lie together, in the order of the file."""
        train, valid, _ = self.sizes
        ends = [0, train, train + valid]  # the row after the last one written of each part
        start = 0
        with path.open("wb") as file:
            for chunk in chunks:
                for part in range(len(PARTS)):
                    rows = self._of_part(chunk, start, part)
                    if len(rows):
                        file.seek(ends[part] * rows.dtype.itemsize * rows.shape[1])
                        file.write(np.ascontiguousarray(rows).data)
                        ends[part] += len(rows)
                start += len(chunk)

    def _of_part(self, chunk: Array, start: int, part: int) -> Array:
        """Return the rows of a part among a chunk that begins at a row of the file."""
        codes = self.codes[start : start + len(chunk)]
        if codes[0] == codes[-1] == part and (codes == part).all():
            return chunk  # without a copy
        return np.asarray(chunk[codes == part])


def _learn_column(raw: Raw, parts: Parts, folder: Path, number: int) -> dict[str, Any]:
    """Learn a column from its train rows, write all its rows, and return its record."""
    encoder = raw.encoder
    learned = encoder.learn(lambda: parts.train(raw.chunks()), parts.sizes[0])
    encoded = (encoder.encode(chunk, learned) for chunk in raw.chunks())
    parts.write(encoded, folder / f"{number}.bin")
    raw.path.unlink()
    (folder / f"{number}.parquet").write_bytes(as_parquet(encoder.stored()))
    return learned.record(encoder.column)


def as_parquet(frame: pl.DataFrame) -> memoryview:
    """Return a frame as the content of a Parquet file.

    Python writes it, since a full disk is an OSError to Python and many things to polars.
    """
    content = io.BytesIO()
    frame.write_parquet(content)
    return content.getbuffer()
