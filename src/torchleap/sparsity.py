"""How sparse a field is: the share of rows at its most common value, and how far the other rows lie from the mean."""

import torch
from torch import Tensor

from .mix.reference import scramble

SAMPLE_ROWS = 256  # enough for an average over steps, and no full pass over a wide batch


def sample_rows(x: Tensor) -> Tensor:
    """At most SAMPLE_ROWS rows spread evenly over the batch, since neighbouring rows may belong to one user."""
    return x[:: max(1, x.shape[0] // SAMPLE_ROWS)][:SAMPLE_ROWS]


def most_common(sample: Tensor, column_gate: Tensor, gates: int) -> tuple[Tensor, Tensor]:
    """Find each gate's most common row value and describe the rows that differ from it.

    Args:
        sample: (S, D)
        column_gate: (D,)

    Returns:
        share: (G,), the share of the other rows that agree with a row at the most common value: 0 if all rows differ
        spread: (G,), the squared distance from the column means of the rows that differ from the most common value, summed
            over these rows and divided by S - 1 and by the width; over (1 - share), it is their mean square.
    """
    others = max(1, sample.shape[0] - 1)
    width = torch.zeros(gates, device=sample.device).index_add_(0, column_gate, torch.ones_like(column_gate, dtype=torch.float32))
    code = _row_codes(sample, column_gate, gates)  # (S, G)
    differs = code != code.mode(0).values  # (S, G)
    wide = sample.to(torch.promote_types(sample.dtype, torch.float32))
    deviation = (wide - wide.mean(0)).square() * differs[:, column_gate]  # (S, D)
    spread = deviation.new_zeros(gates).index_add_(0, column_gate, deviation.sum(0)) / (others * width)
    return 1 - differs.sum(0) / others, spread


def _row_codes(sample: Tensor, column_gate: Tensor, gates: int) -> Tensor:
    """One integer for each row of each gate: equal rows have equal codes, other rows almost surely not.

    Integer sums do not depend on their order, so equal rows agree exactly whatever their place in the batch.
    """
    bits = (sample.float() + 0.0).view(torch.int32).long()  # + 0.0 turns -0.0 into 0.0
    weight = scramble(torch.arange(sample.shape[1], device=sample.device)) | 1  # (D,), odd
    return bits.new_zeros(sample.shape[0], gates).index_add_(1, column_gate, bits * weight)
