"""New rows are encoded as the task's own were, bit for bit, whatever file they come from; what cannot be is told."""

import json
import threading
from datetime import date, datetime, timedelta
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torchleap as tl
from tests.data.frames import log
from torchleap.data.files import codes, known_column
from torchleap.data.files import encoding as applying
from torchleap.native import library as native

PARTS = ("train", "valid", "test")
BIG = 2**60


def held(task):
    """All rows of a task that was split in order."""
    parts = [getattr(task, part).all() for part in PARTS]
    return torch.cat([part.ids for part in parts]), torch.cat([part.numbers for part in parts])


def loaded(task, folder, **settings):
    tl.data.save_encoding(task, folder, **settings)
    return tl.data.Encoding.load(folder)


def together(batches):
    found = list(batches)
    return torch.cat([batch.ids for batch in found]), torch.cat([batch.numbers for batch in found])


def same(ours, theirs):
    """Bit for bit, which == is not for -0.0."""
    return all(
        a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
        for a, b in zip(ours, theirs, strict=True)
    )


def rows_of(frame, **settings):
    return tl.data.read(frame, **{"label": "click", "split": "order", **settings})


def some(rng, values, share=0.1):
    return [None if rng.random() < share else value for value in values]


def every_kind(rows=700):
    """A column of each type that can be read, most with missing values, and the settings of each kind."""
    rng = np.random.default_rng(1)
    whole, normal = rng.integers(0, 30, rows), rng.normal(3, 50, rows)
    moments = [
        datetime(2024, 1, 1) + timedelta(seconds=int(step)) for step in rng.integers(0, 10**7, rows)
    ]
    frame = log(rows).drop("time").with_columns(
        pl.Series("big_id", some(rng, (BIG + whole).tolist())),
        pl.Series("truth", some(rng, (whole > 9).tolist()), dtype=pl.Boolean),
        pl.Series("day", some(rng, [moment.date() for moment in moments]), dtype=pl.Date),
        pl.Series("moment", some(rng, moments), dtype=pl.Datetime("ms")),
        pl.Series("day_name", [moment.date() for moment in moments]),
        pl.Series("ranked", some(rng, normal.tolist())),
        pl.Series("logged", some(rng, normal.tolist())),
        pl.Series("as_it_is", np.where(normal > 90, np.nan, normal)),
        pl.Series("large", (normal * 1e300).tolist()),
        pl.Series("hashed", some(rng, [f"h{value}" for value in whole])),
        pl.Series("hashed_number", some(rng, whole.tolist())),
        pl.Series("half", some(rng, (whole / 2).tolist()), dtype=pl.Float32),
        pl.Series("word", some(rng, [f"w{value}" for value in whole]), dtype=pl.Categorical),
        pl.Series("numbered_tags", [rng.integers(0, 9, size).tolist() for size in rng.integers(0, 40, rows)]),
        pl.Series("split_tags", ["|".join(f"t{v}" for v in rng.integers(0, 9, size)) for size in rng.integers(0, 4, rows)]),
        pl.Series("split_vector", some(rng, [f"{a}|{b}" for a, b in rng.normal(size=(rows, 2))])),
        pl.Series("lists", some(rng, rng.normal(size=(rows, 3)).tolist()), dtype=pl.List(pl.Float64)),
        pl.Series("nothing", [None] * rows),
        pl.Series("late", [None] * (rows - 20) + [1.5] * 20),
    )  # fmt: skip
    columns = {
        "city": {"min_count": 40},
        "day_name": "categorical",
        "ranked": {"scale": "quantile"},
        "logged": {"scale": "log"},
        "as_it_is": {"scale": "none"},
        "large": {"scale": "quantile"},
        "hashed": {"buckets": 11},
        "hashed_number": {"kind": "categorical", "buckets": 7},
        "half": "categorical",
        "vector": {"scale": "log"},
        "split_tags": {"kind": "list", "separator": "|"},
        "split_vector": {"kind": "vector", "separator": "|"},
    }
    return frame, columns


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    frame, columns = every_kind()
    frame.write_parquet(folder / "log.parquet")
    task = rows_of(folder / "log.parquet", columns=columns)
    return folder / "log.parquet", frame, task, loaded(task, folder / "encoding")


# The same numbers


@pytest.mark.parametrize("rows", [65536, 700, 64, 1])
def test_every_kind_of_column_is_encoded_as_the_task_has_it(whole, rows, monkeypatch):
    path, _, task, encoding = whole
    monkeypatch.setattr(applying, "AT_ONCE", 100_000)  # several blocks
    batches = list(encoding.batches(path, rows))
    assert [len(batch) for batch in batches] == [rows] * (700 // rows) + [700 % rows] * (
        700 % rows > 0
    )
    assert same(together(batches), held(task))
    assert not any(batch.label.any() or batch.group is not None for batch in batches)
    assert encoding.fields == task.fields
    assert [replaced(column) for column in encoding.columns] == [
        replaced(column) for column in task.columns
    ]


def replaced(column):
    return {**vars(column), "file": ""}


def test_each_row_alone_is_what_it_is_among_others(whole):
    _, frame, task, encoding = whole
    expected = held(task)
    for row in range(0, 700, 35):
        found = together(encoding.batches(frame[row : row + 1].drop("click")))
        assert same(found, [part[row : row + 1] for part in expected])


@pytest.mark.parametrize("split", ["random", "group", "time"])
def test_the_parts_of_any_split_put_back_in_order(split, tmp_path):
    frame = (
        log()
        .with_columns(pl.int_range(pl.len()).cast(pl.Float64).alias("row"))
        .sample(fraction=1, shuffle=True, seed=0)
    )
    frame = frame.with_columns(pl.int_range(pl.len()).cast(pl.Float64).alias("row"))
    task = tl.data.read(
        frame,
        label="click",
        split=split,
        time="time",
        group="user",
        columns={"row": {"kind": "numeric", "scale": "none"}},
    )
    ids, numbers = held(task)
    order = numbers[:, task.slots(ids=False)["row"]][:, 0].argsort()
    assert same(together(loaded(task, tmp_path / "e").batches(frame)), [ids[order], numbers[order]])


def test_files_frames_folders_and_patterns(whole, tmp_path):
    path, frame, task, encoding = whole
    frame = frame.drop("nothing")  # which neither pandas nor Arrow keep as a column of no type
    encoding = loaded(task, tmp_path / "e", only=frame.columns[1:])
    expected = held(task.only(frame.columns[1:]))
    (tmp_path / "many").mkdir()
    for part in range(7):
        frame[part * 100 : part * 100 + 100].write_parquet(tmp_path / "many" / f"{part}.parquet")
    frame.write_ipc(tmp_path / "log.arrow")
    pattern = tmp_path / "many" / "*.parquet"
    for data in (
        path,
        str(path),
        tmp_path / "many",
        pattern,
        tmp_path / "log.arrow",
        frame,
        frame.lazy(),
        frame.to_arrow(),
    ):
        assert same(together(encoding.batches(data)), expected)


def test_a_frame_of_pandas_has_other_types_and_the_same_rows(tmp_path):
    frame = log().with_columns(
        pl.when(pl.col("age") < 80).then("age").alias("age"), pl.col("click").alias("truth") == 1
    )
    task = rows_of(frame, columns={"age": "categorical"})  # floats with NaN in pandas
    expected = held(task)
    assert same(together(loaded(task, tmp_path / "e").batches(frame.to_pandas())), expected)


@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_text_is_parsed_as_in_the_task(ending, tmp_path):
    frame = (
        log()
        .select("click", "user", "city", "price", "age")
        .with_columns(pl.Series("big_id", BIG + np.arange(600) % 50))
    )
    frame.write_csv(
        tmp_path / f"log{ending}", compression="gzip" if ending.endswith("gz") else "uncompressed"
    )
    task = rows_of(tmp_path / f"log{ending}", columns={"age": "categorical"})
    encoding = loaded(task, tmp_path / "e")
    assert same(together(encoding.batches(tmp_path / f"log{ending}")), held(task))
    assert same(
        together(encoding.batches(frame)), held(task)
    )  # whole numbers, where train rows had text


def test_blanks_and_missing_words_among_numbers_of_csv(tmp_path):
    cells = ["1.5", " 2.5 ", "NA", "", "nan", "3e2", "-0.0", "null"]
    lines = [f"{row % 2};{cells[row % 8]};{cells[row % 8]}" for row in range(80)]
    (tmp_path / "log.csv").write_text("click;x;city\n" + "\n".join(lines) + "\n")
    task = rows_of(tmp_path / "log.csv", columns={"x": "numeric", "city": "categorical"})
    encoding = loaded(task, tmp_path / "e")
    assert same(together(encoding.batches(tmp_path / "log.csv")), held(task))
    (tmp_path / "bare.txt").write_text("\n".join(line[2:].replace(";", "\t") for line in lines))
    assert same(
        together(encoding.batches(tmp_path / "bare.txt", separator="\t", names=["x", "city"])),
        held(task),
    )


def test_whole_numbers_of_parquet_are_the_same_in_csv(tmp_path):
    frame = (
        log()
        .select("click", "user", "price", "age")
        .with_columns(pl.Series("item_id", BIG + np.arange(600) % 50))
    )
    frame.write_csv(tmp_path / "log.csv")
    task = rows_of(frame, columns={"age": {"kind": "categorical", "buckets": 9}})
    assert same(together(loaded(task, tmp_path / "e").batches(tmp_path / "log.csv")), held(task))


def test_moments_of_another_unit_and_vectors_of_another_precision(tmp_path):
    frame = log().with_columns(pl.from_epoch("time").dt.cast_time_unit("ms").alias("time"))
    task = rows_of(frame)
    other = frame.with_columns(
        pl.col("time").dt.cast_time_unit("ns"), pl.col("vector").cast(pl.List(pl.Float64)), pl.col("age").cast(pl.Int8),
        pl.col("user").cast(pl.Categorical), pl.col("tags").cast(pl.List(pl.Categorical)),
    )  # fmt: skip
    assert same(together(loaded(task, tmp_path / "e").batches(other)), held(task))


def test_new_rows_become_what_valid_and_test_files_of_their_own_types_become(tmp_path):
    frame = (
        log()
        .drop("tags", "vector")
        .with_columns(pl.when(pl.col("age") < 80).then("age").alias("age"))
    )
    train, valid, test = (
        frame[:400],
        frame[400:500].with_columns(pl.lit("c99").alias("city")),
        frame[500:].to_pandas(),
    )
    valid.write_csv(tmp_path / "valid.csv")
    task = tl.data.read(
        train,
        label="click",
        valid=tmp_path / "valid.csv",
        test=test,
        columns={"age": "categorical"},
    )
    encoding = loaded(task, tmp_path / "e")
    for part, data in zip(PARTS, (train, tmp_path / "valid.csv", test), strict=True):
        expected = getattr(task, part).all()
        assert same(together(encoding.batches(data)), expected.inputs)


def test_a_column_of_nothing_is_missing_everywhere(whole):
    _, frame, _, encoding = whole
    empty = frame.with_columns(pl.lit(None).alias(name) for name in frame.columns)
    nothing, typed = together(encoding.batches(empty)), together(encoding.batches(frame.clear(700)))
    assert same(nothing, typed)
    assert not nothing[0].any()


def test_what_train_rows_do_not_have_is_unseen_and_a_table_does_not_grow(tmp_path, monkeypatch):
    monkeypatch.setattr(known_column, "ROOM", 1_000)
    monkeypatch.setattr(applying, "AT_ONCE", 20_000)
    task = rows_of(log(), only=["user", "tags"])
    encoding = loaded(task, tmp_path / "e")
    rows = 30_000
    new = pl.DataFrame(
        {
            "user": [f"new{row}" for row in range(rows)],
            "tags": [[f"n{row}", "t1", None] for row in range(rows)],
        }
    )
    ids, numbers = together(encoding.batches(new))
    assert numbers.shape == (rows, 0)
    known = 2 + task.vocabulary("tags").index("t1")
    assert torch.equal(ids, torch.tensor([1, 1, known, 0, 0]).int().expand(rows, -1))
    assert max(one.encoder.codes.count for one in encoding._known) < 10_000
    assert same(together(encoding.batches(log())), held(task))


def test_without_a_kernel_polars_looks_up(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(native, "load", lambda: "there is none")
    path, _, task, _ = whole
    encoding = loaded(task, tmp_path / "e")
    assert isinstance(encoding._known[0].encoder.codes, codes.PolarsCodes)
    assert same(together(encoding.batches(path)), held(task))


def test_two_iterations_and_two_threads_do_not_disturb_each_other(whole, monkeypatch):
    path, frame, task, encoding = whole
    monkeypatch.setattr(applying, "AT_ONCE", 30_000)
    other = frame.with_columns(pl.col("user").cast(pl.Categorical), pl.col("age").cast(pl.String))
    pairs = list(zip(encoding.batches(path, 50), encoding.batches(other, 50), strict=True))
    for place in range(2):
        assert same(together(pair[place] for pair in pairs), held(task))
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(together(encoding.batches(path))))
        for _ in range(3)
    ]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(found) == 3
    assert all(same(one, held(task)) for one in found)


def test_only_the_kept_fields_are_written(whole, tmp_path):
    path, frame, task, _ = whole
    kept = ["price", "city", "tags"]
    encoding = loaded(task, tmp_path / "e", only=kept)
    assert encoding.fields == task.only(kept).fields
    assert same(together(encoding.batches(frame.select(kept))), held(task.only(kept)))
    assert same(together(encoding.batches(path)), held(task.only(kept)))
    assert {file.name for file in (tmp_path / "e").iterdir()} == {
        "_0.parquet",
        "_2.parquet",
        "_types.parquet",
        "encoding.json",
    }
    with pytest.raises(tl.FieldError, match="no field 'prise'. Did you mean 'price'"):
        tl.data.save_encoding(task, tmp_path / "e", only=["prise"])


def test_progress_is_told(whole, monkeypatch):
    path, frame, _, encoding = whole
    monkeypatch.setattr(applying, "AT_ONCE", 100_000)
    for data in (path, frame):
        told = Mock()
        list(encoding.batches(data, progress=told))
        told.assert_called_with("reading", 700, 700)
        assert told.call_count > 1


NUMBERS = st.one_of(st.floats(-1e6, 1e6, width=32), st.sampled_from([0.0, -0.0, 1.0, float("nan")]))
WORDS = st.one_of(st.sampled_from(["a", "b", "", "NA", " a", "1"]), st.text(max_size=3))
NUMERIC = [{"kind": "numeric", "scale": scale} for scale in ("standard", "quantile", "log", "none")]
CATEGORIES = [
    {"kind": "categorical"},
    {"kind": "categorical", "min_count": 1},
    {"kind": "categorical", "buckets": 3},
]
LIST, SPLIT = {"kind": "list", "max_length": 3}, {"kind": "list", "separator": "a", "min_count": 1}
VECTOR = [{"kind": "vector"}, {"kind": "vector", "scale": "log"}]
KINDS = [  # values, types that hold them, and what they can become
    (NUMBERS, [pl.Float32, pl.Float64], NUMERIC + CATEGORIES),
    (st.integers(-(2**62), 2**62), [pl.Int64], NUMERIC + CATEGORIES),
    (st.booleans(), [pl.Boolean], NUMERIC + CATEGORIES),
    (st.dates(date(1, 1, 1)), [pl.Date], NUMERIC + CATEGORIES),
    (WORDS, [pl.String, pl.Categorical], [*CATEGORIES, SPLIT]),
    (st.lists(st.none() | WORDS, max_size=5), [pl.List(pl.String)], [LIST]),
    (st.lists(st.none() | NUMBERS, max_size=5), [pl.List(pl.Float64)], [LIST]),
    (
        st.tuples(NUMBERS, st.none() | NUMBERS).map(list),
        [pl.Array(pl.Float32, 2), pl.List(pl.Float64)],
        VECTOR,
    ),
]


@settings(max_examples=60)
@given(
    data=st.data(),
    rows=st.integers(12, 60),
    size=st.integers(1, 80),
    split=st.sampled_from(["order", "random"]),
)
def test_any_frame_is_encoded_as_its_task(data, rows, size, split, tmp_path_factory):
    frame = pl.DataFrame({"click": np.arange(rows) % 2, "row": np.arange(rows) * 1.0})
    columns = {"row": {"kind": "numeric", "scale": "none"}}
    for number, (values, types, specs) in enumerate(
        data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=5))
    ):
        cells = data.draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        frame = frame.with_columns(
            pl.Series(f"x{number}", cells, dtype=data.draw(st.sampled_from(types)))
        )
        columns[f"x{number}"] = data.draw(st.sampled_from(specs))
    try:
        task = tl.data.read(
            frame, label="click", split=split, shares=(0.5, 0.25, 0.25), columns=columns
        )
    except tl.data.DataError as error:
        assert "in all" in str(error) or "first rows are empty" in str(
            error
        )  # one label alone, or a vector that is never there
        return
    ids, numbers = held(task)
    order = numbers[:, 0].argsort()
    encoding = loaded(task, tmp_path_factory.mktemp("any") / "e")
    assert same(together(encoding.batches(frame.drop("click"), size)), [ids[order], numbers[order]])


# What is refused


def refuse(pattern, encoding, data, **settings):
    with pytest.raises(tl.data.DataError, match=pattern) as raised:
        list(encoding.batches(data, **settings))
    assert "columns=" not in str(raised.value)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return loaded(rows_of(log(), drop=["time"]), tmp_path_factory.mktemp("plain") / "e")


def test_a_column_that_is_not_there(plain, tmp_path):
    frame = log().rename({"price": "prices"})
    refuse(
        "the frame lacks the column 'price', which the model reads. Did you mean 'prices'",
        plain,
        frame,
    )
    refuse(
        "lacks the column 'user' and 5 more that the model reads. Known: 'x'",
        plain,
        pl.DataFrame({"x": [1]}),
    )
    (tmp_path / "bare.csv").write_text("u1,c1\nu2,c2\n")
    refuse(
        r"bare.csv lacks the column 'user' .*is not a header, name the columns: names=\[",
        plain,
        tmp_path / "bare.csv",
    )


def test_text_among_numbers_is_told_with_its_row(plain, tmp_path):
    frame = log().with_columns(pl.col("age").cast(pl.String))
    frame[6, "age"] = "old"
    refuse(
        "the frame, row 7, column 'age': expected a number, as in the first rows, but found 'old'.$",
        plain,
        frame,
    )
    encoding = loaded(rows_of(log(), only=["age"]), tmp_path / "e")
    frame.select("age").write_csv(tmp_path / "log.csv")
    refuse("log.csv, line 8, column 'age'.*found 'old'.$", encoding, tmp_path / "log.csv")
    refuse(
        "row 3, column 'age': expected a finite number",
        encoding,
        pl.DataFrame({"age": [1.0, 2.0, float("inf")]}),
    )


def test_a_row_is_counted_over_blocks(plain, monkeypatch):
    monkeypatch.setattr(applying, "AT_ONCE", 4_000)
    frame = log().with_columns(pl.col("age").cast(pl.String))
    frame[555, "age"] = "old"
    refuse("row 556,", plain, frame)


@pytest.mark.parametrize(
    ("name", "change", "pattern"),
    [
        ("vector", pl.Series([[1.0] * 5] * 600), "row 1, column 'vector': expected a vector of 6 numbers.*found 5"),
        ("vector", pl.lit(1.0), r"column 'vector' holds Float64, but Array\(Float32.* in the train rows"),
        ("vector", pl.Series([["a"] * 6] * 600), "row 1, column 'vector': expected a vector of numbers, but found 'a' in it.$"),
        ("tags", pl.lit("a"), r"column 'tags' holds String, but List\(String\) in the train rows"),
        ("user", pl.lit(0.5), "column 'user' holds Float64, but String in the train rows. Give both the same type"),
        ("user", pl.Series([["a"]] * 600), r"column 'user' holds List\(String\), but String"),
        ("age", pl.lit(date(2024, 1, 1)), "column 'age' holds Date, but Int64"),
        ("age", pl.struct(pl.lit(1)), "column 'age' holds Struct"),
    ],
)  # fmt: skip
def test_a_column_of_another_kind(plain, name, change, pattern):
    refuse(pattern, plain, log().with_columns(change.alias(name)))


def test_no_rows_short_lines_and_wrong_settings(plain, tmp_path):
    (tmp_path / "empty.csv").touch()
    refuse("empty.csv is empty", plain, tmp_path / "empty.csv")
    refuse("the frame has columns but no rows", plain, log().clear())
    refuse("There is no file", plain, tmp_path / "none.csv")
    refuse("rows must be a whole number of at least 1, but is 0", plain, log(), rows=0)
    encoding = loaded(rows_of(log(), only=["age", "user"]), tmp_path / "e")
    (tmp_path / "header.csv").write_text("user,age\n")
    refuse("header.csv has columns but no rows", encoding, tmp_path / "header.csv")
    (tmp_path / "short.csv").write_text("user,age\nu1,2\nu2\n")
    refuse("short.csv, line 3: expected 2 columns", encoding, tmp_path / "short.csv")
    (tmp_path / "long.csv").write_text("user,age\nu1,2\nu2,3,4\n")
    refuse("long.csv, line 3: expected 2 columns, but found 3", encoding, tmp_path / "long.csv")


def test_names_and_types_are_refused_before_the_first_batch(plain):
    with pytest.raises(tl.data.DataError, match="lacks the column"):
        plain.batches(pl.DataFrame({"x": [1]}))


# Folders


def test_an_encoding_replaces_an_encoding_and_nothing_else(tmp_path):
    task = rows_of(log(), only=["age"])
    tl.data.save_encoding(rows_of(log()), tmp_path / "a" / "e")
    assert loaded(task, tmp_path / "a" / "e").fields == task.fields
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["e"]
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text").touch()
    for other in (tmp_path / "thesis", tmp_path / "thesis" / "text"):
        with pytest.raises(
            tl.data.DataError, match="is not a saved encoding, so it is not replaced"
        ):
            tl.data.save_encoding(task, other)
    with pytest.raises(
        tl.data.DataError, match="The encoding cannot be written to .*text/e: File exists"
    ):
        tl.data.save_encoding(task, tmp_path / "thesis" / "text" / "e")


def test_nothing_is_left_of_one_that_fails(tmp_path, monkeypatch):
    task = rows_of(log(), only=["age"])
    tl.data.save_encoding(task, tmp_path / "e")
    before = {file: file.read_bytes() for file in (tmp_path / "e").iterdir()}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    for folder in ("e", "new"):
        with pytest.raises(
            tl.data.DataError, match="cannot be written to .*: No space left on device"
        ):
            tl.data.save_encoding(task, tmp_path / folder)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_the_folder_is_no_data_of_a_folder_above(tmp_path):
    log().write_parquet(tmp_path / "log.parquet")
    tl.data.save_encoding(rows_of(tmp_path), tmp_path / "run")
    assert len(rows_of(tmp_path).train) == 480


def test_a_folder_that_is_damaged_or_absent(tmp_path):
    folder = tmp_path / "e"
    tl.data.save_encoding(rows_of(log(), only=["user", "age"]), folder)
    whole = {file: file.read_bytes() for file in folder.iterdir()}
    for file, content in whole.items():
        for damage in (
            content[:-9],
            b"",
            content.replace(b"numeric", b"list") + b" ",
            b"[" * 100_000,
            b"[1]",
        ):
            file.write_bytes(damage)
            with pytest.raises(tl.data.DataError, match=r"damaged.* Write it again"):
                tl.data.Encoding.load(folder)
        file.unlink()
        with pytest.raises(
            tl.data.DataError,
            match=f"does not hold a complete encoding: there is no {file.name} in it",
        ):
            tl.data.Encoding.load(folder)
        file.write_bytes(content)
    assert tl.data.Encoding.load(folder).fields.names == ("user", "age")
    for absent in (tmp_path / "none", folder / "encoding.json"):
        with pytest.raises(
            tl.data.DataError,
            match="does not hold a complete encoding: there is no encoding.json in it",
        ):
            tl.data.Encoding.load(absent)
    (folder / "encoding.json").write_text(json.dumps({"format": 7}))
    with pytest.raises(
        tl.data.DataError, match="of another version .ValueError.*expected format 1, but found 7"
    ):
        tl.data.Encoding.load(folder)


def test_a_cache_that_is_gone_or_of_an_earlier_version(tmp_path):
    log().write_parquet(tmp_path / "log.parquet")
    task = rows_of(tmp_path / "log.parquet", only=["user"], cache=tmp_path / "cache")
    pl.DataFrame({"value": ["a"], "count": [1]}).write_parquet(task.folder / "0.parquet")
    with pytest.raises(tl.data.DataError, match="Remove .* and read the data again"):
        tl.data.save_encoding(task, tmp_path / "e")
    (task.folder / "0.parquet").unlink()
    with pytest.raises(
        tl.data.DataError, match="0.parquet is damaged or gone.* Remove .* and read the data again"
    ):
        tl.data.save_encoding(task, tmp_path / "e")
