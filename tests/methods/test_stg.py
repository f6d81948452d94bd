"""STG equals its formula."""

import math

import pytest
import torch

from torchleap.methods.field_gates import GateHook
from torchleap.methods.stg import STG, GaussianGates


def test_stg_equals_its_formula(search, task):
    layer = GaussianGates(search, STG())
    with torch.no_grad():
        layer.mean.copy_(torch.linspace(-1.5, 1.5, 7))
    x = torch.randn(5, task.fields.dims)
    torch.manual_seed(5)
    noisy = layer(x)
    torch.manual_seed(5)
    noise = torch.randn(7)
    for result, eps in ((noisy, noise), (layer.eval()(x), 0 * noise)):
        for place, name in enumerate(task.fields.names):
            gate = min(1.0, max(0.0, float(layer.mean[place].detach() + 0.5 + 0.5 * eps[place])))
            columns = task.fields.columns(name)
            assert torch.allclose(result[:, columns], x[:, columns] * gate, atol=1e-6)
    chances = [0.5 * (1 + math.erf((mu + 0.5) / 0.5 / math.sqrt(2))) for mu in layer.mean.tolist()]
    assert layer.penalty().item() == pytest.approx(0.1 * sum(chances) / 7, rel=1e-5)


def test_gates_have_a_learning_rate_of_their_own(search):
    layer = GaussianGates(search, STG())
    assert GateHook(search, layer, [layer.mean]).optimizer.param_groups[0]["lr"] == 5e-3
    assert GateHook(search, layer, [layer.mean], lr=0.3).optimizer.param_groups[0]["lr"] == 0.3
