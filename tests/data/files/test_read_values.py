"""What values become: labels, numbers, categories, vectors, times and splits at their edges."""

import json
import subprocess
import sys

import numpy as np
import polars as pl
import pytest
import torch

import torchleap as tl
from tests.data.files.reading import (
    RAW,
    in_order,
    refuse,
    values_of,
)
from tests.data.frames import log
from torchleap.data.files import splits


def frame_of(rows=200, **columns):
    return pl.DataFrame({"click": np.arange(rows) % 2, **columns})


def labels(values, **settings):
    frame = pl.DataFrame({"y": values, "x": np.arange(len(values)) * 1.0})
    return tl.data.read(
        frame, label="y", split="order", shares=(1, 0, 0), **settings
    ).train.label.tolist()


# Labels


def test_a_missing_rating_is_not_a_label():
    refuse(
        "row 2.*found nan. Leave the rows without a label out",
        frame_of(4, r=[1.0, float("nan"), 5.0, 2.0]),
        label="r",
        threshold=3,
    )
    refuse("row 2.*found nan", frame_of(4, r=[1.0, float("nan"), 5.0, 2.0]), label="r", positive=1)


def test_a_label_beside_1_is_not_1():
    refuse(
        "expected the label 0 or 1, but found 0.99999999",
        frame_of(4, r=[0.0, 0.99999999, 1.0, 0.0]),
        label="r",
    )


def test_a_positive_number_or_truth_is_found_however_it_is_written():
    expected = [1.0, 0.0, 1.0]
    assert labels([1.0, 2.0, 1.0], positive=1) == expected
    assert labels(["1.0", "2", " 1"], positive=1) == expected
    assert labels([True, False, True], positive=True) == expected
    assert labels(["True", "False", "TRUE"], positive=True) == expected
    assert labels([1, 0, 1], positive=True) == expected
    assert labels([False, True, False], positive=False) == expected
    assert labels(["yes", "no", "yes"], positive="yes") == expected


def test_categories_can_be_labels_numbers_and_times():
    frame = frame_of(40, x=[str(i) for i in range(40)], t=[str(1000 - i) for i in range(40)])
    frame = frame.with_columns(pl.all().cast(pl.String).cast(pl.Categorical))
    task = tl.data.read(frame, label="click", time="t", columns={"x": RAW})
    assert task.test.label.tolist() == [0.0, 1.0, 0.0, 1.0]
    assert values_of(task, "x", "test").flatten().tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "values", [[["a"]] * 20, [{"a": 1}] * 20, [b"1", b"0"] * 10, [object()] * 20]
)
def test_columns_of_other_types_have_no_role(values):
    frame = frame_of(
        20,
        x=np.arange(20) * 1.0,
        s=pl.Series(values, dtype=pl.Object if type(values[0]) is object else None),
    )
    for role in ("label", "group", "time"):
        refuse(
            f"Column 's' cannot be the {role}: expected numbers, text or dates, but it holds",
            frame,
            **{role: "s", "only": ["x"]},
        )


# Numbers


@pytest.mark.parametrize("value", [0.1, 0.3, 1 / 3, 1e9 + 0.1])
def test_a_constant_is_not_blown_up(value):
    task = in_order(frame_of(1000, x=[value] * 800 + [value * 2] * 200))
    assert values_of(task, "x").abs().max() < 1e-6
    assert values_of(task, "x", "test")[0].item() == pytest.approx(value)


def test_values_that_come_in_turns_have_their_quantiles():
    rows = 400_000
    task = in_order(
        frame_of(rows, pos=(np.arange(rows) % 3).astype(float)),
        columns={"pos": {"kind": "numeric", "scale": "quantile"}},
    )
    assert values_of(task, "pos")[:3, 0].tolist() == pytest.approx([-2 / 3, 0, 2 / 3], abs=0.02)
    assert task.columns[0].common == pytest.approx(1 / 3, abs=0.01)


def test_numbers_beyond_float32_are_clipped_or_refused():
    huge = frame_of(1000, x=np.r_[np.random.default_rng(0).normal(size=999), 1e300])
    largest = torch.finfo(torch.float32).max
    assert values_of(in_order(huge), "x", "test")[-1].item() == largest
    wide = frame_of(1000, x=np.linspace(-1e200, 1e200, 1000))
    assert values_of(in_order(wide, columns={"x": {"scale": "none"}}), "x").abs().max() == largest
    for scale in ("log", "quantile"):
        assert values_of(in_order(wide, columns={"x": {"scale": scale}}), "x").abs().max() < 3
    refuse("Column 'x' holds numbers that are too large.*'scale': 'log'", wide)


@pytest.mark.parametrize("scale", ["standard", "none", "quantile", "log"])
def test_what_no_train_row_has_is_0_in_others(scale):
    frame = frame_of(100, x=pl.Series([None] * 80 + [1.7e9] * 20, dtype=pl.Float64))
    found = values_of(in_order(frame, columns={"x": {"scale": scale}}), "x", "test")
    assert found.tolist() == [[0.0, 0.0]] * 10


# Categories, lists and vectors


def test_nan_is_not_a_category():
    frame = frame_of(
        200, s=[1.0, float("nan")] * 100, l=[[1.5, float("nan")], [float("nan")]] * 100
    )
    for given in ("categorical", {"kind": "categorical", "buckets": 5}):
        task = in_order(frame, columns={"s": given, "l": "list"})
        found = values_of(task, "s").flatten()
        assert (found[0::2] >= 2).all()
        assert not found[1::2].any()
    assert task.vocabulary("l") == ["1.5"]


def test_nothing_between_two_separators_is_not_a_category():
    task = in_order(
        frame_of(20, s=["a||b|", ""] * 10), columns={"s": {"kind": "list", "separator": "|"}}
    )
    assert task.vocabulary("s") == ["a", "b"]
    assert values_of(task, "s")[:2].tolist() == [[2, 3], [0, 0]]


def test_arrays_of_text_are_lists_and_text_is_not_a_vector():
    task = in_order(frame_of(20, s=pl.Series([["a", "b"]] * 20, dtype=pl.Array(pl.String, 2))))
    assert task.columns[0].column.kind == "list"
    split = {"kind": "vector", "separator": "|"}
    refuse(
        "row 3, column 's': expected a vector of numbers, but found 'x' in it",
        frame_of(4, s=["1|2", "", "1|x", "1|2"]),
        columns={"s": split},
    )
    refuse(
        "row 1, column 's': expected a vector of numbers, but found 'a'",
        frame_of(4, s=[["a", "b"]] * 4),
        columns={"s": "vector"},
    )
    task = in_order(
        frame_of(20, s=["1| 2", "", "3|NA", "5|6"] * 5), columns={"s": {**split, "scale": "none"}}
    )
    assert values_of(task, "s")[:4].tolist() == [[1, 2, 0], [0, 0, 1], [3, 0, 1], [5, 6, 0]]


def test_vectors_keep_the_digits_of_large_numbers():
    vectors = np.array([[1.7e9 + i, 1.7e9 - i] for i in range(100)])
    task = tl.data.read(
        frame_of(100, v=pl.Series(vectors, dtype=pl.Array(pl.Float64, 2))),
        label="click",
        shares=(1, 0, 0),
    )
    centred = vectors - vectors.mean(0)
    assert values_of(task, "v").numpy() == pytest.approx(
        centred / np.sqrt((vectors.std(0) ** 2).mean()), abs=1e-6
    )


def test_vectors_without_numbers_and_needless_separators_are_refused():
    for values in (
        pl.Series([[]] * 4, dtype=pl.Array(pl.Float32, 0)),
        pl.Series([[]] * 4, dtype=pl.List(pl.Float64)),
    ):
        refuse("is to be a vector, but is empty", frame_of(4, s=values), columns={"s": "vector"})
    refuse(
        "its first rows are empty",
        frame_of(4, s=[""] * 4),
        columns={"s": {"kind": "vector", "separator": "|"}},
    )
    refuse(
        r"has separator='\|', but holds List",
        frame_of(4, s=[["a"]] * 4),
        columns={"s": {"separator": "|"}},
    )


# Times and splits


def parts_by_time(times):
    frame = frame_of(len(times), i=np.arange(len(times)) * 1.0, t=times)
    task = tl.data.read(
        frame, label="click", time="t", shares=(0.5, 0.25, 0.25), columns={"i": RAW}
    )
    return [
        values_of(task, "i", part).flatten().int().tolist() for part in ("train", "valid", "test")
    ]


def test_nanoseconds_are_distinguished():
    whole = [1_700_000_000_000_000_000 + i for i in range(8)]
    moments = pl.Series(whole).cast(pl.Datetime("ns"))
    for times in (
        whole,
        [str(number) for number in whole],
        moments,
        pl.Series(range(8)).cast(pl.Duration("ns")),
    ):
        assert parts_by_time(times) == [[0, 1, 2, 3], [4, 5], [6, 7]]
    assert parts_by_time(pl.Series(range(8)).cast(pl.Time)) == [[0, 1, 2, 3], [4, 5], [6, 7]]


def test_how_times_are_written_is_decided_once():
    for other in ("20240101", "05/06/2022", "1704067200"):
        times = ["2023-06-01"] * 131_072 + [other] * 100
        refuse(
            f"row 131073, column 't': expected a time or a number, but found '{other}'",
            frame_of(len(times), t=times, x=1.5),
            time="t",
        )


def test_groups_of_two_seeds_have_nothing_to_do_with_each_other():
    hashes = np.arange(1, 20_001, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    tests = [
        splits.by_group(hashes, np.arange(20_000, dtype=np.int32), (0.8, 0.1, 0.1), seed) == 2
        for seed in range(5)
    ]
    for number, first in enumerate(tests):
        assert first.mean() == pytest.approx(0.1, abs=0.01)
        for second in tests[:number]:
            assert (first & second).mean() == pytest.approx(0.01, abs=0.003)


@pytest.mark.parametrize(
    "shares", [(0.7, 0.2, 0.1), (0.6, 0.3, 0.1), (0.8, 0.1, 0.1), (0.9, 0.1, 0.0)]
)
def test_sizes_are_exact(shares):
    for rows in (10, 100, 1000):
        assert np.bincount(splits.by_order(rows, shares), minlength=3).tolist() == [
            round(rows * share) for share in shares
        ]


# Settings


def test_numbers_of_numpy_are_numbers():
    frame = log()
    settings = {
        "width": np.int64(8),
        "min_count": np.int64(1),
        "shares": np.float32([0.5, 0.25, 0.25]),
        "seed": np.int64(3),
    }
    for label in (
        {"threshold": np.float32(0.5)},
        {"threshold": np.int64(0)},
        {"positive": np.int64(1)},
    ):
        column = tl.data.Column("age", "categorical", width=np.int32(4))
        task = tl.data.read(frame, label="click", columns={"age": column}, **settings, **label)
        assert task.fields["age"].width == 4
        assert json.loads((task.folder / "task.json").read_text())["roles"]["shares"] == [
            0.5,
            0.25,
            0.25,
        ]


def test_settings_of_another_type_are_refused(tmp_path):
    refuse("seed must be a whole number from 0 to 4,294,967,295, but is -1", log(), seed=-1)
    for shares in ((0.5, float("nan"), 0.5), 0.8, None, (0.8, 0.2), ("a", "b", "c")):
        refuse("shares must be three numbers", log(), shares=shares)
    for given in (5, None, ["kind"]):
        refuse("Column 'age': expected a kind, a Column or settings", log(), columns={"age": given})
    (tmp_path / "schema.toml").write_text("[columns]\nage = 5\n")
    refuse("Column 'age': expected a kind", log(), columns=tmp_path / "schema.toml")
    refuse("schema file .* cannot be read: Is a directory", log(), columns=str(tmp_path))
    refuse("columns= takes .name: kind. or the path of a TOML file", log(), columns=["age"])
    refuse("separator must be a text or None", log(), columns={"tags": {"separator": 5}})
    refuse("separator must not be empty", log(), columns={"tags": {"separator": ""}})
    refuse(
        "buckets must be a whole number from 1 to 100,000,000",
        log(),
        columns={"user": {"buckets": 2**40}},
    )
    refuse(
        "buckets are for categories, not for kind='list'", log(), columns={"tags": {"buckets": 5}}
    )
    refuse(
        "max_length must be a whole number from 1 to 10,000",
        log(),
        columns={"tags": {"max_length": 10**9}},
    )
    refuse("width must be a whole number", log().select("click", "age"), width=0)
    refuse("only= and drop= take several names", log(), drop=None)
    refuse("only= and drop= take several names", log(), only=5)
    refuse("There is no column None for label=", log(), label=None)
    refuse("threshold must be a number, but is '0'", log(), threshold="0")
    refuse("positive must be a value", log(), positive=["1"])


def test_a_disk_that_is_full_for_a_frame_or_a_vocabulary_is_reported(tmp_path):
    code = (
        "import hashlib, resource, sys, polars as pl, torchleap as tl\n"
        "words = [hashlib.sha256(str(i).encode()).hexdigest() * 4 for i in range(20_000)]\n"
        "frame = pl.DataFrame({'click': [0, 1] * 10_000, 'word': words})\n"
        f"frame.write_parquet({str(tmp_path / 'log.parquet')!r})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))\n"
        f"for data in (frame, {str(tmp_path / 'log.parquet')!r}):\n"
        "    try:\n"
        "        tl.data.read(data, label='click', min_count=1)\n"
        "    except tl.DataError as error:\n"
        "        print(error)\n"
    )
    for limit in ("50000", "200000"):  # for a column, and for a vocabulary alone
        result = subprocess.run(
            [sys.executable, "-c", code, limit], check=True, capture_output=True, text=True
        )
        assert result.stdout.count("The disk is full") == 2
        assert "Name another folder: TMPDIR" in result.stdout
