"""Ranks: the processes of one job, as torchrun starts them, and the collectives among them.

A single process is the only rank: every function then returns at once and sends nothing, so
callers do not depend on the number of ranks.
"""

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from .._common.checks import is_number
from .._common.errors import TorchleapError
from .._common.text import first_line

TIMEOUT = "TORCHLEAP_TIMEOUT"  # seconds, in the environment, which torchrun passes to every rank
AGAIN = "Start the job again."
LOST = (
    "connection closed by peer",
    "connection reset",
    "timed out",
    "timeout",
    "broken pipe",
    "aborted",
    "closed the conn",
)
Value = TypeVar("Value")


class RankError(TorchleapError):
    """Another rank has died, or did not answer in time."""


# The job


def count(group: Any = None) -> int:
    """Return the number of ranks.

    >>> count()
    1
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size(group)
    return 1


def rank(group: Any = None) -> int:
    """Return the number of this rank, from 0."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(group)
    return 0


def is_distributed(group: Any = None) -> bool:
    """Return whether there are other ranks."""
    return count(group) > 1


def is_first() -> bool:
    """Return whether this is the rank that writes."""
    return rank() == 0


def shard() -> tuple[int, int]:
    """Return the part of the data that belongs to this rank: its number, and the number of parts.

    >>> shard()
    (0, 1)
    """
    return rank(), count()


@contextmanager
def joined(timeout: float | None = None) -> Iterator[None]:
    """Join the processes that torchrun has started into one job, within this context.

    Without torchrun, or in a job that has been joined already, nothing happens.

    Args:
        timeout: The seconds that a rank waits for the others; None stands for the environment
            variable TORCHLEAP_TIMEOUT, or 600 where it is not set.
    """
    if "LOCAL_RANK" not in os.environ or dist.is_initialized():
        yield
        return
    seconds = _timeout_setting() if timeout is None else timeout
    try:
        dist.init_process_group(_backend(), timeout=timedelta(seconds=seconds))
    except (RuntimeError, dist.DistError) as error:
        raise RankError(
            f"The ranks of the job did not find each other within {seconds:g} s: "
            f"{first_line(error)}. {AGAIN}"
        ) from error
    try:
        with explained():
            yield
    except Exception as error:
        error.add_note(f"on rank {rank()} of {count()}")
        raise
    finally:
        gc.collect()  # models in reference cycles hold the group; if they outlive it, it may abort
        dist.destroy_process_group()


def _backend() -> str:
    """Return the backend of the process group: gloo, and the accelerator's own."""
    if not torch.accelerator.is_available():
        return "gloo"
    device = torch.accelerator.current_accelerator()
    assert device is not None
    return f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}"


def _timeout_setting() -> float:
    """Return the seconds that the environment variable sets."""
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


def timeout() -> timedelta:
    """Return how long a rank of this job waits for the others."""
    assert dist.group.WORLD is not None
    found: timedelta = dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout
    return found


# Lost ranks


@contextmanager
def explained(cure: str = AGAIN) -> Iterator[None]:
    """Raise a RankError, one sentence with the cure, if another rank is lost within this context.

    All collectives of this module run within it. They know no better cure than to start again; a
    training loop around them names the checkpoint.

    Args:
        cure: The last sentence of the message, in place of "Start the job again."
    """
    try:
        yield
    except RankError as error:
        if cure == AGAIN or not str(error).endswith(AGAIN):
            raise
        raise RankError(str(error).removesuffix(AGAIN) + cure) from error.__cause__
    except (RuntimeError, dist.DistError) as error:
        if not is_distributed() or not is_of_another_rank(error):
            raise
        raise RankError(
            f"Rank {rank()} of {count()} has lost another one: {first_line(error)}. {cure}"
        ) from error


def raise_if_lost(error: BaseException) -> None:
    """Raise a RankError if an error means that another rank is lost, and so has no other cause."""
    if isinstance(error, RankError):
        raise error
    with explained():
        if isinstance(error, RuntimeError) and is_of_another_rank(error):
            raise error


def is_of_another_rank(error: Exception) -> bool:
    """Return whether an error of PyTorch means that another rank has died or does not answer."""
    message = str(error).lower()
    if isinstance(error, dist.DistError) or "pair closure" in message:
        return True
    is_of_backend = "gloo" in message or "nccl" in message
    return is_of_backend and any(words in message for words in LOST)


# Collectives: all ranks have to call them


def total(tensor: Tensor, group: Any = None) -> Tensor:
    """Replace a tensor by its sum over all ranks, in place."""
    if is_distributed(group):
        with explained():
            dist.all_reduce(tensor, group=group)
    return tensor


def average(tensor: Tensor, group: Any = None) -> Tensor:
    """Replace a tensor by its mean over all ranks, in place."""
    if is_distributed(group):
        total(tensor, group).div_(count(group))
    return tensor


def averages(values: Sequence[float]) -> list[float]:
    """Return the mean of each value over all ranks, in one small collective.

    >>> averages([0.5, True])
    [0.5, True]
    """
    if not is_distributed():
        return list(values)
    means: list[float] = average(torch.tensor(values, dtype=torch.float64)).tolist()
    return means


def on_any(condition: bool) -> bool:
    """Return whether a condition holds on at least one rank."""
    return averages([condition])[0] > 0


def broadcast(tensor: Tensor, group: Any = None) -> Tensor:
    """Replace a tensor by that of the first rank, in place."""
    if is_distributed(group):
        with explained():
            dist.broadcast(tensor, group_src=0, group=group)
    return tensor


def from_first(value: Value) -> Value:
    """Return the value of the first rank; it has to be plain Python."""
    if not is_distributed():
        return value
    values = [value]
    with explained():
        dist.broadcast_object_list(values, src=0)
    return values[0]


def all_gather(tensor: Tensor) -> list[Tensor]:
    """Return the tensor of each rank, (n, ...); n may differ between them."""
    if not is_distributed():
        return [tensor]
    own_size = torch.tensor([len(tensor)], device=tensor.device)
    sizes = [torch.zeros_like(own_size) for _ in range(count())]
    with explained():
        dist.all_gather(sizes, own_size)
    longest = max(int(size) for size in sizes)
    padded = tensor.new_zeros(longest, *tensor.shape[1:])
    padded[: len(tensor)] = tensor
    found = [torch.empty_like(padded) for _ in sizes]
    with explained():
        dist.all_gather(found, padded)
    return [one[: int(size)] for one, size in zip(found, sizes, strict=True)]


def all_rows(tensor: Tensor) -> Tensor:
    """Return the rows of all ranks, one rank after the other: (n, ...) -> (sum of all n, ...)."""
    return torch.cat(all_gather(tensor))


def barrier() -> None:
    """Wait until all ranks are here."""
    if is_distributed():
        with explained():
            dist.barrier()


@contextmanager
def first_before_others() -> Iterator[None]:
    """Let the first rank run the body of this context, and then the others, which find its results.

    If it fails on the first rank, the others raise a RankError instead of waiting for ever.
    """
    problem: str | None = None
    if is_first():
        try:
            yield
        except BaseException as error:
            problem = f"{type(error).__name__}: {error}"
            with suppress(RankError):  # the first error is the one to raise
                from_first(problem)
            raise
        from_first(problem)
        return
    problem = from_first(problem)
    if problem is not None:
        raise RankError(f"Rank 0 could not continue. {problem}")
    yield


def on_first(work: Callable[[], object]) -> None:
    """Do some work on the first rank only, such as writing a file; the others wait for its end.

    If it fails, the others raise a RankError.
    """
    with first_before_others():
        if is_first():
            work()


# Tensors that are sharded over ranks (DTensors)


def is_sharded(tensor: object) -> bool:
    """Return whether a tensor is sharded over ranks."""
    return hasattr(tensor, "full_tensor")


def full(tensor: Tensor) -> Tensor:
    """Return a tensor in one piece; all ranks have to call this for one that is sharded."""
    if not is_sharded(tensor):
        return tensor
    with explained():
        complete: Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
    return complete


def own_part(tensor: Tensor, like: Tensor | None = None) -> Tensor:
    """Return this rank's part of a sharded tensor, as a view.

    Args:
        tensor: A sharded tensor; or one that every rank has, which is returned as it is.
        like: A tensor in whose way `tensor` is sharded first, if this one is sharded.
    """
    if like is not None and is_sharded(like) and not is_sharded(tensor):
        tensor = sharded(tensor, like)
    if not is_sharded(tensor):
        return tensor
    part: Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return part


def sharded(tensor: Tensor, like: Any) -> Tensor:
    """Return a tensor that every rank has, sharded like another one; nothing is sent."""
    from torch.distributed.tensor import DTensor, Replicate

    everywhere = [Replicate()] * like.device_mesh.ndim
    with explained():
        local = DTensor.from_local(tensor, like.device_mesh, everywhere, run_check=False)
        return local.redistribute(placements=like.placements)


def sharded_state(state: dict[str, Any], parameters: Sequence[Tensor]) -> dict[str, Any]:
    """Return the state_dict of an optimizer, sharded in the way of its sharded parameters.

    Args:
        state: A complete state_dict, as every rank has it.
        parameters: The parameters of the optimizer, in their order.
    """
    by_parameter = dict(state["state"])
    for number, own in by_parameter.items():
        parameter = parameters[number] if 0 <= number < len(parameters) else None
        if is_sharded(parameter):
            by_parameter[number] = _sharded_values(own, parameter)
    return {**state, "state": by_parameter}


def _sharded_values(own: dict[str, Any], parameter: Any) -> dict[str, Any]:
    """Shard those values of an optimizer's state that belong to the elements of a parameter."""
    found = dict(own)
    for name, value in own.items():
        plain = isinstance(value, Tensor) and not is_sharded(value)
        if plain and value.shape == parameter.shape:
            found[name] = sharded(value, parameter)
    return found
