"""The oracle: a pruned model computes what the masked one does, on every batch, for every layer."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import torchleap as tl
from tests.architectures import ARCHITECTURES, FIELDS, NAMES, WIDTH, CrossNet, attached, ids
from tests.surgery.helpers import (
    COLUMNS,
    assert_exact,
    prepared,
)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_architecture_computes_what_the_masked_model_does(name, dtype):
    _, plugin, make = attached(name, dtype)
    assert_exact(plugin, make, scale=1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_is_followed(name):
    _, plugin, make = attached(name)
    for example in (None, make(rows=1, seed=3)):
        assert "Nothing behind the gates is cut" not in str(
            plugin.plan(plugin.select(share=0.6), example=example)
        )


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_single_dimensions_can_go_too(name):
    _, plugin, make = attached(name, per_dimension=True)
    with torch.no_grad():
        plugin.gates.theta.copy_(
            torch.randn(len(plugin.gates.theta), generator=torch.Generator().manual_seed(1)) + 0.2
        )
    assert_exact(plugin, make, plugin.select())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_one_field_may_remain_and_all_may(name):
    _, plugin, make = attached(name)
    assert_exact(plugin, make, plugin.select(share=0.2))
    small = assert_exact(plugin, make, plugin.select(share=1.0))
    old = sum(p.numel() for p in plugin.model.parameters()) - plugin.gates.theta.numel()
    assert (
        sum(p.numel() for p in small.parameters()) <= old + 1
    )  # at most a bias more, for the gates' shift


def test_the_model_is_untouched_and_shares_nothing_with_the_pruned_one():
    model, plugin, _ = attached("dcn")
    model.train()
    model.norm.eval()
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    names = [set(vars(module)) for module in model.modules()]
    state = torch.get_rng_state()
    small = plugin.prune(plugin.select(share=0.6))
    assert torch.equal(state, torch.get_rng_state())
    assert modes == [module.training for module in model.modules()]
    assert names == [set(vars(module)) for module in model.modules()]
    for parameter in (*small.parameters(), *small.buffers()):
        parameter.data.zero_()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_no_trace_of_the_gates_remains():
    _, plugin, _ = attached("wide_deep")
    small = plugin.prune(plugin.select(share=0.6))
    assert not any(isinstance(module, tl.LeAP) for module in small.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in small.modules())
    with pytest.raises(tl.AttachError):
        tl.attached(small)
    tl.attach(
        small, dict.fromkeys(plugin.select(share=0.6).kept, WIDTH), at="deep"
    )  # and it may be gated again


def test_the_pruned_model_is_still_of_the_users_class_and_keeps_its_layers_names():
    model, plugin, _ = attached("wide_deep")
    small = plugin.prune(plugin.select(share=0.6))
    assert isinstance(small, type(model))
    assert type(small).__name__ == "PrunedWideAndDeep"
    assert small.deep[0].in_features == 3 * WIDTH
    assert list(small.tables) == ["city", "shop", "hour"]


def test_it_can_be_copied_pickled_compiled_and_trained():
    _, plugin, make = attached("wide_deep")
    small = plugin.prune(plugin.select(share=0.6)).eval()
    batch = make(seed=5)
    expected = small(batch)
    assert torch.equal(copy.deepcopy(small)(batch), expected)
    assert torch.equal(pickle.loads(pickle.dumps(small))(batch), expected)
    torch.testing.assert_close(
        torch.compile(small, fullgraph=True, backend="eager")(batch), expected
    )
    small.train()(batch).sum().backward()
    assert all(parameter.grad is not None for parameter in small.parameters())


def test_dropout_still_drops_in_training_and_not_in_eval():
    _, plugin, make = attached("functional")
    small = plugin.prune(plugin.select(share=0.6))
    batch = make(seed=5)
    assert not torch.equal(small.train()(batch), small(batch))
    assert torch.equal(small.eval()(batch), small(batch))


def test_batches_without_the_dropped_fields_are_accepted():
    _, plugin, make = attached("wide_deep")
    selection = plugin.select(share=0.6)
    small = plugin.prune(selection).eval()
    batch = make(seed=5)
    assert torch.equal(small({name: batch[name] for name in selection.kept}), small(batch))


def test_a_tensor_may_hold_only_the_columns_that_are_still_read():
    _, plugin, make = attached("mlp")
    selection = plugin.select(share=0.6)
    small = plugin.prune(selection).eval()
    batch = make(seed=5)
    kept = torch.cat([batch[:, plugin.fields.columns(name)] for name in selection.kept], 1)
    assert torch.equal(small(kept), small(batch))
    with pytest.raises(
        tl.FieldError, match="Expected 20 columns, or the 12 that are still read, but found 13"
    ):
        small(batch[:, :13])


def test_a_shared_table_stays_while_one_of_its_fields_is_kept():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(12, 4)
            self.other = nn.Embedding(12, 4)
            self.head = nn.Linear(12, 1)

        def forward(self, x):
            return self.head(
                torch.cat([self.table(x[:, 0]), self.table(x[:, 1]), self.other(x[:, 2])], 1)
            )

    torch.manual_seed(0)
    fields = {"clicked": 4, "bought": 4, "city": 4}
    plugin, make = prepared(Shared(), fields, at="head", make=ids)
    one = tl.Selection(plugin.fields, (0.1, 0.9, 0.1), (False, True, False))
    small = assert_exact(plugin, make, one)
    assert small.table.weight.shape == (12, 4)
    assert small.other is None
    none = tl.Selection(plugin.fields, (0.1, 0.1, 0.9), (False, False, True))
    assert assert_exact(plugin, make, none).table is None


def test_a_weight_that_two_layers_share_is_not_cut():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.join = nn.Identity()
            self.one = nn.Linear(COLUMNS, 5)
            self.two = nn.Linear(COLUMNS, 5)
            self.two.weight = self.one.weight

        def forward(self, x):
            x = self.join(x)
            return self.one(x) * self.two(x.tanh())

    plugin, make = prepared(Tied(), at="join", side="output")
    small = assert_exact(plugin, make)
    assert small.one.weight is small.two.weight


def test_fields_that_are_multiplied_can_be_set_to_zero_and_the_plan_says_what_that_changes():
    torch.manual_seed(0)
    plugin, make = prepared(nn.Sequential(CrossNet(COLUMNS, 2), nn.Linear(COLUMNS, 1)), at="0")
    selection = plugin.select(share=0.6)
    exact, zero = plugin.plan(selection), plugin.plan(selection, fill="zero")
    assert exact.change == 0 < zero.change
    note = "Not exact: zeros in place of means change the output on the example by up to"
    assert f"{note} {zero.change:.3g}" in str(zero)
    assert "Not exact" not in str(exact)
    assert {cut.path: cut.after for cut in zero.cuts} == {
        "0.layers.0": "Linear(12, 12)",
        "0.layers.1": "Linear(12, 12)",
        "1": "Linear(12, 1)",
    }
    of_sums = {cut.path for cut in exact.cuts} - {cut.path for cut in zero.cuts}
    assert of_sums == {"0.layers.1.weight_of_sums", "1.weight_of_sums"}
    small, batch = plugin.prune(selection, fill="zero").eval(), make(seed=5)
    for name in selection.dropped:
        plugin.gates.mean[plugin.fields.columns(name)] = 0
    with torch.no_grad(), plugin.masked(selection):
        torch.testing.assert_close(small(batch), plugin.model.eval()(batch), rtol=1e-5, atol=1e-4)


class Undecided(nn.Module):
    """Python that depends on values cannot be traced."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(12, WIDTH) for _ in NAMES])
        self.join = nn.Identity()
        self.head = nn.Linear(COLUMNS, 1)

    def forward(self, x):
        x = self.join(torch.cat([table(x[:, i]) for i, table in enumerate(self.tables)], 1))
        return self.head(x if x.sum() > -1e9 else -x)


def test_a_model_that_cannot_be_traced_is_fed_constants_and_loses_tables_and_columns_all_the_same():
    plugin, make = prepared(Undecided(), at="join", side="output", make=ids)
    plan = plugin.plan(plugin.select(share=0.6))
    assert "Undecided.forward cannot be traced" in str(plan)
    assert [cut.path for cut in plan.cuts] == ["tables.0", "tables.1", "head"]
    small = assert_exact(plugin, make)
    assert pickle.loads(pickle.dumps(small))(ids()).shape == (32, 1)
    small.load_state_dict(copy.deepcopy(small).state_dict())


def test_a_dict_that_is_fed_constants_may_lack_the_dropped_fields():
    class ByName(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 1)

        def forward(self, batch):
            x = self.linear(torch.cat([batch["age"][:, None], batch["clicks"]], 1))
            return x if x.sum() > -1e9 else -x

    def make(rows=16, seed=0):
        rng = torch.Generator().manual_seed(seed)
        return {
            "age": torch.randn(rows, generator=rng),
            "clicks": torch.randn(rows, 2, generator=rng),
        }

    plugin, make = prepared(ByName(), {"age": 1, "clicks": 2}, make=make)
    selection = tl.Selection(plugin.fields, (0.1, 0.9), (False, True))
    small = assert_exact(plugin, make, selection)
    batch = make()
    assert torch.equal(small({"clicks": batch["clicks"]}), small(batch))


def test_a_submodule_that_cannot_be_traced_is_one_opaque_operation():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(COLUMNS, 3)

        def forward(self, x):
            return self.linear(x) if float(x.abs().max()) < 1e9 else self.linear(-x)

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = nn.ModuleList([nn.Embedding(12, WIDTH) for _ in NAMES])
            self.join = nn.Identity()
            self.odd = Odd()
            self.even = nn.Linear(COLUMNS, 3)

        def forward(self, x):
            x = self.join(torch.cat([table(x[:, i]) for i, table in enumerate(self.tables)], 1))
            return self.odd(x) + self.even(x)

    torch.manual_seed(0)
    plugin, make = prepared(Outer(), at="join", side="output", make=ids)
    small = assert_exact(plugin, make)
    assert small.even.in_features == 12
    assert small.odd.linear.in_features == 20
    assert "odd (Odd) needs all columns: 8 constants fed (exact)." in str(
        plugin.plan(plugin.select(share=0.6))
    )


def test_several_sites_are_pruned_together():
    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.user = nn.Linear(8, 6)
            self.item = nn.Linear(12, 6)

        def forward(self, x):
            return (self.user(x[:, :8]) * self.item(x[:, 8:])).sum(1)

    torch.manual_seed(0)
    plugin, make = prepared(Towers(), at=["user", "item"])
    small = assert_exact(
        plugin, make, tl.Selection(plugin.fields, (0.5,) * 5, (True, False, True, False, True))
    )
    assert (small.user.in_features, small.item.in_features) == (4, 8)
    alone = assert_exact(
        plugin, make, tl.Selection(plugin.fields, (0.5,) * 5, (False, False, True, True, True))
    )
    assert alone.user is None  # its output is a constant


@pytest.mark.parametrize("side", ["input", "output"])
def test_the_whole_model_may_be_the_site(side):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(COLUMNS, COLUMNS), nn.Tanh(), nn.Linear(COLUMNS, COLUMNS))
    plugin, make = prepared(model, at="", side=side)
    small = assert_exact(plugin, make)
    assert small[0].in_features == (12 if side == "input" else 20)


def test_arguments_by_name_and_defaults_are_kept():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(COLUMNS, 2)

        def forward(self, *, x, weight=None, scale=2.0):
            x = self.linear(x)
            return x * scale if weight is None else x * weight

    torch.manual_seed(0)
    model = Named()
    plugin = tl.attach(model, FIELDS, at="linear")
    for _ in range(2):
        model(x=torch.randn(8, COLUMNS) + 1)
    with torch.no_grad():
        plugin.gates.theta.copy_(torch.linspace(-0.3, 1.0, 5))
    selection = plugin.select(share=0.6)
    small = plugin.prune(selection).eval()
    batch = torch.randn(8, COLUMNS)
    with plugin.masked(selection):
        torch.testing.assert_close(small(x=batch), model.eval()(x=batch))
    with pytest.raises(
        tl.FieldError, match="Expected weight to be None, .* but found a tensor of shape"
    ):
        small(
            x=batch, weight=torch.ones(8, 2)
        )  # another way through forward() than the one that was traced


def test_bfloat16_models_are_pruned():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(COLUMNS, 8), nn.ReLU(), nn.Linear(8, 1)).bfloat16()
    plugin, make = prepared(
        model, at="0", make=lambda rows=32, seed=0: torch.randn(rows, COLUMNS).bfloat16()
    )
    selection = plugin.select(share=0.6)
    small = plugin.prune(selection).eval()
    batch = make()
    with plugin.masked(selection):
        torch.testing.assert_close(
            small(batch).float(), model.eval()(batch).float(), rtol=0.1, atol=0.1
        )
    assert all(parameter.dtype == torch.bfloat16 for parameter in small.parameters())


def test_the_examples_rows_do_not_travel_with_a_saved_model():
    model, plugin, _ = attached("mlp")
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    again = tl.attached(torch.load(buffer, weights_only=False))
    with pytest.raises(tl.SurgeryError, match="example=batch"):
        again.plan(again.select(share=0.6))
    again.model(torch.randn(4, COLUMNS))
    assert again.plan(again.select(share=0.6)).cuts == plugin.plan(plugin.select(share=0.6)).cuts
