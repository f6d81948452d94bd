"""How gates are put into a model: checks before any change, and a trial on an example."""

import copy

import pytest
import torch
from torch import nn

import torchleap as tl
from tests.rankers import FIELDS, TwoTowers, mlp
from torchleap import AttachError, FieldError


def test_several_sites_in_another_order_need_an_example():
    x = torch.randn(16, 8)
    model = TwoTowers()
    tl.attach(model, {"clicks": 3, "user_id": 4, "age": 1}, at=["item", "user"], init=-20.0)
    with pytest.raises(
        AttachError, match="in the order in which the model reaches them, or give example="
    ):
        model(x)
    model = TwoTowers()
    plugin = tl.attach(
        model, {"clicks": 3, "user_id": 4, "age": 1}, at=["item", "user"], example=x, momentum=0.0
    )
    model(x)
    torch.testing.assert_close(plugin.gates.means(), torch.cat([x[:, 5:], x[:, :5]], 1).mean(0))


def test_several_dict_sites_learn_their_fields_from_an_example():
    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.user, self.item = nn.Identity(), nn.Identity()

        def forward(self, batch):
            return self.user({"u": batch["u"]}), self.item({"i": batch["i"], "j": batch["j"]})

    batch = {"u": torch.randn(8, 2), "i": torch.randn(8, 3), "j": torch.randn(8)}
    with pytest.raises(AttachError, match="Several sites need fields="):
        tl.attach(Towers(), at=["user", "item"])
    model = Towers()
    plugin = tl.attach(model, at=["user", "item"], example=batch, momentum=0.0)
    assert plugin.fields == tl.Fields({"u": 2, "i": 3, "j": 1})
    model(batch)
    torch.testing.assert_close(plugin.gates.means()[5], batch["j"].mean())


def test_a_model_in_eval_stays_as_it_is_until_it_is_trained():
    model = mlp().eval()
    x = torch.randn(1, 8)
    before = model(x)
    plugin = tl.attach(model, FIELDS, at="0")
    assert torch.equal(model(x), before)
    assert plugin.gates.steps.tolist() == [0, 0, 0]
    model.train()
    assert plugin.gates.training


def test_the_example_leaves_the_model_as_it_was():
    model = mlp()
    model[1].eval()
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    plugin = tl.attach(
        model, FIELDS, at="0", example=torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    )
    plugin.detach()
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_submodule_with_two_names_is_one_site():
    model = nn.Module()
    model.a = model.b = nn.Linear(8, 1)
    with pytest.raises(AttachError, match="names one submodule twice"):
        tl.attach(model, FIELDS, at=["a", "b"])


def test_an_example_is_watched_at_the_output_too():
    model = mlp()
    with pytest.raises(
        FieldError, match=r"at='0' \(output\) receives 16 columns, but the fields sum to 8"
    ):
        tl.attach(model, FIELDS, at="0", side="output", example=torch.randn(4, 8))
    tl.attach(model, {"hidden": 16}, at="0", side="output", example=torch.randn(4, 8))
