"""The mixing step as a PyTorch operator, `torch.ops.torchleap.mix`, with its gradients.

To `torch.compile` and autograd it is one opaque operation with a known shape and gradient. Of the
tensors of its input's size only the input itself is saved for backward: the permutations are drawn
again from the seed.
"""

from typing import Any

import torch
from torch import Tensor

from . import native
from .dispatch import BACKENDS, choose
from .reference import Mixed
from .shuffle import Draw, Shuffle


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
        x: The input, (B, D).
        gate: The clean fraction of each gate's mix, (G,).
        column_gate: The gate of each column, (D,).
        seed: The seed of all permutations, () int64.
        steps: How many batches each gate has seen, (G,) int64.
        first_gate: The number of the first of these gates among those that share the seed.
        shuffle: "uniform" draws a permutation per gate; "cyclic" shifts one common permutation.

    >>> x = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    >>> seed, steps = torch.tensor(0), torch.tensor([0, 0])
    >>> mixed = mix(x, torch.tensor([1.0, 0.0]), torch.tensor([0, 1]), seed, steps)
    >>> mixed.output[:, 0].tolist(), mixed.output[:, 1].sort().values.tolist()
    ([1.0, 2.0, 3.0], [10.0, 20.0, 30.0])
    """
    gate = gate.to(torch.promote_types(x.dtype, torch.float32))
    call: Any = torch.ops.torchleap.mix
    if _is_plain(x):
        call = _DirectMix.apply
    output, mean, statistics, _ = call(x, gate, column_gate, seed, steps, first_gate, shuffle)
    return Mixed(output, mean, statistics)


def join(blocks: list[Tensor]) -> Tensor:
    """Return fields that lie apart, (B, width) each, side by side: `torch.cat(blocks, dim=1)`.

    >>> join([torch.ones(2, 1), torch.zeros(2, 3)]).shape
    torch.Size([2, 4])
    """
    first = blocks[0]
    if len(blocks) == 1:
        return first
    if any(block.dtype != first.dtype or block.device != first.device for block in blocks):
        return torch.cat(blocks, dim=1)
    joined: Tensor = torch.ops.torchleap.join(blocks)
    return joined


def _is_plain(x: Tensor) -> bool:
    """Return whether nothing records or transforms the call: compiler, trace, vmap, subclass."""
    return (
        type(x) in (Tensor, torch.nn.Parameter)
        and x.device.type != "meta"
        and not torch.compiler.is_compiling()
        and not torch._C._len_torch_dispatch_stack()
        and torch._C._functorch.maybe_current_level() is None
    )


# The forward pass


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
    streams = backend.streams(seed, steps, first_gate)  # for backward: by then the steps have grown
    draw = Draw(streams, shuffle)  # type: ignore[arg-type]
    output, mean, statistics = backend.forward(x, gate, column_gate, draw)
    return output.contiguous(), mean, statistics, streams


def _forward_shapes(
    x: Tensor, gate: Tensor, column_gate: Tensor, seed: Tensor, steps: Tensor, *_: Any
) -> tuple[Tensor, ...]:
    output = torch.empty_like(x, memory_format=torch.contiguous_format)
    mean = gate.new_empty(x.shape[1])
    statistics = gate.new_empty(4, gate.shape[0])
    return output, mean, statistics, steps.new_empty(gate.shape[0] + 1)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, gate, column_gate, _, _, _, ctx.shuffle = inputs
    _, mean, statistics, streams = output
    ctx.save_for_backward(x, gate, column_gate, streams)
    ctx.mark_non_differentiable(mean, statistics, streams)


def _differentiate(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    wants_x, wants_gate = ctx.needs_input_grad[:2]
    call: Any = torch.ops.torchleap.mix_backward
    # With gradients enabled, a gradient of this gradient may follow, which only the operator knows.
    if not torch.is_grad_enabled() and _is_plain(grad):
        call = _backward
    grad_x, grad_gate = call(grad, *ctx.saved_tensors, ctx.shuffle, wants_x, wants_gate)
    if not wants_x:
        grad_x = None
    if not wants_gate:
        grad_gate = None
    return grad_x, grad_gate, None, None, None, None, None


# The backward pass


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


def _backward_shapes(
    grad: Tensor,
    x: Tensor,
    gate: Tensor,
    column_gate: Tensor,
    streams: Tensor,
    shuffle: str,
    wants_x: bool,
    wants_gate: bool,
) -> list[Tensor]:
    grad_x = gate.new_empty(0)
    grad_gate = gate.new_empty(0)
    if wants_x:
        grad_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    if wants_gate:
        grad_gate = torch.empty_like(gate)
    return [grad_x, grad_gate]


def _save_again(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.shuffle, ctx.wants_x, ctx.wants_gate = inputs
    ctx.save_for_backward(*tensors)


def _differentiate_again(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    """Return the gradients of `gradients` by its definition, for gradient penalties.

    The shuffled copy remains without gradient.
    """
    grad, x, gate, column_gate, streams = ctx.saved_tensors
    wide_grad = grad.to(gate.dtype)
    wide_x = x.to(gate.dtype)
    by_grad = torch.zeros_like(wide_grad)
    by_x = torch.zeros_like(wide_x)
    by_gate = torch.zeros_like(gate)
    if ctx.wants_x:
        by_grad = by_grad + gate[column_gate] * grads[0]
        by_gate = by_gate.index_add(0, column_gate, (grads[0] * wide_grad).sum(0))
    if ctx.wants_gate:
        permutation = Draw(streams, ctx.shuffle).permutations(x.shape[0])
        shuffled = wide_x.detach().gather(0, permutation[column_gate].T)
        by_column = grads[1][column_gate]
        by_grad = by_grad + by_column * (wide_x - shuffled)
        by_x = by_x + by_column * wide_grad
    return by_grad.to(grad.dtype), by_x.to(x.dtype), by_gate, None, None, None, None, None


_mix = torch.library.custom_op("torchleap::mix", _forward, mutates_args=())
_mix.register_fake(_forward_shapes)
_mix.register_autograd(_differentiate, setup_context=_save)

_mix_backward = torch.library.custom_op("torchleap::mix_backward", _backward, mutates_args=())
_mix_backward.register_fake(_backward_shapes)
_mix_backward.register_autograd(_differentiate_again, setup_context=_save_again)


class _DirectMix(torch.autograd.Function):
    """The same without the operator's overhead, which takes longer than mixing a small batch."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        output = _forward(*inputs)
        _save(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _differentiate(ctx, *grads)


# Fields side by side


@torch.library.custom_op("torchleap::join", mutates_args=())
def _join(blocks: list[Tensor]) -> Tensor:
    if choose(blocks[0]) == "native":
        return native.join(blocks)
    return torch.cat(blocks, dim=1)


@_join.register_fake
def _join_shape(blocks: list[Tensor]) -> Tensor:
    return blocks[0].new_empty(blocks[0].shape[0], sum(block.shape[1] for block in blocks))


def _save_widths(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.widths = [block.shape[1] for block in inputs[0]]


def _split(ctx: Any, grad: Any) -> list[Tensor]:
    return list(grad.split(ctx.widths, dim=1))


_join.register_autograd(_split, setup_context=_save_widths)
