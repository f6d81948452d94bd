"""OptFS has a gate for each id, and scores the rows whose embedding is kept."""

import math

import pytest
import torch

from tests.methods.tasks import QUICK
from torchleap import models
from torchleap.methods import Search
from torchleap.methods.base import put_before_net
from torchleap.methods.optfs import EmbeddingGates, OptFS, id_counts


def gated(search):
    """Return a model in eval mode with gates in its tables, and the layer of the others."""
    model = search.model()
    layer = EmbeddingGates(search, OptFS(weight=2e-3))
    put_before_net(model, layer)
    layer.put_into_tables(model)
    return model.eval(), layer


def test_optfs_has_a_gate_for_each_id_and_one_for_each_number_and_vector(mixed):
    search = Search(mixed, models.benchmark("mlp"), QUICK)
    model, layer = gated(search)
    plain = search.model().eval()
    batch = mixed.valid.all()
    # All gates are 1 at the start.
    assert torch.allclose(model(*batch.inputs), plain(*batch.inputs), atol=1e-6)
    for gates in layer.all_gates():
        torch.nn.init.normal_(gates.m)
        gates.get_buffer("steepness").fill_(3.0)
    x = model.net[0](model.inputs(*batch.inputs))
    slots = mixed.slots(ids=True)
    half = torch.sigmoid(torch.tensor(0.5))
    for place, column in enumerate(mixed.columns):
        found = x[:, mixed.fields.columns(column.name)]
        if not column.is_ids:
            slot = mixed.slots(ids=False)[column.name]
            scale = torch.sigmoid(3 * layer.open.m[place]) / half
            assert torch.allclose(found, batch.numbers[:, slot] * scale, atol=1e-6)
            continue
        table = next(table for table in layer.tables if place in table.fields)
        assert table.fields == [place]  # here all have widths of their own
        weight = table.table.weight * torch.sigmoid(3 * table.open.m) / half
        for row in range(30):
            ids = batch.ids[row, slots[column.name]]
            ids = ids[ids > 0] if column.column.kind == "list" else ids
            expected = weight[ids].mean(0) if len(ids) else torch.zeros(column.width)
            assert torch.allclose(found[row], expected, atol=1e-6)


def test_the_penalty_of_optfs_is_the_sum_of_all_gates(mixed):
    _, layer = gated(Search(mixed, models.benchmark("mlp"), QUICK))
    count = sum(column.categories for column in mixed.columns) + 2
    assert layer.penalty().item() == pytest.approx(2e-3 * count / (1 + math.exp(-0.5)), rel=1e-5)


def test_optfs_scores_the_fraction_of_train_rows_whose_embedding_is_kept(task):
    _, layer = gated(Search(task, models.benchmark("mlp"), QUICK))
    (table,) = layer.tables  # two columns of one width share it
    item, user = (task.columns[place].categories for place in (0, 1))
    with torch.no_grad():
        table.open.m.fill_(-1.0)
        table.open.m[[3, 7, item + 4]] = 1.0
        layer.open.m[task.fields.index("noise")] = -0.2
    ids = task.train.all().ids
    kept_items = ((ids[:, 0] == 3) | (ids[:, 0] == 7)).double().mean().item()
    kept_users = (ids[:, 1] == 4).double().mean().item()
    expected = [kept_items, kept_users, 1, 0, 1, 1, 1]
    assert layer.field_scores().tolist() == pytest.approx(expected, abs=1e-5)
    assert [len(count) for count in table.counts] == [item, user]
    assert layer.field_scores()[2] > 1  # slightly above, to rank fields that are kept completely


def test_empty_places_of_lists_do_not_count(mixed):
    counts = id_counts(mixed)
    place = mixed.fields.index("tags")
    ids = mixed.train.all().ids[:, mixed.slots(ids=True)["tags"]]
    assert counts[place][0] == 0
    assert counts[place].sum().item() == int((ids > 0).sum())


def test_optfs_grows_steeper_with_each_epoch(task):
    method = OptFS(steepness=81.0, planned_epochs=5)
    assert [method.steepness_at(epoch, 5) for epoch in range(7)] == pytest.approx(
        [1, 3, 9, 27, 81, 81, 81]
    )
    assert method.steepness_at(0, 1) == 1.0
