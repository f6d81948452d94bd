"""Ranks: the processes of one job, as torchrun starts them. A single process is the only rank, and nothing is sent."""

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from .._common.checks import is_number
from .._common.errors import TorchleapError
from .._common.text import first_line

TIMEOUT = "TORCHLEAP_TIMEOUT"  # seconds, in the environment, which torchrun hands on to every rank
AGAIN = "Start the job again."
Value = TypeVar("Value")


class RankError(TorchleapError):
    """Another rank is gone, or did not answer in time."""


def count(group: Any = None) -> int:
    """How many ranks there are."""
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


def rank(group: Any = None) -> int:
    """Which of them this process is."""
    return dist.get_rank(group) if dist.is_available() and dist.is_initialized() else 0


def is_first() -> bool:
    """Whether this is the rank that writes."""
    return rank() == 0


@contextmanager
def joined(timeout: float | None = None) -> Iterator[None]:
    """Within this context the processes that torchrun has started are ranks of one job; without torchrun nothing happens.

    Args:
        timeout: Seconds that a rank waits for the others; None is what TORCHLEAP_TIMEOUT says, or 600.
    """
    if "LOCAL_RANK" not in os.environ or dist.is_initialized():
        yield
        return
    seconds = _timeout() if timeout is None else timeout
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    backend = (
        "gloo"
        if device is None
        else f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}"
    )
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=seconds))
    except (RuntimeError, dist.DistError) as error:
        raise RankError(
            f"The ranks of the job did not find each other within {seconds:g} s: {first_line(error)}. {AGAIN}"
        ) from error
    try:
        with explained():
            yield
    except Exception as error:
        error.add_note(f"on rank {rank()} of {count()}")
        raise
    finally:
        gc.collect()  # models in cycles hold the group; if they outlive it, the process may abort at its end
        dist.destroy_process_group()


def timeout() -> timedelta:
    """How long a rank of this job waits for the others."""
    assert dist.group.WORLD is not None
    found: timedelta = dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout
    return found


def _timeout() -> float:
    given = os.environ.get(TIMEOUT, "600")
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not (is_number(seconds) and 0 < seconds < 1e9):
        raise TorchleapError(
            f"{TIMEOUT} must be a number of seconds above 0 and below 1e9, but is {given!r}."
        )
    return seconds


@contextmanager
def explained(cure: str = AGAIN) -> Iterator[None]:
    """Raise a RankError if another rank is gone: one sentence, and what to do.

    All that ranks send each other goes through it. What is sent knows no better cure than to start again; a training around
    it names the checkpoint.
    """
    try:
        yield
    except RankError as error:
        if cure == AGAIN or not str(error).endswith(AGAIN):
            raise
        raise RankError(str(error).removesuffix(AGAIN) + cure) from error.__cause__
    except (RuntimeError, dist.DistError) as error:
        if count() == 1 or not is_of_another_rank(error):
            raise
        raise RankError(
            f"Rank {rank()} of {count()} has lost another one: {first_line(error)}. {cure}"
        ) from error


def raise_if_lost(error: BaseException) -> None:
    """Raise a RankError if an error says that another rank is gone: a checkpoint, say, is not to blame for it."""
    if isinstance(error, RankError):
        raise error
    with explained():
        if isinstance(error, RuntimeError) and is_of_another_rank(error):
            raise error


def is_of_another_rank(error: Exception) -> bool:
    """Whether it says that another rank is gone or silent."""
    words = (
        "connection closed by peer",
        "connection reset",
        "timed out",
        "timeout",
        "broken pipe",
        "aborted",
        "closed the conn",
    )
    told = str(error).lower()
    named = "gloo" in told or "nccl" in told
    return (
        isinstance(error, dist.DistError)
        or "pair closure" in told
        or (named and any(word in told for word in words))
    )


def total(tensor: Tensor, group: Any = None) -> Tensor:
    """The sum over all ranks, in place."""
    if count(group) > 1:
        with explained():
            dist.all_reduce(tensor, group=group)
    return tensor


def average(tensor: Tensor, group: Any = None) -> Tensor:
    """The mean over all ranks, in place."""
    return total(tensor, group).div_(count(group)) if count(group) > 1 else tensor


def broadcast(tensor: Tensor, group: Any = None) -> Tensor:
    """What the first rank has, in place."""
    if count(group) > 1:
        with explained():
            dist.broadcast(tensor, group_src=0, group=group)
    return tensor


def from_first(value: Value) -> Value:
    """What the first rank has; plain Python."""
    if count() == 1:
        return value
    told = [value]
    with explained():
        dist.broadcast_object_list(told, src=0)
    return told[0]


def gathered(tensor: Tensor) -> list[Tensor]:
    """What each rank has; of any length, (n, ...)."""
    if count() == 1:
        return [tensor]
    sizes = [torch.zeros(1, dtype=torch.int64, device=tensor.device) for _ in range(count())]
    with explained():
        dist.all_gather(sizes, torch.tensor([len(tensor)], device=tensor.device))
    longest = max(int(size) for size in sizes)
    padded = tensor.new_zeros(longest, *tensor.shape[1:])
    padded[: len(tensor)] = tensor
    found = [torch.empty_like(padded) for _ in sizes]
    with explained():
        dist.all_gather(found, padded)
    return [one[: int(size)] for one, size in zip(found, sizes, strict=True)]


def full(tensor: Tensor) -> Tensor:
    """A tensor in one piece; of one that is sharded over ranks (a DTensor), all of them have to ask."""
    if not hasattr(tensor, "full_tensor"):
        return tensor
    with explained():
        gathered: Tensor = tensor.full_tensor()
    return gathered


def own_part(tensor: Tensor, like: Tensor | None = None) -> Tensor:
    """This rank's part of a tensor that is sharded, or that is to be sharded `like` another; of a DTensor it is a view."""
    if like is not None and hasattr(like, "full_tensor") and not hasattr(tensor, "full_tensor"):
        tensor = sharded(tensor, like)
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def sharded(tensor: Tensor, like: Any) -> Tensor:
    """A tensor that every rank has, sharded like another; nothing is sent."""
    from torch.distributed.tensor import DTensor, Replicate

    everywhere = [Replicate()] * like.device_mesh.ndim
    with explained():
        local = DTensor.from_local(tensor, like.device_mesh, everywhere, run_check=False)
        return local.redistribute(placements=like.placements)


def sharded_state(state: dict[str, Any], parameters: Sequence[Tensor]) -> dict[str, Any]:
    """The state_dict of an optimizer, with what belongs to the elements of sharded parameters sharded as they are."""
    places = {
        place: parameter
        for place, parameter in enumerate(parameters)
        if hasattr(parameter, "full_tensor")
    }

    def like(place: int, value: Any) -> Any:
        plain = isinstance(value, Tensor) and not hasattr(value, "full_tensor")
        return (
            sharded(value, places[place]) if plain and value.shape == places[place].shape else value
        )

    found = {
        place: {name: like(place, value) for name, value in own.items()} if place in places else own
        for place, own in state["state"].items()
    }
    return {**state, "state": found}


def barrier() -> None:
    """Wait for all ranks."""
    if count() > 1:
        with explained():
            dist.barrier()


@contextmanager
def first_before_others() -> Iterator[None]:
    """The first rank does it, then the others, which find what it has left; if it fails, they hear of it instead of waiting."""
    problem: str | None = None
    if is_first():
        try:
            yield
        except BaseException as error:
            problem = f"{type(error).__name__}: {error}"
            with suppress(RankError):  # what happened first is what is raised
                from_first(problem)
            raise
        from_first(problem)
        return
    problem = from_first(problem)
    if problem is not None:
        raise RankError(f"Rank 0 could not go on. {problem}")
    yield
