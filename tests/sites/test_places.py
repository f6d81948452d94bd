"""Where the gates are registered: never in a container, never in the place of something else."""

import pytest
import torch
from torch import nn

import torchleap as tl
from tests.rankers import FIELDS, WideAndDeep
from torchleap import AttachError, LeAP

# Containers


@pytest.mark.parametrize("at", ["", "0", "1"])
def test_a_sequential_neither_runs_nor_sees_the_gates_as_a_layer(at):
    model = nn.Sequential(nn.Sequential(nn.Identity(), nn.Identity()), nn.Sequential(nn.Identity()))
    plugin = tl.attach(model, FIELDS, at=at, init=-20.0, seed=0)
    x = torch.randn(16, 8)
    assert torch.equal(model(x), LeAP(FIELDS, init=-20.0, seed=0)(x))  # once, not twice
    assert plugin.gates.steps.tolist() == [1, 1, 1]
    assert (len(model), len(model[0]), len(model[1])) == (2, 2, 1)
    assert [type(layer) for layer in model[0]] == [nn.Identity, nn.Identity]
    assert isinstance(model[-1][-1], nn.Identity)


def test_module_lists_and_dicts_that_hold_a_site_do_not_see_the_gates():
    model = WideAndDeep()
    tl.attach(model, {"user_id": 4}, at="tables.0", side="output")
    assert len(model.tables) == 3
    model(torch.randint(0, 10, (8, 3)))


@pytest.mark.parametrize(
    "container", [nn.ModuleList([nn.Linear(8, 1)]), nn.ModuleDict({"a": nn.Linear(8, 1)})]
)
def test_a_list_that_is_never_called_cannot_be_a_site(container):
    model = nn.Module()
    model.towers = container
    with pytest.raises(
        AttachError, match=r"never called itself. Choose one of its members: towers\.[0a]"
    ):
        tl.attach(model, FIELDS, at="towers")


@pytest.mark.parametrize("kind", [nn.ModuleList, nn.ModuleDict, nn.Sequential])
def test_a_container_with_a_forward_of_its_own_is_a_model_like_any_other(kind):
    class Container(kind):
        def forward(self, x):
            for layer in self.children():
                x = layer(x)
            return x

    layers = [nn.Identity(), nn.Identity()]
    model = (
        Container({"a": layers[0], "b": layers[1]})
        if kind is nn.ModuleDict
        else Container(layers)
        if kind is nn.ModuleList
        else Container(*layers)
    )
    plugin = tl.attach(model, FIELDS, init=-20.0, seed=0)
    x = torch.randn(16, 8)
    assert torch.equal(model(x), LeAP(FIELDS, init=-20.0, seed=0)(x))
    assert len(model) == 2
    plugin.detach()
    assert torch.equal(model(x), x)


def test_an_empty_sequential_cannot_hold_the_gates():
    with pytest.raises(AttachError, match=r"nn.Identity\(\)"):
        tl.attach(nn.Sequential(), FIELDS)


def test_something_else_in_the_place_of_the_gates_is_refused():
    model = nn.Linear(8, 1)
    tl.attach(model, FIELDS)
    model.torchleap = nn.Identity()
    with pytest.raises(AttachError, match="expected the gates at 'torchleap', but found Identity"):
        model(torch.randn(4, 8))


def test_a_layer_with_that_name_already_is_refused():
    model = nn.Linear(8, 1)
    model.torchleap = 3
    with pytest.raises(AttachError, match="has an attribute 'torchleap' already"):
        tl.attach(model, FIELDS)
