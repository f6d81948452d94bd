"""Tasks and settings that the tests of several methods share."""

import numpy as np
import polars as pl

import torchleap as tl
from torchleap import models
from torchleap.training.fit import Training

NOISE = ("user", "noise", "blur")  # the useless fields of small_truth(), but for its constant
TRAINING = Training(batch=128, lr=5e-3, epochs=8, patience=8)
QUICK = Training(batch=256, epochs=1)


def mixed_kinds():
    """Return a task with ids of two widths, a list, a number and a vector."""
    rng = np.random.default_rng(1)
    rows = 900
    frame = pl.DataFrame(
        {
            "click": rng.integers(0, 2, rows),
            "shop": rng.integers(0, 5, rows),
            "tags": [
                [f"tag{tag}" for tag in rng.integers(0, 6, count)]
                for count in rng.integers(0, 4, rows)
            ],
            "price": rng.normal(size=rows),
            "brand": rng.integers(0, 7, rows),
            "picture": pl.Series(
                rng.normal(size=(rows, 3)).astype(np.float32), dtype=pl.Array(pl.Float32, 3)
            ),
        }
    )
    columns = {
        "shop": {"kind": "categorical", "width": 4},
        "brand": {"kind": "categorical", "width": 2},
        "tags": {"kind": "list"},
    }
    return tl.data.read(frame, label="click", split="order", columns=columns)


def scores_of(task, method, training=TRAINING, seed=0):
    """Return the scores of a method on a small Wide & Deep model."""
    backbone = models.benchmark("wide_deep")
    return tl.search(task, model=backbone, method=method, training=training, seed=seed).scores
