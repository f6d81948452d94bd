"""Whether two outputs are the same to rounding."""

import pytest
import torch

from tests.surgery.test_fallback import Batch
from torchleap.surgery.compare import alike, difference


def test_rounding_is_forgiven_and_errors_are_not():
    expected = torch.linspace(-3, 3, 50)
    assert alike(expected * (1 + 1e-6), expected)
    assert not alike(expected + 1e-2, expected)
    assert difference(expected + 1, expected) == pytest.approx(1)


@pytest.mark.parametrize("huge", [1e9, float("inf"), float("nan"), -float("inf")])
def test_one_huge_number_excuses_no_other(huge):
    expected = torch.cat([torch.tensor([huge]), torch.linspace(-1, 1, 50)])
    wrong = expected.clone()
    wrong[7] += 0.1
    assert alike(expected.clone(), expected)
    assert not alike(wrong, expected)
    assert not alike([expected[:1], wrong[1:]], [expected[:1], expected[1:]])


def test_bfloat16_is_held_to_its_precision():
    expected = torch.linspace(-1, 1, 50).bfloat16()
    assert alike(expected * 1.01, expected)
    assert not alike(expected + 1, expected)


def test_shapes_dtypes_and_plain_values_count():
    one = torch.ones(3)
    for other in (one[None], one.double(), one.bool(), 1.0, [one, one], None):
        assert not alike(other, one)
        assert difference(other, one) == float("inf")
    assert not alike({"logit": one, "rows": 3}, {"logit": one, "rows": 4})
    assert alike({"logit": one, "rows": 3, "mask": one > 0}, {"logit": one, "rows": 3, "mask": one > 0})
    assert not alike(one > 0, one > 1)
    assert alike(torch.empty(0), torch.empty(0))


def test_an_output_with_attributes_is_looked_into():
    one, two = (Batch(*torch.full((5, 3), value)) for value in (1.0, 2.0))
    assert alike(one, one)
    assert not alike(two, one)
