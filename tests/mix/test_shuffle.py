import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.slow import shuffled_by_hand
from torchleap.mix import Draw, streams
from torchleap.mix.shuffle import uniform

SCHEMES = ["uniform", "cyclic"]


def draw(seed, steps, shuffle="uniform", first_gate=0):
    return Draw(streams(torch.tensor(seed), torch.as_tensor(steps), first_gate), shuffle)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 60))
def test_the_shuffle_without_a_loop_is_the_one_with_a_loop(stream, rows):
    assert uniform(torch.tensor([stream]), rows)[0].tolist() == shuffled_by_hand(
        stream % 2**64, rows
    )


@pytest.mark.parametrize("rows", [511, 512, 513, 3000])
def test_long_shuffles_too(rows):
    assert uniform(torch.tensor([12345]), rows)[0].tolist() == shuffled_by_hand(12345, rows)


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(1, 6),
    st.integers(1, 40),
    st.integers(0, 2**40),
    st.sampled_from(SCHEMES),
)
def test_every_row_appears_once(seed, gates, rows, step, shuffle):
    order = draw(seed, torch.full((gates,), step), shuffle).permutations(rows)
    assert torch.equal(order.sort(dim=1).values, torch.arange(rows).expand(gates, rows))


@pytest.mark.parametrize("shuffle", SCHEMES)
def test_permutations_are_a_function_of_seed_gate_and_step(shuffle):
    steps = torch.tensor([3, 3, 4])
    every = draw(1, steps, shuffle).permutations(50)
    torch.rand(7)  # whatever else draws
    assert torch.equal(every, draw(1, steps, shuffle).permutations(50))
    assert torch.equal(every[1:2], draw(1, steps[1:2], shuffle, first_gate=1).permutations(50))
    assert not torch.equal(every[0], every[1])
    assert not torch.equal(every, draw(2, steps, shuffle).permutations(50))
    assert not torch.equal(every, draw(1, steps + 1, shuffle).permutations(50))


def test_uniform_permutations_are_uniform():
    """All 24 orders of 4 rows are equally likely: 49.7 is the 0.1 % point of chi-square (23)."""
    order = draw(7, torch.arange(24_000)).permutations(4)
    code = (order * torch.tensor([64, 16, 4, 1])).sum(1)
    counts = code.unique(return_counts=True)[1].double()
    assert len(counts) == 24
    assert ((counts - 1000) ** 2 / 1000).sum() < 49.7


def test_uniform_permutations_of_many_rows_send_each_row_anywhere():
    """1,000 permutations of 100 rows: each of the 10,000 (row, place) pairs 10 times on average."""
    order = draw(3, torch.arange(1000)).permutations(100)
    pairs = (order + 100 * torch.arange(100)).flatten().bincount(minlength=10_000).double()
    chi_square = float(((pairs - 10) ** 2 / 10).sum())  # 99 * 99 degrees of freedom
    assert abs(chi_square - 99 * 99) < 4 * math.sqrt(2 * 99 * 99)


def test_cyclic_shifts_send_each_row_to_every_other_place_equally_often():
    order = torch.cat([draw(3, [step], "cyclic").permutations(40) for step in range(1600)])
    pairs = (
        (order + 40 * torch.arange(40)).flatten().bincount(minlength=1600).reshape(40, 40).double()
    )
    assert float(pairs.diagonal().sum()) == 0  # no row stays where it is
    others = pairs[~torch.eye(40, dtype=torch.bool)]
    expected = 1600 / 39
    chi_square = float(((others - expected) ** 2 / expected).sum())
    assert abs(chi_square - 39 * 38) < 4 * math.sqrt(2 * 39 * 38)


def correlation(a, b):
    return float(
        torch.corrcoef(torch.stack([a.flatten().double(), b.flatten().double()]))[0, 1].abs()
    )


@pytest.mark.parametrize("shuffle", SCHEMES)
def test_permutations_of_different_gates_and_steps_are_independent(shuffle):
    """Where a gate sends a row is not correlated with another gate or the next step (4 sigma)."""
    rows = 200
    now = torch.cat(
        [draw(0, [5 + 2 * i, 5 + 2 * i], shuffle).permutations(rows) for i in range(150)]
    )
    later = torch.cat(
        [draw(0, [6 + 2 * i, 6 + 2 * i], shuffle).permutations(rows) for i in range(150)]
    )
    bound = 4 / (150 * rows) ** 0.5
    assert correlation(now[::2], now[1::2]) < bound + 1 / rows
    assert correlation(now, later) < bound
    assert (
        correlation(now[:, :-1], now[:, 1:]) < bound + 1 / rows
    )  # without replacement: -1 / (rows - 1) is right


@pytest.mark.parametrize("shuffle", SCHEMES)
@pytest.mark.parametrize("ordered", [False, True])
def test_a_shuffled_field_has_lost_its_tie_to_the_label_and_to_other_fields(shuffle, ordered):
    """Two equal fields that decide the label are as independent columns afterwards, in any order.

    With n rows and independent columns a correlation has a standard deviation of
    1 / sqrt(n - 1); over many steps its mean square must be 1 / (n - 1).
    """
    rows, steps = 256, 400
    label = torch.randn(rows, generator=torch.Generator().manual_seed(0))
    label = label.sort().values if ordered else label
    label = (label - label.mean()) / label.std(correction=0)
    to_label, to_each_other, stay = [], [], []
    for step in range(steps):
        first, second = draw(11, [step, step], shuffle).permutations(rows)
        to_label.append(float((label[first] * label).mean()))
        to_each_other.append(float((label[first] * label[second]).mean()))
        stay.append(float((first == second).double().mean()))
    for found in (to_label, to_each_other):
        found = torch.tensor(found)
        assert float(found.mean().abs()) < 4 / math.sqrt(steps * rows) + 1 / rows
        assert float(found.square().mean()) * (rows - 1) == pytest.approx(
            1, abs=4 * math.sqrt(2 / steps)
        )
    assert sum(stay) / steps < 5 / rows  # both fields from the same row: once in n rows on average


def test_the_sample_is_the_same_for_all_gates_and_changes_with_the_step():
    sample = draw(0, [4, 4]).sample(1000)
    assert len(sample) == len(sample.unique()) == 256
    assert torch.equal(sample, draw(0, [4, 4], "cyclic").sample(1000))
    assert not torch.equal(sample, draw(0, [5, 5]).sample(1000))
    assert len(draw(0, [4]).sample(10)) == 10
