"""The oracle: a pruned model computes what the masked one does, on every batch, for every layer."""

import copy
import io
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import torchleap as tl
from tests.architectures import ARCHITECTURES, FIELDS, NAMES, WIDTH, CrossNet, attached, ids

COLUMNS = len(NAMES) * WIDTH


def prepared(model, fields=None, at="", side="input", make=None, **settings):
    """Attach, and make gates and statistics look as after a training."""
    make = make or (
        lambda rows=32, seed=0: (
            torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(seed)) + 0.3
        )
    )
    plugin = tl.attach(model, fields or FIELDS, at=at, side=side, **settings)
    for step in range(3):
        model.train()(make(seed=step))
    with torch.no_grad():
        plugin.gates.theta.copy_(torch.linspace(-0.3, 1.0, len(plugin.gates.theta)))
    return plugin, make


def assert_exact(plugin, make, selection=None, fill="mean", scale=1e-5):
    """The oracle, on batches and sizes that surgery has not seen."""
    selection = selection or plugin.select(share=0.6)
    small = plugin.prune(selection, fill=fill).eval()
    for rows, seed in ((32, 90), (1, 91), (7, 92)):
        batch = make(rows=rows, seed=seed)
        with torch.no_grad(), plugin.masked(selection):
            expected = plugin.model.eval()(batch)
        found = small(batch)
        assert found.shape == expected.shape
        assert (
            rows == 1 or float(expected.std()) > 1e-6
        )  # an output that says nothing would prove nothing
        torch.testing.assert_close(
            found, expected, rtol=scale, atol=scale * float(expected.abs().max())
        )
    return small


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


class Layers(nn.Module):
    """Any layers behind a place where the columns pass."""

    def __init__(self, *layers, columns=COLUMNS):
        super().__init__()
        self.fields = nn.Identity()
        self.layers = nn.Sequential(*layers)
        self.head = nn.LazyLinear(1)

    def forward(self, x):
        return self.head(self.layers(self.fields(x)).flatten(1))


LAYERS = {
    "linear": lambda: [nn.Linear(COLUMNS, 6)],
    "linear without a bias": lambda: [nn.Linear(COLUMNS, 6, bias=False)],
    "behind dropout and identity": lambda: [nn.Dropout(0.5), nn.Identity(), nn.Linear(COLUMNS, 6)],
    "batch norm": lambda: [nn.BatchNorm1d(COLUMNS), nn.Linear(COLUMNS, 6), nn.BatchNorm1d(6)],
    "batch norm without weights": lambda: [nn.BatchNorm1d(COLUMNS, affine=False)],
    "batch norm without statistics": lambda: [nn.BatchNorm1d(COLUMNS, track_running_stats=False)],
    "layer norm": lambda: [nn.LayerNorm(COLUMNS)],
    "layer norm of each field": lambda: [nn.Unflatten(1, (5, 4)), nn.LayerNorm(4)],
    "an activation first": lambda: [nn.Tanh(), nn.Linear(COLUMNS, 6), nn.ReLU()],
    "views": lambda: [nn.Unflatten(1, (5, 4)), nn.Flatten(), nn.Linear(COLUMNS, 6)],
    "a layer on each field": lambda: [nn.Unflatten(1, (5, 4)), nn.Linear(4, 3), nn.Flatten()],
    "a convolution over fields": lambda: [nn.Unflatten(1, (5, 4)), nn.Conv1d(5, 3, 2)],
    "a convolution with a border": lambda: [nn.Unflatten(1, (5, 4)), nn.Conv1d(5, 3, 3, padding=1)],
    "a convolution along the fields": lambda: [nn.Unflatten(1, (1, 5, 4)), nn.Conv2d(1, 3, (2, 4))],
    "batch norm of fields": lambda: [nn.Unflatten(1, (5, 4)), nn.BatchNorm1d(5)],
    "softmax": lambda: [nn.Softmax(dim=1)],
    "attention": lambda: [
        nn.Unflatten(1, (5, 4)),
        nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
    ],
}


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_is_exact(name):
    torch.manual_seed(0)
    model = Layers(*LAYERS[name]())
    model(torch.randn(4, COLUMNS))  # gives the head its width
    plugin, make = prepared(model, at="fields", side="output")
    if name == "batch norm without statistics":  # it mixes rows, so a batch is not its rows
        small = plugin.prune(selection := plugin.select(share=0.6)).eval()
        with plugin.masked(selection):
            torch.testing.assert_close(
                small(make(seed=5)), model.eval()(make(seed=5)), rtol=1e-5, atol=1e-6
            )
    else:
        assert_exact(plugin, make)


class Code(nn.Module):
    """Any code behind a place where the columns pass."""

    def __init__(self, function, width):
        super().__init__()
        self.fields = nn.Identity()
        self.function = function
        self.head = nn.Linear(width, 1)
        self.bilinear = nn.Bilinear(8, 12, 5)
        self.weight = nn.Parameter(torch.randn(COLUMNS))

    def forward(self, x):
        return self.head(self.function(self, self.fields(x)))


CODE = {
    "two readers": (lambda m, x: torch.cat([x, x.relu()], dim=-1), 40),
    "slices": (lambda m, x: torch.cat([x[:, 2:7], x[:, -3:], x[:, ::2]], 1), 18),
    "one column": (lambda m, x: x[:, 9:10] * x, 20),
    "split": (
        lambda m, x: torch.cat(
            [a * b for a, b in zip(x.split(4, 1), x.split(4, 1)[::-1], strict=True)], 1
        ),
        20,
    ),
    "chunk": (lambda m, x: x.chunk(2, dim=1)[0] + x.chunk(2, dim=1)[1], 10),
    "unbind": (lambda m, x: sum(x.view(-1, 5, 4).unbind(1)), 4),
    "fields first": (lambda m, x: x.view(-1, 5, 4).transpose(1, 2).reshape(x.size(0), -1), 20),
    "sum of fields": (lambda m, x: x.view(x.shape[0], 5, 4).sum(1), 4),
    "mean of fields": (
        lambda m, x: x.view(x.shape[0], 5, 4).mean(dim=1, keepdim=True).squeeze(1),
        4,
    ),
    "mean of each field": (lambda m, x: x.view(x.shape[0], 5, 4).mean(-1), 5),
    "sum of everything": (lambda m, x: x.view(-1, 5, 4).sum((1, 2)).unsqueeze(1), 1),
    "factorization machine": (
        lambda m, x: (lambda e: e.sum(1) ** 2 - (e**2).sum(1))(x.view(-1, 5, 4)),
        4,
    ),
    "inner products": (
        lambda m, x: torch.bmm(x.view(-1, 5, 4), x.view(-1, 5, 4).transpose(1, 2)).flatten(1),
        25,
    ),
    "einsum": (
        lambda m, x: torch.einsum("bfe,bge->bfg", x.view(-1, 5, 4), x.view(-1, 5, 4)).flatten(1),
        25,
    ),
    "bilinear": (lambda m, x: m.bilinear(x[:, :8], x[:, 8:]), 5),
    "a parameter": (lambda m, x: torch.sigmoid(x * m.weight + 1), 20),
    "in place of itself": (lambda m, x: _added(x, m.weight), 20),
    "largest of the fields": (lambda m, x: x.view(-1, 5, 4).max(dim=1).values, 4),
    "dropout by function": (lambda m, x: functional.dropout(x, 0.3, m.training), 20),
    "stack": (lambda m, x: torch.stack([x[:, :10], x[:, 10:]], dim=1).sum(1), 10),
    "where": (lambda m, x: torch.where(x > 0, x, m.weight), 20),
}


def _added(x, weight):
    x = x * 1
    x += weight
    return x


@pytest.mark.parametrize("name", CODE)
def test_every_piece_of_code_is_exact(name):
    torch.manual_seed(0)
    plugin, make = prepared(Code(*CODE[name]), at="fields", side="output")
    assert_exact(plugin, make)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_widths_and_any_selection_are_exact(data):
    widths = data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=7))
    kept = data.draw(
        st.lists(st.booleans(), min_size=len(widths), max_size=len(widths)).filter(any)
    )
    fields = tl.Fields({f"f{i}": width for i, width in enumerate(widths)})
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    branches = nn.ModuleList(
        [
            nn.Linear(fields.dims, 3),
            nn.Sequential(nn.BatchNorm1d(fields.dims), nn.Linear(fields.dims, 3)),
        ]
    )

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.join = nn.Identity()
            self.branches = branches

        def forward(self, x):
            x = self.join(x)
            return self.branches[0](x) * self.branches[1](x)

    def make(rows=16, seed=0):
        return torch.randn(rows, fields.dims, generator=torch.Generator().manual_seed(seed)) + 1

    plugin, make = prepared(Branches(), fields, at="join", side="output", make=make)
    selection = tl.Selection(fields, tuple(0.5 for _ in widths), tuple(kept))
    small = assert_exact(plugin, make, selection)
    assert small.branches[0].in_features == selection.dims
    assert small.branches[1][0].num_features == selection.dims


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
    assert {cut.path: cut.after for cut in exact.cuts} == {"0.layers.0": "Linear(12, 20)"}
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


def test_a_model_that_cannot_be_traced_is_fed_constants_and_its_tables_go_all_the_same():
    plugin, make = prepared(Undecided(), at="join", side="output", make=ids)
    plan = plugin.plan(plugin.select(share=0.6))
    assert "Undecided.forward cannot be traced" in str(plan)
    assert [cut.path for cut in plan.cuts] == ["tables.0", "tables.1"]
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


# Bad input


def test_a_selection_for_other_fields_is_refused():
    _, plugin, _ = attached("mlp")
    other = tl.Selection(tl.Fields({"a": 20}), (1.0,), (True,))
    for use in (plugin.plan, plugin.prune):
        with pytest.raises(tl.SelectionError, match="The selection is for"):
            use(other)


def test_a_model_that_is_no_longer_attached_is_refused():
    _, plugin, _ = attached("mlp")
    selection = plugin.select(share=0.6)
    plugin.detach()
    with pytest.raises(tl.SurgeryError, match="no longer attached"):
        plugin.prune(selection)


def test_a_site_whose_columns_changed_is_refused_and_the_model_is_as_it_was():
    model, plugin, _ = attached("wide_deep")
    selection = plugin.select(share=0.6)
    model.tables["user"] = nn.Embedding(12, 7)
    with pytest.raises(tl.FieldError, match="receives 23 columns, but the fields sum to 20"):
        plugin.prune(selection)
    assert model.tables["user"].embedding_dim == 7


def test_an_unknown_fill_is_refused():
    _, plugin, _ = attached("mlp")
    with pytest.raises(tl.SurgeryError, match="fill must be 'mean' or 'zero', but is 'median'"):
        plugin.prune(plugin.select(share=0.6), fill="median")


def test_an_example_that_does_not_fit_is_refused():
    _, plugin, _ = attached("mlp")
    with pytest.raises((tl.SurgeryError, TypeError)):
        plugin.plan(plugin.select(share=0.6), example=(torch.randn(4, 20), torch.randn(4, 20)))


def test_before_any_batch_there_is_nothing_to_prune():
    plugin = tl.attach(nn.Linear(20, 1), FIELDS)
    selection = tl.Selection(plugin.fields, (1.0,) * 5, (True, False, True, True, True))
    with pytest.raises(tl.SurgeryError, match="No batch has passed the model"):
        plugin.prune(selection)
    with pytest.raises(tl.FieldError, match="Train first"):
        plugin.prune(selection, example=torch.randn(4, 20))


def test_a_model_that_is_not_deterministic_is_refused():
    class Noisy(nn.Linear):
        def forward(self, x):
            return super().forward(x) + torch.rand(len(x), 1)

    plugin, _ = prepared(Noisy(COLUMNS, 1))
    with pytest.raises(tl.SurgeryError, match="deterministic in eval"):
        plugin.prune(plugin.select(share=0.6))
