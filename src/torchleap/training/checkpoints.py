"""Checkpoints of a job of many ranks, by torch.distributed.checkpoint: each appears whole under its name, or not at all.

Only tensors are stored: plain values go in as JSON text. In the place of PyTorch's index, which is a pickle, there is one in
JSON with a digest of each file, see `stored`. So loading never runs code, and a flipped bit is noticed.
"""

import json
import os
import re
import shutil
import warnings
from concurrent.futures import Future
from pathlib import Path
from threading import Lock
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as read_tensors
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.state_dict_saver import save as write_tensors

from .._common.checks import is_whole, refuse_settings
from .._common.errors import TorchleapError
from ..distributed import ranks
from .stored import Reader, Writer

NAME = re.compile(r"step-(\d{12})")
PLAIN = "plain"  # the key of the values that are no tensors


class CheckpointError(TorchleapError):
    """A checkpoint cannot be written or read."""


class Checkpoints:
    """The checkpoints of one job, in one folder that all ranks reach.

    Args:
        keep: How many of the latest to keep.
        background: Write while training goes on: only the copying of the tensors keeps it waiting.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, keep: int = 2, background: bool = False
    ) -> None:
        refuse_settings(
            {
                f"keep must be a whole number of at least 1, but is {keep!r}": is_whole(keep)
                and keep >= 1
            }
        )
        self.folder = Path(folder)
        self.keep = keep
        self.background = background
        self._writing: tuple[Any, Path, Path] | None = None
        self._publishing = (
            Lock()
        )  # the thread that has written a checkpoint gives it its name, or else who waits for it
        several = ranks.count() > 1
        if not several:  # PyTorch warns of that at every writing, also from its own thread, which no context reaches
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        # collectives of a thread must not come between those of the training
        self._group = (
            dist.new_group(backend="gloo", timeout=ranks.timeout())
            if several and background
            else None
        )

    def latest(self) -> Path | None:
        """The newest whole checkpoint, as the first rank sees it."""
        found = (
            sorted(path for path in self.folder.glob("step-*") if NAME.fullmatch(path.name))
            if ranks.is_first()
            else []
        )
        name = ranks.from_first(found[-1].name if found else None)
        return None if name is None else self.folder / name

    def save(self, step: int, shared: Any, own: Any) -> None:
        """Write what all ranks have in common, and what belongs to this rank.

        Args:
            shared: Dicts, lists, tensors and plain values; tensors may be sharded.
        """
        self.wait()
        target = self.folder / f"step-{step:012d}"
        temporary = self.folder / f".writing-{target.name}"
        with ranks.first_before_others():
            if ranks.is_first():
                self.folder.mkdir(parents=True, exist_ok=True)
                for left in self.folder.glob(".writing-*"):
                    shutil.rmtree(left, ignore_errors=True)
        state = self._tensors(shared, own)
        writer = Writer(temporary, single_file_per_rank=True, sync_files=True)
        try:
            if self.background:
                copied = {key: tensor.detach().clone() for key, tensor in state.items()}
                future = async_save(
                    copied,
                    storage_writer=writer,
                    planner=_planner(),
                    process_group=self._group,
                    no_dist=ranks.count() == 1,
                )
                self._writing = (future, temporary, target)
                if isinstance(future, Future):
                    future.add_done_callback(
                        lambda done: (
                            self._publish(temporary, target) if not done.exception() else None
                        )
                    )
                return
            write_tensors(
                state, storage_writer=writer, planner=_planner(), no_dist=ranks.count() == 1
            )
        except (Exception, CheckpointException) as error:
            self._fail(error, temporary, target)
        self._publish(temporary, target)

    def _tensors(self, shared: Any, own: Any) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        mine = f"rank{ranks.rank()}"
        plain = {"shared": _flatten(shared, "shared", tensors), mine: _flatten(own, mine, tensors)}
        tensors[f"{mine}.{PLAIN}"] = _as_bytes(plain[mine])
        if ranks.is_first():  # the others' may differ, such as in what their clocks say
            tensors[f"shared.{PLAIN}"] = _as_bytes(
                {"ranks": ranks.count(), "state": plain["shared"]}
            )
        return tensors

    def is_written(self) -> bool:
        """Whether what was begun in the background is done, or has failed: `wait` then tells at once."""
        return self._writing is not None and bool(self._writing[0].done())

    def wait(self) -> None:
        """Until what is written in the background is there."""
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
        """Give a whole checkpoint its name; the first rank knows that all have written."""
        with self._publishing:
            if not ranks.is_first() or not temporary.exists():
                return
            discarded = (
                [_aside(target)] if target.exists() else []
            )  # the same step of a run that was broken off later
            temporary.replace(target)
            whole = sorted(path for path in self.folder.glob("step-*") if NAME.fullmatch(path.name))
            for old in (*discarded, *map(_aside, whole[: -self.keep])):
                shutil.rmtree(old, ignore_errors=True)

    def _fail(self, error: BaseException, temporary: Path, target: Path) -> None:
        if ranks.is_first():
            shutil.rmtree(temporary, ignore_errors=True)
        ranks.raise_if_lost(error)
        reason = _reason(error)
        raise CheckpointError(
            f"The checkpoint {target} cannot be written: {reason}. Those before it are whole. Make room, and start again."
        ) from error

    def load(self, path: Path, current: Any) -> tuple[Any, list[Any], int]:
        """What all ranks had in common, what each had of its own, and how many there were.

        If there are as many now, only this rank's own is read.

        Args:
            current: What would be saved as shared now: tensors that are sharded are filled in their place.
        """
        try:
            reader = Reader(path)
            found = reader.read_metadata().state_dict_metadata
            self._verify(reader)
            places: dict[str, Tensor] = {}
            _flatten(current, "shared", places)
            sharded = {
                key: tensor for key, tensor in places.items() if hasattr(tensor, "full_tensor")
            }
            wanted = {
                key: _place(key, kind, sharded)
                for key, kind in found.items()
                if key.startswith("shared.")
            }
            self._read(wanted, reader)
            plain = _from_bytes(wanted.pop(f"shared.{PLAIN}"))
            if not is_whole(plain["ranks"]) or not 1 <= plain["ranks"] <= len(found):
                raise CheckpointError(
                    f"{path} is of {plain['ranks']!r:.40} ranks: torchleap did not write it."
                )
            as_many = plain["ranks"] == ranks.count()
            numbers = [ranks.rank()] if as_many else range(plain["ranks"])
            own = {
                key: _place(key, kind, {})
                for key, kind in found.items()
                if key.startswith(tuple(f"rank{n}." for n in numbers))
            }
            self._read(own, reader)
            each = [_restore(_from_bytes(own[f"rank{number}.{PLAIN}"]), own) for number in numbers]
            return _restore(plain["state"], wanted), each, plain["ranks"]
        except CheckpointError:
            raise
        except (Exception, CheckpointException) as error:
            ranks.raise_if_lost(error)
            raise CheckpointError(
                f"{path} is not a complete checkpoint: {_reason(error)}. Remove it to resume from the one before."
            ) from error

    def _verify(self, reader: Reader) -> None:
        """Compare all files with their digests; each rank does some of them."""
        own = reader.damages(ranks.rank(), ranks.count())
        found = [_from_bytes(one) for one in ranks.all_gather(_as_bytes(own))]
        damages = [name for names in found for name in names]
        if damages:
            raise ValueError(f"{damages[0]} is missing or not what was written")

    def _read(self, places: dict[str, Tensor], reader: Reader) -> None:
        read_tensors(places, storage_reader=reader, no_dist=ranks.count() == 1)


def _aside(path: Path) -> Path:
    """Take its name from a checkpoint that is to go: what has a name is whole, also while it is removed."""
    aside = path.with_name(f".writing-old-{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    return path.replace(aside)


def _planner() -> DefaultSavePlanner:
    """What all ranks have is the first one's: rows of a table and where they stand must not come from different ranks."""
    return DefaultSavePlanner(dedup_save_to_lowest_rank=True)


def _reason(error: BaseException) -> str:
    """The last sentence of an error, which PyTorch wraps in many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    inner = (
        [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
        or lines
        or [type(error).__name__]
    )
    return inner[-1].rstrip(".")


def _flatten(value: Any, key: str, tensors: dict[str, Tensor]) -> Any:
    """Put the tensors of a nested value under their keys; what is left is JSON."""
    if isinstance(value, Tensor):
        tensors[key] = value
        return {"tensor": key}
    if isinstance(value, dict):
        return {
            "dict": [
                [name, _flatten(inner, f"{key}.{name}", tensors)] for name, inner in value.items()
            ]
        }
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {
            kind: [_flatten(inner, f"{key}.{place}", tensors) for place, inner in enumerate(value)]
        }
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CheckpointError(
        f"Expected tensors and plain values in the state {key}, but found {type(value).__name__}."
    )


def _restore(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {name: _restore(inner, tensors) for name, inner in content}
    found = [_restore(inner, tensors) for inner in content]
    return found if kind == "list" else tuple(found)


def _as_bytes(value: Any) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _from_bytes(tensor: Tensor) -> Any:
    return json.loads(tensor.numpy().tobytes())


def _place(key: str, kind: Any, sharded: dict[str, Tensor]) -> Tensor:
    """Where to read a tensor to."""
    if not isinstance(kind, TensorStorageMetadata):
        raise CheckpointError(
            f"Expected tensors alone, but {key} is none. torchleap did not write this checkpoint."
        )
    return sharded[key] if key in sharded else torch.empty(kind.size, dtype=kind.properties.dtype)
