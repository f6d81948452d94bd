"""Code that depends on the batch: the pruned model follows it or refuses, but is never wrong."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune, spectral_norm, weight_norm

import torchleap as tl
from tests.architectures import NAMES, WIDTH, ids_by_name
from tests.surgery.helpers import (
    COLUMNS,
    FED,
    Ranker,
    assert_exact,
    assert_same,
    prepared,
    pruned,
)
from torchleap.surgery.trial.run import run_on_cpu


class Trap(nn.Module):
    """Any code behind a place where the columns pass."""

    def __init__(self, function, width, **layers):
        super().__init__()
        self.fields = nn.Identity()
        self.function = function
        self.head = nn.Linear(width, 1)
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.head(self.function(self, self.fields(x)))


def fields_of(x):
    return x.view(x.shape[0], 5, 4)


def in_place(change):
    def function(model, x):
        x = x * 1
        change(model, x)  # whose result is not used
        return x

    return function


def in_bfloat16(model, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model.a(x).float()


FOLLOWED = {
    "a number from the data": (lambda m, x: x * x.abs().max().item(), 20),
    "a scalar tensor from the data": (lambda m, x: x * x.abs().max(), 20),
    "the spread of the batch": (lambda m, x: x / (x.std() + 1), 20),
    "the number of rows": (lambda m, x: x / x.shape[0], 20),
    "the mean of the batch": (lambda m, x: x * 2 - x.mean(0), 20),
    "the first of two results": (lambda m, x: torch.cat([x, fields_of(x).max(dim=1)[0]], 1), 24),
    "sorted": (lambda m, x: fields_of(x).sort(dim=1)[0].flatten(1), 20),
    "fields first, then one": (lambda m, x: torch.cat([x, fields_of(x).transpose(0, 1)[4]], 1), 24),
    "a state of a GRU": (
        lambda m, x: m.a(fields_of(x))[1][-1],
        6,
        {"a": lambda: nn.GRU(4, 6, batch_first=True)},
    ),
    "part of a split of the rows' fields": (
        lambda m, x: fields_of(x).split([2, 3], dim=1)[1].flatten(1),
        12,
    ),
    "a weight read again": (
        lambda m, x: torch.tanh(m.a(x)) @ m.a.weight,
        20,
        {"a": lambda: nn.Linear(20, 6)},
    ),
    "a weight in a function": (
        lambda m, x: m.a(x) + functional.linear(x.tanh(), m.a.weight),
        6,
        {"a": lambda: nn.Linear(20, 6)},
    ),
    "a norm of a weight": (
        lambda m, x: m.a(x) * m.a.weight.norm(),
        6,
        {"a": lambda: nn.Linear(20, 6)},
    ),
    "weight norm": (lambda m, x: m.a(x), 6, {"a": lambda: weight_norm(nn.Linear(20, 6))}),
    "spectral norm": (lambda m, x: m.a(x), 6, {"a": lambda: spectral_norm(nn.Linear(20, 6))}),
    "pruned weights": (
        lambda m, x: m.a(x),
        6,
        {"a": lambda: prune.random_unstructured(nn.Linear(20, 6), "weight", 0.5)},
    ),
    "in place, read once": (lambda m, x: torch.relu_(x * 2), 20),
    "a layer in place, read once": (
        lambda m, x: m.a(x * 2),
        20,
        {"a": lambda: nn.ReLU(inplace=True)},
    ),
    "in place, read again": (
        lambda m, x: (lambda h: m.r(h) + h)(m.a(x)),
        6,
        {"a": lambda: nn.Linear(20, 6), "r": lambda: nn.ReLU(inplace=True)},
    ),
    "relu_": (in_place(lambda m, x: torch.relu_(x)), 20),
    "relu by an argument": (in_place(lambda m, x: functional.relu(x, inplace=True)), 20),
    "a layer": (in_place(lambda m, x: m.a(x)), 20, {"a": lambda: nn.LeakyReLU(inplace=True)}),
}


NOT_FOLLOWED = {
    "in place, seen by a view": (
        lambda m, x: (lambda h: h[:, :1] + 0 * m.r(h))(m.a(x)),
        6,
        {"a": lambda: nn.Linear(20, 6), "r": lambda: nn.ReLU(inplace=True)},
    ),
    "a branch on the data": (lambda m, x: x if (x > 3).any().item() else -x, 20),
    "a branch on the number of rows": (lambda m, x: x if x.shape[0] > 10 else -x, 20),
    "a branch on a lone row": (lambda m, x: x if x.shape[0] != 1 else x * 2, 20),
    "parts of the batch": (
        lambda m, x: torch.cat([part * i for i, part in enumerate(x.chunk(4, 0), 1)]),
        20,
    ),
    "each row": (lambda m, x: torch.stack([row * 2 for row in x.unbind(0)]), 20),
    "another precision": (in_bfloat16, 6, {"a": lambda: nn.Linear(20, 6)}),
    "other numbers in training": (lambda m, x: x * (1.0 if m.training else 0.7), 20),
    "another dropout in training": (
        lambda m, x: functional.dropout(x, 0.5 if m.training else 0.0, True),
        20,
    ),
}


def trap(function, width, layers=()):
    torch.manual_seed(0)
    return Trap(function, width, **{name: make() for name, make in dict(layers).items()})


@pytest.mark.parametrize("name", FOLLOWED)
@pytest.mark.parametrize("rows", [32, 1])
def test_what_depends_on_the_batch_is_computed_for_each_batch(name, rows):
    plugin, make = prepared(trap(*FOLLOWED[name]), at="fields", side="output")
    selection = plugin.select(share=0.6)
    plan = plugin.plan(selection, example=make(rows=rows))
    assert FED not in str(plan)
    small = plugin.prune(selection, example=make(rows=rows)).eval()
    for count in (1, 7, 50):
        with torch.no_grad(), plugin.masked(selection):
            expected = plugin.model.eval()(make(rows=count, seed=9))
        torch.testing.assert_close(
            small(make(rows=count, seed=9)), expected, rtol=1e-5, atol=1e-5, equal_nan=True
        )


@pytest.mark.parametrize("name", NOT_FOLLOWED)
def test_what_cannot_be_followed_is_fed_constants(name):
    plugin, make = prepared(trap(*NOT_FOLLOWED[name]), at="fields", side="output")
    assert FED in str(plugin.plan(plugin.select(share=0.6)))
    scale = 0.02 if name == "another precision" else 1e-5  # a layer is cut in bfloat16
    small = assert_exact(plugin, make, scale=scale)
    if "training" in name:
        assert not torch.equal(small.train()(make()), small.eval()(make()))


@pytest.mark.parametrize(
    "kind", [float, torch.tensor, lambda value: torch.arange(20) * value, lambda value: value > 1.5]
)
def test_other_arguments_may_change_with_every_call(kind):
    class Tempered(Ranker):
        def forward(self, batch, temperature):
            x = self.embed(batch)
            return (
                self.deep(x * temperature)
                if temperature is not True and temperature is not False
                else self.deep(x)
            )

    class Flagged(Ranker):
        def forward(self, batch, flag):
            return self.deep(self.embed(batch)) if flag else -self.deep(self.embed(batch))

    model = Flagged() if isinstance(kind(1.0), bool) else Tempered()
    plugin, selection, small = pruned(
        model, lambda rows=32, seed=0: (ids_by_name(rows, seed), kind(1.0 + seed))
    )
    for value in (1.0, 2.0, 0.3):
        assert_same(plugin, selection, small, (ids_by_name(7, 9), kind(value)))


def test_columns_may_be_chosen_by_an_argument():
    class Choosing(Ranker):
        def forward(self, batch, index):
            return self.embed(batch)[:, index].sum(1)

    plugin, selection, small = pruned(
        Choosing(), lambda rows=32, seed=0: (ids_by_name(rows, seed), torch.tensor([3, 9]))
    )
    for index in ([3, 9], [1, 12, 19]):
        assert_same(plugin, selection, small, (ids_by_name(7, 9), torch.tensor(index)))


HISTORIES = {
    "mean": lambda m, h, item, b: h.sum(1) / h.size(1),
    "masked": lambda m, h, item, b: (
        h * (torch.arange(h.size(1))[None] < b["length"][:, None])[..., None]
    ).sum(1),
    "attention": lambda m, h, item, b: (h * item.unsqueeze(1).expand(-1, h.size(1), -1)).sum(1),
    "longest": lambda m, h, item, b: h[:, : b["length"].max().item()].sum(1),
    "last": lambda m, h, item, b: h[:, -1],
    "gathered": lambda m, h, item, b: h.gather(
        1, (b["length"] - 1)[:, None, None].expand(-1, 1, 4)
    ).squeeze(1),
    "each": lambda m, h, item, b: sum(h.unbind(1)),
    "positions": lambda m, h, item, b: (h * m.positions[: h.size(1)]).sum(1),
}


class Reader(nn.Module):
    """A user's clicks, padded to the longest of the batch."""

    def __init__(self, pool):
        super().__init__()
        self.pool = pool
        self.item = nn.Embedding(12, 4)
        self.clicks = nn.Embedding(12, 4)
        self.positions = nn.Parameter(torch.randn(9, 4))
        self.join = nn.Identity()
        self.head = nn.Linear(12, 1)

    def forward(self, batch):
        item = self.item(batch["item"])
        history = self.pool(self, self.clicks(batch["clicks"]), item, batch)
        return self.head(self.join(torch.cat([item, history, batch["x"]], 1)))


def clicks(rows=32, seed=0, length=5):
    rng = torch.Generator().manual_seed(seed)
    return {
        "item": torch.randint(12, (rows,), generator=rng),
        "clicks": torch.randint(12, (rows, length), generator=rng),
        "length": torch.randint(1, length + 1, (rows,), generator=rng),
        "x": torch.randn(rows, 4, generator=rng),
    }


@pytest.mark.parametrize("name", HISTORIES)
@pytest.mark.parametrize("dropped", [0, 2])
def test_histories_may_have_another_length_in_every_batch(name, dropped):
    torch.manual_seed(0)
    fields = tl.Fields({"item": 4, "clicks": 4, "x": 4})
    selection = tl.Selection(fields, (0.5,) * 3, tuple(place != dropped for place in range(3)))
    plugin, selection, small = pruned(
        Reader(HISTORIES[name]), clicks, fields=fields, selection=selection
    )
    for rows, length in ((7, 5), (7, 3), (1, 8), (5, 1)):
        assert_same(plugin, selection, small, clicks(rows, 9, length))


def test_a_table_that_others_use_as_well_stays():
    class Odd(nn.Module):
        def __init__(self, table):
            super().__init__()
            self.table = table

        def forward(self, ids):
            found = self.table(ids)
            return found if float(found.sum()) > -1e9 else -found

    class Scoring(Ranker):
        def __init__(self):
            super().__init__()
            self.odd = Odd(self.tables["item"])
            self.query = nn.Linear(COLUMNS, 4)

        def forward(self, batch):
            x = self.embed(batch)
            return self.query(x) @ self.tables["user"].weight.T + self.odd(batch["city"]).sum(
                1, keepdim=True
            )

    plugin, selection, small = pruned(Scoring())
    assert FED not in str(tl.plan_of(small))
    assert selection.dropped == ("user", "item")
    assert_same(plugin, selection, small, ids_by_name(7, 9))


def test_one_huge_output_does_not_excuse_the_others():
    class Huge(Trap):
        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                h = self.head(self.fields(x))
            return h.float(), h.float().masked_fill(h > 0, float("-inf"))

    plugin, make = prepared(Huge(None, 20), at="fields", side="output")
    selection = plugin.select(share=0.6)
    small = plugin.prune(selection).eval()
    with torch.no_grad(), plugin.masked(selection):
        torch.testing.assert_close(small(make(seed=9)), plugin.model.eval()(make(seed=9)))


def test_no_gradient_flows_where_none_did():
    class Halted(Ranker):
        def __init__(self):
            super().__init__()
            self.bias = nn.Linear(COLUMNS, 1)

        def forward(self, batch):
            x = self.embed(batch)
            with torch.no_grad():
                bias = self.bias(x)
            return self.deep(x) + bias

    _, _, small = pruned(Halted())
    small.train()(ids_by_name()).sum().backward()
    assert small.bias.weight.grad is None


def test_a_frozen_layer_stays_frozen():
    model = nn.Sequential(nn.Linear(COLUMNS, 8, bias=False), nn.Linear(8, 1))
    model[0].requires_grad_(False)
    plugin, _ = prepared(model, at="0")
    small = plugin.prune(plugin.select(share=0.6))
    assert not small[0].bias.requires_grad
    assert small[1].bias.requires_grad


def test_the_batch_is_never_changed():
    fields = [tl.Field(name, WIDTH, protected=name != "user") for name in NAMES]
    plugin, make = prepared(
        nn.Sequential(nn.ReLU(inplace=True), nn.Linear(COLUMNS, 1)), fields, at="0"
    )
    small = plugin.prune(
        tl.Selection(plugin.fields, (0.1, 1, 1, 1, 1), (False, True, True, True, True))
    ).eval()
    for columns in (slice(None), slice(WIDTH, None)):
        batch = make()[:, columns].clone()
        before = batch.clone()
        small(batch)
        assert torch.equal(batch, before)


def test_the_last_of_a_history_may_be_read_from_the_ids_themselves():
    class Last(Reader):
        def forward(self, batch):
            last = self.clicks(batch["clicks"][:, -1])
            return self.head(self.join(torch.cat([self.item(batch["item"]), last, batch["x"]], 1)))

    fields = tl.Fields({"item": 4, "clicks": 4, "x": 4})
    selection = tl.Selection(fields, (0.5,) * 3, (False, True, True))
    plugin, selection, small = pruned(Last(None), clicks, fields=fields, selection=selection)
    for length in (5, 3, 8, 1):
        assert_same(plugin, selection, small, clicks(7, 9, length))


def test_trials_run_on_the_cpu_where_the_model_does_not():
    model, batch = Ranker(), (ids_by_name(7, 9),)
    assert torch.equal(run_on_cpu(model, (batch, {})), model.eval()(*batch))
