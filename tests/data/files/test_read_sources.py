"""What stands in a file is what is read: folders, caches, CSV as people write it, and types that differ between parts."""

import numpy as np
import polars as pl
import pytest
import torch

import torchleap as tl
from tests.data.files.test_read import in_order, refuse, values_of
from torchleap.data.files import source

RAW = {"kind": "numeric", "scale": "none"}


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


# Folders and patterns


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


def test_brackets_in_the_name_of_a_file_are_no_pattern(tmp_path):
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


def test_files_that_cannot_be_looked_for(tmp_path):
    refuse("cannot be looked for: Invalid pattern", tmp_path / "**.csv")
    refuse("cannot be looked for: File name too long", "a,b\n" * 500)


def test_a_broken_second_file_is_told(tmp_path):
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


# The cache


def test_a_renamed_partition_is_read_again(tmp_path):
    partitioned(tmp_path, small(), d1=1, d2=2)
    assert every(in_order(tmp_path, columns={"d": RAW}), "d")[-1].item() == 2
    (tmp_path / "d=2").rename(tmp_path / "d=9")
    assert every(in_order(tmp_path, columns={"d": RAW}), "d")[-1].item() == 9


def test_other_names_of_columns_are_read_again(tmp_path):
    path = tmp_path / "log.csv"
    small().with_columns(pl.col("x") * 100, a=pl.col("x")).write_csv(path, include_header=False)
    first = in_order(path, names=["click", "q", "z"], only=["q"], columns={"q": RAW})
    second = in_order(path, names=["click", "z", "q"], only=["q"], columns={"q": RAW})
    assert torch.allclose(every(first, "q") * 100, every(second, "q"))


def test_frames_as_valid_and_test_rows_are_read_each_time(tmp_path):
    small().write_parquet(tmp_path / "train.parquet")
    for rows in (50, 70):
        task = tl.data.read(
            tmp_path / "train.parquet", label="click", valid=small(rows), test=small(10)
        )
        assert task.rows == {"train": 200, "valid": rows, "test": 10}


def test_the_cache_falls_back_to_the_users(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHLEAP_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / ".torchleap").write_text("not a folder")
    small().write_parquet(tmp_path / "data" / "log.parquet")
    assert (
        in_order(tmp_path / "data" / "log.parquet").folder.parent == tmp_path / "mine" / "torchleap"
    )
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert (
        in_order(tmp_path / "data" / "log.parquet").folder.parent
        == tmp_path / "home" / ".cache" / "torchleap"
    )
    refuse(
        "cache= takes the path of a folder, but found 5", tmp_path / "data" / "log.parquet", cache=5
    )


# CSV as people write it


def test_a_group_that_is_also_a_number_keeps_its_text(tmp_path):
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {"click": np.arange(400) % 2, "user": rng.integers(0, 60, 400), "x": rng.normal(size=400)}
    )
    frame.write_csv(tmp_path / "log.csv")
    settings = {"label": "click", "group": "user", "split": "group", "columns": {"user": RAW}}
    of_file, of_frame = (
        tl.data.read(tmp_path / "log.csv", **settings),
        tl.data.read(frame, **settings),
    )
    assert of_file.rows == of_frame.rows
    assert torch.equal(every(of_file, "user"), every(of_frame, "user"))
    long = frame.with_columns(pl.col("user") + 2**53)
    long.write_csv(tmp_path / "long.csv")
    task = tl.data.read(
        tmp_path / "long.csv", **{**settings, "split": "order", "shares": (1, 0, 0)}
    )
    assert task.train.all().group.unique().numel() == frame["user"].n_unique()


def test_numbers_of_20_digits_are_categories(tmp_path):
    frame = pl.DataFrame({"click": [0, 1] * 50, "n": [str(10**19 + i % 9) for i in range(100)]})
    frame.write_csv(tmp_path / "log.csv")
    assert len(in_order(tmp_path / "log.csv").vocabulary("n")) == 9


def test_a_line_with_too_few_columns_is_refused(tmp_path):
    lines = [f"{i % 2},c{i % 3}," for i in range(50)]  # the last column may be missing
    (tmp_path / "log.csv").write_text("\n".join(["click,a,b", *lines]))
    assert len(in_order(tmp_path / "log.csv").train) == 40
    lines[30] = "0,c0"
    for end in ("", "\n", "\n\n"):
        (tmp_path / "log.csv").write_text("\n".join(["click,a,b", *lines]) + end)
        refuse(
            "line 32: expected 3 columns, as in the first line, but found 2|line 52, column 'click'",
            tmp_path / "log.csv",
        )


def test_a_column_without_a_name_is_refused(tmp_path):
    (tmp_path / "log.csv").write_text(",click,x\n0,1,2\n1,0,3\n")
    refuse("log.csv: column 1 of 3 has no name. Name it in the first line", tmp_path / "log.csv")


def test_blank_cells_beside_separators_with_a_blank_are_missing(tmp_path):
    task = from_text(tmp_path, "click, a, x\n" + "1, u, 5\n0, , 6\n" * 20)
    assert words(task, "a")[:2] == ["u", None]
    task = from_text(tmp_path, 'click,"a, b",c\n' + '1," x",y\n0,"x",y\n' * 20)
    assert words(task, "a, b")[:2] == [" x", "x"]


def test_the_first_line_may_have_quotes_and_blank_lines_before_it(tmp_path):
    assert words(from_text(tmp_path, '1,"x,y"\n0,z\n', names=["click", "a"]), "a") == ["x,y", "z"]
    assert words(from_text(tmp_path, '1,"x\n,y"\n0,z\n', names=["click", "a"]), "a") == [
        "x\n,y",
        "z",
    ]
    assert words(from_text(tmp_path, 'click,"a;b;c"\n1,x\n0,y\n'), "a;b;c") == ["x", "y"]
    assert words(from_text(tmp_path, "\n\nclick,a\n1,x\n0,y\n"), "a") == ["x", "y"]


def test_na_is_a_category_but_no_number(tmp_path):
    task = from_text(tmp_path, "click,a,x\n1,NA,NA\n0,,1\n1,b,2\n")  # it may well be Namibia
    assert words(task, "a") == ["NA", None, "b"]
    assert every(task, "x")[:, 1].tolist() == [1, 0, 0]


def test_lines_are_counted_where_cells_are_broken_into_several(tmp_path):
    (tmp_path / "log.csv").write_text('\nclick,a\n1,"x\ny\nz"\n0,y\n2,z\n')
    refuse("line 7, column 'click'", tmp_path / "log.csv")
    (tmp_path / "log.csv").write_text("click,a\n1,x\n\n0,y\n")
    refuse(
        "line 3, column 'click'.*found None. Leave the rows without a label out",
        tmp_path / "log.csv",
    )


def test_rows_are_counted_where_lines_cannot_be(tmp_path, monkeypatch):
    (tmp_path / "log.csv").write_text("click,a\n1,x\n0,y\n2,z\n")
    monkeypatch.setattr(source, "COUNTED", 1)
    refuse("log.csv, row 3, column 'click'", tmp_path / "log.csv")


def test_bad_separators_and_names_are_refused(tmp_path):
    small().write_csv(tmp_path / "log.csv")
    for separator in ("::", "é", "", 5, "\n"):
        refuse("separator must be one ASCII character", tmp_path / "log.csv", separator=separator)
    for names in ("ab", 5, ["a", "a", "b"], [1, 2, 3], []):
        refuse("names must be the names of all columns", tmp_path / "log.csv", names=names)
    (tmp_path / "log.csv").write_text("click,a\r1,x\r0,y\r")
    refuse("its first line cannot be read", tmp_path / "log.csv")


# Frames that cannot be read


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


def test_other_things_that_are_no_frames():
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


# Parts whose types differ


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
