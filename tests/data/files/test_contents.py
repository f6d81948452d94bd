"""Contents: a row has the same hash in every split of a file, whatever the encoding learns."""

import numpy as np
import polars as pl
import pytest

import torchleap as tl

from ...pipeline.test_decide import COLUMNS, rows


def made(count=400):
    """Rows with every kind of column, all different."""
    rng = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "click": rng.integers(0, 2, count),
            "place": [f"p{number}" for number in range(count)],
            "count": rng.integers(0, 3, count).astype(float),
            "hashed": [f"h{number % 9}" for number in range(count)],
            "tags": [[f"t{n % 5}", f"t{n % 7}"][: n % 3] for n in range(count)],
            "vector": rng.normal(size=(count, 2)).tolist(),
            "day": pl.Series(np.arange(count)).cast(pl.Date),
        }
    )


KINDS = {"hashed": tl.data.Column("hashed", "categorical", buckets=100_000), "tags": "list"}


def all_contents(task):
    return np.concatenate([task.train.contents, task.valid.contents, task.test.contents])


def test_every_split_of_a_frame_has_the_same_contents():
    one, other = (tl.data.read(made(), label="click", columns=KINDS, seed=n) for n in (0, 1))
    assert len(np.unique(all_contents(one))) == 400
    assert np.array_equal(np.sort(all_contents(one)), np.sort(all_contents(other)))
    assert not np.array_equal(one.test.contents, other.test.contents)


def test_another_order_of_rows_and_columns_has_the_same_contents():
    frame = made()
    mixed = frame.sample(fraction=1.0, shuffle=True, seed=3).select(reversed(frame.columns))
    one, other = (tl.data.read(each, label="click", columns=KINDS) for each in (frame, mixed))
    assert np.array_equal(np.sort(all_contents(one)), np.sort(all_contents(other)))


@pytest.mark.parametrize("name", ["click", "place", "count", "hashed", "tags", "vector", "day"])
def test_a_change_of_any_value_changes_the_contents(name):
    frame = made()
    changed = frame.with_columns(frame[name].gather(np.roll(np.arange(400), 1)))
    before, after = (
        tl.data.read(each, label="click", columns=KINDS, split="order") for each in (frame, changed)
    )
    moved = (frame[name] != changed[name]).to_numpy()
    assert ((all_contents(before) != all_contents(after)) == moved).all()


def test_small_whole_numbers_as_fractions_do_not_collide():
    grid = np.stack(np.meshgrid(*[np.arange(8.0)] * 4), -1).reshape(-1, 4)
    columns = {f"n{place}": grid[:, place] for place in range(4)}
    frame = pl.DataFrame({"click": np.arange(len(grid)) % 2, **columns})
    task = tl.data.read(frame, label="click", columns=dict.fromkeys(columns, "numeric"))
    assert len(np.unique(all_contents(task))) == len(grid)


def test_fewer_columns_of_a_task_keep_its_contents_and_data_of_earlier_versions_has_none():
    task = tl.data.read(rows(600), label="click", columns=COLUMNS)
    assert np.array_equal(task.only(["item"]).test.contents, task.test.contents)
    files = {name: sizes for name, sizes in task.files.items() if name != "rows.bin"}
    earlier = tl.data.Task(task.folder, task.columns, task.rows, task.roles, task.keep, files=files)
    assert earlier.test.contents is None
    assert earlier.seen is None
