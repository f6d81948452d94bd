"""What a rule does wrong: users get the way that always works, CI gets the error."""

import pytest
import torch
from torch import nn

import torchleap as tl
from tests.architectures import NAMES, WIDTH
from torchleap.surgery.rules.facts import UnsupportedError
from torchleap.surgery.rules.linear import Linear
from torchleap.surgery.rules.registry import LAYERS


class Raising(Linear):
    def write(self, node, writer):
        raise KeyError("a mistake")


class Wrong(Linear):
    def _contribution(self, *args):
        return super()._contribution(*args) + 1


class WrongType(Linear):
    def facts(self, node, view):
        raise TypeError("a mistake")


class Declaring(Linear):
    def facts(self, node, view):
        raise UnsupportedError("not this one")


@pytest.fixture
def plugin():
    torch.manual_seed(0)
    return trained(nn.Sequential(nn.Linear(20, 7), nn.ReLU(), nn.Linear(7, 1)))


def trained(model, at=""):
    plugin = tl.attach(model, dict.fromkeys(NAMES, WIDTH), at=at)
    for _ in range(2):
        model(torch.randn(16, 20))
    with torch.no_grad():
        plugin.gates.theta.copy_(torch.linspace(-0.3, 1.0, 5))
    return plugin


def is_exact(plugin):
    selection = plugin.select(share=0.6)
    small = plugin.prune(selection).eval()
    x = torch.randn(9, 20)
    with plugin.masked(selection):
        return torch.allclose(small(x), plugin.model.eval()(x), atol=1e-6)


@pytest.mark.parametrize(
    ("rule", "reason"), [(Raising, "a mistake"), (Wrong, "would differ from the masked one")]
)
def test_without_strict_mode_a_wrong_rule_costs_size_but_not_exactness(
    monkeypatch, plugin, rule, reason
):
    monkeypatch.delenv("TORCHLEAP_STRICT", raising=False)
    monkeypatch.setitem(LAYERS, nn.Linear, rule())
    plan = plugin.plan(plugin.select(share=0.6))
    assert "constants are fed instead" in str(plan)
    assert reason in str(plan)
    assert is_exact(plugin)


def test_without_strict_mode_a_rule_that_fails_on_a_layer_leaves_the_layer_opaque(
    monkeypatch, plugin
):
    monkeypatch.delenv("TORCHLEAP_STRICT", raising=False)
    monkeypatch.setitem(LAYERS, nn.Linear, WrongType())
    plan = plugin.plan(plugin.select(share=0.6))
    assert "0 (Linear) needs all columns" in str(plan)
    assert is_exact(plugin)


@pytest.mark.parametrize(
    ("rule", "error"),
    [
        (Raising, KeyError),
        (Wrong, tl.SurgeryError),
        (WrongType, TypeError),
    ],
)
def test_in_strict_mode_the_mistake_is_raised(monkeypatch, plugin, rule, error):
    monkeypatch.setenv("TORCHLEAP_STRICT", "1")
    monkeypatch.setitem(LAYERS, nn.Linear, rule())
    with pytest.raises(error, match="a mistake|would differ from the masked one"):
        plugin.plan(plugin.select(share=0.6))


@pytest.mark.parametrize("strict", ["0", "1"])
def test_a_declared_reason_is_not_a_mistake(monkeypatch, plugin, strict):
    monkeypatch.setenv("TORCHLEAP_STRICT", strict)
    monkeypatch.setitem(LAYERS, nn.Linear, Declaring())
    assert "0 (Linear) needs all columns" in str(plugin.plan(plugin.select(share=0.6)))
    assert is_exact(plugin)


def test_a_description_that_fails_is_raised_in_strict_mode_alone(monkeypatch, plugin, tmp_path):
    small = plugin.prune(plugin.select(share=0.6))

    def fail(*args):
        raise KeyError("a mistake")

    monkeypatch.setattr("torchleap.export.graphs.to_json", fail)
    monkeypatch.setenv("TORCHLEAP_STRICT", "1")
    with pytest.raises(KeyError, match="a mistake"):
        tl.export.save(small, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    monkeypatch.setenv("TORCHLEAP_STRICT", "0")
    with pytest.warns(UserWarning, match="because of 'a mistake'"):
        tl.export.save(small, tmp_path / "model")
    assert tl.export.manifest(tmp_path / "model")["needs_code"] == ["'a mistake'"]


class Typed(nn.Module):
    """It takes another path with the stand-in of a tensor, which no trace can see."""

    def __init__(self):
        super().__init__()
        self.deep = nn.Linear(20, 1)

    def forward(self, x):
        return self.deep(x) if type(x) is torch.Tensor else -self.deep(x)


@pytest.mark.parametrize("strict", ["0", "1"])
def test_python_that_cannot_be_followed_is_not_the_mistake_of_a_rule(monkeypatch, strict):
    monkeypatch.setenv("TORCHLEAP_STRICT", strict)
    torch.manual_seed(0)
    plugin = trained(Typed(), at="deep")
    assert "constants are fed instead" in str(plugin.plan(plugin.select(share=0.6)))
    assert is_exact(plugin)
