"""Batches that gates cannot mix are refused, with the fields by name."""

import pytest
import torch

from torchleap import FieldError, LeAP


def test_a_batch_on_another_device_is_an_error_with_a_cure():
    gates = LeAP({"a": 1, "b": 2})
    with pytest.raises(
        FieldError,
        match=r"LeAP is on cpu, but receives a batch on meta. Move one of them: batch.to\('cpu'\)",
    ):
        gates(torch.randn(4, 3, device="meta"))


def test_values_too_large_to_square_are_named():
    gates = LeAP({"a": 1, "b": 2}, seed=0)
    x = torch.randn(4096, 3)
    x[:, 0] = torch.where(torch.rand(4096) < 0.5, -5e18, 5e18)
    with pytest.raises(FieldError, match="too large to square in field 'a'"):
        gates(10 * x)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.randn(4, 5), "receives 5 columns, but the fields sum to 3. Widths: a 1, b 2"),
        (torch.randn(1, 3), "at least 2 rows"),
        (torch.ones(4, 3, dtype=torch.int64), "floating-point columns, but receives torch.int64"),
        (torch.randn(3), r"receives the shape \(3,\)"),
    ],
)
def test_bad_input_is_refused(x, message):
    gates = LeAP({"a": 1, "b": 2})
    before = {name: tensor.clone() for name, tensor in gates.state_dict().items()}
    with pytest.raises(FieldError, match=message):
        gates(x)
    assert all(torch.equal(tensor, before[name]) for name, tensor in gates.state_dict().items())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_are_refused_by_name_and_leave_no_trace(value):
    gates = LeAP({"good": 2, "bad": 3, "fine": 1}, seed=0)
    gates(torch.randn(16, 6))
    before = {name: tensor.clone() for name, tensor in gates.state_dict().items()}
    x = torch.randn(16, 6)
    x[7, 3] = value
    with pytest.raises(FieldError, match="in field 'bad'. Fill or clip"):
        gates(x)
    assert all(torch.equal(tensor, before[name]) for name, tensor in gates.state_dict().items())


def test_scores_name_what_a_compiled_step_let_through():
    gates = LeAP({"good": 1, "bad": 1})
    gates(torch.randn(8, 2))
    gates.square[1] = gates.distance[1] = float("nan")
    with pytest.raises(FieldError, match="in field 'bad'"):
        gates.scores()


def test_other_things_than_tensors_are_refused():
    with pytest.raises(FieldError, match="receives list"):
        LeAP({"a": 1})([[1.0], [2.0]])
