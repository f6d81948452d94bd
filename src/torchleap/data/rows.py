"""Rows: the encoded rows of one part of a task, read from disk or held in memory."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._common.errors import DataError
from .._common.text import first_line
from ..distributed import ranks
from . import batches
from .batches import Batch, Batches, Ranges
from .columns import ShuffledColumn

if TYPE_CHECKING:
    from .task import Task

CONTENTS = "rows.bin"
File = tuple[str, int, int | None]  # its name, its slots, and the order of its rows

PARTS = ("train", "valid", "test")  # in the order in which their rows lie in a file
Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Division:
    """Which rows of the files each part of a task has, where that is not the original split.

    Attributes:
        parts: The numbers of the rows of each part, counted over all rows of a file, rising.
        rows: The number of rows of a file.
    """

    parts: Mapping[str, Numbers]
    rows: int

    @cached_property
    def key(self) -> list[int]:
        """A short name of the division."""
        return [crc32(self.parts[part].tobytes()) for part in PARTS]


class Rows:
    """The rows of one part of a task.

    Args:
        task: The task, whose folder has a file per column.
        part: "train", "valid" or "test".
    """

    def __init__(self, task: "Task", part: str) -> None:
        before = PARTS[: PARTS.index(part)]
        self.task = task
        self.part = part
        self._start = sum(task.rows[other] for other in before)
        self._numbers: Numbers | None = None
        if task.division is not None:
            self._numbers = task.division.parts[part]
        self._held: Batch | None = None
        self._orders: dict[int, NDArray[np.int64]] = {}  # by their seed

    def __len__(self) -> int:
        return self.task.rows[self.part]

    def __repr__(self) -> str:
        return f"{len(self):,} {self.part} rows of {self.task!r}"

    @property
    def bytes(self) -> int:
        """The memory that all rows take, in bytes."""
        slots = sum(column.slots for column in self.task.columns)
        return len(self) * (4 * slots + 8)

    def batches(
        self,
        size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        shard: tuple[int, int] = (0, 1),
        memory: bool | None = None,
        together: bool = False,
    ) -> Batches:
        """Return batches of so many rows, the last one smaller.

        The arguments are those of `Batches`; with `together`, the shard is that of this rank.
        """
        if together:
            shard = ranks.rank(), ranks.count()
        return Batches(
            self, size, shuffle=shuffle, seed=seed, shard=shard, memory=memory, together=together
        )

    def between(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        """Yield the rows from `start` up to `stop` in their order, `size` rows at a time."""
        in_memory = self._held is not None or self.bytes <= batches.IN_MEMORY
        for first in range(start, stop, size):
            last = min(stop, first + size)
            if in_memory:
                yield self.all().take(slice(first, last))
            else:
                yield self.read(np.array([[first, last]]))

    def all(self) -> Batch:
        """Return all rows in one batch, which is held in memory from then on."""
        if self._held is None:
            self._held = self.read(np.array([[0, len(self)]]))
        return self._held

    @property
    def label(self) -> Tensor:
        """The labels of all rows, (rows,)."""
        return torch.from_numpy(self._all_of("label.bin", np.float32))

    @property
    def group(self) -> Tensor | None:
        """The groups of all rows, (rows,); None if the task has no groups."""
        if not self.task.roles["group"]:
            return None
        return torch.from_numpy(self._all_of("group.bin", np.int32))

    def _all_of(self, name: str, dtype: type[np.generic]) -> NDArray[Any]:
        """Return all rows of a file with one slot, (rows,)."""
        return np.array(self._some_of(name, dtype, 1, slice(None))[:, 0])

    @property
    def contents(self) -> NDArray[np.uint64] | None:
        """A hash of the values of each row before they were encoded, (rows,).

        None for data that an earlier version encoded.
        """
        if CONTENTS not in self.task.files:
            return None
        found: NDArray[np.uint64] = self._all_of(CONTENTS, np.uint64)
        return found

    def column(self, name: str) -> NDArray[Any]:
        """Return the encoded values of a column, (rows, slots), read when used where possible.

        Args:
            name: The name of the column.
        """
        column = self.task.columns[self.task.fields.index(name)]
        dtype = np.int32 if column.is_ids else np.float32
        if self._numbers is None and not isinstance(column, ShuffledColumn):
            return self._map(column.file, dtype, column.slots, self._start, len(self))
        chosen: slice | Numbers = slice(None)
        if isinstance(column, ShuffledColumn):
            chosen = self._order(column.order)
        return self._some_of(column.file, dtype, column.slots, chosen)

    def read(self, ranges: Ranges | list[list[int]]) -> Batch:
        """Read the rows of some ranges (start, stop) from disk, one range after the other."""
        label = self._gather([("label.bin", 1, None)], np.float32, ranges)[:, 0]
        ids = self._gather(self._files(ids=True), np.int32, ranges)
        numbers = self._gather(self._files(ids=False), np.float32, ranges)
        group = None
        if self.task.roles["group"]:
            group = self._gather([("group.bin", 1, None)], np.int32, ranges)[:, 0]
        self._refuse_unknown(ids)
        return Batch(ids, numbers, label, group)

    def _files(self, *, ids: bool) -> list[File]:
        """Return the file, the slots and the order of each column with ids, or with numbers."""
        found: list[File] = []
        for column in self.task.columns:
            if column.is_ids == ids:
                order = column.order if isinstance(column, ShuffledColumn) else None
                found.append((column.file, column.slots, order))
        return found

    def _order(self, seed: int) -> NDArray[np.int64]:
        """Return the order in which shuffled columns read the rows of this part, (rows,)."""
        if seed not in self._orders:
            rng = np.random.default_rng((seed, PARTS.index(self.part)))
            self._orders[seed] = rng.permutation(len(self))
        return self._orders[seed]

    def _refuse_unknown(self, ids: Tensor) -> None:
        """Refuse ids that no table has: the encoded data is not what its manifest describes."""
        sizes: list[int] = []  # of the table of each slot
        for column in self.task.columns:
            if column.is_ids:
                sizes += [column.categories] * column.slots
        if not len(ids) or not sizes:
            return
        if int(ids.min()) < 0 or bool((ids.amax(0) >= torch.tensor(sizes)).any()):
            raise DataError(
                f"{self.task.folder} is damaged: it has ids that no column has. "
                "Remove it and read the data again."
            )

    def _gather(
        self,
        files: Sequence[File],
        dtype: type[np.generic],
        ranges: Ranges | list[list[int]],
    ) -> Tensor:
        """Return the rows of some ranges of some files side by side, (rows, slots of all)."""
        rows = int(sum(stop - start for start, stop in ranges))
        found = np.empty((rows, sum(slots for _, slots, _ in files)), dtype=dtype)
        top = 0
        for start, stop in ranges:
            bottom = top + stop - start
            left = 0
            for name, slots, order in files:
                chosen: slice | NDArray[np.int64] = slice(start, stop)
                if order is not None:
                    chosen = self._order(order)[start:stop]
                found[top:bottom, left : left + slots] = self._some_of(name, dtype, slots, chosen)
                left += slots
            top = bottom
        return torch.from_numpy(found)

    def _some_of(
        self, name: str, dtype: type[np.generic], slots: int, chosen: slice | Numbers
    ) -> NDArray[Any]:
        """Return some rows of this part from a file, (chosen, slots)."""
        if self._numbers is None:
            return self._map(name, dtype, slots, self._start, len(self))[chosen]
        assert self.task.division is not None
        return self._map(name, dtype, slots, 0, self.task.division.rows)[self._numbers[chosen]]

    def _map(
        self, name: str, dtype: type[np.generic], slots: int, first: int, rows: int
    ) -> NDArray[Any]:
        """Return the rows of a file from the first one as an array that is read when it is used."""
        path = self.task.verified(name)
        if not rows:
            return np.empty((0, slots), dtype=dtype)
        offset = first * np.dtype(dtype).itemsize * slots
        try:
            return np.memmap(path, dtype, "r", offset, (rows, slots))
        except (OSError, ValueError) as error:
            raise DataError(
                f"{path} is damaged or gone: {first_line(error)}. "
                f"Remove {self.task.folder} and read the data again."
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        # A worker maps the files itself, and draws the same orders.
        return {**self.__dict__, "_held": None, "_orders": {}}
