"""Folds: every row is a test row once, groups stay together, and nothing is encoded again."""

import copy
import pickle
from itertools import chain

import numpy as np
import polars as pl
import pytest

import torchleap as tl
from tests.data.frames import log
from torchleap.data.folds import folds_of
from torchleap.data.rows import PARTS

ROWS = 1000


def read(rows=ROWS, **more):
    """Return a task whose column `age` identifies the row."""
    frame = log(rows).with_columns(pl.Series("age", range(rows)))
    columns = {"age": {"kind": "numeric", "scale": "none"}}
    return tl.data.read(frame, label="click", columns=columns, **more)


@pytest.fixture(scope="module")
def task():
    return read()


@pytest.fixture(scope="module")
def grouped():
    return read(group="user")


def ages(rows):
    """Return the values of the column that identifies the rows."""
    task = rows.task
    column = task.slots(ids=False)["age"]
    return rows.all().numbers[:, column].reshape(-1).round().long().tolist()


@pytest.mark.parametrize("count", [2, 5])
def test_every_row_is_a_test_row_once(task, count):
    folds = folds_of(task, count)
    tested = sorted(age for fold in folds for age in ages(fold.test))
    assert tested == list(range(ROWS))
    assert {len(fold.test) for fold in folds} == {ROWS // count}


def test_the_parts_of_a_fold_have_all_rows_and_share_none(task):
    for fold in folds_of(task, 4):
        parts = [ages(getattr(fold, part)) for part in PARTS]
        assert sorted(chain(*parts)) == list(range(ROWS))
        assert [len(part) for part in parts] == [fold.rows[part] for part in PARTS]
        assert len(parts[1]) == pytest.approx(ROWS * 0.75 / 9, abs=2)


def test_rows_of_a_fold_are_those_of_the_file(task):
    everything = {}
    for part in PARTS:
        rows = getattr(task, part)
        for place, age in enumerate(ages(rows)):
            everything[age] = (rows, place)
    fold = folds_of(task, 3)[1]
    batch = fold.valid.all()
    assert fold.valid.label.tolist() == batch.label.tolist()
    for place, age in enumerate(ages(fold.valid)):
        rows, before = everything[age]
        original = rows.all()
        assert batch.ids[place].tolist() == original.ids[before].tolist()
        assert batch.label[place] == original.label[before]


def test_batches_from_disk_are_those_from_memory(task, small_blocks):
    rows = folds_of(task, 3)[0].train
    from_disk = [batch.numbers for batch in rows.batches(64, memory=False)]
    from_memory = [batch.numbers for batch in rows.batches(64, memory=True)]
    assert all((one == other).all() for one, other in zip(from_disk, from_memory, strict=True))


def test_both_labels_are_divided_evenly(task):
    folds = folds_of(task, 5)
    positives = [int(fold.test.label.sum()) for fold in folds]
    assert max(positives) - min(positives) <= 1
    shares = [float(fold.valid.label.mean()) for fold in folds]
    assert max(shares) - min(shares) < 0.03


def test_no_group_is_in_two_parts_or_two_folds(grouped):
    folds = folds_of(grouped, 4)
    tested = [set(fold.test.group.tolist()) for fold in folds]
    assert sum(map(len, tested)) == len(set().union(*tested))
    for fold in folds:
        parts = [set(getattr(fold, part).group.tolist()) for part in PARTS]
        assert not parts[0] & parts[1]
        assert not (parts[0] | parts[1]) & parts[2]
    sizes = [len(fold.test) for fold in folds]
    assert max(sizes) < 1.5 * min(sizes)


def test_the_seed_decides_the_division(task):
    first, again, other = (folds_of(task, 3, seed=seed)[0] for seed in (1, 1, 2))
    assert ages(first.test) == ages(again.test) != ages(other.test)
    assert first.fingerprint == again.fingerprint
    assert len({task.fingerprint, first.fingerprint, other.fingerprint}) == 3


def test_a_fold_is_a_task_like_any_other(task):
    fold = folds_of(task, 3)[0]
    fewer = fold.only(["age"]).priced(costs={"age": 2.0})
    assert ages(fewer.test) == ages(fold.test)
    for other in (copy.copy(fold), copy.deepcopy(fold), pickle.loads(pickle.dumps(fold))):
        assert ages(other.test) == ages(fold.test)


def test_a_fold_can_be_divided_again(task):
    fold = folds_of(task, 2)[0]
    inner = folds_of(fold, 3)
    assert sorted(age for one in inner for age in ages(one.test)) == list(range(ROWS))


@pytest.mark.parametrize("settings", [{"split": "order"}, {"time": "time"}], ids=["order", "time"])
def test_rows_in_the_order_of_time_are_refused(settings):
    task = tl.data.read(log(200), label="click", **settings)
    split = task.roles["split"]
    with pytest.raises(tl.DataError, match=f"split by {split}: folds would train on rows that"):
        folds_of(task, 3)


@pytest.mark.parametrize("count", [1, 0, 2.5, True])
def test_fewer_than_two_folds_are_refused(task, count):
    with pytest.raises(tl.TorchleapError, match="folds must be a whole number of at least 2"):
        folds_of(task, count)


def test_more_folds_than_groups_are_refused():
    frame = log(200).with_columns(pl.Series("user", np.arange(200) % 3))
    task = tl.data.read(frame, label="click", group="user")
    with pytest.raises(tl.DataError, match=r"one group \(user\) per fold, but found 3 groups for"):
        folds_of(task, 4)


def test_more_folds_than_rows_of_the_rarer_class_are_refused():
    frame = log(200).with_columns(pl.Series("click", [1] * 4 + [0] * 196))
    task = tl.data.read(frame, label="click", split="random")
    with pytest.raises(tl.DataError, match="the rarer class has 4 rows for 5 folds. Give fewer"):
        folds_of(task, 5)


def test_a_fold_whose_rows_cannot_be_compared_is_refused():
    frame = log(200).with_columns(pl.Series("click", [1] * 4 + [0] * 196))
    task = tl.data.read(frame, label="click", split="random")
    with pytest.raises(tl.DataError, match="on fold 1 of 4: AUC needs .* Give fewer folds"):
        folds_of(task, 4)
