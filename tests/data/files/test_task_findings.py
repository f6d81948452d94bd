"""Findings about a task: leaks in its train rows, and test rows that are copies of these."""

import numpy as np
import polars as pl
import pytest

import torchleap as tl
from torchleap.data.files.task_findings import copied_rows, task_findings
from torchleap.data.rows import Rows


def frame(rows=2_000, seed=0):
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 2, rows)
    return pl.DataFrame(
        {
            "price": rng.normal(size=rows),
            "item": [f"i{one}" for one in rng.integers(0, 30, rows)],
            "tags": [["a", "b"] if one else ["c"] for one in rng.integers(0, 2, rows)],
            "click": label,
        }
    )


def read(rows, **settings):
    return tl.data.read(rows, label="click", split="order", **settings)


def kinds(task):
    return [(one.kind, one.column) for one in task_findings(task)]


def test_ordinary_rows_have_no_findings():
    assert task_findings(read(frame())) == ()
    assert copied_rows(read(frame())) == ()


@pytest.mark.parametrize("leak", ["number", "words"])
def test_a_column_that_predicts_the_label_is_a_leak(leak):
    rows = frame()
    paid = pl.col("click") + 0.01 * pl.col("price")
    if leak == "words":
        paid = pl.when(pl.col("click") == 1).then(pl.lit("yes")).otherwise(pl.lit("no"))
    task = read(rows.with_columns(paid=paid))
    assert kinds(task) == [("leak", "paid")]


def test_columns_are_compared_as_a_model_sees_them():
    rows = frame().with_columns(again=3 * pl.col("price") + 1, same=pl.lit("x"))
    found = kinds(read(rows, columns={"same": "categorical"}))
    assert ("constant", "same") in found


def test_test_rows_are_not_read_for_leaks(monkeypatch):
    task = read(frame())
    read_map = Rows._map

    def refuse(rows, *more):
        assert rows.part == "train"
        return read_map(rows, *more)

    monkeypatch.setattr(Rows, "_map", refuse)
    assert task_findings(task) == ()


def test_train_rows_of_one_class_are_not_inspected():
    rows = frame().with_columns(click=pl.Series([0] * 1_590 + [1] * 410))
    task = read(rows)
    few = tl.data.task.Task(**{**vars(task), "rows": {"train": 1_590, "valid": 210, "test": 200}})
    assert task_findings(few) == ()


def test_a_label_with_the_name_of_a_field_is_distinguished():
    task = read(frame().rename({"price": "other"}))
    task.roles["label"] = "other"
    assert task_findings(task) == ()


def test_another_objective_is_not_inspected(monkeypatch):
    task = read(frame().with_columns(paid=pl.col("click") * 1.0))
    assert kinds(task) == [("leak", "paid")]
    monkeypatch.setattr("torchleap.data.files.task_findings.DEFAULT_OBJECTIVE", "other")
    assert task_findings(task) == ()


def test_copies_of_train_rows_among_the_test_rows_are_counted(monkeypatch):
    rows = frame()
    copied = pl.concat([rows.head(1_880), rows.head(120)])
    monkeypatch.setattr("torchleap.data.files.task_findings.HASHED", 100)
    (found,) = copied_rows(read(copied))
    assert (found.kind, found.column) == ("copies", None)
    assert found.text == "120 of 200 test rows equal a train row in every column"
    assert "remove them" in found.cure
    other_label = copied.with_columns(
        click=pl.when(pl.int_range(2_000) < 1_880).then("click").otherwise(1 - pl.col("click"))
    )
    assert copied_rows(read(other_label)) == ()


def test_a_few_copies_are_not_reported():
    rows = frame()
    assert copied_rows(read(pl.concat([rows.head(1_993), rows.head(7)]))) == ()


def test_rows_of_a_few_narrow_columns_are_equal_by_chance():
    assert copied_rows(read(frame().select("item", "click"))) == ()
