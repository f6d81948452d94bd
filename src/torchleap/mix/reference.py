"""The one hot operation, written plainly: every faster version is tested against this one.

Notation: B rows, D columns, G gates. `column_gate[c]` is the gate that owns column c; the columns
of one gate (one field, or all fields of a group) are permuted together.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .shuffle import Draw
from .sparsity import most_common


class Mixed(NamedTuple):
    """The results of one mixing step.

    Only the output has a gradient. The others are in float32 or better.
    """

    output: Tensor  # (B, D), in the input's dtype
    mean: Tensor  # (D,), the mean over rows
    statistics: Tensor  # (4, G), the four properties below

    @property
    def distance(self) -> Tensor:
        """Return the mean over rows of || x - x' ||, (G,)."""
        return self.statistics[0]

    @property
    def square(self) -> Tensor:
        """Return the mean over rows of || x - x' ||^2, (G,)."""
        return self.statistics[1]

    @property
    def common(self) -> Tensor:
        """Return the fraction of rows at the most common value, (G,); see sparsity.py."""
        return self.statistics[2]

    @property
    def spread(self) -> Tensor:
        """Return the squared deviation of the other rows, (G,); see sparsity.py."""
        return self.statistics[3]


def mix(x: Tensor, gate: Tensor, column_gate: Tensor, permutation: Tensor, sample: Tensor) -> Mixed:
    """Mix each gate's columns with a row-permuted copy: `g * x + (1 - g) * stopgrad(x')`.

    Args:
        x: The input, (B, D).
        gate: The clean fraction of each gate's mix, (G,), in float32 or better.
        column_gate: The gate of each column, (D,).
        permutation: For each gate, the row that moves to row b, (G, B).
        sample: The rows that sparsity is estimated from, (S,).
    """
    clean = x.detach()
    shuffled = clean.gather(0, permutation[column_gate].T)  # (B, D), the paper's sg(x')
    fraction = gate[column_gate]  # (D,), so a bfloat16 input is mixed in float32 and rounded once
    output = (fraction * x + (1 - fraction) * shuffled).to(x.dtype)

    wide = torch.promote_types(x.dtype, torch.float32)
    change = (clean.to(wide) - shuffled.to(wide)).square()  # (B, D)
    by_gate = change.new_zeros(x.shape[0], gate.shape[0])
    by_gate.index_add_(1, column_gate, change)  # (B, G)
    common, spread = most_common(clean[sample], column_gate, gate.shape[0])
    statistics = torch.stack([by_gate.sqrt().mean(0), by_gate.mean(0), common, spread])
    return Mixed(output, clean.to(wide).mean(0), statistics)


def gradients(
    grad: Tensor, x: Tensor, gate: Tensor, column_gate: Tensor, permutation: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x, (B, D), and of gate, (G,), as autograd would find them.

    Args:
        grad: The gradient of the loss with respect to the output, (B, D).
        x: The input, (B, D).
        gate: The clean fraction of each gate's mix, (G,).
        column_gate: The gate of each column, (D,).
        permutation: For each gate, the row that moves to row b, (G, B).
    """
    change = x.to(gate.dtype) - x.gather(0, permutation[column_gate].T).to(gate.dtype)
    by_column = (grad.to(gate.dtype) * change).sum(0)  # (D,)
    grad_gate = torch.zeros_like(gate).index_add(0, column_gate, by_column)
    return (gate[column_gate] * grad).to(x.dtype), grad_gate


def forward(x: Tensor, gate: Tensor, column_gate: Tensor, draw: Draw) -> Mixed:
    """Apply `mix` with the permutations that `draw` determines."""
    rows = x.shape[0]
    return mix(x, gate, column_gate, draw.permutations(rows), draw.sample(rows))


def backward(
    grad: Tensor, x: Tensor, gate: Tensor, column_gate: Tensor, draw: Draw, wants: tuple[bool, bool]
) -> list[Tensor]:
    """Return the `gradients` of x and gate; those that are not wanted are empty.

    Args:
        grad: The gradient of the loss with respect to the output, (B, D).
        x: The input, (B, D).
        gate: The clean fraction of each gate's mix, (G,).
        column_gate: The gate of each column, (D,).
        draw: The permutations of the forward pass.
        wants: Whether the gradients of x and of gate are wanted.
    """
    grad_x, grad_gate = gradients(grad, x, gate, column_gate, draw.permutations(x.shape[0]))
    if not wants[0]:
        grad_x = gate.new_empty(0)
    if not wants[1]:
        grad_gate = gate.new_empty(0)
    return [grad_x, grad_gate]
