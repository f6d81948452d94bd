"""The mixing step in plain PyTorch, for any device: wide gates block by block, all narrow ones in one gather.

Copying whole pieces of rows is several times faster than gathering single values, but a Python loop over thousands of
one-column gates is slower than a gather; so the width decides.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from .reference import Mixed
from .shuffle import Draw
from .sparsity import most_common

NARROW = 8  # columns; below it, one gather for all


def forward(x: Tensor, gate: Tensor, column_gate: Tensor, draw: Draw) -> Mixed:
    """See `reference.mix`."""
    rows = x.shape[0]
    wide = torch.promote_types(x.dtype, torch.float32)
    permutation = draw.permutations(rows)
    output = torch.empty_like(x, memory_format=torch.contiguous_format)
    squares = torch.zeros(rows, gate.shape[0], dtype=wide, device=x.device)  # (B, G)
    for columns, owner, order in _parts(column_gate, permutation):
        block = x[:, columns]
        shuffled = (
            block.index_select(0, order) if isinstance(owner, int) else block.gather(0, order)
        )
        share = (
            gate[owner : owner + 1] if isinstance(owner, int) else gate[owner]
        )  # (1,) or (columns,): both widen bfloat16
        output[:, columns] = (share * block + (1 - share) * shuffled).to(x.dtype)
        change = (block.to(wide) - shuffled).square_()
        if isinstance(owner, int):
            squares[:, owner] += change.sum(1)
        else:
            squares.index_add_(1, owner, change)
    common, spread = most_common(x[draw.sample(rows)], column_gate, gate.shape[0])
    statistics = torch.stack([squares.sqrt().mean(0), squares.mean(0), common, spread])
    return Mixed(output, x.mean(0, dtype=wide), statistics)


def backward(
    grad: Tensor, x: Tensor, gate: Tensor, column_gate: Tensor, draw: Draw, wants: tuple[bool, bool]
) -> list[Tensor]:
    """See `reference.gradients`."""
    grad_x, grad_gate = gate.new_empty(0), gate.new_empty(0)
    if wants[0]:
        grad_x = (gate[column_gate] * grad).to(x.dtype)
    if wants[1]:
        grad_gate = torch.zeros_like(gate)
        for columns, owner, order in _parts(column_gate, draw.permutations(x.shape[0])):
            block = x[:, columns]
            shuffled = (
                block.index_select(0, order) if isinstance(owner, int) else block.gather(0, order)
            )
            change = (block.to(gate.dtype) - shuffled).mul_(grad[:, columns])
            if isinstance(owner, int):
                grad_gate[owner] += change.sum()
            else:
                grad_gate.index_add_(0, owner, change.sum(0))
    return [grad_x, grad_gate]


def _parts(
    column_gate: Tensor, permutation: Tensor
) -> Iterator[tuple[slice | Tensor, int | Tensor, Tensor]]:
    """Columns, their gate or gates, and the order of their rows: one by one if wide, the narrow ones together."""
    owners, widths = (
        part.tolist() for part in torch.unique_consecutive(column_gate, return_counts=True)
    )
    start = 0
    narrow: list[int] = []
    for owner, width in zip(owners, widths, strict=True):
        if width < NARROW:
            narrow += range(start, start + width)
        else:
            yield slice(start, start + width), owner, permutation[owner]
        start += width
    if narrow:
        columns = torch.tensor(narrow, device=column_gate.device)
        yield columns, column_gate[columns], permutation[column_gate[columns]].T
