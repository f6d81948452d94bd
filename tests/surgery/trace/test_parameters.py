"""However forward() reaches its parameters, fine-tuning the pruned model trains them."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector

import torchleap as tl
from tests.architectures import ids_by_name
from tests.surgery.helpers import FED, Ranker, pruned


def through_chain(m):
    found = m
    for name in ("holder", "weight"):
        found = getattr(found, name)
    return found.sum()


WAYS = {
    "an attribute": lambda m: m.holder.weight.sum(),
    "_parameters": lambda m: m.holder._parameters["weight"].sum(),
    "_parameters, then a function": lambda m: (
        functional.normalize(m.holder._parameters["weight"]).sum() * 3
    ),
    "_parameters, transposed": lambda m: m.holder._parameters["weight"].T.exp().sum() / 9,
    "_modules": lambda m: m._modules["holder"].weight.sum(),
    "named_parameters": lambda m: dict(m.named_parameters())["holder.weight"].square().sum(),
    "parameters": lambda m: sum(p.square().sum() for p in m.holder.parameters()),
    "parameters_to_vector": lambda m: parameters_to_vector(m.holder.parameters()).square().sum(),
    "state_dict with gradients": lambda m: m.holder.state_dict(keep_vars=True)["weight"].sum(),
    "a chain of getattr": through_chain,
    "vars": lambda m: vars(m.holder)["_parameters"]["weight"].sum(),
    "a list of parameters": lambda m: m.listed[0].sum(),
    "a closure": lambda m: m.closure().sum(),
    "a tensor that takes gradients": lambda m: m.loose.sum(),
    "a list of tensors that take gradients": lambda m: m.loose_list[0].sum(),
    "a result that was kept": lambda m: m.doubled().sum(),
}


class Reaching(Ranker):
    def __init__(self, reach):
        super().__init__()
        self.reach = reach
        self.holder = nn.Linear(3, 3, bias=False)
        self.listed = [self.holder.weight]
        self.loose = torch.ones(3, requires_grad=True)
        self.loose_list = [torch.ones(3, requires_grad=True)]

    def closure(self):
        return (lambda: self.holder.weight)()

    def doubled(self):
        return self.holder._parameters["weight"] * 2

    def forward(self, batch):
        return self.deep(self.embed(batch)) + self.reach(self)


def gradients(model):
    model.zero_grad()
    model.loose.grad = None
    model.loose_list[0].grad = None
    model(ids_by_name(7, 9)).sum().backward()
    return [model.holder.weight.grad, model.loose.grad, model.loose_list[0].grad]


@pytest.mark.parametrize("way", WAYS)
def test_parameters_take_gradients_however_forward_reaches_them(way):
    torch.manual_seed(0)
    plugin, selection, small = pruned(Reaching(WAYS[way]))
    with plugin.masked(selection):
        expected = gradients(plugin.model.eval())
    assert any(gradient is not None for gradient in expected)
    for found, wanted in zip(gradients(small.eval()), expected, strict=True):
        assert (found is None) == (wanted is None)
        if wanted is not None:
            torch.testing.assert_close(found, wanted)
    if "that take" not in way:  # what the pruned model computes changes with the parameter
        before = small(ids_by_name(7, 9))
        small.holder.weight.data += 1
        assert not torch.allclose(small(ids_by_name(7, 9)), before)


def test_parameters_that_are_reached_by_name_are_cut_out_of_the_graph_no_less():
    _, _, small = pruned(Reaching(WAYS["parameters_to_vector"]))
    assert FED not in str(tl.plan_of(small))


def test_buffers_and_detached_weights_are_read_at_each_call():
    class Buffered(Ranker):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.tensor(2.0))

        def forward(self, batch):
            weight = self.state_dict()["deep.0.weight"]
            return (
                self.deep(self.embed(batch)) * dict(self.named_buffers())["scale"].sqrt()
                + weight.norm()
            )

    plugin, selection, small = pruned(Buffered())
    assert "constants are fed instead" not in str(tl.plan_of(small))
    for model in (plugin.model, small):
        model.scale.fill_(3.0)
    with torch.no_grad(), plugin.masked(selection):
        expected = plugin.model.eval()(ids_by_name(7, 9))
    torch.testing.assert_close(small(ids_by_name(7, 9)), expected)
