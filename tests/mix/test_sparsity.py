from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchleap.mix.sparsity import most_common


def by_counting(block):
    """Return fraction and spread of one field, row by row.

    The first half finds the value, the second counts it. None where two values are equally common
    in the first half.
    """
    rows, width = block.shape
    half = max(1, rows // 2)
    keys = [tuple(row) for row in block.tolist()]
    (value, count), *others = Counter(keys[:half]).most_common()
    if others and others[0][1] == count:
        return None
    mean = block.double().mean(0)
    counted = list(zip(block[half:], keys[half:], strict=True))
    squares = sum(float(((row - mean) ** 2).sum()) for row, key in counted if key != value)
    return sum(key == value for _, key in counted) / len(counted), squares / len(counted) / width


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(2, 30), st.integers(0, 999))
def test_most_common_equals_counting(widths, rows, seed):
    rng = torch.Generator().manual_seed(seed)
    sample = torch.randint(0, 2, (rows, sum(widths)), generator=rng).float() * torch.rand(
        sum(widths), generator=rng
    )
    column_gate = torch.arange(len(widths)).repeat_interleave(torch.tensor(widths))
    share, spread = most_common(sample, column_gate, len(widths))
    for i, block in enumerate(sample.split(widths, dim=1)):
        wanted = by_counting(block)
        if wanted is not None:
            assert (float(share[i]), float(spread[i])) == pytest.approx(wanted, rel=1e-4, abs=1e-6)


def test_constant_dense_and_sparse_fields():
    constant = torch.full((200, 2), 0.1)
    dense = torch.randn(200, 3)
    sparse = torch.zeros(200, 2)
    sparse[-4:] = torch.tensor([3.0, -3.0])
    share, spread = most_common(
        torch.cat([constant, dense, sparse], 1), torch.tensor([0, 0, 1, 1, 1, 2, 2]), 3
    )
    torch.testing.assert_close(share, torch.tensor([1.0, 0.0, 0.96]))
    assert spread[0] == 0
    unit = (spread / (1 - share)).sqrt()
    assert float(unit[1]) == pytest.approx(1.0, abs=0.1)
    assert float(unit[2]) == pytest.approx(3.0, abs=0.1)  # 3 less the mean of 0.06


def test_the_most_common_of_many_rare_values_is_rare():
    """Counted where it was found, one of 1,000 equally common ids would seem to fill 1 %."""
    shares = [
        most_common(torch.randint(1000, (256, 1)).float(), torch.zeros(1, dtype=torch.int64), 1)[0]
        for _ in range(200)
    ]
    assert float(torch.cat(shares).mean()) < 0.003


def test_float64_rows_that_differ_beyond_float32_differ():
    sample = 1.7e9 + 60 * torch.rand(100, 1, dtype=torch.float64)
    share, _ = most_common(sample, torch.zeros(1, dtype=torch.int64), 1)
    assert float(share) == 0.0


def test_minus_zero_is_zero():
    share, _ = most_common(
        torch.tensor([[0.0], [-0.0], [-0.0], [0.0]]), torch.zeros(1, dtype=torch.int64), 1
    )
    assert float(share) == 1.0
