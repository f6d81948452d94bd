"""Models, batches and comparisons that the tests of surgery share."""

import torch
from torch import nn

import torchleap as tl
from tests.architectures import FIELDS, NAMES, WIDTH, ids_by_name

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


FED = "constants are fed instead (exact)"


class Ranker(nn.Module):
    """Tables by name; what is done with the embeddings is up to the test."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.Embedding(12, WIDTH) for name in NAMES})
        self.join = nn.Identity()
        self.deep = nn.Sequential(nn.Linear(COLUMNS, 8), nn.ReLU(), nn.Linear(8, 1))

    def embed(self, batch):
        return self.join(torch.cat([self.tables[name](batch[name]) for name in NAMES], 1))

    def forward(self, batch):
        return self.deep(self.embed(batch))


def pruned(
    model, make=ids_by_name, at="join", side="output", fields=None, selection=None, **settings
):
    plugin = tl.attach(model, fields or FIELDS, at=at, side=side)
    for step in range(3):
        model.train()(*make(32, step)) if isinstance(make(), tuple) else model.train()(
            make(32, step)
        )
    with torch.no_grad():
        plugin.gates.theta.copy_(torch.linspace(-0.3, 1.0, len(plugin.gates.theta)))
    selection = selection or plugin.select(share=0.6)
    return plugin, selection, plugin.prune(selection, **settings).eval()


def removed(small):
    """The layers that are gone."""
    return [cut.path for cut in tl.plan_of(small).cuts if cut.after == "removed"]


def assert_same(plugin, selection, small, batch):
    batch = batch if isinstance(batch, tuple) else (batch,)
    with torch.no_grad(), plugin.masked(selection):
        expected = plugin.model.eval()(*batch)
    torch.testing.assert_close(small(*batch), expected, rtol=1e-5, atol=1e-5)


def exact_or_refused(plugin, selection, small, batch):
    """The promise. Returns whether the batch was refused."""
    batch = batch if isinstance(batch, tuple) else (batch,)
    with torch.no_grad(), plugin.masked(selection):
        expected = plugin.model.eval()(*batch)
    try:
        found = small(*batch)
    except tl.FieldError as error:
        assert "Expected" in str(error)
        assert "found" in str(error) or "in the example" in str(error) or "missing" in str(error)
        return True
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    return False


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


SEQUENCE_FIELDS = tl.Fields({"item": 4, "history": 4, "x": 4})


class Sequence(nn.Module):
    """Tables of an item and of histories; how these are pooled is up to the test."""

    def __init__(self, pool):
        super().__init__()
        self.pool = pool
        self.item = nn.Embedding(12, 4)
        self.history = nn.Embedding(12, 4)
        self.wide = nn.Linear(12, 4, bias=False)
        self.join = nn.Identity()
        self.head = nn.Linear(12, 1)

    def forward(self, batch):
        pooled = self.pool(self, self.history(batch["history"]), batch)
        return self.head(self.join(torch.cat([self.item(batch["item"]), pooled, batch["x"]], 1)))


def sequences(rows=32, seed=0, length=5, **others):
    rng = torch.Generator().manual_seed(seed)
    batch = {
        "item": torch.randint(12, (rows,), generator=rng),
        "history": torch.randint(12, (rows, length), generator=rng),
        "length": torch.randint(1, length + 1, (rows,), generator=rng),
        "x": torch.randn(rows, 4, generator=rng),
    }
    return batch | {name: make(rows, length, rng) for name, make in others.items()}


def mean_of(vectors):
    return vectors.sum(1) / vectors.size(1)
