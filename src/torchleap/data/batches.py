"""Batches: the rows that a model sees at once, epoch by epoch, shuffled, sharded and resumable."""

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from .._common.checks import is_whole, refuse_settings
from .._common.errors import DataError

if TYPE_CHECKING:
    from .rows import Rows

IN_MEMORY = 4 << 30  # bytes of encoded rows up to which they are held in memory
BLOCK = 1 << 13  # neighbouring rows that are read together from disk
WINDOW = 32  # blocks whose rows are shuffled together

Ranges = NDArray[np.int64]  # (ranges, 2): the first row, and the row after the last


@dataclass(frozen=True)
class Batch:
    """Some rows: all ids and all numbers side by side, in the order of the task's columns.

    **Shape**, for B rows:
        - ids: (B, slots of ids) int32; 0 is missing, 1 is rare or unseen.
        - numbers: (B, slots of numbers) float32.
        - label: (B,) float32, 0 or 1.
        - group: (B,) int32, for GAUC; None if the task has no groups.
    """

    ids: Tensor
    numbers: Tensor
    label: Tensor
    group: Tensor | None = None

    def __len__(self) -> int:
        return self.label.shape[0]

    @property
    def inputs(self) -> tuple[Tensor, Tensor]:
        """The arguments of a model of `torchleap.models`."""
        return self.ids, self.numbers

    def to(self, device: torch.device | str) -> "Batch":
        """Return the same rows on another device."""
        group = self.group
        if group is not None:
            group = group.to(device)
        return Batch(self.ids.to(device), self.numbers.to(device), self.label.to(device), group)

    def take(self, rows: Tensor | slice) -> "Batch":
        """Return some of the rows, by their numbers or as a slice."""
        group = self.group
        if group is not None:
            group = _take(group, rows)
        return Batch(
            _take(self.ids, rows), _take(self.numbers, rows), _take(self.label, rows), group
        )


def _take(tensor: Tensor, rows: Tensor | slice) -> Tensor:
    if isinstance(rows, slice):
        return tensor[rows]
    return tensor.index_select(0, rows)


def joined(parts: Sequence[Batch]) -> Batch:
    """Return the rows of several batches as one."""
    if len(parts) == 1:
        return parts[0]
    groups = [part.group for part in parts if part.group is not None]
    return Batch(
        torch.cat([part.ids for part in parts]),
        torch.cat([part.numbers for part in parts]),
        torch.cat([part.label for part in parts]),
        torch.cat(groups) if groups else None,
    )


class Batches(IterableDataset[Batch]):
    """The batches of some rows, epoch by epoch.

    Each iteration is one epoch from its beginning and shuffles again; the last batch may be
    smaller. In memory every row is equally likely to come next; from disk, blocks of neighbouring
    rows are read in random order and the rows of some blocks are shuffled together. The workers
    of a DataLoader (with `batch_size=None`) divide the batches among them, so that the same ones
    come in the same order, whatever the number of workers. `state_dict()` contains the position
    in an epoch, and after `load_state_dict()` the epoch continues with the next batch; what
    workers have done is counted in complete epochs.

    Args:
        rows: The rows of one part of a task.
        size: The number of rows per batch.
        shuffle: Whether the order of the rows is random, another one in each epoch.
        seed: The seed of the order.
        shard: The number of this shard and the number of shards, such as (rank, ranks). Shards
            differ by at most one row, from disk by one block.
        memory: Whether all rows are held in memory; None does so up to 4 GiB.
        together: Whether all shards step together: `size` then counts the rows of all of them,
            all have the same number of batches of at least two rows (the rest is left out), and
            their position is the same, also for another number of shards.
    """

    def __init__(
        self,
        rows: "Rows",
        size: int,
        *,
        shuffle: bool,
        seed: int,
        shard: tuple[int, int],
        memory: bool | None = None,
        together: bool = False,
    ) -> None:
        _check(size, seed, shard)
        if memory is None:
            memory = rows.bytes <= IN_MEMORY
        self.rows = rows
        self.shuffle = shuffle
        self.seed = int(seed)
        self.shard = (int(shard[0]), int(shard[1]))
        self.together = together and self.shard[1] > 1
        self.size_of_all = int(size)
        self.size = self.size_of_all
        if self.together:
            self.size = -(-self.size_of_all // self.shard[1])
        self.memory = memory
        self.position = 0  # batches of this epoch that are done
        self._own_epochs = 0  # that this process has ended
        self._loaded = False  # whether the next iteration continues at the position
        self._ended = _shared_counts()  # epochs that each worker has ended; last: their number

    def __len__(self) -> int:
        if not self.together:
            return -(-self._count(self.shard[0]) // self.size)
        fewest = min(self._count(number) for number in range(self.shard[1]))
        return fewest // self.size + (fewest % self.size > 1)

    def _count(self, number: int) -> int:
        """Return the number of rows of a shard in this epoch."""
        shards = self.shard[1]
        if self.memory:
            return len(range(number, len(self.rows), shards))
        return _length(self._ranges(number, shards))

    @property
    def epoch(self) -> int:
        """The number of epochs that are done."""
        return self._own_epochs + self._ended_by_workers()

    def _ended_by_workers(self) -> int:
        workers = int(self._ended[-1])
        if not workers:
            return 0
        return int(self._ended[:workers].min())

    def __iter__(self) -> Iterator[Batch]:
        if not self._loaded or self._ended_by_workers():
            self.position = 0
        worker = get_worker_info()
        if worker is not None:
            return self._of_worker(worker.id, worker.num_workers)
        self._own_epochs = self.epoch
        self._loaded = False
        self._ended.zero_()
        return self._of_epoch()

    def _of_epoch(self) -> Iterator[Batch]:
        for batch in islice(self._batches(0, 1), self._left()):
            self.position += 1
            yield batch
        self._own_epochs += 1
        self.position = 0

    def _of_worker(self, number: int, count: int) -> Iterator[Batch]:
        """Yield every count-th batch.

        An epoch is done when all workers have ended it: a loop that was left counts for nothing.
        """
        self._ended[-1] = count
        ended = self._ended_by_workers() + 1
        own = len(range(number, self._left(), count))
        yield from islice(self._batches(number, count), own)
        self._ended[number] = ended

    def _left(self) -> int:
        """Return the number of batches left in this epoch; another number of shards had more."""
        return max(0, len(self) - self.position)

    def _batches(self, worker: int, workers: int) -> Iterator[Batch]:
        if self.memory:
            return self._from_memory(worker, workers)
        return self._from_disk(worker, workers)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the epoch, and the settings that it depends on."""
        position = self.position
        if self._ended_by_workers():
            position = 0
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
        """Restore the position of another object with the same settings."""
        _check_state(state, self._settings())
        self._own_epochs = state["epoch"]
        self.position = state["position"]
        self._loaded = True
        self._ended.zero_()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a spawned worker; a forked one shares the counts as they are."""
        if not self._ended.is_shared():  # type: ignore[no-untyped-call]
            self._ended = self._ended.clone().share_memory_()  # type: ignore[no-untyped-call]
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not self._ended.is_shared():  # type: ignore[no-untyped-call]  # a copy, not a worker's
            self._ended = _shared_counts().copy_(self._ended)

    def _rng(self) -> torch.Generator:
        return torch.Generator().manual_seed((self.seed * 1_000_003 + self.epoch) % (1 << 63))

    def _order(self, count: int, rng: torch.Generator) -> Tensor:
        if self.shuffle:
            return torch.randperm(count, generator=rng)
        return torch.arange(count)

    def _from_memory(self, worker: int, workers: int) -> Iterator[Batch]:
        everything = self.rows.all()
        first = (self.position + worker) * self.size
        step = workers * self.size
        number, count = self.shard
        if not self.shuffle and count == 1:
            for start in range(first, len(self.rows), step):
                yield everything.take(slice(start, start + self.size))
            return
        order = self._order(len(self.rows), self._rng())[number::count]
        for start in range(first, len(order), step):
            yield everything.take(order[start : start + self.size])

    def _ranges(self, number: int, count: int) -> Ranges:
        """Return the blocks of a shard, in the order in which they are read."""
        starts = np.arange(0, len(self.rows), BLOCK)
        if self.shuffle:
            starts = starts[torch.randperm(len(starts), generator=self._rng()).numpy()]
        starts = starts[number::count]
        return np.stack([starts, np.minimum(starts + BLOCK, len(self.rows))], axis=1)

    def _from_disk(self, worker: int, workers: int) -> Iterator[Batch]:
        parts: list[Batch] = []  # of the current batch, which may lie in several windows
        lacking = self.size  # rows of the current batch
        number = 0  # of the current batch among those that are left
        for window, rows in self._windows():
            start = 0
            while start < len(rows):
                chosen = rows[start : start + lacking]
                start += len(chosen)
                lacking -= len(chosen)
                if number % workers == worker:
                    parts.append(window.take(chosen))
                if not lacking:
                    if parts:
                        yield joined(parts)
                    parts = []
                    lacking = self.size
                    number += 1
        if parts:
            yield joined(parts)

    def _windows(self) -> Iterator[tuple[Batch, Tensor]]:
        """Yield rows that are read together, and their order without those that are done."""
        ranges = self._ranges(*self.shard)
        rng = self._rng()
        skip = self.position * self.size  # rows that are done
        for first in range(0, len(ranges), WINDOW):
            window = ranges[first : first + WINDOW]
            rows = _length(window)
            order = self._order(rows, rng)
            if skip < rows:
                yield self.rows.read(window), order[skip:]
            skip = max(0, skip - rows)


def _length(ranges: Ranges) -> int:
    """Return the number of rows of some ranges."""
    return int((ranges[:, 1] - ranges[:, 0]).sum())


def _check(size: Any, seed: Any, shard: Any) -> None:
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


def _is_shard(shard: Any) -> bool:
    if not isinstance(shard, tuple | list) or len(shard) != 2:
        return False
    return all(map(is_whole, shard)) and 0 <= shard[0] < shard[1]


def _check_state(state: dict[str, Any], expected: dict[str, Any]) -> None:
    """Refuse a position that is incomplete, of other settings, or not a position."""
    lacking = [key for key in ("epoch", "position", *expected) if key not in state]
    if lacking:
        raise DataError(
            "Expected the position in batches from state_dict(), "
            f"but it lacks {', '.join(lacking)}."
        )
    other = [key for key in expected if state[key] != expected[key]]
    if other:
        ours = " and ".join(f"{key}={expected[key]}" for key in other)
        theirs = " and ".join(f"{key}={state[key]}" for key in other)
        raise DataError(f"Expected the position in batches with {ours}, but found {theirs}.")
    for key in ("epoch", "position"):
        if not is_whole(state[key]) or not 0 <= state[key] < 1 << 62:
            raise DataError(
                f"Expected the {key} of a position in batches, but found {state[key]!r:.40}."
            )


def _shared_counts() -> Tensor:
    """Return zeros that forked processes share: one page of memory without a file behind it."""
    return torch.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), dtype=torch.int64)
