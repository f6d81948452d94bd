"""The mixing step for GPUs, in Triton.

It has only been run in Triton's interpreter (`make test-triton`), not yet on a GPU: its results are
tested, its speed is not.

Each program takes one gate and a block of rows and walks over the gate's columns, so that a row's
squared change stays in registers; neighbouring gates run side by side and share the cache lines of
narrow fields. Sums over blocks of rows are written separately and added up in order, so results do
not depend on the schedule.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .memory import with_rows_in_memory
from .reference import Mixed
from .shuffle import Draw
from .sparsity import most_common

ROWS = 32  # rows of a block
GATES = 32  # gates that one program shuffles side by side


@triton.jit
def _scramble(value):
    """Return the finalizer of SplitMix64, as `shuffle.scramble` does."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB
    return value ^ (value >> 31)


@triton.jit
def _shuffle(streams, order, rows, gates, BLOCK: tl.constexpr):
    """Draw the permutations of BLOCK gates, row after row, as `shuffle.uniform` defines them.

    `order` is (rows, gates).
    """
    gate = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = gate < gates
    stream = tl.load(streams + gate, mask=mask, other=0).to(tl.uint64, bitcast=True)
    for row in range(rows):
        number = (tl.zeros([BLOCK], dtype=tl.int64) + row).to(tl.uint64)
        value = _scramble(stream + (number >> 1) * 0x9E3779B97F4A7C15)
        rng = tl.where((number & 1) == 1, value >> 32, value & 0xFFFFFFFF)
        other = ((rng * (number + 1)) >> 32).to(tl.int64)
        held = tl.load(order + other * gates + gate, mask=mask, other=0)
        tl.store(order + number.to(tl.int64) * gates + gate, held, mask=mask)
        tl.store(order + other * gates + gate, tl.zeros_like(held) + row, mask=mask)


@triton.jit
def _forward(
    x,
    stride,
    gate,
    columns,
    first,
    order,
    output,
    distance,
    square,
    rows,
    width,
    gates,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Mix a block of rows of one gate, and sum the distances and squares of its rows.

    `columns` lists the columns gate by gate; those of gate g start at `first[g]`. `distance` and
    `square` are (blocks, gates).
    """
    own = tl.program_id(0) % gates
    block = tl.program_id(0) // gates
    row = block * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    other = tl.load(order + row.to(tl.int64) * gates + own, mask=inside, other=0).to(tl.int64)
    fraction = tl.load(gate + own)
    start = tl.load(first + own)
    end = tl.load(first + own + 1)
    change = tl.zeros([ROWS], dtype=fraction.dtype)
    for at in range(start, end, COLUMNS):
        place = at + tl.arange(0, COLUMNS)
        mask = inside[:, None] & (place < end)[None, :]
        column = tl.load(columns + place, mask=place < end, other=0)
        clean = tl.load(
            x + row.to(tl.int64)[:, None] * stride + column[None, :], mask=mask, other=0
        ).to(fraction.dtype)
        shuffled = tl.load(x + other[:, None] * stride + column[None, :], mask=mask, other=0).to(
            fraction.dtype
        )
        mixed = fraction * clean + (1 - fraction) * shuffled
        tl.store(
            output + row.to(tl.int64)[:, None] * width + column[None, :],
            mixed.to(output.dtype.element_ty),
            mask=mask,
        )
        change += tl.sum((clean - shuffled) * (clean - shuffled), axis=1)
    tl.store(distance + block * gates + own, tl.sum(tl.sqrt(change), axis=0))
    tl.store(square + block * gates + own, tl.sum(change, axis=0))


@triton.jit
def _backward(
    grad,
    grad_stride,
    x,
    stride,
    gate,
    columns,
    first,
    order,
    grad_x,
    grad_gate,
    rows,
    width,
    gates,
    WANTS_X: tl.constexpr,
    WANTS_GATE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Compute the gradients of a block of rows of one gate; `grad_gate` is (blocks, gates)."""
    own = tl.program_id(0) % gates
    block = tl.program_id(0) // gates
    row = block * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    fraction = tl.load(gate + own)
    start = tl.load(first + own)
    end = tl.load(first + own + 1)
    other = row.to(tl.int64)
    if WANTS_GATE:
        other = tl.load(order + row.to(tl.int64) * gates + own, mask=inside, other=0).to(tl.int64)
    total = tl.zeros([ROWS], dtype=fraction.dtype)
    for at in range(start, end, COLUMNS):
        place = at + tl.arange(0, COLUMNS)
        mask = inside[:, None] & (place < end)[None, :]
        column = tl.load(columns + place, mask=place < end, other=0)
        incoming = tl.load(
            grad + row.to(tl.int64)[:, None] * grad_stride + column[None, :], mask=mask, other=0
        ).to(fraction.dtype)
        if WANTS_X:
            target = grad_x + row.to(tl.int64)[:, None] * width + column[None, :]
            tl.store(target, (fraction * incoming).to(grad_x.dtype.element_ty), mask=mask)
        if WANTS_GATE:
            clean = tl.load(
                x + row.to(tl.int64)[:, None] * stride + column[None, :], mask=mask, other=0
            ).to(fraction.dtype)
            shuffled = tl.load(
                x + other[:, None] * stride + column[None, :], mask=mask, other=0
            ).to(fraction.dtype)
            total += tl.sum(incoming * (clean - shuffled), axis=1)
    if WANTS_GATE:
        tl.store(grad_gate + block * gates + own, tl.sum(total, axis=0))


def forward(x: Tensor, gate: Tensor, column_gate: Tensor, draw: Draw) -> Mixed:
    """Mix and measure a batch, as `reference.mix` defines it."""
    x = with_rows_in_memory(x)
    rows, width = x.shape
    gates = gate.shape[0]
    output = x.new_empty(rows, width)
    blocks = triton.cdiv(rows, ROWS)
    distance = gate.new_empty(blocks, gates)
    square = gate.new_empty(blocks, gates)
    arguments = (gate.contiguous(), *_by_gate(column_gate, gates), _order(draw, rows, gates))
    with torch.cuda.device_of(x):
        _forward[(gates * blocks,)](
            x,
            x.stride(0),
            *arguments,
            output,
            distance,
            square,
            rows,
            width,
            gates,
            ROWS=ROWS,
            COLUMNS=_block_of(column_gate, gates),
        )
    common, spread = most_common(x[draw.sample(rows)], column_gate, gates)
    statistics = torch.stack([distance.sum(0) / rows, square.sum(0) / rows, common, spread])
    return Mixed(output, x.mean(0, dtype=gate.dtype), statistics)


def backward(
    grad: Tensor, x: Tensor, gate: Tensor, column_gate: Tensor, draw: Draw, wants: tuple[bool, bool]
) -> list[Tensor]:
    """Return the wanted gradients of x and gate, as `reference.gradients` defines them."""
    x = with_rows_in_memory(x)
    grad = with_rows_in_memory(grad)
    rows, width = x.shape
    gates = gate.shape[0]
    blocks = triton.cdiv(rows, ROWS)
    grad_x = gate.new_empty(0)
    grad_gate = gate.new_empty(0)
    by_block = gate.new_empty(0)
    order = column_gate  # not read, unless the gates' gradient is wanted
    if wants[0]:
        grad_x = x.new_empty(rows, width)
    if wants[1]:
        by_block = gate.new_empty(blocks, gates)
        order = _order(draw, rows, gates)
    with torch.cuda.device_of(x):
        _backward[(gates * blocks,)](
            grad,
            grad.stride(0),
            x,
            x.stride(0),
            gate.contiguous(),
            *_by_gate(column_gate, gates),
            order,
            grad_x,
            by_block,
            rows,
            width,
            gates,
            WANTS_X=wants[0],
            WANTS_GATE=wants[1],
            ROWS=ROWS,
            COLUMNS=_block_of(column_gate, gates),
        )
    if wants[1]:
        grad_gate = by_block.sum(0)
    return [grad_x, grad_gate]


def _order(draw: Draw, rows: int, gates: int) -> Tensor:
    """Return the permutations side by side, as the programs write them: (rows, gates) int32."""
    if draw.shuffle == "cyclic":
        return draw.permutations(rows).T.to(torch.int32).contiguous()
    order = torch.empty(rows, gates, dtype=torch.int32, device=draw.streams.device)
    streams = draw.streams[1:].contiguous()
    with torch.cuda.device_of(order):
        _shuffle[(triton.cdiv(gates, GATES),)](
            streams, order, rows, gates, BLOCK=GATES, num_warps=1
        )
    return order


def _by_gate(column_gate: Tensor, gates: int) -> tuple[Tensor, Tensor]:
    """Return the columns gate by gate, (D,), and where those of each gate begin, (G + 1,)."""
    columns = column_gate.argsort(stable=True)
    widths = torch.zeros(gates + 1, dtype=torch.int64, device=column_gate.device)
    widths[1:].scatter_add_(0, column_gate, torch.ones_like(column_gate))
    return columns, widths.cumsum(0)


def _block_of(column_gate: Tensor, gates: int) -> Any:
    """Return how many columns to read at once: about the average width of a gate."""
    return min(64, max(1, triton.next_power_of_2(column_gate.shape[0] // gates)))
