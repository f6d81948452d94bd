"""The one hot operation, written down plainly: the definition that every faster version is tested against.

Notation: B rows, D columns, G gates. `column_gate[c]` is the gate that owns column c; the columns of one gate (one field,
or all fields of a group) are permuted together.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .shuffle import Draw
from .sparsity import most_common


class Mixed(NamedTuple):
    """What one mixing step returns; all but the output is without gradient, in float32 or better."""

    output: Tensor  # (B, D), in the input's dtype
    mean: Tensor  # (D,)  mean over rows
    statistics: Tensor  # (4, G)  the four below

    @property
    def distance(self) -> Tensor:
        """Mean over rows of || x - x' ||, (G,)."""
        return self.statistics[0]

    @property
    def square(self) -> Tensor:
        """Mean over rows of || x - x' ||^2, (G,)."""
        return self.statistics[1]

    @property
    def common(self) -> Tensor:
        """Share of rows at the most common value, (G,), see sparsity.py."""
        return self.statistics[2]

    @property
    def spread(self) -> Tensor:
        """Squared deviation of the other rows, (G,), see sparsity.py."""
        return self.statistics[3]


def mix(x: Tensor, gate: Tensor, column_gate: Tensor, permutation: Tensor, sample: Tensor) -> Mixed:
    """Mix each gate's columns with a row-permuted copy of themselves: `g * x + (1 - g) * stopgrad(x')`.

    Args:
        x: (B, D)
        gate: (G,), the share of the clean path
        column_gate: (D,), the gate of each column
        permutation: (G, B), for each gate the row that comes to row b
        sample: (S,), the rows to estimate sparsity from
    """
    clean = x.detach()
    shuffled = clean.gather(
        0, permutation[column_gate].T
    )  # (B, D), no gradient: the paper's sg(x')
    share = gate[
        column_gate
    ]  # (D,), at least float32, so a bfloat16 input is mixed in float32 and rounded once
    output = (share * x + (1 - share) * shuffled).to(x.dtype)

    wide = torch.promote_types(x.dtype, torch.float32)
    change = (clean.to(wide) - shuffled.to(wide)).square()  # (B, D)
    by_gate = change.new_zeros(x.shape[0], gate.shape[0]).index_add_(
        1, column_gate, change
    )  # (B, G)
    common, spread = most_common(clean[sample], column_gate, gate.shape[0])
    statistics = torch.stack([by_gate.sqrt().mean(0), by_gate.mean(0), common, spread])
    return Mixed(output, clean.to(wide).mean(0), statistics)


def gradients(
    grad: Tensor, x: Tensor, gate: Tensor, column_gate: Tensor, permutation: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of the output's inner product with `grad`, as autograd would find them: (B, D) and (G,)."""
    change = x.to(gate.dtype) - x.gather(0, permutation[column_gate].T).to(gate.dtype)
    by_column = (grad.to(gate.dtype) * change).sum(0)  # (D,)
    return (gate[column_gate] * grad).to(x.dtype), torch.zeros_like(gate).index_add(
        0, column_gate, by_column
    )


def forward(x: Tensor, gate: Tensor, column_gate: Tensor, draw: Draw) -> Mixed:
    """`mix` with the permutations that `draw` stands for."""
    return mix(x, gate, column_gate, draw.permutations(x.shape[0]), draw.sample(x.shape[0]))


def backward(
    grad: Tensor, x: Tensor, gate: Tensor, column_gate: Tensor, draw: Draw, wants: tuple[bool, bool]
) -> list[Tensor]:
    """Those of the two `gradients` that are wanted; the others are empty."""
    found = gradients(grad, x, gate, column_gate, draw.permutations(x.shape[0]))
    return [
        gradient if wanted else gate.new_empty(0)
        for gradient, wanted in zip(found, wants, strict=True)
    ]
