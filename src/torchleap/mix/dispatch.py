"""The mixing step as a PyTorch operator, `torch.ops.torchleap.mix`, and the choice of who computes it.

To `torch.compile` and autograd it is one opaque operation with a known shape and gradient. Saved for backward is the input and
nothing else of its size: the permutations are drawn again from the seed.
"""

import os
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._common.errors import TorchleapError, nearest
from . import blocks, native, reference
from .reference import Mixed
from .shuffle import Draw, Shuffle, streams

VARIABLE = "TORCHLEAP_MIX"


class Backend(NamedTuple):
    """One way to compute the step and its gradient."""

    forward: Callable[[Tensor, Tensor, Tensor, Draw], Mixed]
    backward: Callable[[Tensor, Tensor, Tensor, Tensor, Draw, tuple[bool, bool]], list[Tensor]]
    streams: Callable[[Tensor, Tensor, int], Tensor]
    obstacle: Callable[[Tensor], str]  # why it cannot compute this input; "" if it can


def _native_obstacle(x: Tensor) -> str:
    kernel = native.load()
    if isinstance(kernel, str):
        return kernel
    if x.device.type != "cpu":
        return f"the native kernel is for the CPU, but the input is on {x.device}"
    if x.dtype not in native.DTYPES:
        return f"the native kernel takes {', '.join(str(dtype) for dtype in native.DTYPES)}, but the input is {x.dtype}"
    return ""


def _triton_obstacle(x: Tensor) -> str:
    if not _triton_is_there():
        return "Triton is not installed: pip install triton"
    if x.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"the Triton kernel is for GPUs, but the input is on {x.device}"
    return ""


@cache
def _triton_is_there() -> bool:
    return find_spec("triton") is not None


def _triton() -> Any:
    return import_module("torchleap.mix.triton_kernel")  # when asked for: triton is optional


BACKENDS = {
    "native": Backend(native.forward, native.backward, native.streams, _native_obstacle),
    "triton": Backend(
        lambda *arguments: _triton().forward(*arguments),
        lambda *arguments: _triton().backward(*arguments),
        streams,
        _triton_obstacle,
    ),
    "torch": Backend(blocks.forward, blocks.backward, streams, lambda x: ""),
    "reference": Backend(reference.forward, reference.backward, streams, lambda x: ""),
}


def choose(x: Tensor) -> str:
    """The name of the backend that computes this input: what TORCHLEAP_MIX says, else the fastest that can."""
    wanted = os.environ.get(VARIABLE)
    if wanted:
        if wanted not in BACKENDS:
            raise TorchleapError(
                f"{VARIABLE} must be one of {', '.join(BACKENDS)}, but is {wanted!r}. {nearest(wanted, BACKENDS)}"
            )
        obstacle = BACKENDS[wanted].obstacle(x)
        if obstacle:
            raise TorchleapError(f"{VARIABLE}={wanted} cannot be followed: {obstacle}.")
        return wanted
    fast = "triton" if x.device.type == "cuda" else "native"
    obstacle = BACKENDS[fast].obstacle(x)
    if not obstacle:
        return fast
    if fast == "triton" or isinstance(
        native.load(), str
    ):  # a type that the kernel does not know needs no cure
        _say_once(obstacle)
    return "torch"


@cache
def _say_once(obstacle: str) -> None:
    warnings.warn(
        f"{obstacle.rstrip('.')}. Until then the slower PyTorch version mixes.", stacklevel=2
    )


def mix(
    x: Tensor,
    gate: Tensor,
    column_gate: Tensor,
    seed: Tensor,
    steps: Tensor,
    first_gate: int = 0,
    shuffle: Shuffle = "uniform",
) -> Mixed:
    """Mix each gate's columns with a row-permuted copy of themselves and measure them.

    Args:
        x: (B, D)
        gate: (G,), the share of the clean path
        column_gate: (D,), the gate of each column
        seed, steps, first_gate: see `shuffle.streams`
    """
    gate = gate.to(torch.promote_types(x.dtype, torch.float32))
    call: Any = _DirectMix.apply if _is_plain(x) else torch.ops.torchleap.mix
    output, mean, statistics, _ = call(x, gate, column_gate, seed, steps, first_gate, shuffle)
    return Mixed(output, mean, statistics)


def _is_plain(x: Tensor) -> bool:
    """Whether nothing watches or transforms the call: no compiler, no trace, no vmap, no kind of tensor of its own."""
    return (
        type(x) in (Tensor, torch.nn.Parameter)
        and x.device.type != "meta"
        and not torch.compiler.is_compiling()
        and not torch._C._len_torch_dispatch_stack()
        and torch._C._functorch.maybe_current_level() is None
    )


def join(blocks: list[Tensor]) -> Tensor:
    """Fields that lie apart, (B, width) each, side by side: `torch.cat(blocks, dim=1)`."""
    if len(blocks) == 1:
        return blocks[0]
    alike = all(
        block.dtype == blocks[0].dtype and block.device == blocks[0].device for block in blocks
    )
    joined: Tensor = torch.ops.torchleap.join(blocks) if alike else torch.cat(blocks, dim=1)
    return joined


@torch.library.custom_op("torchleap::join", mutates_args=())
def _join(blocks: list[Tensor]) -> Tensor:
    if choose(blocks[0]) == "native":
        return native.join(blocks)
    return torch.cat(blocks, dim=1)


@_join.register_fake
def _(blocks: list[Tensor]) -> Tensor:
    return blocks[0].new_empty(blocks[0].shape[0], sum(block.shape[1] for block in blocks))


def _save_widths(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.widths = [block.shape[1] for block in inputs[0]]


_join.register_autograd(
    lambda ctx, grad: list(grad.split(ctx.widths, dim=1)), setup_context=_save_widths
)


@torch.library.custom_op("torchleap::mix", mutates_args=())
def _mix(
    x: Tensor,
    gate: Tensor,
    column_gate: Tensor,
    seed: Tensor,
    steps: Tensor,
    first_gate: int,
    shuffle: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _forward(x, gate, column_gate, seed, steps, first_gate, shuffle)


def _forward(
    x: Tensor,
    gate: Tensor,
    column_gate: Tensor,
    seed: Tensor,
    steps: Tensor,
    first_gate: int,
    shuffle: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    backend = BACKENDS[choose(x)]
    drawn = backend.streams(
        seed, steps, first_gate
    )  # saved for backward: the steps go on meanwhile
    output, mean, statistics = backend.forward(x, gate, column_gate, Draw(drawn, shuffle))  # type: ignore[arg-type]
    return output.contiguous(), mean, statistics, drawn


@_mix.register_fake
def _(
    x: Tensor,
    gate: Tensor,
    column_gate: Tensor,
    seed: Tensor,
    steps: Tensor,
    first_gate: int,
    shuffle: str,
) -> Any:
    output = torch.empty_like(x, memory_format=torch.contiguous_format)
    return (
        output,
        gate.new_empty(x.shape[1]),
        gate.new_empty(4, gate.shape[0]),
        steps.new_empty(gate.shape[0] + 1),
    )


@torch.library.custom_op("torchleap::mix_backward", mutates_args=())
def _mix_backward(
    grad: Tensor,
    x: Tensor,
    gate: Tensor,
    column_gate: Tensor,
    streams: Tensor,
    shuffle: str,
    wants_x: bool,
    wants_gate: bool,
) -> list[Tensor]:
    return _backward(grad, x, gate, column_gate, streams, shuffle, wants_x, wants_gate)


def _backward(
    grad: Tensor,
    x: Tensor,
    gate: Tensor,
    column_gate: Tensor,
    streams: Tensor,
    shuffle: str,
    wants_x: bool,
    wants_gate: bool,
) -> list[Tensor]:
    draw = Draw(streams, shuffle)  # type: ignore[arg-type]
    found = BACKENDS[choose(x)].backward(grad, x, gate, column_gate, draw, (wants_x, wants_gate))
    return [gradient.contiguous() for gradient in found]


@_mix_backward.register_fake
def _(
    grad: Tensor,
    x: Tensor,
    gate: Tensor,
    column_gate: Tensor,
    streams: Tensor,
    shuffle: str,
    wants_x: bool,
    wants_gate: bool,
) -> list[Tensor]:
    found_x = (
        torch.empty_like(x, memory_format=torch.contiguous_format) if wants_x else gate.new_empty(0)
    )
    return [found_x, torch.empty_like(gate) if wants_gate else gate.new_empty(0)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, gate, column_gate, _, _, _, ctx.shuffle = inputs
    _, mean, statistics, drawn = output
    ctx.save_for_backward(x, gate, column_gate, drawn)
    ctx.mark_non_differentiable(mean, statistics, drawn)


def _differentiate(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    wants = ctx.needs_input_grad[:2]
    # with gradients on, a gradient of this gradient may be wanted, which only the operator knows
    call: Any = (
        _backward
        if not torch.is_grad_enabled() and _is_plain(grad)
        else torch.ops.torchleap.mix_backward
    )
    found = call(grad, *ctx.saved_tensors, ctx.shuffle, *wants)
    return (
        *(gradient if wanted else None for gradient, wanted in zip(found, wants, strict=True)),
        *[None] * 5,
    )


_mix.register_autograd(_differentiate, setup_context=_save)


class _DirectMix(torch.autograd.Function):
    """The same without the operator's own work, which takes longer than mixing a small batch."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        output = _forward(*inputs)
        _save(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _differentiate(ctx, *grads)


def _save_again(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.shuffle, ctx.wants_x, ctx.wants_gate = inputs
    ctx.save_for_backward(*tensors)


def _differentiate_again(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    """For gradient penalties: plainly, from the definition. The shuffled copy stays without gradient."""
    grad, x, gate, column_gate, drawn = ctx.saved_tensors
    wide_grad, wide_x = grad.to(gate.dtype), x.to(gate.dtype)
    by_grad, by_x, by_gate = (
        torch.zeros_like(wide_grad),
        torch.zeros_like(wide_x),
        torch.zeros_like(gate),
    )
    if ctx.wants_x:
        by_grad = by_grad + gate[column_gate] * grads[0]
        by_gate = by_gate.index_add(0, column_gate, (grads[0] * wide_grad).sum(0))
    if ctx.wants_gate:
        permutation = Draw(drawn, ctx.shuffle).permutations(x.shape[0])
        by_column = grads[1][column_gate]
        by_grad = by_grad + by_column * (
            wide_x - wide_x.detach().gather(0, permutation[column_gate].T)
        )
        by_x = by_x + by_column * wide_grad
    return by_grad.to(grad.dtype), by_x.to(x.dtype), by_gate, *[None] * 5


_mix_backward.register_autograd(_differentiate_again, setup_context=_save_again)
