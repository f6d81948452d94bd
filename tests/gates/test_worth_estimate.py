"""What the order of closing says of the worth of fields."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchleap.gates.worth_estimate import combined, rising

numbers = st.floats(-5, 5, allow_nan=False)


def test_neighbours_in_the_wrong_order_become_their_weighted_mean():
    assert rising([1.0, 3.0, 2.0], [1.0, 1.0, 3.0]) == [1.0, 2.25, 2.25]
    assert rising([3.0, 2.0, 1.0], [1.0, 1.0, 1.0]) == [2.0, 2.0, 2.0]
    assert rising([], []) == []


@given(st.lists(st.tuples(numbers, st.floats(0.1, 10)), min_size=1, max_size=12))
def test_no_other_rising_values_are_closer(pairs):
    values = [value for value, _ in pairs]
    weights = [weight for _, weight in pairs]
    found = rising(values, weights)
    assert all(a <= b + 1e-9 for a, b in pairwise(found))

    def distance(line):
        return sum(w * (a - b) ** 2 for a, b, w in zip(values, line, weights, strict=True))

    best = distance(found)
    for place in range(len(found)):
        for shift in (-0.01, 0.01):
            other = list(found)
            for number in range(len(other)):
                if (number >= place) == (shift > 0):
                    other[number] += shift
            assert distance(other) >= best - 1e-6


def test_a_precise_worth_stays_and_an_uncertain_one_follows_the_order():
    found = combined([0.0, 0.5, 0.1, 1.0], [0.001, 5.0, 0.001, 0.001])
    assert found[0] == pytest.approx(0.0, abs=1e-6)
    assert found[1] == pytest.approx(0.1, abs=0.02), "closed before a field that is worth 0.1"
    assert found[2] == pytest.approx(0.1, rel=0.01)
    assert found[3] == pytest.approx(1.0, rel=0.01)


def test_fields_of_the_same_worth_rank_by_the_time_at_which_they_closed():
    found = combined([0.0, 0.0, 0.0], [0.0, 0.0, 0.0])
    assert found == sorted(set(found))
    assert combined([], []) == []
