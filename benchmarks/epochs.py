"""How many useless fields stay if gates learn from rows that the model has seen before.

python benchmarks/epochs.py

It prints, for several numbers of epochs on the same rows, how often each field is kept by
`plugin.learn()`, whose gates learn from the train rows, and by `plugin.trainer()` with steps on
held-out rows. Of the seven fields item, city, price and ctr matter.
"""

import argparse

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import torchleap as tl

VALUES = {"item": 40, "city": 40, "user": 2000, "shop": 200}
NUMBERS = ("price", "ctr", "noise")
FIELDS = {**dict.fromkeys(VALUES, 4), **dict.fromkeys(NUMBERS, 1)}
BATCH = 200
Batch = dict[str, Tensor]


class Ranker(nn.Module):
    """A small model with a table for each id."""

    def __init__(self) -> None:
        super().__init__()
        tables = {name: nn.Embedding(values, 4) for name, values in VALUES.items()}
        self.tables = nn.ModuleDict(tables)
        self.deep = nn.Sequential(nn.Linear(19, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, batch: Batch) -> Tensor:
        """Return the log odds, (B,)."""
        blocks = [table(batch[name]) for name, table in self.tables.items()]
        blocks += [batch[name][:, None] for name in NUMBERS]
        return self.deep(torch.cat(blocks, dim=1))[:, 0]


class Log:
    """Rows of a synthetic log with known ground truth."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.item, self.city = self.rng.normal(size=(2, 40))

    def rows(self, count: int) -> tuple[Batch, Tensor]:
        """Return a batch and its labels."""
        ids = {name: self.rng.integers(0, values, count) for name, values in VALUES.items()}
        numbers = {name: self.rng.normal(size=count) for name in NUMBERS}
        log_odds = self.item[ids["item"]] + self.city[ids["city"]]
        log_odds += numbers["price"] + numbers["ctr"]
        clicks = self.rng.random(count) < 1 / (1 + np.exp(-log_odds))
        batch = {name: torch.from_numpy(column) for name, column in ids.items()}
        batch |= {name: torch.from_numpy(column).float() for name, column in numbers.items()}
        return batch, torch.from_numpy(clicks).float()


def taken(rows: tuple[Batch, Tensor], chosen: Tensor) -> tuple[Batch, Tensor]:
    """Return some rows."""
    batch, clicks = rows
    return {name: column[chosen] for name, column in batch.items()}, clicks[chosen]


def scores(count: int, epochs: int, seed: int, by_itself: bool) -> dict[str, float]:
    """Train on the same rows for some epochs, and return the gates."""
    log = Log(seed)
    train = log.rows(count)
    held_out = log.rows(2000)
    torch.manual_seed(seed)
    model = Ranker()
    plugin = tl.attach(model, FIELDS, at="deep", seed=seed)
    optimizer = torch.optim.Adam(plugin.model_parameters(), lr=1e-2)
    steps = epochs * count // BATCH
    trainer = plugin.learn(steps=steps) if by_itself else plugin.trainer(steps=steps)

    def loss(rows: tuple[Batch, Tensor]) -> Tensor:
        return binary_cross_entropy_with_logits(model(rows[0]), rows[1])

    for _ in range(epochs):
        for chosen in torch.randperm(count).split(BATCH):
            optimizer.zero_grad()
            loss(taken(train, chosen)).backward()
            optimizer.step()
            if not by_itself:
                others = taken(held_out, torch.randint(2000, (BATCH,)))
                trainer.step(lambda others=others: loss(others))
    return plugin.scores()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, nargs="+", default=[1, 2, 5, 10])
    options = parser.parse_args()
    print(f"{options.rows:,} rows; how often each field is kept, of {options.seeds} seeds")
    print(f"{'epochs':>6}  {'gates learn from':16}  " + "  ".join(f"{n:>5}" for n in FIELDS))
    for epochs in options.epochs:
        for by_itself, rows in ((True, "train rows"), (False, "held-out rows")):
            kept = dict.fromkeys(FIELDS, 0)
            for seed in range(options.seeds):
                for name, score in scores(options.rows, epochs, seed, by_itself).items():
                    kept[name] += score >= 0.5
            cells = "  ".join(f"{count:>5}" for count in kept.values())
            print(f"{epochs:>6}  {rows:16}  {cells}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
