"""What a loaded model requests is bounded by its batch, and what models need is not refused."""

import pytest
import torch

import torchleap as tl
from torchleap.export.limits import COUNTS, LONGEST, MOST, PER_ELEMENT, refuse_huge
from torchleap.export.names import FUNCTIONS

X = torch.arange(6.0).reshape(2, 3)
IDS = torch.tensor([0, 2])
CALLS = [
    ("torch.zeros", (2, 3), {}),
    ("torch.zeros", ((2, 3),), {}),
    ("torch.ones", (), {"size": (2, torch.tensor(3))}),
    ("torch.full", ((4,), 1.0), {}),
    ("torch.full", (), {"size": (4,), "fill_value": 1.0}),
    ("torch.arange", (5,), {}),
    ("torch.arange", (2, 9, 2), {}),
    ("torch.arange", (9, 2, -2), {}),
    ("torch.arange", (1,), {"end": 4}),
    ("torch.arange", (), {"start": 1, "end": 4, "step": 0.5}),
    ("torch.linspace", (0, 1, 5), {}),
    ("torch.eye", (3,), {}),
    ("torch.eye", (3, 2), {}),
    ("torch.tile", (X, (2, 2)), {}),
    ("torch.repeat_interleave", (X, 3), {}),
    ("torch.repeat_interleave", (X, torch.tensor([1, 4])), {"dim": 0}),
    ("torch.repeat_interleave", (X, torch.tensor([2]), 1), {}),
    ("torch.broadcast_to", (X, (4, 2, 3)), {}),
    ("torch.cat", ([X, X],), {}),
    ("torch.stack", ((X, X), 1), {}),
    ("functional.one_hot", (IDS,), {}),
    ("functional.one_hot", (IDS, 5), {}),
    ("functional.pad", (X, (1, 2)), {}),
    ("functional.pad", (X, (1, 0, 0, 2), "constant", 0), {}),
    ("functional.adaptive_max_pool1d", (X, 1), {}),
    ("new_zeros", (X, 2, 3), {}),
    ("new_ones", (X, (2, 3)), {}),
    ("new_full", (X, (2, 3), 1), {}),
    ("new_tensor", (X, [1.0, 2.0]), {}),
    ("repeat", (X, 2, 1), {}),
    ("repeat", (X,), {"repeats": (2, 1, 1)}),
    ("expand", (X, 4, -1, 3), {}),
    ("expand", (X[None], (5, 2, 3)), {}),
    ("repeat_interleave", (X, 2, 1), {}),
]


@pytest.mark.parametrize(("name", "given", "named"), CALLS)
def test_elements_are_counted_before_they_are_made(name, given, named):
    target = FUNCTIONS.get(name)
    counted = COUNTS[target or name](*given, **named)
    result = target(*given, **named) if target else getattr(given[0], name)(*given[1:], **named)
    expected = result.numel()
    assert counted == expected or (name.startswith("functional.adaptive") and counted >= expected)


def test_a_large_batch_may_have_large_results():
    rows = MOST // PER_ELEMENT + 1
    batch = ({"x": torch.zeros(rows)},)
    refuse_huge("expand", (torch.zeros(rows, 1), rows, PER_ELEMENT), {}, batch)
    with pytest.raises(tl.SurgeryError, match="requests .* elements from expand"):
        refuse_huge("expand", (torch.zeros(rows, 1), rows, PER_ELEMENT + 1), {}, batch)
    with pytest.raises(tl.SurgeryError, match="expected at most 67,108,864 with this batch"):
        refuse_huge("expand", (torch.zeros(1), MOST + 1), {}, ())


def test_what_a_function_refuses_itself_is_left_to_it():
    refuse_huge("expand", (torch.zeros(2, 3), 3), {}, ())
    refuse_huge(torch.arange, ("a",), {}, ())
    refuse_huge(torch.arange, (0, 1, 0), {}, ())


def test_arithmetic_of_a_model_is_not_refused():
    for name, values in [
        ("add", (3, 4.5)),
        ("add", ((1, 2), (3,))),
        ("mul", (1 << 20, 1 << 20)),
        ("pow", (2, 40)),
        ("pow", (2.0, 1000.0)),
        ("mul", (X, "text")),  # which PyTorch refuses
    ]:
        refuse_huge(FUNCTIONS[f"operator.{name}"], values, {}, ())
    with pytest.raises(tl.SurgeryError, match="requests 6.71e\\+07 elements from add"):
        refuse_huge(FUNCTIONS["operator.add"], ((1,) * (LONGEST + 1), (2,)), {}, ())
