"""Delimited text as people write it, and damaged."""

import gzip

import numpy as np
import polars as pl
import pytest
import torch

import torchleap as tl
from tests.data.files.reading import (
    FRAME,
    RAW,
    every,
    from_text,
    in_order,
    refuse,
    refuse_everywhere,
    small,
    words,
)
from torchleap.data.files import source


def test_packed_csv_that_is_damaged_in_its_middle(tmp_path):
    text = FRAME.write_csv().encode()
    packed = bytearray(gzip.compress(text))
    path = tmp_path / "log.csv.gz"
    for place in range(30, len(packed) - 20, 97):
        changed = bytearray(packed)
        changed[place] ^= 0x55
        path.write_bytes(changed)
        with pytest.raises(tl.DataError) as found:
            tl.data.read(path, label="click", cache=tmp_path / "cache")
        assert str(found.value).isprintable()
    path.write_bytes(packed[: len(packed) // 2])
    refuse_everywhere(path, "cannot be read")


@pytest.mark.parametrize("cell", [b"\xff\xfe", b"\0" * 500, b'"', b'"a\n"b', b"9" * 5000])
def test_cells_of_csv_that_are_not_cells(tmp_path, cell):
    lines = FRAME.write_csv().encode().split(b"\n")
    (tmp_path / "log.csv").write_bytes(
        b"\n".join([*lines[:300], b"0," + cell + b",c1", *lines[300:]])
    )
    for way in (
        lambda path: tl.data.read(path, label="click", cache=tmp_path / "cache"),
        lambda path: tl.data.inspect(path),
    ):
        try:
            way(tmp_path / "log.csv")
        except tl.DataError as error:
            assert str(error).isprintable()
            assert len(str(error)) < 600


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
            "line 32: expected 3 columns, as in the first line, but found 2"
            "|line 52, column 'click'",
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


def test_na_is_a_category_but_not_a_number(tmp_path):
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
