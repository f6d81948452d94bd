"""How sparse a field is: the share of rows at its most common value, and how far the other rows lie from the mean."""

import torch
from torch import Tensor

from .shuffle import scramble


def most_common(sample: Tensor, column_gate: Tensor, gates: int) -> tuple[Tensor, Tensor]:
    """Find each gate's most common row value and describe the rows that differ from it.

    The first half of the sample finds the value and the second counts it: counted where it was found, the most common of
    many rare values would seem more common than it is.

    Args:
        sample: (S, D), rows in random order
        column_gate: (D,)

    Returns:
        share: (G,), the share of rows at the most common value
        spread: (G,), the squared distance from the column means of the rows that differ from it, summed over these rows and
            divided by the number of all rows and by the width; over (1 - share), it is their mean square.
    """
    half = max(1, sample.shape[0] // 2)
    width = torch.zeros(gates, device=sample.device).index_add_(
        0, column_gate, torch.ones_like(column_gate, dtype=torch.float32)
    )
    code = _row_codes(sample, column_gate, gates)  # (S, G)
    differs = code[half:] != code[:half].mode(0).values  # (S - half, G)
    wide = sample.to(torch.promote_types(sample.dtype, torch.float32))
    deviation = (wide[half:] - wide.mean(0)).square() * differs[:, column_gate]  # (S - half, D)
    spread = deviation.new_zeros(gates).index_add_(0, column_gate, deviation.mean(0)) / width
    return 1 - differs.to(wide.dtype).mean(0), spread


def _row_codes(sample: Tensor, column_gate: Tensor, gates: int) -> Tensor:
    """One integer for each row of each gate: equal rows have equal codes, other rows almost surely not.

    Integer sums do not depend on their order, so equal rows agree exactly whatever their place in the batch.
    """
    wide = sample + 0.0  # turns -0.0 into 0.0
    bits = (
        wide.view(torch.int64)
        if wide.dtype == torch.float64
        else wide.float().view(torch.int32).long()
    )
    weight = (
        scramble(torch.arange(sample.shape[1], device=sample.device)) >> 32 & 0xFFFFFFFF
    ) | 1  # (D,), odd, 32 bits
    return bits.new_zeros(sample.shape[0], gates).index_add_(1, column_gate, bits * weight)
