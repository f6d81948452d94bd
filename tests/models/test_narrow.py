"""First layers that skip constant columns."""

import pytest
import torch
from torch import nn

import torchleap as tl
from torchleap import models
from torchleap.models.narrow import first_layers, narrowed

FIELDS = tl.Fields({"a": 3, "b": 1, "c": 6})
VARIES = torch.tensor([True] * 4 + [False] * 6)
CONSTANT = torch.linspace(-1, 1, FIELDS.dims)


def rows():
    x = torch.randn(16, FIELDS.dims, generator=torch.Generator().manual_seed(0))
    return torch.where(VARIES, x, CONSTANT)


@pytest.mark.parametrize("backbone", list(models.BACKBONES))
def test_values_and_gradients_are_those_of_the_complete_layers(backbone):
    torch.manual_seed(0)
    net = models.named(backbone).net(FIELDS).eval()
    found = []
    for _ in range(2):
        outputs = net(rows())
        net.zero_grad()
        outputs.square().sum().backward()
        found.append((outputs.detach(), [one.grad.clone() for one in net.parameters()]))
        if len(found) == 1:
            context = narrowed(net, VARIES, CONSTANT)
            context.__enter__()
    context.__exit__(None, None, None)
    (complete, gradients), (narrow, others) = found
    assert torch.allclose(narrow, complete, atol=1e-5)
    for one, other in zip(gradients, others, strict=True):
        assert torch.allclose(one, other, atol=1e-4)


def test_constant_columns_are_not_read_within_the_context_and_again_after_it():
    net = nn.Sequential(nn.Linear(FIELDS.dims, 2, bias=False), nn.ReLU())
    spoilt = torch.where(VARIES, rows(), torch.nan)
    with narrowed(net, VARIES, CONSTANT):
        assert torch.isfinite(net(spoilt)).all()
    assert "forward" not in vars(net[0])
    assert torch.isnan(net(spoilt)).all()


def test_the_layers_are_complete_again_after_an_error():
    net = nn.Linear(FIELDS.dims, 2)
    with pytest.raises(ZeroDivisionError), narrowed(net, VARIES, CONSTANT):
        raise ZeroDivisionError
    assert "forward" not in vars(net)


def test_few_constant_columns_are_not_worth_the_copies():
    net = nn.Linear(FIELDS.dims, 2)
    varies = torch.ones(FIELDS.dims, dtype=torch.bool)
    varies[0] = False
    with narrowed(net, varies, CONSTANT):
        assert "forward" not in vars(net)


def test_only_parts_that_begin_with_a_linear_layer_are_narrowed():
    assert first_layers(nn.Sequential(nn.ReLU(), nn.Linear(3, 1))) == []
    assert first_layers(nn.Sequential()) == []
