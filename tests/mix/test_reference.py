import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.slow import mixed_row_by_row

from torchleap.mix import mix, permutations

WIDTHS = st.lists(st.sampled_from([1, 2, 3, 8, 17]), min_size=1, max_size=5)


def layout(widths):
    return torch.arange(len(widths)).repeat_interleave(torch.tensor(widths))


@given(WIDTHS, st.integers(2, 12), st.integers(0, 10_000))
def test_mix_equals_the_row_by_row_definition(widths, rows, seed):
    dice = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, sum(widths), generator=dice, dtype=torch.float64)
    gate = torch.rand(len(widths), generator=dice, dtype=torch.float64)
    order = permutations(torch.tensor(seed), torch.zeros(len(widths), dtype=torch.int64), rows)
    mixed = mix(x, gate, order, layout(widths))
    output, distance, square = mixed_row_by_row(x, widths, gate, order)
    torch.testing.assert_close(mixed.output, output)
    torch.testing.assert_close(mixed.distance, torch.tensor(distance, dtype=torch.float64))
    torch.testing.assert_close(mixed.square, torch.tensor(square, dtype=torch.float64))


@given(WIDTHS, st.integers(2, 9), st.integers(0, 10_000))
def test_gradients_are_those_with_the_shuffled_copy_held_fixed(widths, rows, seed):
    dice = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, sum(widths), generator=dice, dtype=torch.float64, requires_grad=True)
    gate = torch.rand(len(widths), generator=dice, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(rows, sum(widths), generator=dice, dtype=torch.float64)
    order = permutations(torch.tensor(seed), torch.zeros(len(widths), dtype=torch.int64), rows)
    (mix(x, gate, order, layout(widths)).output * weight).sum().backward()
    start = 0
    for i, width in enumerate(widths):
        block, piece = x.detach()[:, start : start + width], weight[:, start : start + width]
        torch.testing.assert_close(x.grad[:, start : start + width], gate[i].item() * piece)
        torch.testing.assert_close(gate.grad[i], (piece * (block - block[order[i]])).sum())
        start += width


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_output_keeps_the_dtype_and_is_rounded_once(dtype):
    x = torch.randn(64, 5).to(dtype)
    gate = torch.tensor([0.3, 0.9])
    order = permutations(torch.tensor(0), torch.zeros(2, dtype=torch.int64), 64)
    mixed = mix(x, gate, order, layout([2, 3]))
    exact = mix(x.double(), gate.double(), order, layout([2, 3]))
    assert mixed.output.dtype == dtype
    assert mixed.distance.dtype == torch.promote_types(dtype, torch.float32)
    if dtype in (torch.bfloat16, torch.float16):
        torch.testing.assert_close(mixed.output, exact.output.to(dtype), rtol=torch.finfo(dtype).eps, atol=0)
    torch.testing.assert_close(mixed.distance.double(), exact.distance, rtol=1e-6, atol=1e-6)


def test_with_every_gate_at_1_the_output_is_the_input():
    x = torch.randn(33, 7)
    order = permutations(torch.tensor(0), torch.zeros(1, dtype=torch.int64), 33)
    assert torch.equal(mix(x, torch.ones(1), order, layout([7])).output, x)


def test_columns_of_one_gate_need_not_be_neighbours():
    x = torch.randn(16, 3, dtype=torch.float64)
    order = permutations(torch.tensor(0), torch.zeros(2, dtype=torch.int64), 16)
    mixed = mix(x, torch.zeros(2, dtype=torch.float64), order, torch.tensor([0, 1, 0]))
    torch.testing.assert_close(mixed.output[:, [0, 2]], x[:, [0, 2]][order[0]])
    torch.testing.assert_close(mixed.output[:, 1], x[:, 1][order[1]])
    torch.testing.assert_close(mixed.distance[0], (x - x[order[0]])[:, [0, 2]].norm(dim=1).mean())


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 6), st.integers(1, 40), st.integers(0, 2**40))
def test_every_row_appears_once(seed, gates, rows, step):
    order = permutations(torch.tensor(seed), torch.full((gates,), step), rows)
    assert torch.equal(order.sort(dim=1).values, torch.arange(rows).expand(gates, rows))


def test_permutations_are_a_function_of_seed_gate_and_step():
    steps = torch.tensor([3, 3, 4])
    whole = permutations(torch.tensor(1), steps, 50)
    torch.rand(7)  # whatever else draws
    assert torch.equal(whole, permutations(torch.tensor(1), steps, 50))
    assert torch.equal(whole[1:], permutations(torch.tensor(1), steps[1:], 50, first_gate=1))
    assert not torch.equal(whole[0], whole[1])
    assert not torch.equal(whole, permutations(torch.tensor(2), steps, 50))
    assert not torch.equal(whole, permutations(torch.tensor(1), steps + 1, 50))


def test_permutations_are_uniform():
    """All 24 orders of 4 rows, equally often: chi-square with 23 degrees of freedom, 49.7 is the 0.1 % point."""
    steps = torch.arange(24_000)
    order = permutations(torch.tensor(7), steps, 4)
    code = (order * torch.tensor([64, 16, 4, 1])).sum(1)
    counts = code.unique(return_counts=True)[1].double()
    assert len(counts) == 24
    assert ((counts - 1000) ** 2 / 1000).sum() < 49.7


def test_permutations_of_different_gates_and_steps_are_independent():
    """Where gate 0 sends a row says nothing about where gate 1 does, nor the next step: correlations within 4 sigma of 0."""
    rows = 200
    now = permutations(torch.tensor(0), torch.full((300,), 5), rows).double()
    later = permutations(torch.tensor(0), torch.full((300,), 6), rows).double()

    def correlation(a, b):
        return torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1].abs()

    bound = 4 / (299 * rows) ** 0.5
    assert correlation(now[:-1], now[1:]) < bound
    assert correlation(now, later) < bound
    assert correlation(now[:, :-1], now[:, 1:]) < bound + 1 / rows  # without replacement: -1 / (rows - 1) is right
