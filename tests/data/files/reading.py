"""What the tests of reading have in common."""

import numpy as np
import polars as pl
import pytest
import torch

import torchleap as tl

RAW = {"kind": "numeric", "scale": "none"}


def values_of(task, name, part="train"):
    rows = getattr(task, part).all()
    column = task.columns[task.fields.index(name)]
    return (rows.ids if column.is_ids else rows.numbers)[:, task.slots(ids=column.is_ids)[name]]


def in_order(frame, **settings):
    return tl.data.read(frame, label="click", split="order", **settings)


def refuse(message, data, **settings):
    with pytest.raises(tl.DataError, match=message) as caught:
        tl.data.read(data, **{"label": "click", **settings})
    assert "\n" not in str(caught.value)


def small(rows=200):
    rng = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "click": np.arange(rows) % 2,
            "a": [f"c{i % 7}" for i in range(rows)],
            "x": rng.normal(size=rows),
        }
    )


def every(task, name):
    return torch.cat(
        [values_of(task, name, part) for part in ("train", "valid", "test") if task.rows[part]]
    )


def from_text(folder, text, **settings):
    (folder / "log.csv").write_text(text)
    return tl.data.read(
        folder / "log.csv",
        **{"label": "click", "split": "order", "shares": (1, 0, 0), "min_count": 1, **settings},
    )


def words(task, name):
    known = [None, "?", *task.vocabulary(name)]
    return [known[row[0]] for row in every(task, name).tolist()]


FRAME = pl.DataFrame(
    {
        "click": [0, 1] * 300,
        "x": [float(n) for n in range(600)],
        "s": [f"c{n % 7}" for n in range(600)],
    }
)


def refuse_everywhere(path, message):
    for way in (
        lambda: tl.data.read(path, label="click", cache=path.parent / "cache"),
        lambda: tl.data.inspect(path, label="click"),
        lambda: tl.data.convert(path, path.parent / "new.parquet", overwrite=True),
    ):
        with pytest.raises(tl.DataError, match=message) as found:
            way()
        assert str(found.value).isprintable()
    assert not (path.parent / "new.parquet").exists()
