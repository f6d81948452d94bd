"""A forward() that was replaced on the instance is followed, and the pruned model runs its own."""

import functools
import pickle
import types

import pytest
import torch
from torch import nn

import torchleap as tl

BFLOAT16 = 0.02  # how far the results of a few operations in bfloat16 are apart
FIELDS = dict.fromkeys("abcd", 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 8)
        self.last = nn.Linear(8, 1)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


def by_lambda(model):
    model.forward = lambda x: Net.forward(model, x)


def around(model):
    before = model.forward
    model.forward = lambda x: before(x) * 2


def with_wraps(model):
    before = model.forward

    @functools.wraps(before)
    def forward(*args, **kwargs):
        return before(*args, **kwargs)

    model.forward = forward


def without_wraps(model):
    before = model.forward
    model.forward = lambda *args, **kwargs: before(*args, **kwargs)


def as_method(model):
    model.forward = types.MethodType(lambda self, x: Net.forward(self, x) + 1, model)


def as_partial(model):
    model.forward = functools.partial(Net.forward, model)


def named(model):
    before = model.forward
    model.forward = lambda x, *, scale=2.0: before(x) * scale


def of_a_layer(model):
    before = model.first.forward
    model.first.forward = lambda x: before(x) - 3


def under_autocast(model):
    model.forward = torch.autocast("cpu", dtype=torch.bfloat16)(model.forward)


def as_accelerate(model):
    before = model.forward
    inner = torch.autocast("cpu", dtype=torch.bfloat16)(before.__func__)
    bound = types.MethodType(inner, model)

    def forward(*args, **kwargs):
        return bound(*args, **kwargs).float()

    forward.__wrapped__ = bound
    model._original_forward = before
    model.forward = forward


FOLLOWED = (
    *(by_lambda, around, with_wraps, without_wraps, as_method, as_partial, named, of_a_layer),
)
UNDER_AUTOCAST = (under_autocast, as_accelerate)


def attached(model, at):
    plugin = tl.attach(model, FIELDS, at=at, seed=0)
    for _ in range(3):
        model(torch.randn(64, 16))
    with torch.no_grad():
        plugin.gates.theta.uniform_(0.3, 0.9)
    return plugin, tl.Selection(plugin.fields, (0.9, 0.1, 0.9, 0.1), (True, False, True, False))


def assert_exact(model, plugin, selection, small, tolerance=None):
    model.eval()
    for rows in (1, 7, 333):
        x = torch.randn(rows, 16)
        with plugin.masked(selection), torch.no_grad():
            expected = model(x)
        found = small(x)
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def assert_independent(model, small):
    """The pruned model reads its own weights, and its gradients go to them."""
    x = torch.randn(5, 16)
    before = small(x).detach().clone()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(100)
            parameter.grad = None
    assert torch.equal(small(x), before)
    small(x).sum().backward()
    assert all(parameter.grad is not None for parameter in small.parameters())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("at", ["first", ""])
@pytest.mark.parametrize("replace", FOLLOWED)
def test_a_replaced_forward_is_followed_and_cut(replace, at, tmp_path):
    model = Net()
    replace(model)
    plugin, selection = attached(model, at)
    plan = plugin.plan(selection)
    assert not plan.untraced
    assert not plan.notes
    small = plan.apply().eval()
    assert small.first.weight.shape == (8, 8)
    assert_exact(model, plugin, selection, small)
    assert_independent(model, small)
    saved = tl.export.save(small, tmp_path / "small")
    assert saved.loads_without_code
    x = torch.randn(5, 16)
    torch.testing.assert_close(tl.export.load(tmp_path / "small")(x), small(x))


@pytest.mark.parametrize("replace", FOLLOWED)
def test_a_forward_that_is_replaced_after_attach_is_followed(replace):
    model = Net()
    plugin, selection = attached(model, "first")
    replace(model)
    small = plugin.prune(selection).eval()
    assert small.first.weight.shape == (8, 8)
    assert_exact(model, plugin, selection, small)
    assert_independent(model, small)


@pytest.mark.parametrize("at", ["first", ""])
@pytest.mark.parametrize("replace", UNDER_AUTOCAST)
def test_autocast_around_a_model_is_around_the_pruned_model(replace, at, tmp_path):
    model = Net()
    replace(model)
    plugin, selection = attached(model, at)
    plan = plugin.plan(selection)
    assert not plan.untraced
    assert not plan.notes
    small = plan.apply().eval()
    assert small.first.weight.shape == (8, 8)
    assert_exact(model, plugin, selection, small, BFLOAT16)
    assert not {"forward", "_original_forward"} & set(vars(small))
    x = torch.randn(7, 16)
    assert torch.equal(pickle.loads(pickle.dumps(small))(x), small(x))
    assert torch.equal(small(x.double().float()), small(x))
    with torch.autocast("cpu", dtype=torch.float16):  # as before: the inner one counts
        assert small(x).dtype == model(x).dtype
    assert_independent(model, small)
    assert tl.export.save(small, tmp_path / "small").loads_without_code
    loaded = tl.export.load(tmp_path / "small").eval()
    assert loaded(x).dtype == small(x).dtype
    assert torch.equal(loaded(x), small(x))
    again = tl.export.save(loaded, tmp_path / "again")
    assert again.loads_without_code
    assert torch.equal(tl.export.load(tmp_path / "again").eval()(x), small(x))


def test_a_pruned_model_under_autocast_is_pruned_again():
    model = Net()
    under_autocast(model)
    plugin, selection = attached(model, "first")
    small = plugin.prune(selection)
    plugin = tl.attach(small, {"a": 4, "c": 4}, at="first", seed=0)
    small.train()(torch.randn(64, 16))
    selection = tl.Selection(plugin.fields, (0.9, 0.1), (True, False))
    smaller = plugin.prune(selection).eval()
    assert smaller.first.weight.shape == (8, 4)
    assert_exact(small, plugin, selection, smaller, BFLOAT16)


def test_layers_are_cut_in_the_precision_in_which_a_part_of_forward_calls_them():
    class Partly(Net):
        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                hidden = self.first(x)
            return self.last(torch.relu(hidden.float()))

    model = Partly()
    plugin, selection = attached(model, "first")
    plan = plugin.plan(selection)
    assert "Cut by themselves: first" in str(plan)
    small = plan.apply().eval()
    assert_exact(model, plugin, selection, small, BFLOAT16)
    assert_independent(model, small)


def test_a_layer_with_another_forward_is_not_taken_for_the_layer():
    model = Net()
    weight = model.first.weight
    model.first.forward = lambda x: x @ weight.abs().T
    plugin, selection = attached(model, "first")
    small = plugin.prune(selection).eval()
    assert_exact(model, plugin, selection, small)
    with torch.no_grad():
        weight.add_(100)
    x = torch.randn(5, 16)
    assert small(x).abs().max() < 50


def test_a_forward_with_stars_and_a_closure_is_followed():
    class Child(Net):
        def forward(self, *data):
            return super().forward(torch.cat(data, dim=1))

    model = Child()
    plugin = tl.attach(model, FIELDS, at="first", seed=0)
    data = torch.randn(64, 4), torch.randn(64, 12)
    model(*data)
    selection = tl.Selection(plugin.fields, (0.9, 0.1, 0.9, 0.1), (True, False, True, False))
    plan = plugin.plan(selection)
    assert not plan.untraced
    model.eval()
    with plugin.masked(selection):
        torch.testing.assert_close(plan.apply().eval()(*data), model(*data))


def test_a_replaced_forward_inside_a_model_that_cannot_be_followed_runs_the_new_layers():
    class ByValue(Net):
        def forward(self, x):
            if x.sum() > 1e9:
                return x[:, :1]
            return super().forward(x)

    model = ByValue()
    before = model.last.forward
    model.last.forward = lambda x: before(x) + 1
    plugin, selection = attached(model, "first")
    small = plugin.prune(selection).eval()
    assert small.first.weight.shape == (8, 8)
    assert_exact(model, plugin, selection, small)
    assert_independent(model, small)


class Outside:
    """An object that is not a part of the model, with a reference to it."""

    def __init__(self, model):
        self.model = model

    def __call__(self, x):
        if x.sum() > 1e9:
            return x[:, :1]
        return Net.forward(self.model, x)


def test_a_forward_that_reaches_the_model_through_another_object_is_refused_in_one_error():
    model = Net()
    outside = Outside(model)
    model.forward = lambda x: outside(x)
    plugin, selection = attached(model, "first")
    with pytest.raises(tl.SurgeryError, match=r"forward\(\) of \w+ refers to the model that is"):
        plugin.plan(selection)
