"""Backbones: from a task's columns to log odds, each against a slow, obvious version."""

import itertools

import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import torchleap as tl
from tests.data.frames import log
from torchleap import models
from torchleap.models import inputs as inputs_module
from torchleap.models.layers import Crosses, FieldVectors, Pairs, Products
from torchleap.selection import select


@pytest.fixture(scope="module")
def task():
    return tl.data.read(
        log(),
        label="click",
        split="order",
        drop=["time"],
        columns={"user": {"width": 4}, "city": {"width": 4}},
    )


@pytest.fixture(scope="module")
def alike():
    """All fields are categories of one width, as in the benchmarks."""
    return tl.data.read(
        log().select("click", "user", "city", pl.col("age").cast(pl.String)), label="click", width=8
    )


def test_fields_are_laid_side_by_side_in_their_order(task):
    layer = models.FieldInputs(task.columns)
    batch = task.train.all()
    found = layer(*batch.inputs)
    assert found.shape == (len(task.train), task.fields.dims)
    ids, numbers = task.slots(ids=True), task.slots(ids=False)
    table = layer.tables["4"].weight
    for name, offset in (("user", 0), ("city", task.columns[0].categories)):  # one table for both
        expected = table[offset + batch.ids[:, ids[name]][:, 0]]
        assert torch.equal(found[:, task.fields.columns(name)], expected)
    for name in ("price", "age", "vector"):
        assert torch.equal(found[:, task.fields.columns(name)], batch.numbers[:, numbers[name]])
    tags = layer.lists[str(task.fields.index("tags"))].weight
    for row in range(20):
        own = [number for number in batch.ids[row, ids["tags"]].tolist() if number]
        expected = tags[own].mean(0) if own else torch.zeros(tags.shape[1])
        assert torch.allclose(found[row, task.fields.columns("tags")], expected, atol=1e-7)


def test_tables_are_sparse_where_they_are_large(task, monkeypatch):
    assert not any(table.sparse for table in models.FieldInputs(task.columns).tables.values())
    monkeypatch.setattr(inputs_module, "LARGE", 100)
    layer = models.FieldInputs(task.columns)
    layer(*task.train.all().inputs).sum().backward()
    assert layer.tables["4"].weight.grad.is_sparse


@pytest.mark.parametrize("name", models.BACKBONES)
@pytest.mark.parametrize("kind", ["task", "alike"])
def test_every_backbone_gives_log_odds_and_trains_all_its_weights(name, kind, request):
    task = request.getfixturevalue(kind)
    torch.manual_seed(0)
    model = models.build(models.benchmark(name), task)
    batch = task.train.all()
    first = model(*batch.inputs)
    assert first.shape == batch.label.shape
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(*batch.inputs), batch.label)
        loss.backward()
        optimizer.step()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert loss < 0.69


@pytest.mark.parametrize("name", models.BACKBONES)
def test_every_backbone_is_gated_and_pruned_exactly(name, task):
    torch.manual_seed(0)
    model = models.build(name, task)
    plugin = tl.attach(model, task.fields, at="net")
    batch = task.train.all()
    model(*batch.inputs)
    with torch.no_grad():
        plugin.gates.theta.copy_(torch.linspace(-1, 1, len(task.fields)))
    selection = plugin.select()
    small = plugin.prune(selection).eval()
    test = task.test.all()
    with torch.no_grad(), plugin.masked(selection):
        expected = model.eval()(*test.inputs)
    assert torch.allclose(small(*test.inputs), expected, atol=1e-5)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())
    assert not [note for note in tl.plan_of(small).notes if "constants are fed instead" in note]


def test_the_rows_of_a_dropped_field_leave_the_table_that_it_shares(task):
    model = models.build("wide_deep", task)
    plugin = tl.attach(model, task.fields, at="net")
    model(*task.train.all().inputs)
    for place, column in enumerate(task.columns):
        others = len(task.columns) > 1 and column.is_ids and column.column.kind != "list"
        if others:
            scores = {name: 0.0 if name == column.name else 1.0 for name in task.fields.names}
            small = plugin.prune(select(task.fields, scores, threshold=0.5)).eval()
            fewer = sum(p.numel() for p in model.inputs.parameters()) - sum(
                p.numel() for p in small.inputs.parameters()
            )
            assert fewer == column.categories * column.width, (place, column.name)


@settings(max_examples=30, deadline=None)
@given(
    widths=st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=7), rows=st.integers(2, 9)
)
def test_any_widths_fit_every_backbone(widths, rows):
    fields = tl.Fields({f"f{i}": width for i, width in enumerate(widths)})
    x = torch.randn(rows, fields.dims)
    for name in models.BACKBONES:
        backbone = models.benchmark(name)
        assert backbone.net(fields)(x).shape == (rows,), name
        assert backbone.net(fields, outputs=3)(x).shape == (rows, 3), name


def test_vectors_of_fields_are_projected_one_by_one():
    fields = tl.Fields({"a": 3, "b": 1, "c": 3})
    layer, x = FieldVectors(fields, 5), torch.randn(4, 7)
    expected = [
        x[:, :3] @ layer.weights["3"][0],
        x[:, 3:4] @ layer.weights["1"][0],
        x[:, 4:] @ layer.weights["3"][1],
    ]
    assert torch.allclose(layer(x), torch.stack(expected, dim=1), atol=1e-6)
    same = FieldVectors(tl.Fields({"a": 5, "b": 5}), 5)
    assert not list(same.parameters())
    x = torch.randn(4, 10)
    assert torch.equal(same(x), x.view(4, 2, 5))


def test_products_of_pairs_are_those_of_the_definition():
    vectors = torch.randn(3, 5, 4, dtype=torch.float64)
    pairs = list(itertools.combinations(range(5), 2))
    expected = sum((vectors[:, i] * vectors[:, j]).sum(1) for i, j in pairs)
    as_they_are = FieldVectors(tl.Fields(dict.fromkeys("abcde", 4)), 4)
    assert torch.allclose(Pairs(as_they_are)(vectors.flatten(1))[:, 0], expected)
    layer = Products(as_they_are, 2).double()
    weighed = vectors * layer.weigh(vectors.mean(2)).unsqueeze(2)
    wanted = [(x[:, i] @ layer.weight[i]) * x[:, j] for x in (vectors, weighed) for i, j in pairs]
    assert torch.allclose(layer(vectors.flatten(1)), torch.cat(wanted, dim=1))


def test_cross_layers_are_those_of_the_definition():
    layer, x = Crosses(6, 2, None), torch.randn(3, 6)
    first = x * (x @ layer.layers[0].weight.T + layer.layers[0].bias) + x
    second = x * (first @ layer.layers[1].weight.T + layer.layers[1].bias) + first
    assert torch.allclose(layer(x), second, atol=1e-6)
    assert Crosses(6, 2, 2)(x).shape == (3, 6)


def test_several_outputs_of_the_factorisation_machine_differ_by_row():
    pairs = Pairs(FieldVectors(tl.Fields({"a": 4, "b": 4}), 4), outputs=3)
    x = torch.randn(5, 8)
    expected = (x[:, :4] * x[:, 4:]) @ pairs.head.weight.T + pairs.head.bias
    assert torch.allclose(pairs(x), expected, atol=1e-6)


def test_every_backbone_trains_several_outputs():
    fields = tl.Fields({"a": 4, "b": 1, "c": 2})
    x, label = torch.randn(64, 7), torch.randint(3, (64,))
    for name in models.BACKBONES:
        net = models.named(name).net(fields, outputs=3)
        nn.functional.cross_entropy(net(x), label).backward()
        assert all(parameter.grad is not None for parameter in net.parameters()), name


def test_names_stand_for_objects_and_unknown_ones_are_refused():
    assert models.named("dcn") == models.DCN()
    assert models.benchmark("dcn") == models.DCN(hidden=(32, 16), dropout=0.2)
    with pytest.raises(
        tl.TorchleapError, match="There is no backbone 'deepmf'. Did you mean 'deepfm'"
    ):
        models.named("deepmf")
