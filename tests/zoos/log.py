"""A synthetic log of clicks with known ground truth, for the models of public zoos."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

IDS = ("user", "item", "city", "shop", "brand", "ad", "device", "hour")
NUMBERS = ("price", "ctr", "age", "noise")
FIELDS = (*IDS, *NUMBERS)
USEFUL = ("item", "city", "price", "ctr")
HISTORY = "clicked"  # the last items of the user, padded with 0 at the end
LENGTH = 5
VOCABULARY = 40
ROWS = 40_000
BATCH = 200


@dataclass(frozen=True)
class Log:
    """Rows of a log.

    Attributes:
        columns: The values of each field: ids (int64) and numbers (float32), shape (rows,), and
            the history, shape (rows, LENGTH).
        clicks: The labels, float32, shape (rows,).
    """

    columns: dict[str, np.ndarray]
    clicks: np.ndarray

    def __len__(self) -> int:
        return len(self.clicks)

    def rows(self, start: int, stop: int) -> "Log":
        """Return the rows from `start` to `stop`."""
        columns = {name: values[start:stop] for name, values in self.columns.items()}
        return Log(columns, self.clicks[start:stop])

    def batches(self, size: int = BATCH) -> Iterator["Log"]:
        """Return the rows in batches, in order."""
        for start in range(0, len(self), size):
            yield self.rows(start, start + size)

    def tensors(self, names: Sequence[str] = FIELDS) -> dict[str, Tensor]:
        """Return columns as tensors, by name."""
        return {name: torch.from_numpy(self.columns[name]) for name in names}

    def labels(self) -> Tensor:
        """Return the clicks, shape (rows,)."""
        return torch.from_numpy(self.clicks)

    def buckets(self, names: Sequence[str] = FIELDS) -> Tensor:
        """Return the fields as ids, shape (rows, fields): numbers are cut into VOCABULARY steps."""
        return torch.from_numpy(np.stack([self._bucketed(name) for name in names], axis=1))

    def _bucketed(self, name: str) -> np.ndarray:
        """Return the ids of one field."""
        values = self.columns[name]
        if name in IDS:
            return values
        steps = np.linspace(-2, 2, VOCABULARY - 1)
        return np.searchsorted(steps, values).astype(np.int64)


def make_log(rows: int = ROWS, seed: int = 0) -> Log:
    """Return a log in which clicks depend on the fields in USEFUL alone.

    Args:
        rows: The number of rows.
        seed: The seed of the rows; what the clicks depend on is the same for all seeds.
    """
    truth = np.random.default_rng(20)
    effects = {name: truth.normal(0, 1.2, VOCABULARY) for name in ("item", "city")}
    rng = np.random.default_rng(seed)
    columns: dict[str, np.ndarray] = {name: rng.integers(VOCABULARY, size=rows) for name in IDS}
    for name in NUMBERS:
        columns[name] = rng.standard_normal(rows).astype(np.float32)
    log_odds = columns["price"] + columns["ctr"]
    for name, effect in effects.items():
        log_odds = log_odds + effect[columns[name]]
    clicks = rng.random(rows) < 1 / (1 + np.exp(-log_odds))
    history = rng.integers(1, VOCABULARY, size=(rows, LENGTH))
    lengths = rng.integers(1, LENGTH + 1, size=(rows, 1))
    columns[HISTORY] = np.where(np.arange(LENGTH) < lengths, history, 0)
    return Log(columns, clicks.astype(np.float32))
