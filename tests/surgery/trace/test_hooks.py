"""Hooks of users: the pruned model runs them, in the order in which they stand around the gates."""

import pytest
import torch
from torch import nn

import torchleap as tl
from tests.architectures import FIELDS, NAMES, ids_by_name
from tests.surgery.helpers import FED, Ranker, assert_same, pruned


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(20, 8)
        self.second = nn.Linear(8, 1)

    def forward(self, x, scale=1.0):
        return self.second(torch.relu(self.first(x))) * scale


class Towered(Ranker):
    """Its site may be the join, a leaf, or the tower, which is followed."""

    def __init__(self):
        super().__init__()
        self.deep = Tower()

    def forward(self, batch):
        return self.deep(self.embed(batch), scale=2.0)


def clamp_args(module, args):
    return (args[0].clamp(max=0.1), *args[1:])


def double_scale(module, args, kwargs):
    return args, {**kwargs, "scale": kwargs["scale"] * 2}


def warm(module, args, output):
    return output + (1.0 if output.max() > 0.3 else 0.0)  # it decides by the data


def halve(module, args, kwargs, output):
    return output * 0.5


def shift(module, args):
    return (args[0] + 1.5, *args[1:])


HOOKS = {
    "a pre-hook": lambda m: m.register_forward_pre_hook(clamp_args),
    "a pre-hook that shifts": lambda m: m.register_forward_pre_hook(shift),
    "a pre-hook with keywords": lambda m: m.register_forward_pre_hook(
        double_scale, with_kwargs=True
    ),
    "a hook that decides": lambda m: m.register_forward_hook(warm),
    "a hook with keywords": lambda m: m.register_forward_hook(halve, with_kwargs=True),
}


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("at", ["deep", "deep.first", "join"])
@pytest.mark.parametrize("early", [True, False])
def test_hooks_on_any_module_run_in_the_pruned_model(hook, at, early):
    if "with keywords" in hook and "pre-hook" in hook and at != "deep":
        pytest.skip("only the tower has a keyword")
    torch.manual_seed(0)
    model = Towered()
    site = {
        "join": ("join", "output"),
        "deep": ("deep", "input"),
        "deep.first": ("join", "output"),
    }[at]
    if early:
        HOOKS[hook](model.get_submodule(at))
    plugin = tl.attach(model, FIELDS, at=site[0], side=site[1])
    if not early:
        HOOKS[hook](model.get_submodule(at))
    for step in range(3):
        model.train()(ids_by_name(32, step))
    with torch.no_grad():
        plugin.gates.theta.copy_(torch.linspace(-0.3, 1.0, len(plugin.gates.theta)))
    selection = plugin.select(share=0.6)
    small = plugin.prune(selection).eval()
    for rows, seed in ((7, 9), (1, 3), (50, 4)):
        assert_same(plugin, selection, small, ids_by_name(rows, seed))


def test_what_a_hook_records_is_recorded_by_the_pruned_model():
    seen = []
    model = Towered()
    model.deep.register_forward_hook(lambda module, args, output: seen.append(output.shape[0]))
    plugin, selection, small = pruned(model)
    seen.clear()
    assert_same(plugin, selection, small, ids_by_name(7, 9))
    assert seen == [7, 7]


@pytest.mark.parametrize("at", ["deep", "deep.first"])
def test_backward_hooks_run_in_the_pruned_model(at):
    seen = []
    model = Towered()
    model.get_submodule(at).register_full_backward_hook(
        lambda module, ins, outs: seen.append(outs[0].clone())
    )
    plugin, selection, small = pruned(model)
    gradients = []
    for each in (model.eval(), small.eval()):
        seen.clear()
        with plugin.masked(selection):
            each(ids_by_name(7, 9)).sum().backward()
        gradients.append(seen[-1])
    torch.testing.assert_close(*gradients)


def named(module, args):
    """Make a dict of a list of columns."""
    return (dict(zip(NAMES, args[0], strict=True)),)


def test_the_models_own_pre_hook_may_change_what_forward_is_given():
    model = Ranker()
    model.register_forward_pre_hook(named)

    def make(rows=32, seed=0):
        return list(ids_by_name(rows, seed).values())

    plugin, selection, small = pruned(model, make)
    assert FED not in str(tl.plan_of(small))
    assert_same(plugin, selection, small, make(7, 9))


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("side", ["input", "output"])
def test_hooks_around_gates_on_the_whole_model_keep_their_order(early, side):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 20), nn.ReLU())

    def make(rows=32, seed=0):
        return torch.randn(rows, 20, generator=torch.Generator().manual_seed(seed))

    def hang():
        if side == "input":
            model.register_forward_pre_hook(clamp_args)
        else:
            model.register_forward_hook(lambda module, args, output: output.clamp(max=0.4))

    if early:
        hang()
    plugin = tl.attach(model, FIELDS, at="", side=side)
    if not early:
        hang()
    for step in range(3):
        model.train()(make(seed=step))
    with torch.no_grad():
        plugin.gates.theta.copy_(torch.linspace(-0.3, 1.0, len(plugin.gates.theta)))
    selection = plugin.select(share=0.6)
    small = plugin.prune(selection).eval()
    for rows in (7, 1, 50):
        assert_same(plugin, selection, small, make(rows, 9))
