import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.slow import mixed_row_by_row
from torchleap.mix import Draw, streams
from torchleap.mix.reference import gradients, mix
from torchleap.mix.sparsity import most_common

WIDTHS = st.lists(st.sampled_from([1, 2, 3, 8, 17]), min_size=1, max_size=5)


def layout(widths):
    return torch.arange(len(widths)).repeat_interleave(torch.tensor(widths))


def orders(gates, rows, seed=0):
    return Draw(streams(torch.tensor(seed), torch.zeros(gates, dtype=torch.int64))).permutations(
        rows
    )


def some_rows(rows):
    return torch.arange(rows)


@given(WIDTHS, st.integers(2, 12), st.integers(0, 10_000))
def test_mix_equals_the_row_by_row_definition(widths, rows, seed):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, sum(widths), generator=rng, dtype=torch.float64)
    gate = torch.rand(len(widths), generator=rng, dtype=torch.float64)
    order = orders(len(widths), rows, seed)
    mixed = mix(x, gate, layout(widths), order, some_rows(rows))
    output, distance, square = mixed_row_by_row(x, widths, gate, order)
    torch.testing.assert_close(mixed.output, output)
    torch.testing.assert_close(mixed.distance, torch.tensor(distance, dtype=torch.float64))
    torch.testing.assert_close(mixed.square, torch.tensor(square, dtype=torch.float64))
    torch.testing.assert_close(
        mixed.mean, torch.stack([sum(x[:, c]) / rows for c in range(sum(widths))])
    )
    common, spread = most_common(x, layout(widths), len(widths))
    torch.testing.assert_close(mixed.common, common.double())
    torch.testing.assert_close(mixed.spread, spread)


@given(WIDTHS, st.integers(2, 9), st.integers(0, 10_000))
def test_gradients_are_those_with_the_shuffled_copy_held_fixed(widths, rows, seed):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, sum(widths), generator=rng, dtype=torch.float64, requires_grad=True)
    gate = torch.rand(len(widths), generator=rng, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(rows, sum(widths), generator=rng, dtype=torch.float64)
    order = orders(len(widths), rows, seed)
    (mix(x, gate, layout(widths), order, some_rows(rows)).output * weight).sum().backward()
    start = 0
    for i, width in enumerate(widths):
        block, piece = x.detach()[:, start : start + width], weight[:, start : start + width]
        torch.testing.assert_close(x.grad[:, start : start + width], gate[i].item() * piece)
        torch.testing.assert_close(gate.grad[i], (piece * (block - block[order[i]])).sum())
        start += width
    by_formula = gradients(weight, x.detach(), gate.detach(), layout(widths), order)
    torch.testing.assert_close(by_formula[0], x.grad)
    torch.testing.assert_close(by_formula[1], gate.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_output_keeps_the_dtype_and_is_rounded_once(dtype):
    x = torch.randn(64, 5).to(dtype)
    gate = torch.tensor([0.3, 0.9])
    order = orders(2, 64)
    mixed = mix(x, gate, layout([2, 3]), order, some_rows(64))
    exact = mix(x.double(), gate.double(), layout([2, 3]), order, some_rows(64))
    assert mixed.output.dtype == dtype
    assert mixed.distance.dtype == torch.promote_types(dtype, torch.float32)
    if dtype in (torch.bfloat16, torch.float16):
        torch.testing.assert_close(
            mixed.output, exact.output.to(dtype), rtol=torch.finfo(dtype).eps, atol=0
        )
    torch.testing.assert_close(mixed.distance.double(), exact.distance, rtol=1e-6, atol=1e-6)


def test_with_every_gate_at_1_the_output_is_the_input():
    x = torch.randn(33, 7)
    assert torch.equal(mix(x, torch.ones(1), layout([7]), orders(1, 33), some_rows(33)).output, x)


def test_columns_of_one_gate_need_not_be_neighbours():
    x = torch.randn(16, 3, dtype=torch.float64)
    order = orders(2, 16)
    mixed = mix(
        x, torch.zeros(2, dtype=torch.float64), torch.tensor([0, 1, 0]), order, some_rows(16)
    )
    torch.testing.assert_close(mixed.output[:, [0, 2]], x[:, [0, 2]][order[0]])
    torch.testing.assert_close(mixed.output[:, 1], x[:, 1][order[1]])
    torch.testing.assert_close(mixed.distance[0], (x - x[order[0]])[:, [0, 2]].norm(dim=1).mean())
