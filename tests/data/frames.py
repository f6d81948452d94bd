"""A small log with every kind of column, and a slow, obvious encoder to compare with."""

import numpy as np
import polars as pl


def log(rows=600, seed=0):
    dice = np.random.default_rng(seed)
    price = dice.normal(50, 10, rows)
    return pl.DataFrame(
        {
            "click": dice.integers(0, 2, rows),
            "user": [f"u{number}" for number in dice.integers(0, 40, rows)],
            "city": [None if dice.random() < 0.1 else f"c{number}" for number in dice.integers(0, 15, rows)],
            "price": [None if dice.random() < 0.2 else value for value in price],
            "age": dice.integers(18, 90, rows),
            "tags": [[f"t{tag}" for tag in dice.integers(0, 9, dice.integers(0, 5))] for _ in range(rows)],
            "vector": pl.Series(dice.normal(3, 2, (rows, 6)).astype(np.float32), dtype=pl.Array(pl.Float32, 6)),
            "time": np.arange(rows) * 10 + 1_700_000_000,
        }
    )


def ids_row_by_row(values, train, min_count):
    """0 is missing, 1 rare or unseen, then by count in the train rows and by name."""
    counts = {}
    for value in train:
        if value is not None:
            counts[value] = counts.get(value, 0) + 1
    known = sorted((value for value, count in counts.items() if count >= min_count), key=lambda value: (-counts[value], value))
    id_of = {value: 2 + place for place, value in enumerate(known)}
    return [0 if value is None else id_of.get(value, 1) for value in values]
