"""Paths, folders and patterns are opened as sources, and frames that can be."""

import numpy as np
import polars as pl
import pytest

from tests.data.files.reading import (
    RAW,
    every,
    in_order,
    refuse,
    small,
)


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_folder_can_be_read_again_although_our_cache_lies_in_it(tmp_path, ending):
    for number in range(2):
        part = small()[number * 100 : number * 100 + 100]
        (part.write_parquet if ending == "parquet" else part.write_csv)(
            tmp_path / f"{number}.{ending}"
        )
    (tmp_path / "_old").mkdir()
    small().write_parquet(tmp_path / "_old" / f"x.{ending}")
    for settings in (
        {},
        {},
        {"min_count": 3},
        {"cache": tmp_path / "kept"},
        {"cache": tmp_path / "kept", "min_count": 1},
    ):
        assert sum(in_order(tmp_path, **settings).rows.values()) == 200
        assert sum(in_order(tmp_path / "**" / f"*.{ending}", **settings).rows.values()) == 200


def test_a_pattern_can_ask_for_hidden_files(tmp_path):
    small().write_csv(tmp_path / "_part.csv")
    assert len(in_order(tmp_path / "_*.csv").train) == 160


def test_brackets_in_the_name_of_a_file_are_not_a_pattern(tmp_path):
    small().write_csv(tmp_path / "data1.csv")
    for ending, write in (
        (".csv", pl.DataFrame.write_csv),
        (".parquet", pl.DataFrame.write_parquet),
        (".arrow", pl.DataFrame.write_ipc),
    ):
        write(small(20), tmp_path / f"data[1]{ending}")
        assert len(in_order(tmp_path / f"data[1]{ending}").train) == 16


def partitioned(folder, frame, **by):
    for number, (name, value) in enumerate(by.items()):
        place = folder / f"{name[0]}={value}"
        place.mkdir(parents=True)
        frame[number * 100 : number * 100 + 100].write_parquet(place / "a.parquet")


def test_only_folders_below_the_given_one_are_partitions(tmp_path):
    inside = tmp_path / "x=3" / "run=7"
    partitioned(inside, small().drop("x"), d1=1, d2=2)
    task = in_order(inside, columns={"d": RAW})
    assert task.fields.names == ("a", "d")
    assert set(every(task, "d").flatten().tolist()) == {1.0, 2.0}
    assert in_order(inside / "d=*" / "*.parquet").fields.names == ("a", "d")
    small().write_parquet(tmp_path / "x=3" / "one.parquet")
    task = in_order(tmp_path / "x=3" / "one.parquet", columns={"x": RAW})
    assert every(task, "x")[:, 0].tolist() == pytest.approx(small()["x"].to_list())


def test_a_column_that_is_also_a_partition_is_refused(tmp_path):
    partitioned(tmp_path, small(), x1=1, x2=2)
    refuse("'x' is a column of the file and also a folder x=", tmp_path)


def test_files_that_cannot_be_found(tmp_path):
    refuse("cannot be found: Invalid pattern", tmp_path / "**.csv")
    refuse("cannot be found: File name too long", "a,b\n" * 500)


def test_a_broken_second_file_is_refused(tmp_path):
    for ending, write in (
        (".parquet", pl.DataFrame.write_parquet),
        (".arrow", pl.DataFrame.write_ipc),
    ):
        folder = tmp_path / ending[1:]
        folder.mkdir()
        write(pl.concat([small()] * 150), folder / f"0{ending}")
        (folder / f"1{ending}").write_bytes(b"garbage")
        refuse("cannot be read", folder)
    partitioned(tmp_path / "by", small(), d1=1)
    (tmp_path / "by" / "d=1" / "a.parquet").write_bytes(b"garbage")
    refuse("cannot be read", tmp_path / "by")


def test_frames_of_pandas_that_polars_cannot_hold():
    pandas = pytest.importorskip("pandas", reason="these are its frames")
    base = {"click": [0, 1] * 10, "x": np.arange(20) * 1.0}
    mixed = ([1, "a"] * 10, ["a", 1.5] * 10, [["a", 1]] * 20, np.ones(20) * 1j)
    for values in mixed:
        refuse("The frame of pandas cannot be read", pandas.DataFrame({**base, "o": values}))
    refuse(
        "cannot be read", pandas.DataFrame({**base, "o": pandas.arrays.SparseArray([0, 1.0] * 10)})
    )
    refuse("cannot be read", pandas.DataFrame(np.ones((20, 3)), columns=["click", "x", "x"]))
    refuse("Expected a path or a frame.*pandas.*Series", pandas.Series([1, 2]))
    refuse(
        "Column 'o' holds Extension",
        pandas.DataFrame({**base, "o": pandas.period_range("2020-01", periods=20, freq="M")}),
    )


def test_other_things_that_are_not_frames():
    pyarrow = pytest.importorskip("pyarrow", reason="some are its own")
    refuse(
        "The frame of pyarrow cannot be read",
        pyarrow.table([[0, 1], [1.0, 2.0], [1.0, 2.0]], names=["click", "x", "x"]),
    )
    refuse("Expected a path or a frame.*ChunkedArray", pyarrow.chunked_array([[1, 2]]))
    entries = pyarrow.array([[("a", 1)]] * 2, type=pyarrow.map_(pyarrow.string(), pyarrow.int64()))
    refuse("Column 's' holds Map", pyarrow.table({"click": [0, 1], "s": entries}))
    refuse("The frame of polars cannot be read: No such file", pl.scan_csv("/nowhere.csv"))
    refuse(
        "The frame of polars cannot be read: unable to find column", small().lazy().select("nope")
    )
    refuse("Expected a path or a frame.*NoneType", None)
    refuse("Expected a path or a frame.*NoneType", None, valid=small(), test=small())
