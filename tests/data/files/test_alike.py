"""Parts whose types differ are made alike where nothing is lost."""

import numpy as np
import polars as pl
import torch

import torchleap as tl
from tests.data.files.reading import (
    refuse,
    small,
    values_of,
)


def test_whole_numbers_with_gaps_are_the_same_categories():
    frame = small().with_columns(user_id=pl.Series(np.arange(200) % 9))
    gaps = frame.with_columns(
        pl.when(pl.col("user_id") > 3).then("user_id").cast(pl.Float64).alias("user_id")
    )
    nan = gaps.with_columns(pl.col("user_id").fill_null(float("nan")))
    task = tl.data.read(frame, label="click", valid=gaps, test=nan, group="user_id")
    known, expected = values_of(task, "user_id").flatten(), frame["user_id"].to_torch() > 3
    for part in ("valid", "test"):
        assert torch.equal(
            values_of(task, "user_id", part).flatten(), torch.where(expected, known, 0)
        )
    task = tl.data.read(
        gaps, label="click", valid=frame, test=frame, columns={"user_id": "categorical"}
    )
    assert set(values_of(task, "user_id", "valid").flatten().tolist()) == {1, *range(2, 7)}


def test_csv_and_parquet_can_be_parts_of_one_task(tmp_path):
    frame = small().with_columns(
        user_id=pl.Series(np.arange(200) % 9), yes=pl.Series([1.5, None] * 100)
    )
    frame.write_csv(tmp_path / "log.csv")
    frame.write_parquet(tmp_path / "log.parquet")
    for first, second in (("csv", "parquet"), ("parquet", "csv")):
        task = tl.data.read(
            tmp_path / f"log.{first}",
            valid=tmp_path / f"log.{second}",
            test=frame,
            label="click",
            group="user_id",
        )
        for part in ("valid", "test"):
            ours, theirs = task.train.all(), getattr(task, part).all()
            assert torch.equal(ours.ids, theirs.ids)
            assert torch.allclose(ours.numbers, theirs.numbers)
            assert torch.equal(ours.label, theirs.label)
            assert torch.equal(ours.group, theirs.group)


def test_times_of_another_unit_and_lists_of_another_number_are_the_same():
    moments = pl.datetime_range(
        pl.datetime(2024, 1, 1), pl.datetime(2024, 1, 9), "1h", time_unit="us", eager=True
    )[:150]
    frame = pl.DataFrame({"click": [0, 1] * 75, "t": moments, "l": [[1, 2], [3]] * 75})
    other = frame.with_columns(
        pl.col("t").cast(pl.Datetime("ns")), pl.col("l").cast(pl.List(pl.Float64))
    )
    task = tl.data.read(
        frame, label="click", valid=other, test=frame.with_columns(pl.lit(None).alias("l"))
    )
    assert torch.equal(task.train.all().numbers, task.valid.all().numbers)
    assert torch.equal(task.train.all().ids, task.valid.all().ids)
    assert not values_of(task, "l", "test").any()


def test_types_that_have_nothing_in_common_are_refused():
    frame = small()
    lists = frame.with_columns(a=pl.Series([["a"]] * 200))
    refuse(
        r"column 'a' holds List\(String\), but String in the train rows",
        frame,
        valid=lists,
        test=frame,
    )
    refuse(
        r"column 'a' holds String, but List\(String\) in the train rows",
        lists,
        valid=frame,
        test=lists,
    )
    truth = frame.with_columns(a=pl.lit(value=True))
    refuse("column 'a' holds Boolean, but String in the train rows", frame, valid=truth, test=frame)
    numbers = frame.with_columns(a=pl.Series([[1.5]] * 200))
    refuse(
        r"column 'a' holds List\(Float64\), but List\(String\) in the train rows",
        lists,
        valid=numbers,
        test=lists,
    )
