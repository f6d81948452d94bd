"""Small models of the kinds that users have, and a loop that trains them."""

import torch
from torch import nn
from torch.nn import functional

FIELDS = {"user_id": 4, "age": 1, "clicks": 3}


def mlp():
    return nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1)
    )


class WideAndDeep(nn.Module):
    """One concatenation, read by two branches."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(10, width) for width in FIELDS.values()])
        self.wide = nn.Linear(8, 1)
        self.deep = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, ids):
        x = torch.cat([table(ids[:, i]) for i, table in enumerate(self.tables)], dim=1)
        return self.wide(x) + self.deep(x)


class TwoTowers(nn.Module):
    """Two inputs, each with columns of its own."""

    def __init__(self):
        super().__init__()
        self.user = nn.Linear(5, 4)
        self.item = nn.Linear(3, 4)

    def forward(self, x):
        return (self.user(x[:, :5]) * self.item(x[:, 5:])).sum(1, keepdim=True)


class ByName(nn.Module):
    """Reads a dict of fields."""

    def __init__(self):
        super().__init__()
        self.tower = Tower()

    def forward(self, batch):
        return self.tower(batch)


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 1)

    def forward(self, batch):
        return self.linear(
            torch.cat([batch["user_id"], batch["age"].reshape(-1, 1), batch["clicks"]], 1)
        )


def batch_by_name(rows=16):
    return {
        "user_id": torch.randn(rows, 4),
        "age": torch.randn(rows),
        "id": torch.arange(rows),
        "clicks": torch.randn(rows, 3),
    }


def train(model, plugin, steps=60, lr=2e-2, make=lambda: torch.randn(32, 8)):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(steps):
        x = make()
        optimizer.zero_grad()
        (functional.mse_loss(model(x)[:, 0], x[:, 4]) + plugin.penalty()).backward()
        optimizer.step()


class Record(nn.Module):
    """Keeps what it is called with, and every place that can be a site."""

    def __init__(self):
        super().__init__()
        self.first = nn.Identity()
        self.second = nn.Identity()

    def forward(self, x):
        return self.second(self.first(x))


class FactorizationMachine(nn.Module):
    """The form of torchfm's DeepFM: one table for all fields, and another for the linear part."""

    def __init__(self, fields=4, width=4, vocabulary=10):
        super().__init__()
        self.table = nn.Embedding(fields * vocabulary, width)
        self.linear = nn.Embedding(fields * vocabulary, 1)
        self.deep = nn.Sequential(nn.Linear(fields * width, 16), nn.ReLU(), nn.Linear(16, 1))
        self.register_buffer("offset", torch.arange(fields) * vocabulary)
        nn.init.xavier_uniform_(self.table.weight)

    def forward(self, ids):
        ids = ids + self.offset
        embedded = self.table(ids)  # (B, F, E)
        pairs = embedded.sum(1).square() - embedded.square().sum(1)
        parts = self.linear(ids).sum(1) + 0.5 * pairs.sum(1, keepdim=True)
        return parts + self.deep(embedded.flatten(1))


class Lookup(nn.Module):
    """The form of torch-rechub's EmbeddingLayer: called with the features that are wanted."""

    def __init__(self, names, width=3):
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.Embedding(10, width) for name in names})

    def forward(self, batch, names, numbers=()):
        found = [self.tables[name](batch[name]) for name in names]
        return torch.cat([*found, *[batch[name][:, None] for name in numbers]], dim=1)


class CalledTwice(nn.Module):
    """The form of torch-rechub's WideDeep: one lookup, called for each branch."""

    def __init__(self, wide=("user",), deep=("user", "item"), numbers=("age",)):
        super().__init__()
        self.lookup = Lookup(sorted({*wide, *deep}))
        self.branches = (tuple(wide), tuple(deep), tuple(numbers))
        self.wide = nn.Linear(3 * len(wide), 1)
        self.deep = nn.Sequential(nn.Linear(3 * len(deep) + len(numbers), 8), nn.ReLU())
        self.end = nn.Linear(8, 1)

    def forward(self, batch):
        wide, deep, numbers = self.branches
        linear = self.wide(self.lookup(batch, wide))
        return linear + self.end(self.deep(self.lookup(batch, deep, numbers)))


def ids_by_name(rows=16):
    return {
        "user": torch.randint(10, (rows,)),
        "item": torch.randint(10, (rows,)),
        "age": torch.randn(rows),
    }


class Encoders(nn.Module):
    """The form of pytorch-frame: an encoder that returns a tensor and the names of its columns."""

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 4))

        def forward(self, x):
            return x[:, :, None] * self.weight, ["a", "b", "c"]

    def __init__(self):
        super().__init__()
        self.encoder = self.Encoder()
        self.end = nn.Linear(12, 1)

    def forward(self, x):
        encoded, _ = self.encoder(x)
        return self.end(encoded.flatten(1))


class PerField(nn.Module):
    """The form of DeepCTR: a list of one tensor per field, and a linear part of scalars."""

    class Tables(nn.Module):
        def __init__(self, widths):
            super().__init__()
            self.tables = nn.ModuleList([nn.Embedding(10, width) for width in widths])

        def forward(self, ids):
            return [table(ids[:, place])[:, None] for place, table in enumerate(self.tables)]

    def __init__(self, widths=(4, 2)):
        super().__init__()
        self.embedding = self.Tables(widths)
        self.linear = self.Tables([1] * len(widths))
        self.deep = nn.Linear(sum(widths), 1)

    def forward(self, ids):
        deep = torch.cat(self.embedding(ids), dim=2).flatten(1)
        linear = torch.cat(self.linear(ids), dim=2).sum(2)
        return self.deep(deep) + linear
