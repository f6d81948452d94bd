"""The mixing step in plain PyTorch, for any device: wide gates one by one, narrow ones together.

Copying complete pieces of rows is several times faster than gathering single values, but a Python
loop over thousands of one-column gates is slower than one gather; so the width decides.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .reference import Mixed
from .shuffle import Draw
from .sparsity import most_common

NARROW = 8  # columns; gates that own fewer of them side by side share one gather


class Part(NamedTuple):
    """Columns that are permuted in one operation: those of one wide gate, or of all narrow ones."""

    columns: slice | Tensor
    gates: slice | Tensor  # the gate of all columns, or the gate of each column
    order: Tensor  # (B,) for one gate, (B, columns) for several

    def shuffle(self, block: Tensor) -> Tensor:
        """Return the part's block (B, columns) with its rows permuted."""
        if isinstance(self.gates, slice):
            return block.index_select(0, self.order)
        return block.gather(0, self.order)


def forward(x: Tensor, gate: Tensor, column_gate: Tensor, draw: Draw) -> Mixed:
    """Mix and measure a batch, as `reference.mix` defines it."""
    rows = x.shape[0]
    wide = torch.promote_types(x.dtype, torch.float32)
    output = torch.empty_like(x, memory_format=torch.contiguous_format)
    squares = torch.zeros(rows, gate.shape[0], dtype=wide, device=x.device)  # (B, G)
    for part in _parts(column_gate, draw.permutations(rows)):
        block = x[:, part.columns]
        shuffled = part.shuffle(block)
        fraction = gate[part.gates]  # (1,) or (columns,): both widen bfloat16
        output[:, part.columns] = (fraction * block + (1 - fraction) * shuffled).to(x.dtype)
        change = (block.to(wide) - shuffled).square_()
        if isinstance(part.gates, slice):
            squares[:, part.gates] += change.sum(1, keepdim=True)
        else:
            squares.index_add_(1, part.gates, change)
    common, spread = most_common(x[draw.sample(rows)], column_gate, gate.shape[0])
    statistics = torch.stack([squares.sqrt().mean(0), squares.mean(0), common, spread])
    return Mixed(output, x.mean(0, dtype=wide), statistics)


def backward(
    grad: Tensor, x: Tensor, gate: Tensor, column_gate: Tensor, draw: Draw, wants: tuple[bool, bool]
) -> list[Tensor]:
    """Return the wanted gradients of x and gate, as `reference.gradients` defines them."""
    grad_x = gate.new_empty(0)
    grad_gate = gate.new_empty(0)
    if wants[0]:
        grad_x = (gate[column_gate] * grad).to(x.dtype)
    if wants[1]:
        grad_gate = torch.zeros_like(gate)
        for part in _parts(column_gate, draw.permutations(x.shape[0])):
            block = x[:, part.columns]
            change = (block.to(gate.dtype) - part.shuffle(block)).mul_(grad[:, part.columns])
            if isinstance(part.gates, slice):
                grad_gate[part.gates] += change.sum()
            else:
                grad_gate.index_add_(0, part.gates, change.sum(0))
    return [grad_x, grad_gate]


def _parts(column_gate: Tensor, permutation: Tensor) -> Iterator[Part]:
    """Yield each wide run of columns of one gate, then all narrow ones as one part."""
    runs = torch.unique_consecutive(column_gate, return_counts=True)
    start = 0
    narrow: list[int] = []
    for gate, width in zip(runs[0].tolist(), runs[1].tolist(), strict=True):
        stop = start + width
        if width < NARROW:
            narrow += range(start, stop)
        else:
            yield Part(slice(start, stop), slice(gate, gate + 1), permutation[gate])
        start = stop
    if narrow:
        columns = torch.tensor(narrow, device=column_gate.device)
        gates = column_gate[columns]
        yield Part(columns, gates, permutation[gates].T)
