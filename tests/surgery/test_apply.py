"""A plan is made once, printed, and applied; it never cuts a model that has changed since."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch import nn

import torchleap as tl
from tests.architectures import ARCHITECTURES, NAMES, attached, ids_by_name
from tests.surgery.helpers import Ranker

CHANGED = "The model has changed since this plan was made .* plugin.plan\\(selection\\)"


def planned(name="wide_deep", **options):
    model, plugin, make = attached(name)
    return model, plugin, make, plugin.plan(plugin.select(share=0.6), **options)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("fill", ["mean", "zero"])
def test_applying_a_plan_is_pruning(name, fill):
    _, plugin, make, plan = planned(name, fill=fill)
    small = plan.apply()
    other = plugin.prune(plan.selection, fill=fill)
    batch = make(9, 3)
    assert torch.equal(small.eval()(batch), other.eval()(batch))
    assert str(tl.plan_of(small)) == str(plan)
    assert small.state_dict().keys() == other.state_dict().keys()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_model_is_untouched(name):
    model, _, make, plan = planned(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    batch = make(9, 3)
    expected = model.eval()(batch)
    small = plan.apply()
    with torch.no_grad():
        for tensor in (*small.parameters(), *small.buffers()):
            if tensor.is_floating_point():
                tensor += 1
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(model(batch), expected)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_applying_twice_gives_two_independent_models(name):
    _, _, make, plan = planned(name)
    one = plan.apply().eval()
    batch = make(9, 3)
    expected = one(batch)
    with torch.no_grad():
        for tensor in (*one.parameters(), *one.buffers()):
            if tensor.is_floating_point():
                tensor += 1
    two = plan.apply().eval()
    assert torch.equal(two(batch), expected)
    ours = {tensor.untyped_storage().data_ptr() for tensor in (*one.parameters(), *one.buffers())}
    theirs = {tensor.untyped_storage().data_ptr() for tensor in (*two.parameters(), *two.buffers())}
    assert ours.isdisjoint(theirs)


class Deciding(Ranker):
    """It decides by values, so it is fed constants."""

    def forward(self, batch):
        x = self.embed(batch)
        return self.deep(x) if float(x.sum()) < 1e9 else -self.deep(x)


def test_a_plan_that_feeds_constants_is_applied_too():
    torch.manual_seed(0)
    model = Deciding()
    plugin = tl.attach(model, dict.fromkeys(NAMES, 4), at="deep")
    for _ in range(2):
        model(ids_by_name(16, 3))
    with torch.no_grad():
        plugin.gates.theta.copy_(torch.linspace(-0.3, 1.0, 5))
    plan = plugin.plan(plugin.select(share=0.6))
    assert "constants are fed instead" in str(plan)
    one, two = plan.apply().eval(), plan.apply().eval()
    with plugin.masked(plan.selection):
        expected = model.eval()(ids_by_name(7, 3))
    assert torch.allclose(one(ids_by_name(7, 3)), expected, atol=1e-6)
    assert torch.equal(one(ids_by_name(7, 3)), two(ids_by_name(7, 3)))


def trained(model, plugin, make):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()(make(16, 5)).sum().backward()
    optimizer.step()


def trained_by_data(model, plugin, make):
    for parameter in plugin.model_parameters():
        parameter.data.add_(0.1)  # which counts no version, as fused optimizers


def other_means(model, plugin, make):
    model.train()(make(16, 5))


def detached(model, plugin, make):
    plugin.detach()


def other_gates(model, plugin, make):
    plugin.detach()
    tl.attach(model, plugin.fields, at="deep")


def in_other_memory(model, plugin, make):
    model.double()


CHANGES = {
    trained: "weight is not the same",
    trained_by_data: "it returns something else",
    other_means: "is not the same",
    detached: "it is no longer attached",
    other_gates: "it is no longer attached",
    in_other_memory: "is not the same",
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_plan_of_a_model_that_has_changed_since_is_refused(change):
    model, plugin, make, plan = planned()
    change(model, plugin, make)
    with pytest.raises(tl.SurgeryError, match=CHANGED) as caught:
        plan.apply()
    assert CHANGES[change] in str(caught.value)


def test_running_and_planning_again_changes_no_model():
    model, plugin, make, plan = planned("mlp")
    model.eval()(make(9, 3))
    plugin.plan(plugin.select(share=0.4)).apply()
    plugin.scores()
    assert isinstance(plan.apply(), nn.Module)


def test_a_model_that_counts_its_calls_in_a_buffer_is_not_taken_for_changed():
    class Counting(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Linear(20, 3))
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    model = Counting()
    plugin = tl.attach(model, dict.fromkeys(NAMES, 4), at="0")
    for _ in range(2):
        model(torch.randn(16, 20))
    with torch.no_grad():
        plugin.gates.theta.copy_(torch.linspace(-0.3, 1.0, 5))
    plan = plugin.plan(plugin.select(share=0.6))
    plan.apply()
    assert isinstance(plan.apply(), nn.Module)
    model.eval()(torch.randn(4, 20))
    with pytest.raises(tl.SurgeryError, match="calls is not the same"):
        plan.apply()


def test_a_plan_that_does_not_hold_its_model_says_so():
    _, _, _, plan = planned()
    for other in (tl.plan_of(plan.apply()), copy.copy(plan), pickle.loads(pickle.dumps(plan))):
        assert str(other) == str(plan)
        assert other.assumptions == plan.assumptions
        with pytest.raises(tl.SurgeryError, match="This plan does not hold its model"):
            other.apply()


def test_a_pruned_model_does_not_keep_the_old_one_alive():
    model, plugin, make, plan = planned()
    small = plan.apply()
    old = weakref.ref(model.deep[0].weight)
    del model, plugin, make, plan
    gc.collect()
    assert old() is None
    assert isinstance(small, nn.Module)


def test_a_plan_holds_no_copy_of_the_weights():
    model, plugin, _ = attached("wide_deep")
    kept = set(map(id, (*model.parameters(), *model.buffers())))
    gc.collect()
    before = set(map(id, tensors()))
    plan = plugin.plan(plugin.select(share=0.6))
    gc.collect()
    new = [t for t in tensors() if id(t) not in before | kept]
    assert sum(t.numel() for t in new if t.is_floating_point()) < plan.parameters[1]
    assert not any(t.shape == model.tables["city"].weight.shape for t in new)


def tensors():
    return [thing for thing in gc.get_objects() if isinstance(thing, torch.Tensor)]
