"""Task: encoded rows with a label, on disk or in memory, and the batches that a model trains on."""

import json
import mmap
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from .._common.checks import is_number, is_whole, refuse_settings
from .._common.errors import DataError, FieldError, nearest, shown
from .._common.plain import key_of
from .._common.text import first_line, plural, table
from ..distributed import ranks
from ..fields import Field, Fields
from ..selection import Selection
from .files.cache import verify
from .files.schema import Column
from .files.splits import PARTS

FORMAT = 2  # of the manifest, as in encoding.py
IN_MEMORY = 4 << 30  # bytes of encoded rows up to which they are held in memory
BLOCK = 1 << 13  # neighbouring rows that are read together from disk
WINDOW = 32  # blocks whose rows are shuffled together


@dataclass(frozen=True)
class TaskColumn:
    """One input column of a task: what it is, and what train rows have taught about it; see `encoders.Learnt`."""

    column: Column
    file: str
    width: int
    slots: int
    categories: int
    missing: float
    common: float
    numbers: dict[str, list[float]]

    def __post_init__(self) -> None:
        """Refuse what no train rows can have taught; a file may say anything."""
        counts = (self.slots - 1, self.width, self.categories)
        fits = all(is_whole(count) and 0 <= count < 1 << 40 for count in counts)
        fits = fits and all(
            is_number(share) and 0 <= share < 1 << 40 for share in (self.missing, self.common)
        )
        fits = fits and (self.is_ids or self.width == self.slots)
        self.column.name.encode()  # raises on what is not text, or cannot be written
        if not fits or not _are_numbers(self.numbers, self.slots):
            raise ValueError(
                f"what it says about the column {self.column.name!r:.80} cannot be learnt from rows"
            )

    @property
    def name(self) -> str:
        """Its name, which is also its field's."""
        return self.column.name

    @property
    def is_ids(self) -> bool:
        """Whether its rows are ids; else they are numbers."""
        return self.categories > 0


def _are_numbers(numbers: Any, slots: int) -> bool:
    """Say whether a column of so many slots can be scaled by these; the last slot may say whether a value is missing."""
    if not isinstance(numbers, dict) or not all(
        isinstance(values, list) and values for values in numbers.values()
    ):
        return False
    if not all(
        is_number(value) and abs(value) <= sys.float_info.max
        for values in numbers.values()
        for value in values
    ):
        return False
    if "knots" in numbers:
        return slots in (1, 2)
    if numbers.keys() == {"shift", "scale"}:
        return (
            len(numbers["shift"]) in (slots, slots - 1)
            and len(numbers["scale"]) == 1
            and numbers["scale"][0] > 0
        )
    return not numbers


@dataclass(frozen=True)
class Batch:
    """Some rows: all ids and all numbers side by side, in the order of the task's columns of that kind.

    Attributes:
        ids: (B, slots of ids) int32; 0 is missing, 1 is rare or unseen.
        numbers: (B, slots of numbers) float32.
        label: (B,) float32, 0 or 1.
        group: (B,) int32, for GAUC.
    """

    ids: Tensor
    numbers: Tensor
    label: Tensor
    group: Tensor | None = None

    def __len__(self) -> int:
        return self.label.shape[0]

    @property
    def inputs(self) -> tuple[Tensor, Tensor]:
        """What a model of `torchleap.models` takes."""
        return self.ids, self.numbers

    def to(self, device: torch.device | str) -> "Batch":
        """The same on another device."""
        group = None if self.group is None else self.group.to(device)
        return Batch(self.ids.to(device), self.numbers.to(device), self.label.to(device), group)

    def take(self, rows: Tensor | slice) -> "Batch":
        """Some of the rows."""

        def pick(tensor: Tensor) -> Tensor:
            return tensor[rows] if isinstance(rows, slice) else tensor.index_select(0, rows)

        group = None if self.group is None else pick(self.group)
        return Batch(pick(self.ids), pick(self.numbers), pick(self.label), group)


@dataclass(frozen=True)
class Task:
    """Rows with a label, split and encoded; `print(task)` shows its columns.

    Attributes:
        columns: The input columns, in order.
        costs: What it costs to keep a column's field, by name; its width if left out.
        protected: The names of fields that are always kept.
    """

    folder: Path
    columns: tuple[TaskColumn, ...]
    rows: dict[str, int]
    roles: dict[str, Any]
    keep: Any = None  # holds a temporary folder as long as there is a task
    costs: Mapping[str, float] = field(default_factory=dict)
    protected: frozenset[str] = frozenset()
    files: Mapping[str, Sequence[int]] = field(
        default_factory=dict, repr=False
    )  # their sizes and checksums, by name

    @classmethod
    def load(cls, folder: Path, keep: Any = None) -> "Task":
        """A task that was encoded before."""
        try:
            content = json.loads((folder / "task.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(
                f"{folder} holds no encoded data: {first_line(error)}. Remove it and read the data again."
            ) from error
        if not isinstance(content, dict):
            raise DataError(
                f"{folder}/task.json is damaged: expected an object, but found {content!r:.40}. Remove {folder}."
            )
        if content.get("format") != FORMAT:
            raise DataError(
                f"{folder}: expected encoded data of format {FORMAT}, but found {content.get('format')!r}. Remove it."
            )
        try:
            key = content.pop("key")
            if key_of(content) != key:
                raise TypeError("its content is not what was written")
            columns = []
            for number, record in enumerate(content["columns"]):
                learnt = record.pop("learnt")
                columns.append(TaskColumn(Column(**record), f"{number}.bin", **learnt))
            _check_record(content)
            _check_sizes(columns, content["rows"], content["files"])
            return cls(
                folder,
                tuple(columns),
                content["rows"],
                content["roles"],
                keep,
                files=dict(content["files"]),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DataError(
                f"{folder}/task.json is damaged: {shown(error, 120)}. Remove {folder} and read the data again."
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        """What a worker needs: where the rows lie. The first process holds the folder."""
        return {**vars(replace(self, keep=None))}

    def __copy__(self) -> "Task":
        return replace(self)  # in this process, so it holds the folder as well

    def __deepcopy__(self, memo: dict[int, Any]) -> "Task":
        return replace(self, rows=dict(self.rows), roles=dict(self.roles))

    @cached_property
    def fields(self) -> Fields:
        """What a model reads: a field for each column, with its width."""
        return Fields(
            [
                Field(
                    c.name, c.width, cost=self.costs.get(c.name), protected=c.name in self.protected
                )
                for c in self.columns
            ]
        )

    @cached_property
    def train(self) -> "Rows":
        """The rows to train on."""
        return Rows(self, "train")

    @cached_property
    def valid(self) -> "Rows":
        """The rows to stop and to choose by."""
        return Rows(self, "valid")

    @cached_property
    def test(self) -> "Rows":
        """The rows to report on."""
        return Rows(self, "test")

    @cached_property
    def fingerprint(self) -> str:
        """A short name for what the rows hold: what was learnt of the columns, and all labels."""
        labels = [
            crc32(rows.label.numpy().tobytes()) for rows in (self.train, self.valid, self.test)
        ]
        return key_of(
            {
                "rows": self.rows,
                "roles": self.roles,
                "columns": [asdict(c) for c in self.columns],
                "labels": labels,
            }
        )

    def only(self, names: Iterable[str] | Selection) -> "Task":
        """The same task with fewer input columns; nothing is read or encoded again."""
        wanted = set(names.kept if isinstance(names, Selection) else names)
        unknown = wanted - set(self.fields.names)
        if unknown:
            name = min(unknown, key=str)
            raise FieldError(f"There is no field {name!r}. {nearest(str(name), self.fields.names)}")
        if not wanted:
            raise FieldError("No field is left: expected at least one name.")
        return replace(
            self, columns=tuple(column for column in self.columns if column.name in wanted)
        )

    def priced(
        self, *, costs: Mapping[str, float] | None = None, protect: Iterable[str] = ()
    ) -> "Task":
        """The same task with costs of some fields, and with fields that are always kept."""
        costs, protected = dict(costs or {}), frozenset(protect)
        for name in (*costs, *protected):
            self.fields.index(name)  # raises with the nearest names
        return replace(self, costs={**self.costs, **costs}, protected=self.protected | protected)

    def vocabulary(self, name: str) -> list[str]:
        """The categories of a column, in the order of their ids, which begin at 2."""
        import polars

        column = self.columns[self.fields.index(name)]
        path = self.verified(Path(column.file).with_suffix(".parquet").name)
        if not column.is_ids or column.column.buckets:
            raise DataError(
                f"{name!r} has no vocabulary: it holds {'hashed categories' if column.is_ids else 'numbers'}."
            )
        try:
            return polars.read_parquet(path, glob=False)["value"].to_list()
        except (OSError, polars.exceptions.PolarsError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise DataError(
                f"{path} is damaged or gone: {reason}. Remove {self.folder} and read the data again."
            ) from error

    def verified(self, name: str) -> Path:
        """Return the path of one of the task's files, which is what was written; what this process holds is not asked."""
        path = self.folder / name
        if self.keep is None:
            verify(path, self.files.get(name))
        return path

    def slots(self, *, ids: bool) -> dict[str, slice]:
        """Where each column lies in a batch's ids, or in its numbers."""
        found, start = {}, 0
        for column in self.columns:
            if column.is_ids == ids:
                found[column.name] = slice(start, start + column.slots)
                start += column.slots
        return found

    def __repr__(self) -> str:
        rows = ", ".join(f"{self.rows[part]:,} {part}" for part in PARTS)
        size = f"{plural(len(self.columns), 'field')}, {plural(self.fields.dims, 'dimension')}"
        return f"Task on {self.roles['label']!r}: {size}; {rows} rows"

    def __str__(self) -> str:
        cells = [
            [
                c.name,
                _kind(c),
                str(c.width),
                f"{c.categories:,}" if c.is_ids else "",
                f"{c.missing:.1%}",
                f"{c.common:.1%}",
            ]
            for c in self.columns
        ]
        return (
            f"{self!r}\n{table(['field', 'kind', 'width', 'ids', 'missing', 'most common'], cells)}"
        )


def _check_record(content: dict[str, Any]) -> None:
    """Refuse files without a size and a checksum, and a task without a label."""
    for name, found in content["files"].items():
        if not isinstance(found, list) or len(found) != 2 or not all(map(is_whole, found)):
            raise TypeError(f"expected a size and a checksum of {name!r:.40}")
    if not isinstance(content["roles"]["label"], str):
        raise TypeError("expected the name of the label")


def _check_sizes(columns: Sequence[TaskColumn], rows: Any, files: Any) -> None:
    """Refuse columns whose files are not as long as their rows take: 4 bytes for each slot of a row."""
    counts = [rows[part] for part in PARTS]
    for column in columns:
        counts += (column.slots, column.width, column.categories)
    if not all(is_whole(number) and 0 <= number < 1 << 40 for number in counts):
        raise TypeError("expected numbers of rows, slots and categories")
    total = sum(rows[part] for part in PARTS)
    for name, slots in [("label.bin", 1), *((column.file, column.slots) for column in columns)]:
        if files[name][0] != 4 * total * slots:
            raise TypeError(f"{name} is not as long as {total:,} rows take")


def _kind(column: TaskColumn) -> str:
    if column.column.kind == "list":
        return f"list of up to {column.slots}"
    if column.is_ids:
        return f"{column.column.kind}{', hashed' if column.column.buckets else ''}"
    return f"{column.column.kind}, {column.column.scale}"


class Rows:
    """The rows of one part of a task."""

    def __init__(self, task: Task, part: str) -> None:
        self.task = task
        self.part = part
        self._start = sum(task.rows[other] for other in PARTS[: PARTS.index(part)])
        self._held: Batch | None = None

    def __len__(self) -> int:
        return self.task.rows[self.part]

    def __repr__(self) -> str:
        return f"{len(self):,} {self.part} rows of {self.task!r}"

    @property
    def bytes(self) -> int:
        """What all its rows take in memory."""
        return len(self) * (4 * sum(column.slots for column in self.task.columns) + 8)

    def batches(
        self,
        size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        shard: tuple[int, int] = (0, 1),
        memory: bool | None = None,
        together: bool = False,
    ) -> "Batches":
        """Batches of this many rows, the last one smaller; see `Batches`."""
        if together:
            shard = ranks.rank(), ranks.count()
        return Batches(
            self, size, shuffle=shuffle, seed=seed, shard=shard, memory=memory, together=together
        )

    def between(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        """Neighbouring rows in their order, so many at once."""
        in_memory = self._held is not None or self.bytes <= IN_MEMORY
        for first in range(start, stop, size):
            last = min(stop, first + size)
            yield (
                self.all().take(slice(first, last))
                if in_memory
                else self.read(np.array([[first, last]]))
            )

    def all(self) -> Batch:
        """All rows in one batch, held in memory from then on."""
        if self._held is None:
            self._held = self.read(np.array([[0, len(self)]]))
        return self._held

    @property
    def label(self) -> Tensor:
        """The labels of all rows, (rows,)."""
        return torch.from_numpy(np.array(self._map("label", np.float32, 1)[:, 0]))

    @property
    def group(self) -> Tensor | None:
        """The groups of all rows, (rows,), if the task has any."""
        if not self.task.roles["group"]:
            return None
        return torch.from_numpy(np.array(self._map("group", np.int32, 1)[:, 0]))

    def read(self, ranges: Any) -> Batch:
        """The rows of some ranges (start, stop), one after the other, from disk."""
        label = self._gather([("label", 1)], np.float32, ranges)[:, 0]
        ids = self._gather(
            [(c.file, c.slots) for c in self.task.columns if c.is_ids], np.int32, ranges
        )
        numbers = self._gather(
            [(c.file, c.slots) for c in self.task.columns if not c.is_ids], np.float32, ranges
        )
        group = (
            self._gather([("group", 1)], np.int32, ranges)[:, 0]
            if self.task.roles["group"]
            else None
        )
        self._refuse_unknown(ids)
        return Batch(ids, numbers, label, group)

    def _refuse_unknown(self, ids: Tensor) -> None:
        """Refuse ids that no table has: the encoded data is not what its manifest says."""
        columns = [column for column in self.task.columns if column.is_ids]
        tables = torch.tensor(
            [column.categories for column in columns for _ in range(column.slots)]
        )
        if len(ids) and columns and (int(ids.min()) < 0 or bool((ids.amax(0) >= tables).any())):
            folder = self.task.folder
            raise DataError(
                f"{folder} is damaged: it has ids that no column has. Remove it and read the data again."
            )

    def _gather(
        self, files: Sequence[tuple[str, int]], dtype: type[np.generic], ranges: Any
    ) -> Tensor:
        rows = int(sum(stop - start for start, stop in ranges))
        found = np.empty((rows, sum(slots for _, slots in files)), dtype=dtype)
        to = 0
        for start, stop in ranges:
            column = 0
            for name, slots in files:
                found[to : to + stop - start, column : column + slots] = self._map(
                    name, dtype, slots
                )[start:stop]
                column += slots
            to += stop - start
        return torch.from_numpy(found)

    def _map(self, name: str, dtype: type[np.generic], slots: int) -> Any:
        path = self.task.verified(name if name.endswith(".bin") else f"{name}.bin")
        offset = self._start * np.dtype(dtype).itemsize * slots
        if not len(self):
            return np.empty((0, slots), dtype=dtype)
        try:
            return np.memmap(path, dtype, "r", offset, (len(self), slots))
        except (OSError, ValueError) as error:
            raise DataError(
                f"{path} is damaged or gone: {first_line(error)}. Remove {self.task.folder} and read the data again."
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}  # a worker maps the files anew


class Batches(IterableDataset[Batch]):
    """The batches of some rows, epoch by epoch.

    Iterating goes over one epoch, from its beginning; each shuffles anew, and the last batch may be smaller. In memory every row
    is equally likely to come next; from disk, blocks of neighbouring rows are read in random order and the rows of some blocks
    are shuffled together. The workers of a DataLoader (with `batch_size=None`) share the batches out, so that the same ones come
    in the same order, whatever the number of workers. `state_dict()` tells where an epoch stands, and after `load_state_dict()`
    it goes on with the next batch; what workers have done is counted in whole epochs.

    Args:
        shard: Which of how many shares of the rows, such as (rank, ranks); they differ by a row at most, from disk by a block.
        memory: Hold all rows in memory; None is up to 4 GiB.
        together: All shards step together: `size` counts the rows of all of them, all have the same number of batches of at least
            two rows (what is over is left out), and their place is the same, also for another number of shards.
    """

    def __init__(
        self,
        rows: Rows,
        size: int,
        *,
        shuffle: bool,
        seed: int,
        shard: tuple[int, int],
        memory: bool | None = None,
        together: bool = False,
    ) -> None:
        refuse_settings(
            {
                f"size must be a whole number of rows, at least 1, but is {size!r}": is_whole(size)
                and size >= 1,
                f"seed must be a whole number, but is {seed!r}": is_whole(seed),
                f"shard must be (number, count) with 0 <= number < count, but is {shard!r}": _is_shard(
                    shard
                ),
            }
        )
        self.rows = rows
        self.shuffle = shuffle
        self.seed = int(seed)
        self.shard = (int(shard[0]), int(shard[1]))
        self.together = together and self.shard[1] > 1
        self.size_of_all = int(size)
        self.size = -(-self.size_of_all // self.shard[1]) if self.together else self.size_of_all
        self.memory = rows.bytes <= IN_MEMORY if memory is None else memory
        self.position = 0  # batches of this epoch that are behind us
        self._own_epochs = 0  # that this process has ended
        self._loaded = False  # whether the next iteration goes on at the position
        self._ended = (
            _shared_counts()
        )  # epochs that each worker has ended; the last place is the number of workers

    def __len__(self) -> int:
        if not self.together:
            return -(-self._count(self.shard[0]) // self.size)
        fewest = min(self._count(number) for number in range(self.shard[1]))
        return fewest // self.size + (fewest % self.size > 1)

    def _count(self, number: int) -> int:
        """The rows of a shard in this epoch."""
        of = self.shard[1]
        return (
            len(range(number, len(self.rows), of))
            if self.memory
            else sum(b - a for a, b in self._ranges(number, of))
        )

    @property
    def epoch(self) -> int:
        """How many epochs are behind us."""
        return self._own_epochs + self._ended_by_workers()

    def _ended_by_workers(self) -> int:
        workers = int(self._ended[-1])
        return int(self._ended[:workers].min()) if workers else 0

    def __iter__(self) -> Iterator[Batch]:
        if not self._loaded or self._ended_by_workers():
            self.position = 0
        worker = get_worker_info()
        if worker is not None:
            return self._of_worker(worker.id, worker.num_workers)
        self._own_epochs, self._loaded = self.epoch, False
        self._ended.zero_()
        return self._of_epoch()

    def _of_epoch(self) -> Iterator[Batch]:
        for batch in islice(self._batches(0, 1), self._ahead()):
            self.position += 1
            yield batch
        self._own_epochs, self.position = self._own_epochs + 1, 0

    def _of_worker(self, number: int, count: int) -> Iterator[Batch]:
        """Every count-th batch. An epoch is behind us when all workers have ended it: a loop that was left counts for nothing."""
        self._ended[-1] = count
        ended = self._ended_by_workers() + 1
        yield from islice(self._batches(number, count), len(range(number, self._ahead(), count)))
        self._ended[number] = ended

    def _ahead(self) -> int:
        """Batches of this epoch that are before us; another number of shards may have had more."""
        return max(0, len(self) - self.position)

    def _batches(self, number: int, count: int) -> Iterator[Batch]:
        return self._from_memory(number, count) if self.memory else self._from_disk(number, count)

    def state_dict(self) -> dict[str, Any]:
        """Where the epoch stands."""
        position = 0 if self._ended_by_workers() else self.position
        return {"epoch": self.epoch, "position": position, **self._settings()}

    def _settings(self) -> dict[str, Any]:
        shard = [0, 1] if self.together else list(self.shard)
        return {
            "size": self.size_of_all,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "shard": shard,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another object with the same settings stood."""
        expected = self._settings()
        lacking = [key for key in ("epoch", "position", *expected) if key not in state]
        if lacking:
            raise DataError(
                f"Expected the place in batches from state_dict(), but it lacks {', '.join(lacking)}."
            )
        other = {key: state[key] for key in expected if state[key] != expected[key]}
        if other:
            ours, theirs = (
                " and ".join(f"{key}={value[key]}" for key in other) for value in (expected, other)
            )
            raise DataError(f"Expected the place in batches with {ours}, but found {theirs}.")
        for key in ("epoch", "position"):
            if not is_whole(state[key]) or not 0 <= state[key] < 1 << 62:
                raise DataError(
                    f"Expected the {key} of a place in batches, but found {state[key]!r:.40}."
                )
        self._own_epochs, self.position, self._loaded = state["epoch"], state["position"], True
        self._ended.zero_()

    def __getstate__(self) -> dict[str, Any]:
        """For a spawned worker; a forked one shares the counts as they are."""
        if not self._ended.is_shared():  # type: ignore[no-untyped-call]
            self._ended = self._ended.clone().share_memory_()  # type: ignore[no-untyped-call]
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not self._ended.is_shared():  # type: ignore[no-untyped-call]  # a copy, and no worker's
            self._ended = _shared_counts().copy_(self._ended)

    def _rng(self) -> torch.Generator:
        return torch.Generator().manual_seed((self.seed * 1_000_003 + self.epoch) % (1 << 63))

    def _from_memory(self, worker: int, workers: int) -> Iterator[Batch]:
        everything = self.rows.all()
        first, step = (self.position + worker) * self.size, workers * self.size
        number, count = self.shard
        if not self.shuffle and count == 1:
            for start in range(first, len(self.rows), step):
                yield everything.take(slice(start, start + self.size))
            return
        rows = len(self.rows)
        order = torch.randperm(rows, generator=self._rng()) if self.shuffle else torch.arange(rows)
        order = order[number::count]
        for start in range(first, len(order), step):
            yield everything.take(order[start : start + self.size])

    def _ranges(self, number: int, count: int) -> Any:
        """The blocks of a shard, in the order in which they are read."""
        starts = np.arange(0, len(self.rows), BLOCK)
        if self.shuffle:
            starts = starts[torch.randperm(len(starts), generator=self._rng()).numpy()]
        starts = starts[number::count]
        return np.stack([starts, np.minimum(starts + BLOCK, len(self.rows))], axis=1)

    def _from_disk(self, worker: int, workers: int) -> Iterator[Batch]:
        parts: list[Batch] = []  # of the batch in the making, which may lie in several windows
        lacking, number = (
            self.size,
            0,
        )  # rows of that batch, and its place among those that are before us
        for block, rows in self._windows():
            start = 0
            while start < len(rows):
                chosen = rows[start : start + lacking]
                start += len(chosen)
                lacking -= len(chosen)
                if number % workers == worker:
                    parts.append(block.take(chosen))
                if not lacking:
                    if parts:
                        yield _joined(parts)
                    parts, lacking, number = [], self.size, number + 1
        if parts:
            yield _joined(parts)

    def _windows(self) -> Iterator[tuple[Batch, Tensor]]:
        """Rows that are read together, and the order in which they come; those that are behind us are left out."""
        ranges = self._ranges(*self.shard)
        rng = self._rng()
        skip = self.position * self.size  # rows that are behind us
        for first in range(0, len(ranges), WINDOW):
            window = ranges[first : first + WINDOW]
            rows = int((window[:, 1] - window[:, 0]).sum())
            order = torch.randperm(rows, generator=rng) if self.shuffle else torch.arange(rows)
            if skip < rows:
                yield self.rows.read(window), order[skip:]
            skip = max(0, skip - rows)


def _is_shard(shard: Any) -> bool:
    is_pair = isinstance(shard, tuple | list) and len(shard) == 2 and all(map(is_whole, shard))
    return is_pair and 0 <= shard[0] < shard[1]


def _shared_counts() -> Tensor:
    """Zeros that forked processes share: one page of memory that no file stands for, so that there is nothing to clean up."""
    return torch.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), dtype=torch.int64)


def _joined(parts: Sequence[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    groups = [part.group for part in parts if part.group is not None]
    return Batch(
        torch.cat([part.ids for part in parts]),
        torch.cat([part.numbers for part in parts]),
        torch.cat([part.label for part in parts]),
        torch.cat(groups) if groups else None,
    )
