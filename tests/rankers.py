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
