from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchleap.sparsity import SAMPLE_ROWS, most_common, sample_rows


def by_counting(block):
    """Share and spread of one field, counted row by row; no spread where two values are equally common."""
    rows, width = block.shape
    keys = [tuple(row) for row in block.tolist()]
    (value, count), *others = Counter(keys).most_common()
    mean = block.double().mean(0)
    squares = sum(float(((row - mean) ** 2).sum()) for row, key in zip(block, keys, strict=True) if key != value)
    tied = bool(others) and others[0][1] == count
    return (count - 1) / (rows - 1), None if tied else squares / (rows - 1) / width


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(2, 30), st.integers(0, 999))
def test_most_common_equals_counting(widths, rows, seed):
    dice = torch.Generator().manual_seed(seed)
    sample = torch.randint(0, 2, (rows, sum(widths)), generator=dice).float() * torch.rand(sum(widths), generator=dice)
    column_gate = torch.arange(len(widths)).repeat_interleave(torch.tensor(widths))
    share, spread = most_common(sample, column_gate, len(widths))
    for i, block in enumerate(sample.split(widths, dim=1)):
        wanted_share, wanted_spread = by_counting(block)
        assert float(share[i]) == pytest.approx(wanted_share, abs=1e-6)
        if wanted_spread is not None:
            assert float(spread[i]) == pytest.approx(wanted_spread, rel=1e-4, abs=1e-6)


def test_constant_dense_and_sparse_fields():
    constant = torch.full((200, 2), 0.1)
    dense = torch.randn(200, 3)
    sparse = torch.zeros(200, 2)
    sparse[:4] = torch.tensor([3.0, -3.0])
    share, spread = most_common(torch.cat([constant, dense, sparse], 1), torch.tensor([0, 0, 1, 1, 1, 2, 2]), 3)
    torch.testing.assert_close(share, torch.tensor([1.0, 0.0, 195 / 199]))
    assert spread[0] == 0
    unit = (spread / (1 - share)).sqrt()
    assert float(unit[1]) == pytest.approx(1.0, abs=0.1)
    assert float(unit[2]) == pytest.approx(3.0, abs=0.1)  # 3 less the mean of 0.06


def test_minus_zero_is_zero():
    share, _ = most_common(torch.tensor([[0.0], [-0.0], [0.0]]), torch.zeros(1, dtype=torch.int64), 1)
    assert float(share) == 1.0


@pytest.mark.parametrize("rows", [1, 2, SAMPLE_ROWS, SAMPLE_ROWS + 1, 3 * SAMPLE_ROWS + 7])
def test_the_sample_is_small_and_spread_over_the_batch(rows):
    sample = sample_rows(torch.arange(rows)[:, None])
    assert 1 <= len(sample) <= SAMPLE_ROWS
    assert rows < SAMPLE_ROWS or sample[-1] >= rows - rows // SAMPLE_ROWS - SAMPLE_ROWS
