"""A small log with every kind of column, an obvious encoder, and a set with known truth."""

import numpy as np
import polars as pl

import torchleap as tl


def log(rows=600, seed=0):
    rng = np.random.default_rng(seed)
    price = rng.normal(50, 10, rows)
    return pl.DataFrame(
        {
            "click": rng.integers(0, 2, rows),
            "user": [f"u{number}" for number in rng.integers(0, 40, rows)],
            "city": [
                None if rng.random() < 0.1 else f"c{number}" for number in rng.integers(0, 15, rows)
            ],
            "price": [None if rng.random() < 0.2 else value for value in price],
            "age": rng.integers(18, 90, rows),
            "tags": [
                [f"t{tag}" for tag in rng.integers(0, 9, rng.integers(0, 5))] for _ in range(rows)
            ],
            "vector": pl.Series(
                rng.normal(3, 2, (rows, 6)).astype(np.float32), dtype=pl.Array(pl.Float32, 6)
            ),
            "time": np.arange(rows) * 10 + 1_700_000_000,
        }
    )


def ids_row_by_row(values, train, min_count):
    """0 is missing, 1 rare or unseen, then by count in the train rows and by name."""
    counts = {}
    for value in train:
        if value is not None:
            counts[value] = counts.get(value, 0) + 1
    known = sorted(
        (value for value, count in counts.items() if count >= min_count),
        key=lambda value: (-counts[value], value),
    )
    id_of = {value: 2 + place for place, value in enumerate(known)}
    return [0 if value is None else id_of.get(value, 1) for value in values]


USEFUL = ("item", "price", "taste")  # of the set below


def small_truth():
    """An id, a number and a vector matter; another of each does not; one number is constant."""
    rng, rows = np.random.default_rng(0), 6000
    item, user = rng.integers(0, 20, rows), rng.integers(0, 20, rows)
    price, noise = rng.normal(size=rows), rng.normal(size=rows)
    taste, blur = (rng.normal(size=(rows, 6)).astype(np.float32) for _ in range(2))
    chance = 1 / (
        1 + np.exp(-(2 * np.sin(3 * item) + 1.5 * price + taste @ np.array([1, -1, 0.5, 0, 0, 0])))
    )
    vector = pl.Array(pl.Float32, 6)
    frame = pl.DataFrame(
        {
            "click": (rng.random(rows) < chance).astype(int),
            "item": item,
            "user": user,
            "price": price,
            "noise": noise,
            "taste": pl.Series(taste, dtype=vector),
            "blur": pl.Series(blur, dtype=vector),
            "constant": np.ones(rows),
        }
    )
    ids = {"kind": "categorical", "width": 4}
    return tl.data.read(frame, label="click", split="order", columns={"item": ids, "user": ids})
