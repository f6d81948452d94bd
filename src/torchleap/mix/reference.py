"""The one hot operation, written down plainly: the definition that every faster version is tested against.

Notation: B rows, D columns, G gates. `column_gate[c]` is the gate that owns column c; the columns of one gate (one field,
or all fields of a group) are permuted together.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Mixed(NamedTuple):
    """What one mixing step returns."""

    output: Tensor  # (B, D), in the input's dtype
    distance: Tensor  # (G,)  mean over rows of || x - x' ||, detached
    square: Tensor  # (G,)  mean over rows of || x - x' ||^2, detached


def mix(x: Tensor, gate: Tensor, permutation: Tensor, column_gate: Tensor) -> Mixed:
    """Mix each gate's columns with a row-permuted copy of themselves: `g * x + (1 - g) * stopgrad(x')`.

    Args:
        x: (B, D)
        gate: (G,), the share of the clean path
        permutation: (G, B), for each gate the row that comes to row b
        column_gate: (D,), the gate of each column
    """
    clean = x.detach()
    shuffled = clean.gather(0, permutation[column_gate].T)  # (B, D), no gradient: the paper's sg(x')
    share = gate[column_gate]  # (D,), at least float32, so a bfloat16 input is mixed in float32 and rounded once
    output = (share * x + (1 - share) * shuffled).to(x.dtype)

    wide = torch.promote_types(x.dtype, torch.float32)
    change = (clean.to(wide) - shuffled.to(wide)).square()  # (B, D)
    by_gate = change.new_zeros(x.shape[0], gate.shape[0]).index_add_(1, column_gate, change)  # (B, G)
    return Mixed(output, by_gate.sqrt().mean(0), by_gate.mean(0))


def permutations(seed: Tensor, steps: Tensor, rows: int, first_gate: int = 0) -> Tensor:
    """One uniformly random permutation of the rows for each gate, a pure function of its arguments.

    The sort keys are a hash of (seed, gate, that gate's step, row). So there is no generator to keep: the same numbers come
    out on every device, after every resume, inside `torch.compile`, and whatever else draws random numbers.

    Args:
        seed: () int64
        steps: (G,) int64, how many batches each gate has seen
        first_gate: the number of the first of these gates

    Returns: (G, rows) int64
    """
    # NOTE[PAPER] Uniform as in the paper, but without a generator: nothing to save, and a resume repeats them bit for bit.
    gates = torch.arange(first_gate, first_gate + steps.shape[0], device=steps.device)
    stream = scramble(scramble(seed + _GOLDEN * (steps + 1)) + _GOLDEN * (gates + 1))  # (G,)
    row = torch.arange(rows, device=steps.device)
    keys = scramble(stream[:, None] + _GOLDEN * row)  # (G, rows)
    return keys.argsort(dim=1, stable=True)


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >= 1 << 63 else bits


_GOLDEN = _signed(0x9E3779B97F4A7C15)


def scramble(value: Tensor) -> Tensor:
    """The finalizer of SplitMix64 on int64 tensors, whose products wrap around."""
    value = (value ^ _shift(value, 30)) * _signed(0xBF58476D1CE4E5B9)
    value = (value ^ _shift(value, 27)) * _signed(0x94D049BB133111EB)
    return value ^ _shift(value, 31)


def _shift(value: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch's own keeps the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
