"""The ranking models that people have, each on half a page, written as they are usually written."""

import itertools

import torch
from torch import nn
from torch.nn import functional

NAMES = ("user", "item", "city", "shop", "hour")
IDS = 12
WIDTH = 4
FIELDS = dict.fromkeys(NAMES, WIDTH)


def ids(rows=32, seed=0):
    return torch.randint(IDS, (rows, len(NAMES)), generator=torch.Generator().manual_seed(seed))


def ids_by_name(rows=32, seed=0):
    return dict(zip(NAMES, ids(rows, seed).unbind(1), strict=True))


class WideAndDeep(nn.Module):
    """A table a field, read by name; a wide and a deep branch on the concatenation."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.Embedding(IDS, WIDTH) for name in NAMES})
        self.join = nn.Identity()
        self.wide = nn.Linear(len(NAMES) * WIDTH, 1, bias=False)
        self.deep = nn.Sequential(
            nn.Linear(len(NAMES) * WIDTH, 16),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(16, 1),
        )

    def forward(self, batch):
        x = self.join(
            torch.cat([table(batch[name]) for name, table in self.tables.items()], dim=-1)
        )
        return torch.sigmoid(self.wide(x) + self.deep(x)).squeeze(-1)


class DeepFM(nn.Module):
    """One table for all fields, with offsets; second-order products by the square of the sum."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(IDS * len(NAMES), WIDTH)
        self.register_buffer("offsets", torch.arange(len(NAMES)) * IDS)
        self.deep = nn.Sequential(nn.Linear(len(NAMES) * WIDTH, 16), nn.ReLU(), nn.Linear(16, 1))
        self.first = nn.Linear(len(NAMES) * WIDTH, 1)

    def forward(self, x):
        x = self.table(x + self.offsets)  # (B, F, E)
        flat = x.view(x.size(0), -1)
        pairs = 0.5 * (x.sum(dim=1).pow(2) - x.pow(2).sum(dim=1)).sum(1, keepdim=True)
        return self.first(flat) + pairs + self.deep(flat)


class CrossNet(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])

    def forward(self, x0):
        x = x0
        for layer in self.layers:
            x = x0 * layer(x) + x
        return x


class DCNv2(nn.Module):
    """A cross network beside a deep one."""

    def __init__(self):
        super().__init__()
        width = len(NAMES) * WIDTH
        self.tables = nn.ModuleList([nn.Embedding(IDS, WIDTH) for _ in NAMES])
        self.norm = nn.BatchNorm1d(width)
        self.cross = CrossNet(width, 2)
        self.deep = nn.Sequential(nn.Linear(width, 16), nn.ReLU())
        self.head = nn.Linear(width + 16, 1)

    def forward(self, x):
        x = self.norm(torch.cat([table(x[:, i]) for i, table in enumerate(self.tables)], 1))
        return self.head(torch.cat([self.cross(x), self.deep(x)], dim=1))


class FiBiNET(nn.Module):
    """Squeeze and excitation over the fields, and a bilinear product of each pair."""

    def __init__(self):
        super().__init__()
        count = len(NAMES)
        self.table = nn.Embedding(IDS * count, WIDTH)
        self.register_buffer("offsets", torch.arange(count) * IDS)
        self.excite = nn.Sequential(
            nn.Linear(count, 3), nn.ReLU(), nn.Linear(3, count), nn.Sigmoid()
        )
        self.products = nn.ModuleList([nn.Linear(WIDTH, WIDTH, bias=False) for _ in NAMES])
        pairs = count * (count - 1) // 2
        self.head = nn.Sequential(nn.Linear(2 * pairs * WIDTH, 16), nn.ReLU(), nn.Linear(16, 1))

    def pairs(self, x):
        chosen = itertools.combinations(range(len(NAMES)), 2)
        return torch.cat([self.products[i](x[:, i]) * x[:, j] for i, j in chosen], dim=1)

    def forward(self, x):
        x = self.table(x + self.offsets)
        weighted = x * self.excite(x.mean(dim=-1)).unsqueeze(-1)
        return self.head(torch.cat([self.pairs(x), self.pairs(weighted)], dim=1))


class FieldTransformer(nn.Module):
    """Attention over the fields."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(IDS, 8) for _ in NAMES])
        self.tokens = nn.Identity()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8 * len(NAMES), 1)

    def forward(self, x):
        tokens = self.tokens(
            torch.stack([table(x[:, i]) for i, table in enumerate(self.tables)], dim=1)
        )
        return self.head(self.encoder(tokens).flatten(1))


class NormMLP(nn.Sequential):
    """Columns as they are, BatchNorm first."""

    def __init__(self):
        width = len(NAMES) * WIDTH
        super().__init__(
            nn.BatchNorm1d(width),
            nn.Linear(width, 16),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(16, 1),
        )


class Functional(nn.Module):
    """No layers but tables: parameters, and functions of torch."""

    def __init__(self):
        super().__init__()
        width = len(NAMES) * WIDTH
        self.tables = nn.ModuleList([nn.EmbeddingBag(IDS, WIDTH, mode="sum") for _ in NAMES])
        self.join = nn.Identity()
        self.scale = nn.Parameter(torch.rand(width) + 0.5)
        self.first = nn.Parameter(torch.randn(width, 6) * 0.3)
        self.second = nn.Parameter(torch.randn(1, 6))
        self.bias = nn.Parameter(torch.randn(1))

    def forward(self, x):
        pooled = [table(x[:, i : i + 1]) for i, table in enumerate(self.tables)]
        x = functional.dropout(self.join(torch.cat(pooled, 1)) * self.scale, 0.1, self.training)
        return functional.linear(torch.tanh(x @ self.first), self.second, self.bias)


ARCHITECTURES = {  # the model, where its fields pass, and the width of a field
    "wide_deep": (WideAndDeep, {"at": "join", "side": "output"}, ids_by_name),
    "deepfm": (DeepFM, {"at": "table", "side": "output"}, ids),
    "dcn": (DCNv2, {"at": "norm", "side": "input"}, ids),
    "fibinet": (FiBiNET, {"at": "table", "side": "output"}, ids),
    "transformer": (FieldTransformer, {"at": "tokens", "side": "output"}, ids),
    "mlp": (
        NormMLP,
        {"at": "", "side": "input"},
        lambda rows=32, seed=0: torch.randn(rows, len(NAMES) * WIDTH),
    ),
    "functional": (Functional, {"at": "join", "side": "output"}, ids),
}


def attached(name, dtype=torch.float32, **settings):
    """Return an attached model in training, its plug-in, and a function that draws batches."""
    import torchleap as tl

    torch.manual_seed(0)
    build, place, batch = ARCHITECTURES[name]
    fields = dict.fromkeys(NAMES, 8) if build is FieldTransformer else FIELDS
    make = batch if build is not NormMLP else lambda rows=32, seed=0: batch(rows, seed).to(dtype)
    model = build().to(dtype)
    for parameter in model.parameters():
        parameter.data += 0.2  # means far from 0
    plugin = tl.attach(model, fields, **place, **settings)
    for step in range(3):
        model.train()(make(seed=step))
    with torch.no_grad():
        plugin.gates.theta.copy_(torch.linspace(-0.3, 1.0, len(plugin.gates.theta)))
    return model, plugin, make
