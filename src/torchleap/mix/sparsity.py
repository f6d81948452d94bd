"""The sparsity of fields: how many rows have the most common value, and how far the others lie."""

import torch
from torch import Tensor

from .shuffle import scramble


def most_common(sample: Tensor, column_gate: Tensor, gates: int) -> tuple[Tensor, Tensor]:
    """Find each gate's most common row value and describe the rows that differ from it.

    The first half of the sample finds the value and the second half counts it: counted where it
    was found, the most common of many rare values would seem more common than it is.

    Args:
        sample: Rows in random order, (S, D).
        column_gate: The gate of each column, (D,).
        gates: The number of gates, G.

    Returns:
        The fraction of rows at the most common value, (G,); and the spread of the other rows,
        (G,): their squared distance from the column means, summed over these rows and divided by
        the number of all rows and by the width. Over (1 - fraction) it is their mean square.

    >>> rows = torch.tensor([[0.0], [0.0], [1.0], [0.0], [0.0], [0.0], [0.0], [4.0]])
    >>> most_common(rows, torch.tensor([0]), 1)[0]
    tensor([0.7500])
    """
    half = max(1, sample.shape[0] // 2)
    width = torch.zeros(gates, device=sample.device)
    width.index_add_(0, column_gate, torch.ones_like(column_gate, dtype=torch.float32))
    code = _row_codes(sample, column_gate, gates)  # (S, G)
    differs = code[half:] != code[:half].mode(0).values  # (S - half, G)
    wide = sample.to(torch.promote_types(sample.dtype, torch.float32))
    deviation = (wide[half:] - wide.mean(0)).square() * differs[:, column_gate]  # (S - half, D)
    spread = deviation.new_zeros(gates).index_add_(0, column_gate, deviation.mean(0)) / width
    return 1 - differs.to(wide.dtype).mean(0), spread


def _row_codes(sample: Tensor, column_gate: Tensor, gates: int) -> Tensor:
    """Return one integer per row and gate, (S, G): equal rows have equal codes, others hardly ever.

    Integer sums do not depend on their order, so equal rows agree exactly, wherever they are in
    the batch.
    """
    wide = sample + 0.0  # turns -0.0 into 0.0
    if wide.dtype == torch.float64:
        bits = wide.view(torch.int64)
    else:
        bits = wide.float().view(torch.int32).long()
    columns = torch.arange(sample.shape[1], device=sample.device)
    weight = (scramble(columns) >> 32 & 0xFFFFFFFF) | 1  # (D,), odd, 32 bits
    return bits.new_zeros(sample.shape[0], gates).index_add_(1, column_gate, bits * weight)
