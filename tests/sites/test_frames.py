"""The batch of a model whose loop calls `self.forward(batch)` is found at the gates."""

import copy
import pickle

import pytest
import torch
from torch import nn

import torchleap as tl

FIELDS = dict.fromkeys("abcd", 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 8)
        self.last = nn.Linear(8, 1)

    def forward(self, x, scale=1.0):
        return self.last(torch.relu(self.first(x))) * scale

    def step(self, *args, **kwargs):
        return self.forward(*args, **kwargs)


class Changes(Net):
    def forward(self, x):
        x = x * 2
        return super().forward(x)


class ChangesLater(Net):
    def forward(self, x):
        hidden = self.first(x)
        x = torch.relu(hidden)
        return self.last(x)


class Stars(Net):
    def forward(self, *data, **named):
        return super().forward(torch.cat(data, dim=1), **named)


class OfParent(Net):
    def forward(self, x):
        return super().forward(x + 1)


def pruned(model, plugin):
    selection = tl.Selection(plugin.fields, (0.9, 0.1, 0.9, 0.1), (True, False, True, False))
    return selection, plugin.prune(selection).eval()


@pytest.mark.parametrize("side", ["input", "output"])
def test_the_arguments_of_forward_are_the_example(side):
    model = Net()
    at, fields = ("first", FIELDS) if side == "input" else ("first", dict.fromkeys("abcd", 2))
    plugin = tl.attach(model, fields, at=at, side=side, seed=0)
    for _ in range(3):
        model.step(torch.randn(64, 16), scale=3.0)
    selection, small = pruned(model, plugin)
    x = torch.randn(5, 16)
    with plugin.masked(selection):
        torch.testing.assert_close(small(x, scale=3.0), model.eval()(x, scale=3.0))


@pytest.mark.parametrize("kind", [ChangesLater, OfParent])
def test_the_outer_forward_gives_the_example(kind):
    model = kind()
    plugin = tl.attach(model, FIELDS, at="first", seed=0)
    first = torch.randn(64, 16)
    model.step(first)
    model.step(torch.randn(64, 16))
    (args, kwargs) = plugin._example(None)
    assert torch.equal(args[0], first[: len(args[0])])
    assert not kwargs
    selection, small = pruned(model, plugin)
    with plugin.masked(selection):
        torch.testing.assert_close(small(first), model.eval()(first))


def test_stars_of_forward_are_the_example():
    model = Stars()
    plugin = tl.attach(model, FIELDS, at="first", seed=0)
    data = torch.randn(64, 4), torch.randn(64, 12)
    model.step(*data, scale=2.0)
    args, kwargs = plugin._example(None)
    assert len(args) == 2
    assert kwargs == {"scale": 2.0}


def test_a_forward_that_has_changed_its_argument_gives_no_example():
    model = Changes()
    plugin = tl.attach(model, FIELDS, at="first", seed=0)
    model.step(torch.randn(64, 16))
    with pytest.raises(tl.SurgeryError, match="example=batch"):
        pruned(model, plugin)
    model(torch.randn(64, 16))
    pruned(model, plugin)


def test_a_part_of_the_model_gives_no_example():
    model = Net()
    plugin = tl.attach(model, FIELDS, at="first", seed=0)
    model.first(torch.randn(64, 16))
    with pytest.raises(tl.SurgeryError, match="No batch has passed"):
        pruned(model, plugin)


def test_the_example_stays_that_of_attach():
    model = Net()
    given = torch.randn(8, 16)
    plugin = tl.attach(model, FIELDS, at="first", seed=0, example=given)
    model.step(torch.randn(64, 16))
    assert torch.equal(plugin._example(None)[0][0], given)


def test_copies_find_their_own_example_and_detach_leaves_nothing():
    model = Net()
    before = dict(vars(model))
    plugin = tl.attach(model, FIELDS, at="first", seed=0)
    other = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    x = torch.randn(64, 16)
    other.step(x)
    pruned(other, tl.plugin.attached(other))
    with pytest.raises(tl.SurgeryError, match="No batch has passed"):
        plugin._example(None)
    plugin.detach()
    assert vars(model).keys() == before.keys()


def test_a_compiled_step_still_runs():
    model = Net()
    plugin = tl.attach(model, FIELDS, at="first", seed=0)
    step = torch.compile(model.step, backend="eager")
    step(torch.randn(64, 16)).sum().backward()
    assert plugin.gates.theta.grad is not None
