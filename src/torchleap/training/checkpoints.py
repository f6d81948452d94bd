"""Checkpoints of a job of many ranks, written by torch.distributed.checkpoint.

A checkpoint appears under its name atomically, once it is complete. Only tensors are stored: plain
values are stored as JSON text. Instead of PyTorch's index, which is a pickle, there is one in JSON
with a digest of each file, see `stored`. So loading never runs code, and a flipped bit is noticed.
"""

import json
import os
import re
import shutil
import warnings
from concurrent.futures import Future
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as read_tensors
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.state_dict_saver import save as write_tensors

from .._common.checks import check_arguments, is_whole, whole
from .._common.errors import TorchleapError
from .._common.files import put_in_place
from ..distributed import ranks
from .stored import Reader, Writer

NAME = re.compile(r"step-(\d{12})")
WRITING = ".writing-"  # the prefix of folders that are not complete, or no longer
PLAIN = "plain"  # the key of the values that are not tensors
SHARED = "shared"  # the prefix of the keys of the common state


class CheckpointError(TorchleapError):
    """A checkpoint cannot be written or read."""


class _Writing(NamedTuple):
    """A checkpoint that is being written in the background."""

    future: Any
    temporary: Path
    target: Path


class Checkpoints:
    """The checkpoints of one job, in one folder that all ranks reach.

    Args:
        folder: The folder, which is made if it does not exist.
        keep: The number of latest checkpoints to keep.
        background: Whether training continues during a writing: it then waits only for the tensors
            to be copied.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, keep: int = 2, background: bool = False
    ) -> None:
        check_arguments(keep=whole(keep, at_least=1))
        self.folder = Path(folder)
        self.keep = keep
        self.background = background
        self._writing: _Writing | None = None
        # either the thread that has written a checkpoint names it, or the one that waits for it
        self._publishing = Lock()
        self._group = None
        if ranks.count() == 1:
            # PyTorch warns at every writing, also from a thread that no context reaches
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        elif background:
            # collectives of a thread must not come between those of the training
            self._group = dist.new_group(backend="gloo", timeout=ranks.timeout())

    def latest(self) -> Path | None:
        """Return the newest complete checkpoint that the first rank finds, or None."""
        name = None
        if ranks.is_first():
            complete = self._complete()
            if complete:
                name = complete[-1].name
        name = ranks.from_first(name)
        if name is None:
            return None
        return self.folder / name

    def _complete(self) -> list[Path]:
        """Return all complete checkpoints, the oldest first."""
        return sorted(path for path in self.folder.glob("step-*") if NAME.fullmatch(path.name))

    # Writing

    def save(self, step: int, shared: Any, own: Any) -> None:
        """Write a checkpoint, or begin to if it is written in the background.

        Args:
            step: The step, which names the checkpoint.
            shared: The state that all ranks have in common: dicts, lists, tensors and plain
                values. Tensors may be sharded.
            own: The state that belongs to this rank.
        """
        self.wait()
        target = self.folder / f"step-{step:012d}"
        temporary = self.folder / f"{WRITING}{target.name}"
        with ranks.first_before_others():
            if ranks.is_first():
                self.folder.mkdir(parents=True, exist_ok=True)
                for left in self.folder.glob(f"{WRITING}*"):
                    shutil.rmtree(left, ignore_errors=True)
        tensors = _tensors(shared, own)
        try:
            if self.background:
                self._begin(tensors, temporary, target)
                return
            write_tensors(
                tensors,
                storage_writer=_writer(temporary),
                planner=_planner(),
                no_dist=ranks.count() == 1,
            )
        except (Exception, CheckpointException) as error:
            self._fail(error, temporary, target)
        self._publish(temporary, target)

    def _begin(self, tensors: dict[str, Tensor], temporary: Path, target: Path) -> None:
        """Copy tensors and begin to write them in the background."""
        future = async_save(
            {key: tensor.detach().clone() for key, tensor in tensors.items()},
            storage_writer=_writer(temporary),
            planner=_planner(),
            process_group=self._group,
            no_dist=ranks.count() == 1,
        )
        self._writing = _Writing(future, temporary, target)

        def publish(done: Any) -> None:
            if not done.exception():
                self._publish(temporary, target)

        if isinstance(future, Future):
            future.add_done_callback(publish)

    def is_written(self) -> bool:
        """Return whether a writing in the background has ended, so that `wait` returns at once."""
        return self._writing is not None and bool(self._writing.future.done())

    def wait(self) -> None:
        """Wait for the writing in the background, and raise a CheckpointError if it has failed."""
        if self._writing is None:
            return
        future, temporary, target = self._writing
        self._writing = None
        try:
            future.result()
        except (Exception, CheckpointException) as error:
            self._fail(error, temporary, target)
        self._publish(temporary, target)

    def _publish(self, temporary: Path, target: Path) -> None:
        """Give a complete checkpoint its name, and remove old ones.

        The first rank does so, since it knows that all ranks have written. A checkpoint of the
        same step, from a run that was stopped later, is replaced.
        """
        with self._publishing:
            if not ranks.is_first() or not temporary.exists():
                return
            replaced = _aside(target)
            put_in_place(temporary, target, replaced)
            discarded = [replaced]
            for old in self._complete()[: -self.keep]:
                discarded.append(old.replace(_aside(old)))
            for path in discarded:
                shutil.rmtree(path, ignore_errors=True)

    def _fail(self, error: BaseException, temporary: Path, target: Path) -> NoReturn:
        """Remove a checkpoint that could not be written, and raise an error that says why."""
        if ranks.is_first():
            shutil.rmtree(temporary, ignore_errors=True)
        ranks.raise_if_lost(error)
        raise CheckpointError(
            f"The checkpoint {target} cannot be written: {_reason(error)}. Those before it are "
            "complete. Make room, and start again."
        ) from error

    # Reading

    def load(self, path: Path, current: Any) -> tuple[Any, list[Any], int]:
        """Read a checkpoint.

        Args:
            path: The checkpoint.
            current: The common state that would be saved now: its sharded tensors are filled in
                place.

        Returns:
            The state that all ranks had in common; the states that each rank had of its own, of
            this rank alone if there are as many ranks now; and the number of ranks then.
        """
        try:
            return self._load(path, current)
        except CheckpointError:
            raise
        except (Exception, CheckpointException) as error:
            ranks.raise_if_lost(error)
            raise CheckpointError(
                f"{path} is not a complete checkpoint: {_reason(error)}. Remove it to resume from "
                "the one before."
            ) from error

    def _load(self, path: Path, current: Any) -> tuple[Any, list[Any], int]:
        reader = Reader(path)
        stored = reader.read_metadata().state_dict_metadata
        _check_digests(reader)
        shared = _read(reader, stored, [SHARED], _sharded_tensors(current))
        plain = _from_bytes(shared.pop(f"{SHARED}.{PLAIN}"))
        count = plain["ranks"]
        if not is_whole(count) or not 1 <= count <= len(stored):
            raise CheckpointError(f"{path} is of {count!r:.40} ranks: torchleap did not write it.")
        numbers = [ranks.rank()] if count == ranks.count() else range(count)
        names = [f"rank{number}" for number in numbers]
        own = _read(reader, stored, names, {})
        own_states = [_restore(_from_bytes(own[f"{name}.{PLAIN}"]), own) for name in names]
        return _restore(plain["state"], shared), own_states, count


def _writer(folder: Path) -> Writer:
    return Writer(folder, single_file_per_rank=True, sync_files=True)


def _planner() -> DefaultSavePlanner:
    """Return a planner that takes what all ranks have from the first one.

    Rows of a table and the steps that they have reached must not come from different ranks.
    """
    return DefaultSavePlanner(dedup_save_to_lowest_rank=True)


def _aside(path: Path) -> Path:
    """Return an unused name for a checkpoint that is to be removed.

    A name of a step belongs to complete checkpoints, also while one is being removed.
    """
    aside = path.with_name(f"{WRITING}old-{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    return aside


def _check_digests(reader: Reader) -> None:
    """Compare all files with their digests; each rank compares some of them."""
    own = reader.damages(ranks.rank(), ranks.count())
    for found in ranks.gathered(_as_bytes(own)):
        for name in _from_bytes(found):
            raise ValueError(f"{name} is missing or not what was written")


def _read(
    reader: Reader, stored: dict[str, Any], prefixes: list[str], sharded: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Read all tensors under some prefixes, into sharded tensors where there are such."""
    starts = tuple(f"{prefix}." for prefix in prefixes)
    tensors = {}
    for key, kind in stored.items():
        if key.startswith(starts):
            if not isinstance(kind, TensorStorageMetadata):
                raise CheckpointError(
                    f"Expected only tensors, but {key} is not one. "
                    "torchleap did not write this checkpoint."
                )
            if key in sharded:
                tensors[key] = sharded[key]
            else:
                tensors[key] = torch.empty(kind.size, dtype=kind.properties.dtype)
    read_tensors(tensors, storage_reader=reader, no_dist=ranks.count() == 1)
    return tensors


def _sharded_tensors(state: Any) -> dict[str, Tensor]:
    """Return the sharded tensors of a common state by their keys."""
    tensors: dict[str, Tensor] = {}
    _flatten(state, SHARED, tensors)
    return {key: tensor for key, tensor in tensors.items() if hasattr(tensor, "full_tensor")}


def _tensors(shared: Any, own: Any) -> dict[str, Tensor]:
    """Return the tensors of both states by key, with their plain values as text."""
    tensors: dict[str, Tensor] = {}
    mine = f"rank{ranks.rank()}"
    plain = _flatten(shared, SHARED, tensors)
    tensors[f"{mine}.{PLAIN}"] = _as_bytes(_flatten(own, mine, tensors))
    if ranks.is_first():  # those of other ranks may differ, such as the time of their clocks
        tensors[f"{SHARED}.{PLAIN}"] = _as_bytes({"ranks": ranks.count(), "state": plain})
    return tensors


def _flatten(value: Any, key: str, tensors: dict[str, Tensor]) -> Any:
    """Return a nested value as JSON, and add its tensors to `tensors` under their keys."""
    if isinstance(value, Tensor):
        tensors[key] = value
        return {"tensor": key}
    if isinstance(value, dict):
        items = [[name, _flatten(item, f"{key}.{name}", tensors)] for name, item in value.items()]
        return {"dict": items}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_flatten(item, f"{key}.{n}", tensors) for n, item in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CheckpointError(
        f"Expected tensors and plain values in the state {key}, but found {type(value).__name__}."
    )


def _restore(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the nested value that `_flatten` made JSON of."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {name: _restore(item, tensors) for name, item in content}
    items = [_restore(item, tensors) for item in content]
    return items if kind == "list" else tuple(items)


def _as_bytes(value: Any) -> Tensor:
    """Return JSON as a tensor of bytes; NaN is allowed, as the metric of too few rows."""
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _from_bytes(tensor: Tensor) -> Any:
    return json.loads(tensor.numpy().tobytes())


def _reason(error: BaseException) -> str:
    """Return the last line of an error that names its class: PyTorch wraps one in many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return [type(error).__name__, *lines, *named][-1].rstrip(".")
