"""Variational dropout equals its formula."""

import pytest
import torch

from torchleap.methods.variational_dropout import DropGates, VariationalDropout


def test_variational_dropout_equals_its_formula(search, task):
    layer = DropGates(search, VariationalDropout())
    with torch.no_grad():
        layer.drop.copy_(torch.linspace(-2, 2, 7))
    p = torch.sigmoid(layer.drop.detach()).double()
    x = torch.randn(5, task.fields.dims)
    torch.manual_seed(5)
    noisy = layer(x)
    torch.manual_seed(5)
    u = torch.rand(5, 7).double()
    gate = 1 - torch.sigmoid((p.log() - (1 - p).log() + u.log() - (1 - u).log()) / 0.1)  # (B, F)
    assert torch.allclose(noisy, x * gate.float()[:, search.column_field()], atol=1e-4)
    assert torch.allclose(layer.eval()(x), x * (1 - p).float()[search.column_field()], atol=1e-6)
    assert layer.penalty().item() == pytest.approx(0.01 / 128 * float((1 - p).sum()), rel=1e-5)
    many = layer.train()(torch.ones(20_000, task.fields.dims))
    assert torch.allclose(many.mean(0), (1 - p).float()[search.column_field()], atol=0.02)
