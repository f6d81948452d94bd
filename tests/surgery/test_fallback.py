"""Where a model cannot be followed it is fed constants: whatever its Python does, whatever its batches are."""

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
from tests.surgery.test_prune import prepared
from tests.surgery.test_traps import FED, Ranker, assert_same, pruned


class Deciding(Ranker):
    """It decides by values, so it cannot be followed."""

    def rows(self, batch):
        return [self.tables[name](batch[name]) for name in NAMES]

    def past(self, rows, batch):
        return 0

    def forward(self, batch):
        rows = self.rows(batch)
        x = self.join(torch.cat(rows, 1))
        return (self.deep(x) if x.sum() > -1e9 else x) + self.past(rows, batch)


class PastDeadUnits(Deciding):
    def past(self, rows, batch):
        return torch.relu(rows[0].sum(1, keepdim=True) - 1e3)


class PastAMask(Deciding):
    def past(self, rows, batch):
        return rows[0].sum(1, keepdim=True) * (batch["user"] == 99)[:, None]


class PastADetach(Deciding):
    def past(self, rows, batch):
        return rows[0].detach().sum(1, keepdim=True)


class ChangedInPlace(Deciding):
    def rows(self, batch):
        found = super().rows(batch)
        for row in found:
            row += 1
        return found


class ByName(Deciding):
    def rows(self, batch):
        return [self.tables[name](input=batch[name]) for name in NAMES]


class ByItsSize(Deciding):
    def rows(self, batch):
        return [self.tables[name](batch[name].clamp(max=self.tables[name].num_embeddings - 1)) for name in NAMES]


class ByItsWeight(Deciding):
    def past(self, rows, batch):
        return self.tables["user"].weight.mean()


@pytest.mark.parametrize("kind", [PastDeadUnits, PastAMask, PastADetach, ByItsWeight])
def test_a_table_that_is_read_past_the_gates_stays(kind):
    torch.manual_seed(0)
    plugin, selection, small = pruned(kind())
    assert FED in str(tl.plan_of(small))
    assert type(small.tables["user"]) is nn.Embedding
    if kind is PastDeadUnits:
        plugin.model.tables["user"].weight.data += 1e3  # alive on other batches
        small = plugin.prune(selection, example=ids_by_name()).eval()
    assert_same(plugin, selection, small, ids_by_name(7, 9))


@pytest.mark.parametrize("kind", [ChangedInPlace, ByName, ByItsSize])
def test_a_removed_table_is_stood_in_for(kind):
    plugin, selection, small = pruned(kind())
    assert [cut.path for cut in tl.plan_of(small).cuts] == ["tables.user", "tables.item"]
    assert_same(plugin, selection, small, ids_by_name(7, 9))


class Bags(nn.Module):
    def __init__(self, decides, **settings):
        super().__init__()
        self.decides = decides
        self.bag = nn.EmbeddingBag(12, 4, **settings)
        self.table = nn.Embedding(12, 4)
        self.join = nn.Identity()
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 1)

    def forward(self, ids, offsets, item):
        x = self.norm(self.join(torch.cat([self.bag(ids, offsets), self.table(item)], 1)))
        return self.head(x) if not self.decides or x.sum() > -1e9 else x


def bags(last=False, most=4):
    def make(rows=32, seed=0):
        dice = torch.Generator().manual_seed(seed)
        counts = torch.randint(1, most, (rows,), generator=dice)
        stops = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)])
        ids = torch.randint(12, (int(counts.sum()),), generator=dice)
        return ids, stops if last else stops[:-1], torch.randint(12, (rows,), generator=dice)

    return make


@pytest.mark.parametrize("kept", [(False, True), (True, False)])
@pytest.mark.parametrize("decides", [False, True])
@pytest.mark.parametrize("most", [4, 2])
def test_ids_in_bags_are_no_rows_even_where_they_are_as_many(kept, decides, most):
    fields = tl.Fields({"tags": 4, "item": 4})
    selection = tl.Selection(fields, (0.5, 0.5), kept)
    plugin, selection, small = pruned(Bags(decides), bags(most=most), fields=fields, selection=selection)
    assert (FED in str(tl.plan_of(small))) == decides
    for rows in (1, 7, 50):
        assert_same(plugin, selection, small, bags()(rows, 9))


def test_a_removed_bag_knows_about_the_last_offset():
    fields = tl.Fields({"tags": 4, "item": 4})
    selection = tl.Selection(fields, (0.5, 0.5), (False, True))
    plugin, selection, small = pruned(Bags(True, include_last_offset=True), bags(last=True), fields=fields, selection=selection)
    assert [cut.path for cut in tl.plan_of(small).cuts] == ["bag"]
    assert_same(plugin, selection, small, bags(last=True)(7, 9))


class Keeping(Ranker):
    def forward(self, batch):
        x = self.embed(batch)
        self.penalty = x.square().mean()
        return self.deep(x)


def test_attributes_that_forward_sets_are_set_by_the_pruned_model_too():
    plugin, selection, small = pruned(Keeping())  # the attribute is a result, which copy.deepcopy refuses
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
    with pytest.raises(tl.SurgeryError, match="Ranker cannot be copied: cannot pickle '_thread.lock' object. Set the attribute"):
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
    plugin, selection, small = pruned(Ranker(), lambda rows=32, seed=0: kind(ids_by_name(rows, seed)))
    assert tl.plan_of(small).multiply_adds == (168, 168)
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
        Named(), {"age": 1, "clicks": 2}, make=lambda rows=16, seed=0: {"age": torch.randn(rows), "clicks": torch.randn(rows, 2)}
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


def test_a_second_pruning_that_feeds_keeps_the_forward_of_the_first():
    plugin, _, once = pruned(Ranker())
    once.deep.register_forward_hook(_decide)
    plugin, selection, twice = pruned(once, fields=dict.fromkeys(plugin.select(share=0.6).kept, WIDTH))
    assert_same(plugin, selection, twice, ids_by_name(7, 9))
    again = pickle.loads(pickle.dumps(twice))
    assert torch.equal(again(ids_by_name(7, 9)), twice(ids_by_name(7, 9)))


def _decide(module, args, output):
    return output if float(output.detach().sum()) > -1e9 else -output
