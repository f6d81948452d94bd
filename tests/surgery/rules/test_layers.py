"""Each layer without the self-check: what is cut, what must stay, and that both are exact."""

import operator

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import torchleap as tl
from tests.architectures import IDS, NAMES, WIDTH, ids
from tests.surgery.helpers import COLUMNS
from tests.surgery.test_code import Layers
from tests.surgery.test_traps import Trap
from tests.surgery.unchecked import cut_exactly, keeping, trained

TOKENS = (len(NAMES), WIDTH)


class Tables(nn.Module):
    """Tables or bags in front of the gates."""

    def __init__(self, tables):
        super().__init__()
        self.tables = nn.ModuleList(tables)
        self.join = nn.Identity()
        self.head = nn.Linear(COLUMNS, 1)

    def forward(self, x):
        pools = isinstance(self.tables[0], nn.EmbeddingBag)
        of_field = [
            x[:, place : place + 1] if pools else x[:, place] for place in range(len(NAMES))
        ]
        found = [table(own) for table, own in zip(self.tables, of_field, strict=True)]
        return self.head(self.join(torch.cat(found, 1)))


class OneTable(nn.Module):
    """One table for all fields, table(ids + offsets)."""

    def __init__(self, offsets, rows, **settings):
        super().__init__()
        self.table = nn.Embedding(rows, WIDTH, **settings)
        self.register_buffer("offsets", torch.tensor(offsets))
        self.join = nn.Identity()
        self.head = nn.Linear(COLUMNS, 1)

    def forward(self, x):
        return self.head(self.join(self.table(x + self.offsets).flatten(1)))


def pruned(monkeypatch, model, **settings):
    plugin, make = trained(model, **settings)
    return cut_exactly(monkeypatch, plugin, make)


def behind(monkeypatch, *layers):
    """A pruned model of these layers behind the place where the columns pass."""
    model = Layers(*layers)
    model(torch.randn(4, COLUMNS))  # gives the head its width
    return pruned(monkeypatch, model, at="fields", side="output").layers


# Convolutions


def test_a_border_counts_however_small_its_weights(monkeypatch):
    convolution = nn.Conv1d(5, 3, 3, padding=1)
    convolution.weight.data *= 1e-3
    cut = behind(monkeypatch, nn.Unflatten(1, TOKENS), convolution)[-1]
    assert cut.in_channels == 3
    assert torch.equal(cut.bias, convolution.bias)  # what is added differs from place to place


def test_without_a_border_what_dropped_channels_add_goes_into_the_bias(monkeypatch):
    for bias in (True, False):
        convolution = nn.Conv1d(5, 3, 1, bias=bias)
        model = Layers(nn.Unflatten(1, TOKENS), convolution)
        model(torch.randn(4, COLUMNS))
        plugin, make = trained(model, at="fields", side="output")
        plugin.gates.mean.fill_(0.7)  # the same in all columns of a field, so there is no border
        cut = cut_exactly(monkeypatch, plugin, make).layers[-1]
        assert cut.in_channels == 3
        before = torch.zeros(3) if convolution.bias is None else convolution.bias
        assert not torch.allclose(cut.bias, before.to(cut.bias))


@pytest.mark.parametrize("groups", [1, 5])
def test_a_convolution_with_groups_keeps_its_channels(groups, monkeypatch):
    cut = behind(monkeypatch, nn.Unflatten(1, TOKENS), nn.Conv1d(5, 5, 2, groups=groups))[-1]
    assert cut.in_channels == (3 if groups == 1 else 5)


# Linear layers and matrices


def test_a_matrix_is_cut_on_the_side_of_its_inputs(monkeypatch):
    def function(model, x):
        return torch.tanh(x @ model.matrix) + functional.linear(x, model.weight, model.bias)

    layers = {"matrix": (COLUMNS, 6), "weight": (6, COLUMNS), "bias": (6,)}
    model = Trap(
        function, 6, **{name: nn.Parameter(torch.randn(shape)) for name, shape in layers.items()}
    )
    small = pruned(monkeypatch, model, at="fields", side="output")
    assert (small.matrix.shape, small.weight.shape, small.bias.shape) == ((12, 6), (6, 12), (6,))


def test_outputs_that_nobody_reads_leave_a_layer_and_a_matrix(monkeypatch):
    def function(model, x):
        with_bias = functional.linear(x, model.weight, model.bias)
        parts = [model.layer(x), with_bias, functional.linear(x, model.plain), x @ model.matrix]
        return torch.cat([part[:, 2:5] for part in parts], 1)

    layers = {"weight": (6, COLUMNS), "bias": (6,), "plain": (6, COLUMNS), "matrix": (COLUMNS, 6)}
    parameters = {name: nn.Parameter(torch.randn(shape)) for name, shape in layers.items()}
    model = Trap(function, 12, layer=nn.Linear(COLUMNS, 6), **parameters)
    small = pruned(monkeypatch, model, at="fields", side="output")
    assert (small.layer.in_features, small.layer.out_features) == (12, 3)
    assert (small.weight.shape, small.bias.shape) == ((3, 12), (3,))
    assert (small.plain.shape, small.matrix.shape) == ((3, 12), (12, 3))


def test_a_token_with_one_constant_column_is_not_a_constant(monkeypatch):
    for layer in (nn.Linear(WIDTH, 3), nn.LayerNorm(WIDTH)):
        model = Layers(nn.Unflatten(1, TOKENS), layer)
        model(torch.randn(4, COLUMNS))
        plugin, make = trained(model, at="fields", side="output", per_dimension=True)
        kept = [
            name
            for name in plugin.fields.names
            if not name.endswith("[1]") and not name.startswith("hour")
        ]
        cut_exactly(monkeypatch, plugin, make, keeping(plugin, *kept))


# Tables


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_a_table_with_a_largest_norm_keeps_its_columns(kind, max_norm, monkeypatch):
    model = Tables([kind(IDS, WIDTH, max_norm=max_norm) for _ in NAMES])
    plugin, make = trained(model, at="join", side="output", make=ids, per_dimension=True)
    kept = [name for name in plugin.fields.names if not name.endswith("[1]")]
    small = cut_exactly(monkeypatch, plugin, make, keeping(plugin, *kept))
    assert [table.weight.shape[1] for table in small.tables] == [WIDTH - (max_norm is None)] * len(
        NAMES
    )


OFFSETS = [IDS * place for place in range(len(NAMES))]
ROWS = IDS * len(NAMES)


@pytest.mark.parametrize(
    ("offsets", "rows", "settings", "left"),
    [
        (OFFSETS, ROWS, {}, 3 * IDS),
        ([0, 12, 24, 36, 48], 70, {}, 2 * IDS + 22),  # the last field has all rows that are left
        (OFFSETS, ROWS, {"padding_idx": 0}, ROWS),
        (OFFSETS, ROWS, {"padding_idx": 13}, ROWS),
        (OFFSETS, ROWS, {"max_norm": 1.0}, ROWS),
        ([start + 1 for start in OFFSETS], ROWS + 1, {}, 3 * IDS + 1),  # the first row is nobody's
        ([start + 2 for start in OFFSETS], ROWS + 2, {"padding_idx": 1}, 3 * IDS + 2),
        ([start + 1 for start in OFFSETS], ROWS + 1, {"padding_idx": 1}, ROWS + 1),
        ([0, 12, 12, 24, 36], ROWS, {}, ROWS - IDS),  # two fields share their rows
        ([0, 24, 12, 36, 48], ROWS, {}, 3 * IDS),  # not in order
        ([0, 1, 2, 3, 4], ROWS, {}, ROWS),  # each reads the rows of all
    ],
)
def test_rows_leave_a_table_where_offsets_show_whose_they_are(
    offsets, rows, settings, left, monkeypatch
):
    model = OneTable(offsets, rows, **settings)
    small = pruned(monkeypatch, model, at="join", side="output", make=ids)
    assert small.table.weight.shape == (left, WIDTH)
    assert small.table.num_embeddings == left
    assert small.table.padding_idx == settings.get("padding_idx")


def test_ids_that_somebody_else_reads_stay_beside_those_of_the_table(monkeypatch):
    class Twice(OneTable):
        def forward(self, x):
            shifted = x + self.offsets
            read_twice = shifted.sum(1, keepdim=True) * 1e-2
            return self.head(self.join(self.table(shifted).flatten(1))) + read_twice

    small = pruned(monkeypatch, Twice(OFFSETS, ROWS), at="join", side="output", make=ids)
    assert small.table.weight.shape == (3 * IDS, WIDTH)
    assert small.offsets.tolist() == OFFSETS


def test_ids_that_are_shifted_all_at_once_find_the_rows_that_are_left(monkeypatch):
    class Rolled(OneTable):
        def forward(self, x):
            return super().forward(x.roll(1, 1))  # an operation without a rule: all ids are there

    small = pruned(monkeypatch, Rolled(OFFSETS, ROWS), at="join", side="output", make=ids)
    assert small.table.weight.shape == (3 * IDS, WIDTH)


def _with_reserved_row(ids, mask):
    return ids.masked_fill(mask, 0)


def _set_to_reserved_row(ids, mask):
    ids[mask] = 0
    return ids


@pytest.mark.parametrize(
    "move",
    [
        lambda m, x: x + x.new_tensor(np.array(OFFSETS)).unsqueeze(0),
        lambda m, x: x + torch.arange(0, ROWS, IDS),
        lambda m, x: torch.tensor(OFFSETS) + x.long(),
        lambda m, x: torch.add(x, m.offsets[None]),
        lambda m, x: x + np.array(OFFSETS),
        lambda m, x: (x + m.offsets).long(),
        lambda m, x: (x + m.offsets).clamp(0, ROWS - 1),
        lambda m, x: (x + m.offsets).clamp(min=0),
    ],
)
def test_offsets_that_the_code_makes_show_whose_rows_are_which(move, monkeypatch):
    class Moved(OneTable):
        def forward(self, x):
            return self.head(self.join(self.table(move(self, x)).flatten(1)))

    small = pruned(monkeypatch, Moved(OFFSETS, ROWS), at="join", side="output", make=ids)
    assert small.table.weight.shape == (3 * IDS, WIDTH)


@pytest.mark.parametrize("fill", [_with_reserved_row, _set_to_reserved_row])
def test_rows_in_front_of_all_fields_stay(fill, monkeypatch):
    class Reserved(OneTable):
        def forward(self, x):
            ids = fill(x + self.offsets + 1, x == 3)
            return self.head(self.join(self.table(ids).flatten(1)))

    model = Reserved(OFFSETS, ROWS + 1, padding_idx=0)
    small = pruned(monkeypatch, model, at="join", side="output", make=ids)
    assert small.table.weight.shape == (3 * IDS + 1, WIDTH)


class PerField(OneTable):
    """One table for all fields, with a lookup for each field."""

    def forward(self, x):
        found = [self.table(x[:, place] + start) for place, start in enumerate(OFFSETS)]
        return self.head(self.join(torch.cat(found, 1)))


def test_rows_leave_a_table_that_each_field_looks_up_by_itself(monkeypatch):
    small = pruned(monkeypatch, PerField(OFFSETS, ROWS), at="join", side="output", make=ids)
    assert small.table.weight.shape == (3 * IDS, WIDTH)


def test_a_table_that_is_read_otherwise_too_keeps_its_rows(monkeypatch):
    class Tied(PerField):
        def forward(self, x):
            return super().forward(x) + self.table.weight.sum()

    small = pruned(monkeypatch, Tied(OFFSETS, ROWS), at="join", side="output", make=ids)
    assert small.table.weight.shape == (ROWS, WIDTH)


@pytest.mark.parametrize("kind", [OneTable, PerField])
@pytest.mark.parametrize("outside", [IDS, -1])
def test_an_id_outside_the_rows_of_its_own_field_is_refused(kind, outside, monkeypatch):
    small = pruned(monkeypatch, kind(OFFSETS, ROWS), at="join", side="output", make=ids)
    batch = ids(rows=9)
    expected = small(batch)
    batch[:, 0] = outside  # of a dropped field
    torch.testing.assert_close(small(batch), expected)
    batch[5, 3] = outside
    with pytest.raises(tl.FieldError, match=r"from 36 to 47, in row 5 of the batch"):
        small(batch)


def test_rows_in_front_of_all_fields_may_be_read_for_any_field(monkeypatch):
    starts = [start + 2 for start in OFFSETS]
    model = OneTable(starts, ROWS + 2)
    plugin, make = trained(model, at="join", side="output", make=ids)
    small = cut_exactly(monkeypatch, plugin, make)
    batch = ids(rows=9)
    batch[:, 3] = -starts[3] + 1
    with plugin.masked(plugin.select(share=0.6)):
        torch.testing.assert_close(small(batch), model.eval()(batch))
    batch[:, 3] = -1
    with pytest.raises(tl.FieldError, match="rows of its own field"):
        small(batch)


def test_a_table_that_lost_rows_can_lose_more(monkeypatch):
    small = pruned(monkeypatch, OneTable(OFFSETS, ROWS), at="join", side="output", make=ids)
    fields = dict.fromkeys(NAMES[2:], WIDTH)
    again = tl.attach(small.train(), fields, at="head", seed=0)
    small(ids())
    smaller = again.prune(keeping(again, NAMES[3], NAMES[4]))
    assert smaller.table.weight.shape == (2 * IDS, WIDTH)
    with again.masked(keeping(again, NAMES[3], NAMES[4])):
        torch.testing.assert_close(smaller.eval()(ids(rows=7)), small.eval()(ids(rows=7)))
    batch = ids(rows=9)
    batch[0, 4] = -1
    with pytest.raises(tl.FieldError, match="rows of its own field"):
        smaller(batch)


def test_histories_of_several_fields_may_share_a_table(monkeypatch):
    class Histories(OneTable):
        def forward(self, x):
            ids = torch.stack([x, x.flip(0)], 2) + self.offsets[:, None]  # (B, fields, 2)
            return self.head(self.join(self.table(ids).mean(2).flatten(1)))

    small = pruned(monkeypatch, Histories(OFFSETS, ROWS), at="join", side="output", make=ids)
    assert small.table.weight.shape == (3 * IDS, WIDTH)


@pytest.mark.parametrize(
    "move",
    [
        lambda m, x: torch.add(x, m.offsets, alpha=2),
        lambda m, x: (x + m.offsets.double()).long(),
        lambda m, x: (x + m.offsets).masked_fill(x == 3, 5),  # a row of the first field
        lambda m, x: (x + m.offsets).masked_fill(x == 3, 0) + m.offsets,
        lambda m, x: x[:, :1] + m.offsets,
    ],
)
def test_sums_that_do_not_show_whose_rows_are_which_keep_the_table(move, monkeypatch):
    class Moved(OneTable):
        def forward(self, x):
            return self.head(self.join(self.table(move(self, x)).flatten(1)))

    small = pruned(monkeypatch, Moved(OFFSETS, 2 * ROWS), at="join", side="output", make=ids)
    assert small.table.weight.shape == (2 * ROWS, WIDTH)


def test_ids_of_one_field_that_are_moved_differently_keep_the_table(monkeypatch):
    class Histories(OneTable):
        def forward(self, x):
            ids = torch.stack([x, x], 2) + torch.stack([self.offsets, self.offsets + 1], 1)
            return self.head(self.join(self.table(ids).mean(2).flatten(1)))

    small = pruned(monkeypatch, Histories(OFFSETS, ROWS + 1), at="join", side="output", make=ids)
    assert small.table.weight.shape == (ROWS + 1, WIDTH)


def test_field_aware_tables_lose_the_rows_of_dropped_fields(monkeypatch):
    class FieldAware(nn.Module):
        """As many tables as fields, each for all fields."""

        def __init__(self):
            super().__init__()
            self.tables = nn.ModuleList([nn.Embedding(ROWS, WIDTH) for _ in NAMES])
            self.join = nn.Identity()
            self.head = nn.Linear(COLUMNS, 1)

        def forward(self, x):
            ids = x + x.new_tensor(np.array(OFFSETS)).unsqueeze(0)
            return self.head(self.join(sum(table(ids) for table in self.tables).flatten(1)))

    small = pruned(monkeypatch, FieldAware(), at="join", side="output", make=ids)
    assert {tuple(table.weight.shape) for table in small.tables} == {(3 * IDS, WIDTH)}
    sums = [node for node in type(small).pruned_graph.nodes if node.target is operator.add]
    assert len(sums) == len(NAMES) + 2  # offsets, and moves once for all tables


# Bilinear layers


@pytest.mark.parametrize(
    "kept", [("user", "shop"), ("item", "city", "hour"), ("user",), ("city", "shop", "hour")]
)
def test_constants_on_either_side_of_a_bilinear_layer_are_folded(kept, monkeypatch):
    for bias in (True, False):
        product = nn.Bilinear(8, 12, 5, bias=bias)
        model = Trap(lambda model, x: model.product(x[:, :8], x[:, 8:]), 5, product=product)
        plugin, make = trained(model, at="fields", side="output")
        small = cut_exactly(monkeypatch, plugin, make, keeping(plugin, *kept))
        widths = [WIDTH * len(set(kept) & set(side)) for side in (NAMES[:2], NAMES[2:])]
        left = small.product
        assert 0 in widths or [left.in1_features, left.in2_features] == widths


# Batch norm


@pytest.mark.parametrize("statistics", [True, False])
def test_batch_norm_without_statistics_reads_its_columns_whole_and_the_rest_is_cut(statistics):
    norm = nn.BatchNorm1d(COLUMNS, track_running_stats=statistics)
    model = Trap(
        lambda m, x: torch.cat([m.norm(x), m.linear(x)], 1),
        26,
        norm=norm,
        linear=nn.Linear(COLUMNS, 6),
    )
    plugin, _ = trained(model, at="fields", side="output")
    small = plugin.prune(plugin.select(share=0.6))
    assert small.norm.num_features == (12 if statistics else COLUMNS)
    assert small.linear.in_features == 12
