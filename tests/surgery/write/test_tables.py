"""Tables that only dropped fields read are removed; one that is read after all raises."""

import pickle

import pytest
import torch
from torch import nn

import torchleap as tl
from tests.architectures import NAMES, WIDTH, ids_by_name
from tests.surgery.helpers import COLUMNS, FED, Deciding, Ranker, assert_same, pruned, removed
from torchleap._common.errors import RemovedTableError


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
        return [
            self.tables[name](batch[name].clamp(max=self.tables[name].num_embeddings - 1))
            for name in NAMES
        ]


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
    assert removed(small) == ["tables.user", "tables.item"]
    assert_same(plugin, selection, small, ids_by_name(7, 9))


class Sometimes(Deciding):
    """It reads a removed table past the gates in some batches only."""

    def __init__(self, when, how=lambda rows: rows.sum(1, keepdim=True)):
        super().__init__()
        self.when = when
        self.how = how

    def past(self, rows, batch):
        return self.how(rows[0]) if self.when(self, batch) else 0


WHEN = {
    "a large batch": (lambda m, b: len(b["user"]) > 64, ids_by_name(65, 9)),
    "a late hour": (
        lambda m, b: bool((b["hour"] >= 12).any()),
        {**ids_by_name(7, 9), "hour": torch.full((7,), 12)},
    ),
    "an entry": (lambda m, b: "extra" in b, {**ids_by_name(7, 9), "extra": torch.ones(7)}),
}


HOW = {
    "a sum": lambda rows: rows.sum(1, keepdim=True),
    "a comparison": lambda rows: (rows > 0).sum(1, keepdim=True),
    "the largest": lambda rows: rows.argmax(1, keepdim=True),
    "a choice": lambda rows: torch.where(rows[:, :1] > 0, 1.0, 2.0),
    "without nan": lambda rows: torch.nan_to_num(rows[:, :1]),
    "times zero": lambda rows: rows[:, :1] * 0,
    "a number": lambda rows: float(rows.detach().sum()),
    "a decision": lambda rows: 1 if bool((rows > 0).any()) else 2,
}


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("how", HOW)
def test_a_removed_table_that_is_read_after_all_raises(when, how):
    torch.manual_seed(0)
    condition, batch = WHEN[when]
    model = Sometimes(condition, HOW[how])
    model.tables["hour"] = nn.Embedding(13, WIDTH)
    plugin, selection, small = pruned(model)
    assert type(small.tables["user"]) is not nn.Embedding
    assert "Only dropped fields read tables.user, tables.item on the example" in str(
        tl.plan_of(small)
    )
    assert_same(plugin, selection, small, ids_by_name(7, 9))
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        with (
            mode(),
            pytest.raises(
                tl.FieldError, match="needs 'tables.user'. Prune with example= such a batch"
            ),
        ):
            small(batch)
    small = plugin.prune(selection, example=batch).eval()  # the cure
    assert type(small.tables["user"]) is nn.Embedding
    assert_same(plugin, selection, small, batch)


def test_the_weight_of_a_removed_table_raises():
    _, _, small = pruned(Sometimes(lambda m, b: len(b["user"]) > 64, None))
    small.how = lambda rows: small.tables["user"].weight.mean()
    with pytest.raises(tl.FieldError, match=".weight needs 'tables.user'"):
        small(ids_by_name(65, 9))


def test_a_table_that_training_reads_past_the_gates_stays():
    plugin, selection, small = pruned(Sometimes(lambda m, b: m.training))
    assert type(small.tables["user"]) is nn.Embedding
    assert type(small.tables["item"]) is not nn.Embedding
    assert_same(plugin, selection, small, ids_by_name(7, 9))
    small.train()(ids_by_name(7, 9)).sum().backward()
    assert bool(small.tables["user"].weight.grad.any())


class Upstream(Deciding):
    """Layers in front of the gates, which read tables that go."""

    def __init__(self):
        super().__init__()
        self.mixing = nn.Linear(WIDTH, WIDTH)
        self.weight = nn.Parameter(torch.rand(COLUMNS) + 0.5)

    def rows(self, batch):
        rows = super().rows(batch)
        return [self.mixing(rows[0]), *rows[1:]]

    def forward(self, batch):
        x = self.join(torch.cat(self.rows(batch), 1).sigmoid().log() / self.weight)
        return self.deep(x) if x.sum() > -1e9 else x


@pytest.mark.parametrize("kind", [Deciding, Upstream])
def test_a_model_without_its_tables_is_fine_tuned_with_the_gradients_of_the_masked_one(kind):
    torch.manual_seed(0)
    plugin, selection, small = pruned(kind())
    assert removed(small) == ["tables.user", "tables.item"]
    batch = ids_by_name(7, 9)
    model = plugin.model.eval()
    with plugin.masked(selection):
        model.zero_grad()
        model(batch).square().sum().backward()
    small.zero_grad()
    small(batch).square().sum().backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    for name, origin in tl.plan_of(small).origins.items():
        expected[name] = origin.take(expected[name])
    for name, parameter in small.named_parameters():
        if parameter.grad is None:  # zeros, in the masked model
            assert not bool(expected[name].any()), name
        else:
            torch.testing.assert_close(parameter.grad, expected[name], msg=name)
    optimizer = torch.optim.Adam(small.parameters())
    small.train()(batch).sum().backward()
    optimizer.step()
    assert all(bool(parameter.isfinite().all()) for parameter in small.parameters())


@pytest.mark.parametrize("kind", [Ranker, Deciding])
def test_gradients_of_gradients_flow_through_a_pruned_model(kind):
    plugin, selection, small = pruned(kind())
    small.double()
    batch = ids_by_name(7, 9)
    weight = small.tables["city"].weight

    def slope(model, table):
        (first,) = torch.autograd.grad(model(batch).tanh().sum(), table, create_graph=True)
        return torch.autograd.grad(first.square().sum(), table)[0]

    model = plugin.model.double().eval()
    with plugin.masked(selection):
        expected = slope(model, model.tables["city"].weight)
    assert bool(expected.any())
    torch.testing.assert_close(slope(small, weight), expected)


def test_a_table_with_a_hook_of_the_users_stays():
    model = Deciding()
    model.tables["user"].register_forward_pre_hook(lambda module, args: (args[0] * 0,))
    plugin, selection, small = pruned(model)
    assert removed(small) == ["tables.item"]
    assert_same(plugin, selection, small, ids_by_name(7, 9))


def test_a_table_of_a_class_of_the_users_stays():
    class Scaled(nn.Embedding):
        def forward(self, ids):
            return super().forward(ids) * 2

    model = Deciding()
    model.tables["user"] = Scaled(12, WIDTH)
    plugin, selection, small = pruned(model)
    assert removed(small) == ["tables.item"]
    assert_same(plugin, selection, small, ids_by_name(7, 9))


def test_a_table_with_two_names_goes_under_both():
    model = Deciding()
    model.same = model.tables["user"]
    plugin, selection, small = pruned(model)
    assert small.same is small.tables["user"]
    assert (
        sum(p.numel() for p in small.parameters())
        == sum(p.numel() for p in model.parameters()) - 5 - 2 * 12 * WIDTH - 2 * WIDTH * 8
    )
    assert_same(plugin, selection, small, ids_by_name(7, 9))


@pytest.mark.parametrize("kind", [Ranker, Deciding])
def test_pruned_models_run_in_inference_mode(kind):
    plugin, selection, small = pruned(kind())
    batch = ids_by_name(7, 9)
    with torch.inference_mode():
        found = small(batch)
        with plugin.masked(selection):
            expected = plugin.model.eval()(batch)
    torch.testing.assert_close(found, expected)
    assert found.is_inference()


def test_a_result_that_depends_on_a_removed_table_is_refused_wherever_it_is_kept():
    class Keeping(Deciding):
        def past(self, rows, batch):
            self.kept = rows[0].mean()
            return 0

    _, _, small = pruned(Keeping())
    small(ids_by_name(7, 9))
    with pytest.raises(tl.FieldError, match="needs 'tables.user'"):
        float(small.kept)
    assert pickle.loads(pickle.dumps(RemovedTableError(["user"], "sum()"))).tables == {"user"}


def test_an_output_that_cannot_be_looked_into_is_returned_on_other_batches():
    class Generating(Deciding):
        def forward(self, batch):
            y = super().forward(batch)
            return y if len(y) < 64 else (part for part in y)

    plugin, selection, small = pruned(Generating())
    with plugin.masked(selection):
        expected = list(plugin.model.eval()(ids_by_name(65, 9)))
    torch.testing.assert_close(list(small(ids_by_name(65, 9))), expected)


class InTraining(Ranker):
    """It is fed constants, since train() computes with other numbers, but can be exported."""

    def forward(self, batch):
        return self.deep(self.embed(batch) * (1.0 if self.training else 0.7))


def test_a_model_without_its_tables_is_compiled_and_exported(tmp_path):
    _, _, small = pruned(InTraining())
    assert removed(small) == ["tables.user", "tables.item"]
    batch = ids_by_name(7, 9)
    torch.testing.assert_close(torch.compile(small, backend="eager")(batch), small(batch))
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="NoTable.forward"):
        torch.compile(small, backend="eager", fullgraph=True)(batch)
    tl.export.to_program(small, tmp_path / "model.pt2", batch)
    torch.testing.assert_close(
        torch.export.load(tmp_path / "model.pt2").module()(batch), small(batch)
    )


def test_a_compiled_model_that_reads_a_removed_table_raises():
    _, _, small = pruned(Sometimes(lambda m, b: len(b["user"]) > 64))
    compiled = torch.compile(small, backend="eager")
    torch.testing.assert_close(compiled(ids_by_name(7, 9)), small(ids_by_name(7, 9)))
    with pytest.raises(tl.FieldError, match="needs 'tables.user'"):
        compiled(ids_by_name(65, 9))


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
        rng = torch.Generator().manual_seed(seed)
        counts = torch.randint(1, most, (rows,), generator=rng)
        stops = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)])
        ids = torch.randint(12, (int(counts.sum()),), generator=rng)
        return ids, stops if last else stops[:-1], torch.randint(12, (rows,), generator=rng)

    return make


@pytest.mark.parametrize("kept", [(False, True), (True, False)])
@pytest.mark.parametrize("decides", [False, True])
@pytest.mark.parametrize("most", [4, 2])
def test_ids_in_bags_are_no_rows_even_where_they_are_as_many(kept, decides, most):
    fields = tl.Fields({"tags": 4, "item": 4})
    selection = tl.Selection(fields, (0.5, 0.5), kept)
    plugin, selection, small = pruned(
        Bags(decides), bags(most=most), fields=fields, selection=selection
    )
    assert (FED in str(tl.plan_of(small))) == decides
    for rows in (1, 7, 50):
        assert_same(plugin, selection, small, bags()(rows, 9))


def test_a_removed_bag_knows_about_the_last_offset():
    fields = tl.Fields({"tags": 4, "item": 4})
    selection = tl.Selection(fields, (0.5, 0.5), (False, True))
    plugin, selection, small = pruned(
        Bags(True, include_last_offset=True), bags(last=True), fields=fields, selection=selection
    )
    assert removed(small) == ["bag"]
    assert_same(plugin, selection, small, bags(last=True)(7, 9))
