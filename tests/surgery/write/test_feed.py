"""A model that cannot be followed is fed constants, whatever its Python and its batches are."""

import copy
import pickle
import threading
from collections import UserDict
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import torchleap as tl
from tests.architectures import NAMES, WIDTH, ids_by_name
from tests.surgery.helpers import (
    Deciding,
    Ranker,
    assert_same,
    prepared,
    pruned,
)


def _double(module, args, output):
    return output * 2


def _halve(module, args):
    return (args[0] / 2, *args[1:])


def _add_hooks(module):
    module.register_forward_hook(_double)
    module.register_forward_pre_hook(_halve)


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("before", [True, False])
def test_hooks_of_the_users_keep_their_place_before_or_behind_the_gates(side, before):
    torch.manual_seed(0)
    model = Deciding()
    if before:
        _add_hooks(model.join)
    plugin = tl.attach(model, dict.fromkeys(NAMES, WIDTH), at="join", side=side)
    if not before:
        _add_hooks(model.join)
    model.train()(ids_by_name())
    selection = tl.Selection(plugin.fields, (0.1, 0.1, 1, 1, 1), (False, False, True, True, True))
    small = plugin.prune(selection).eval()
    assert_same(plugin, selection, small, ids_by_name(7, 9))


class Keeping(Ranker):
    def forward(self, batch):
        x = self.embed(batch)
        self.penalty = x.square().mean()
        return self.deep(x)


def test_attributes_that_forward_sets_are_set_by_the_pruned_model_too():
    plugin, selection, small = pruned(
        Keeping()
    )  # the attribute is a result, which copy.deepcopy refuses
    assert "it sets attributes" in str(tl.plan_of(small))
    before = small.penalty
    assert_same(plugin, selection, small, ids_by_name(7, 9))
    assert small.penalty is not before


def test_attributes_that_are_set_in_training_only_are_not_lost():
    class Training(Ranker):
        penalty = None

        def forward(self, batch):
            x = self.embed(batch)
            if self.training:
                self.penalty = x.square().mean()
            return self.deep(x)

    _, _, small = pruned(Training())
    before = small.penalty
    small.train()(ids_by_name())
    assert small.penalty is not before


def test_a_model_that_cannot_be_copied_is_refused():
    model = Ranker()
    model.lock = threading.Lock()
    with pytest.raises(
        tl.SurgeryError,
        match="Ranker cannot be copied: cannot pickle '_thread.lock' object. Set the attribute",
    ):
        pruned(model)


@dataclass
class Batch:
    user: torch.Tensor
    item: torch.Tensor
    city: torch.Tensor
    shop: torch.Tensor
    hour: torch.Tensor

    def __getitem__(self, name):
        return getattr(self, name)


@pytest.mark.parametrize("kind", [UserDict, lambda entries: Batch(**entries)])
def test_batches_may_be_of_any_class(kind):
    plugin, selection, small = pruned(
        Deciding(), lambda rows=32, seed=0: kind(ids_by_name(rows, seed))
    )
    assert tl.plan_of(small).multiply_adds == (168, 104)
    assert_same(plugin, selection, small, kind(ids_by_name(7, 9)))


def test_a_plan_changes_nothing():
    class Counting(Ranker):
        def __init__(self):
            super().__init__()
            self.seen = []
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, batch):
            self.calls.add_(1)
            self.seen.append(len(batch))
            return super().forward(batch)

    plugin, selection, small = pruned(Counting())
    model = plugin.model
    calls, seen = float(model.calls), list(model.seen)
    plugin.plan(selection)
    assert float(model.calls) == calls
    assert model.seen == seen
    small(ids_by_name())
    assert float(small.calls) == calls + 1


def test_a_fed_dict_may_lack_dropped_fields_from_the_first_batch_on():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 1)

        def forward(self, batch):
            x = self.linear(torch.cat([batch["age"][:, None], batch["clicks"]], 1))
            return x if x.sum() > -1e9 else -x

    plugin, _ = prepared(
        Named(),
        {"age": 1, "clicks": 2},
        make=lambda rows=16, seed=0: {"age": torch.randn(rows), "clicks": torch.randn(rows, 2)},
    )
    small = plugin.prune(tl.Selection(plugin.fields, (0.1, 0.9), (False, True))).eval()
    assert small({"clicks": torch.randn(5, 2)}).shape == (5, 1)


@pytest.mark.parametrize("kind", [Ranker, Deciding])
def test_a_model_may_be_pruned_twice_and_pickled(kind):
    plugin, selection, once = pruned(kind())
    names = selection.kept if kind is Ranker else NAMES
    fields = dict.fromkeys(names, WIDTH)
    plugin, selection, twice = pruned(once, fields=fields)
    assert type(twice).__name__ == f"Pruned{kind.__name__}"
    assert_same(plugin, selection, twice, ids_by_name(7, 9))
    for again in (pickle.loads(pickle.dumps(twice)), copy.deepcopy(twice)):
        assert torch.equal(again(ids_by_name(7, 9)), twice(ids_by_name(7, 9)))


def test_constants_may_be_fed_twice_with_gates_that_are_half_open():
    model = Deciding()
    for _ in range(2):
        plugin = tl.attach(model, dict.fromkeys(NAMES, WIDTH), at="join", side="output", warmup=1)
        for step in range(4):
            model.train()(ids_by_name(32, step))
        with torch.no_grad():
            plugin.gates.theta.copy_(torch.tensor([-0.3, 0.1, 0.2, 0.3, 0.4]))
        selection = plugin.select(share=0.8)
        small = plugin.prune(selection).eval()
        assert_same(plugin, selection, small, ids_by_name(7, 9))
        model = small


def test_a_second_pruning_that_feeds_keeps_the_forward_of_the_first():
    plugin, _, once = pruned(Ranker())
    once.deep.register_forward_hook(_decide)
    plugin, selection, twice = pruned(
        once, fields=dict.fromkeys(plugin.select(share=0.6).kept, WIDTH)
    )
    assert_same(plugin, selection, twice, ids_by_name(7, 9))
    again = pickle.loads(pickle.dumps(twice))
    assert torch.equal(again(ids_by_name(7, 9)), twice(ids_by_name(7, 9)))


def _decide(module, args, output):
    return output if float(output.detach().sum()) > -1e9 else -output
