"""The backends of the mixing step, and the choice of the one that computes a batch."""

import os
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from torch import Tensor

from .._common.errors import TorchleapError, nearest
from ..native import library
from . import blocks, native, reference
from .reference import Mixed
from .shuffle import Draw, streams

VARIABLE = "TORCHLEAP_MIX"  # in the environment, the name of the backend to use


class Backend(NamedTuple):
    """One way to compute the step and its gradient."""

    forward: Callable[[Tensor, Tensor, Tensor, Draw], Mixed]
    backward: Callable[[Tensor, Tensor, Tensor, Tensor, Draw, tuple[bool, bool]], list[Tensor]]
    streams: Callable[[Tensor, Tensor, int], Tensor]
    obstacle: Callable[[Tensor], str]  # the reason why it cannot compute an input; "" if it can


def _no_obstacle(x: Tensor) -> str:
    return ""


def _native_obstacle(x: Tensor) -> str:
    if native.load() is None:
        return library.obstacle()
    if x.device.type != "cpu":
        return f"the native kernel is for the CPU, but the input is on {x.device}"
    if x.dtype not in native.DTYPES:
        known = ", ".join(map(str, native.DTYPES))
        return f"the native kernel takes {known}, but the input is {x.dtype}"
    return ""


def _triton_obstacle(x: Tensor) -> str:
    if not _has_triton():
        return "Triton is not installed: pip install triton"
    if x.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"the Triton kernel is for GPUs, but the input is on {x.device}"
    return ""


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _triton() -> Any:
    return import_module("torchleap.mix.triton_kernel")  # imported on first use: it is optional


BACKENDS = {
    "native": Backend(native.forward, native.backward, native.streams, _native_obstacle),
    "triton": Backend(
        lambda *arguments: _triton().forward(*arguments),
        lambda *arguments: _triton().backward(*arguments),
        streams,
        _triton_obstacle,
    ),
    "torch": Backend(blocks.forward, blocks.backward, streams, _no_obstacle),
    "reference": Backend(reference.forward, reference.backward, streams, _no_obstacle),
}


def choose(x: Tensor) -> str:
    """Return the name of the backend that computes this input, (B, D).

    It is the one that the environment variable TORCHLEAP_MIX names, or else the fastest that can.
    """
    wanted = os.environ.get(VARIABLE)
    if wanted:
        return _forced(wanted, x)
    fast = "native"
    if x.device.type == "cuda":
        fast = "triton"
    obstacle = BACKENDS[fast].obstacle(x)
    if not obstacle:
        return fast
    if fast == "triton" or native.load() is None:  # a dtype that it does not know has no cure
        _warn_once(obstacle)
    return "torch"


def _forced(wanted: str, x: Tensor) -> str:
    """Return the backend that the environment variable names, if it exists and can compute x."""
    if wanted not in BACKENDS:
        raise TorchleapError(
            f"{VARIABLE} must be one of {', '.join(BACKENDS)}, but is {wanted!r}. "
            f"{nearest(wanted, BACKENDS)}"
        )
    obstacle = BACKENDS[wanted].obstacle(x)
    if obstacle:
        raise TorchleapError(f"{VARIABLE}={wanted} cannot be followed: {obstacle}.")
    return wanted


@cache
def _warn_once(obstacle: str) -> None:
    message = f"{obstacle.rstrip('.')}. Until then the slower PyTorch version is used."
    warnings.warn(message, stacklevel=2)
