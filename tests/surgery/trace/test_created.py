"""Layers that forward() creates itself: plan() always ends, and the pruned model is exact."""

import pytest
import torch
from torch import nn

import torchleap as tl
from tests.architectures import ids_by_name
from tests.surgery.helpers import FED, Ranker, assert_same, pruned
from tests.surgery.test_traps import clicks


class Activated(Ranker):
    def forward(self, batch):
        return self.deep(nn.ReLU()(self.embed(batch)))


class Normed(Ranker):
    def forward(self, batch):
        return self.deep(nn.LayerNorm(20)(self.embed(batch)))


class Pooling(nn.Module):
    """A layer without weights that calls another one that it creates."""

    def forward(self, x, mask):
        weight = nn.Softmax(dim=1)(x.sum(2).masked_fill(~mask, -1e9))
        return (x * weight.unsqueeze(2)).sum(1)


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(12, 4)
        self.clicks = nn.Embedding(12, 4)
        self.join = nn.Identity()
        self.head = nn.Linear(12, 1)

    def forward(self, batch):
        pooled = Pooling()(self.clicks(batch["clicks"]), batch["clicks"] != 0)
        return self.head(self.join(torch.cat([self.item(batch["item"]), pooled, batch["x"]], 1)))


class Unlisted(Ranker):
    """It keeps a layer where nn.Module does not see it."""

    def __init__(self):
        super().__init__()
        self.hidden = [nn.Linear(20, 20)]

    def forward(self, batch):
        return self.deep(self.hidden[0](self.embed(batch)))


class Failing(nn.Module):
    def forward(self, x):
        return x if x.sum() > -1e9 else -x


class Deciding(Ranker):
    def forward(self, batch):
        return self.deep(Failing()(self.embed(batch)))


@pytest.mark.parametrize("kind", [Activated, Normed, Unlisted, Deciding])
def test_a_layer_that_forward_creates_is_a_function_if_it_has_no_weights(kind):
    torch.manual_seed(0)
    plugin, selection, small = pruned(kind())
    assert (FED in str(tl.plan_of(small))) == (kind is not Activated)
    for rows in (7, 1, 50):
        assert_same(plugin, selection, small, ids_by_name(rows, 9))


@pytest.mark.parametrize("dropped", [0, 1])
def test_histories_are_pooled_by_a_layer_that_forward_creates(dropped):
    torch.manual_seed(0)
    fields = tl.Fields({"item": 4, "clicks": 4, "x": 4})
    selection = tl.Selection(fields, (0.5,) * 3, tuple(place != dropped for place in range(3)))
    plugin, selection, small = pruned(Pooled(), clicks, fields=fields, selection=selection)
    assert FED not in str(tl.plan_of(small))
    for rows, length in ((7, 5), (7, 3), (1, 8)):
        assert_same(plugin, selection, small, clicks(rows, 9, length))


def test_weights_that_forward_draws_are_refused():
    class Drawing(Ranker):
        def forward(self, batch):
            return self.deep(nn.Linear(20, 20)(self.embed(batch)))

    with pytest.raises(tl.SurgeryError, match="Is the model deterministic"):
        pruned(Drawing())


def sequence_model(name):
    """DIN, and DCN on pooled sequences, of torch-rechub."""
    features = pytest.importorskip("torch_rechub.basic.features")
    ranking = pytest.importorskip("torch_rechub.models.ranking")
    user = features.SparseFeature("user", 20, 4)
    item = features.SparseFeature("item", 20, 4)
    layers = {"dims": [8], "dropout": 0.0}
    if name == "DIN":
        history = features.SequenceFeature("history", 20, 4, pooling="concat", shared_with="item")
        model = ranking.DIN([user], [history], [item], layers, {"dims": [8], "activation": "dice"})
        return model, {"history": 4, "item": 4, "user": 4}
    pooled = features.SequenceFeature("history", 20, 4, pooling="mean")
    model = ranking.DCN([user, item, pooled], n_cross_layers=2, mlp_params=layers)
    return model, {"user": 4, "item": 4, "history": 4}


@pytest.mark.parametrize("name", ["DIN", "DCN"])
def test_sequence_models_of_a_public_zoo_are_pruned(name):
    torch.manual_seed(0)
    model, widths = sequence_model(name)

    def make(rows=32, seed=0, length=6):
        rng = torch.Generator().manual_seed(seed)
        batch = {field: torch.randint(20, (rows,), generator=rng) for field in ("user", "item")}
        return batch | {"history": torch.randint(20, (rows, length), generator=rng)}

    fields = tl.Fields(widths)
    selection = tl.Selection(fields, (0.9,) * 3, tuple(field != "user" for field in widths))
    at, side = ("mlp", "input") if name == "DIN" else ("embedding", "output")
    plugin, selection, small = pruned(
        model, make, at=at, side=side, fields=fields, selection=selection
    )
    assert FED not in str(tl.plan_of(small))
    for rows, length in ((7, 6), (50, 3), (2, 9)):
        assert_same(plugin, selection, small, make(rows, 9, length))
