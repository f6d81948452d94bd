"""Modules that are cut by themselves, inside models whose Python cannot be followed."""

import copy
import pickle

import pytest
import torch
from torch import nn

import torchleap as tl
from tests.architectures import FIELDS, NAMES, WIDTH, ids_by_name
from tests.surgery.helpers import (
    COLUMNS,
    Deciding,
    Ranker,
    assert_exact,
    assert_same,
    exact_or_refused,
    prepared,
    pruned,
)


def narrowed(small):
    """The layers that became smaller, with their new sizes."""
    return {
        cut.path: cut.after for cut in tl.plan_of(small).cuts if not cut.path.startswith("tables")
    }


@pytest.mark.parametrize(
    ("at", "side"), [("join", "output"), ("deep", "input"), ("deep.0", "input")]
)
def test_a_module_behind_the_gates_is_cut_though_the_model_cannot_be_traced(at, side):
    torch.manual_seed(0)
    plugin, selection, small = pruned(Deciding(), at=at, side=side)
    assert narrowed(small) == {"deep.0": "Linear(12, 8)"}
    assert "Cut by themselves: deep;" in str(tl.plan_of(small))
    assert small.deep[0].weight.shape == (8, 12)
    for rows in (1, 7, 50):
        assert_same(plugin, selection, small, ids_by_name(rows, 9))


class Layers(Ranker):
    """Its own Python calls the layers one by one, and decides between them."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(COLUMNS)
        self.first = nn.Linear(COLUMNS, 8)
        self.last = nn.Linear(8, 1)

    def forward(self, batch):
        x = self.norm(self.embed(batch))
        if x.sum() > 1e9:
            x = x * 2
        return self.last(torch.relu(self.first(x)))


def test_single_layers_are_cut_and_constants_pass_from_one_to_the_next():
    torch.manual_seed(0)
    plugin, selection, small = pruned(Layers())
    assert narrowed(small) == {"norm": "BatchNorm1d(12)", "first": "Linear(12, 8)"}
    assert_same(plugin, selection, small, ids_by_name(7, 9))
    assert isinstance(small.norm, nn.BatchNorm1d)
    small.train()(ids_by_name(7, 9)).sum().backward()
    assert small.first.weight.grad.shape == (8, 12)
    assert small.norm.num_batches_tracked == plugin.model.norm.num_batches_tracked + 1


def test_copies_and_pickles_of_a_model_with_modules_cut_by_themselves_compute_the_same():
    torch.manual_seed(0)
    _, _, small = pruned(Layers())
    batch = ids_by_name(7, 9)
    expected = small(batch)
    assert torch.equal(copy.deepcopy(small)(batch), expected)
    assert torch.equal(pickle.loads(pickle.dumps(small))(batch), expected)


def test_the_optimizer_is_carried_over_to_modules_cut_by_themselves():
    torch.manual_seed(0)
    model = Layers()
    plugin, make = prepared(model, at="join", side="output", make=ids_by_name)
    optimizer = torch.optim.Adam(plugin.model_parameters())
    model.train()(make()).sum().backward()
    optimizer.step()
    small = plugin.prune(plugin.select(share=0.6))
    carried = tl.carry_over(optimizer, model, small)
    before = optimizer.state[model.first.weight]["exp_avg"]
    kept = torch.arange(COLUMNS).reshape(len(NAMES), WIDTH)[2:].flatten()
    assert torch.equal(carried.state[small.first.weight]["exp_avg"], before[:, kept])


@pytest.mark.parametrize(("at", "side"), [("join", "output"), ("deep", "input")])
def test_a_model_with_modules_cut_by_themselves_is_pruned_again(at, side):
    torch.manual_seed(0)
    _, _, once = pruned(Deciding(), at=at, side=side)
    fields = tl.Fields(FIELDS)
    selection = tl.Selection(fields, (1, 1, 1, 1, 0), (True, True, True, True, False))
    plugin, selection, small = pruned(once, at=at, side=side, selection=selection)
    assert narrowed(small) == {"deep.0": "Linear(8, 8)"}
    assert_same(plugin, selection, small, ids_by_name(7, 9))


class Reversing(Ranker):
    """Large batches take another path: the columns arrive in another order."""

    def forward(self, batch):
        x = self.embed(batch)
        return self.deep(x.flip(1) if len(x) > 40 else x)


def test_a_batch_on_which_other_columns_arrive_is_refused():
    torch.manual_seed(0)
    plugin, selection, small = pruned(Reversing())
    assert narrowed(small) == {"deep.0": "Linear(12, 8)"}
    assert_same(plugin, selection, small, ids_by_name(40, 9))
    with pytest.raises(tl.FieldError, match="found other values") as caught:
        small(ids_by_name(41, 9))
    assert "reach deep as the constants" in str(caught.value)


class Reading(Deciding):
    """Its Python changes what the module reads."""

    def embed(self, batch):
        self.deep[1].slope = 2.0 if len(batch["user"]) > 40 else 1.0
        return super().embed(batch)


class Sloped(nn.Module):
    slope = 1.0

    def forward(self, x):
        return torch.relu(x) * self.slope


def test_a_module_that_reads_what_the_python_around_it_changes_stays():
    torch.manual_seed(0)
    model = Reading()
    model.deep[1] = Sloped()
    plugin, selection, small = pruned(model)
    assert narrowed(small) == {"deep.0": "Linear(12, 8)"}
    for rows in (7, 41):
        assert_same(plugin, selection, small, ids_by_name(rows, 9))


class Tied(Deciding):
    """The first layer's weight is read outside of the module too."""

    def __init__(self):
        super().__init__()
        self.copy = nn.Linear(COLUMNS, 8)
        self.copy.weight = self.deep[0].weight

    def past(self, rows, batch):
        return self.copy.weight.sum()


def test_weights_that_other_modules_share_stay():
    torch.manual_seed(0)
    plugin, selection, small = pruned(Tied())
    assert narrowed(small) == {}
    assert small.copy.weight is small.deep[0].weight
    assert_same(plugin, selection, small, ids_by_name(7, 9))


class Twice(Ranker):
    def forward(self, batch):
        x = self.embed(batch)
        return self.deep(x) + (self.deep(-x) if x.sum() > -1e9 else 0)


class Past(Deciding):
    """A part of the module is called outside of it as well."""

    def past(self, rows, batch):
        return self.deep[0](torch.cat(rows, 1)).sum(1, keepdim=True)


class InBfloat16(Ranker):
    def forward(self, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return self.deep(self.embed(batch)).float()


@pytest.mark.parametrize("kind", [Twice, Past])
def test_modules_that_are_called_in_several_ways_stay(kind):
    torch.manual_seed(0)
    plugin, selection, small = pruned(kind())
    assert narrowed(small) == {}
    assert_same(plugin, selection, small, ids_by_name(7, 9))


def test_a_module_under_autocast_is_cut_in_its_precision():
    torch.manual_seed(0)
    plugin, selection, small = pruned(InBfloat16())
    assert narrowed(small) == {"deep.0": "Linear(12, 8)"}
    batch = ids_by_name(7, 9)
    with torch.no_grad(), plugin.masked(selection):
        expected = plugin.model.eval()(batch)
    torch.testing.assert_close(small.eval()(batch), expected, rtol=0.02, atol=0.02)


class Backbone(nn.Module):
    """It decides by values, so it cannot be followed."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(COLUMNS, 8)
        self.last = nn.Linear(8, 4)

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        return self.last(hidden if hidden.sum() > -1e9 else -hidden)


class WithBackbone(Ranker):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.head = nn.Linear(4, 1)

    def forward(self, batch):
        return self.head(self.backbone(self.embed(batch))) + self.deep(self.embed(batch))


def test_a_layer_inside_a_module_that_cannot_be_followed_is_cut_too():
    torch.manual_seed(0)
    plugin, selection, small = pruned(WithBackbone())
    assert "constants are fed instead" not in str(tl.plan_of(small))
    assert narrowed(small) == {"deep.0": "Linear(12, 8)", "backbone.first": "Linear(12, 8)"}
    assert_same(plugin, selection, small, ids_by_name(7, 9))


class Normed(WithBackbone):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(COLUMNS)

    def forward(self, batch):
        return self.head(self.backbone(x=self.norm(self.embed(batch))))


class Nested(nn.Module):
    """It can be followed, but the module inside it cannot."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(COLUMNS)
        self.backbone = Backbone()

    def forward(self, x):
        return self.backbone(self.norm(x))


class WithNested(Ranker):
    def __init__(self):
        super().__init__()
        self.nested = Nested()
        self.head = nn.Linear(4, 1)

    def forward(self, batch):
        x = self.nested(self.embed(batch))
        return self.head(x if x.sum() > -1e9 else -x)


@pytest.mark.parametrize(
    ("kind", "cut"),
    [
        (Normed, {"norm": "BatchNorm1d(12)", "backbone.first": "Linear(12, 8)"}),
        (WithNested, {"nested.norm": "BatchNorm1d(12)", "nested.backbone.first": "Linear(12, 8)"}),
    ],
)
def test_constants_pass_into_modules_that_cannot_be_followed(kind, cut):
    torch.manual_seed(0)
    plugin, selection, small = pruned(kind())
    assert cut.items() <= narrowed(small).items()
    assert_same(plugin, selection, small, ids_by_name(7, 9))


class Encoder(nn.Module):
    """Columns with weights of their own, (columns, width); its Python can be followed."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.Embedding(12, WIDTH) for name in NAMES})

    def forward(self, batch):
        return torch.stack([self.tables[name](batch[name]) for name in NAMES], 1)


class Encoded(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.deep = nn.Sequential(nn.Linear(COLUMNS, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, batch):
        x = self.encoder(batch).flatten(1)
        return self.deep(x if x.sum() > -1e9 else -x)


def test_what_is_in_front_of_the_gates_inside_the_module_is_removed():
    torch.manual_seed(0)
    plugin, selection, small = pruned(Encoded(), at="encoder", side="output")
    assert set(small.encoder.tables) == {"city", "shop", "hour"}
    assert small.deep[0].weight.shape == (8, 12)
    assert "encoder, deep" in str(tl.plan_of(small))
    assert_same(plugin, selection, small, ids_by_name(7, 9))


class Single(nn.Module):
    """Attention mixes all fields; on a single row everything looks constant."""

    def __init__(self):
        super().__init__()
        self.fields = nn.Identity()
        self.mixed = nn.Linear(COLUMNS, COLUMNS)
        self.deep = nn.Linear(COLUMNS, 1)

    def forward(self, x):
        x = self.mixed(self.fields(x))
        return self.deep(x) if x.sum() > -1e9 else x


def test_what_is_constant_on_the_example_only_is_not_folded():
    torch.manual_seed(0)
    plugin, make = prepared(Single(), FIELDS, at="fields")
    selection = plugin.select(share=0.6)
    small = plugin.prune(selection, example=make(rows=1)).eval()
    assert narrowed(small) == {"mixed": "Linear(12, 20)"}
    assert assert_exact(plugin, make, selection) is not None
    assert_same(plugin, selection, small, make(rows=9, seed=9))


@pytest.mark.parametrize("kind", [Deciding, Layers, WithBackbone, Reversing])
def test_a_model_with_modules_cut_by_themselves_is_loaded_with_its_code(kind, tmp_path):
    torch.manual_seed(0)
    _, _, small = pruned(kind())
    with pytest.warns(UserWarning, match="cannot be loaded without the model's code"):
        tl.export.save(small, tmp_path / "small")
    loaded = tl.export.load(tmp_path / "small", model=kind())
    batch = ids_by_name(7, 9)
    torch.testing.assert_close(loaded(batch), small(batch))


@pytest.mark.parametrize("kind", [Deciding, Layers, WithBackbone, Reversing])
def test_a_compiled_model_with_modules_cut_by_themselves_computes_the_same(kind):
    torch.manual_seed(0)
    plugin, selection, small = pruned(kind())
    compiled = torch.compile(small, backend="eager")
    assert not exact_or_refused(plugin, selection, compiled, ids_by_name(7, 9))


def test_a_gated_table_of_a_dropped_field_is_removed_and_not_just_emptied():
    class Looks(Ranker):
        def forward(self, batch):
            found = [self.tables[name](batch[name]) for name in NAMES]
            return self.deep(torch.cat(found, 1)) if found[0].sum() < 1e9 else found[0]

    fields = {name: f"tables.{name}" for name in NAMES}
    plugin = tl.attach(Looks(), fields, side="output", example=ids_by_name())
    plugin.model(ids_by_name())
    kept = tuple(name not in NAMES[:2] for name in NAMES)
    plan = plugin.plan(tl.Selection(plugin.fields, tuple(map(float, kept)), kept))
    after = {cut.path: cut.after for cut in plan.cuts}
    assert after[f"tables.{NAMES[0]}"] == after[f"tables.{NAMES[1]}"] == "removed"
