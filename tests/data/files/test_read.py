"""Any file or frame becomes a task: the same rows, encoded by what train rows teach, whatever they come from."""

import gzip
import json
import subprocess
import sys
import threading
from datetime import date, datetime

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torchleap as tl
from tests.data.frames import ids_row_by_row, log

TEXT = ["click", "user", "city", "price", "age", "time"]  # columns that CSV can hold


def values_of(task, name, part="train"):
    rows = getattr(task, part).all()
    column = task.columns[task.fields.index(name)]
    return (rows.ids if column.is_ids else rows.numbers)[:, task.slots(ids=column.is_ids)[name]]


def in_order(frame, **settings):
    return tl.data.read(frame, label="click", split="order", **settings)


def test_kinds_and_widths_are_inferred():
    task = in_order(log(), drop=["time"])
    assert {column.name: column.column.kind for column in task.columns} == {
        "user": "categorical",
        "city": "categorical",
        "price": "numeric",
        "age": "numeric",
        "tags": "list",
        "vector": "vector",
    }
    assert task.fields["age"].width == 1
    assert task.fields["price"].width == 2  # the second says where there is none
    assert task.fields["vector"].width == 6
    assert (len(task.train), len(task.valid), len(task.test)) == (480, 60, 60)
    assert "list of up to 4" in str(task)


def test_categories_are_numbered_as_the_obvious_encoder_does():
    frame = log()
    task = in_order(frame, min_count=12)
    for name in ("user", "city"):
        values = frame[name].to_list()
        expected = ids_row_by_row(values, values[:480], 12)
        found = [values_of(task, name, part)[:, 0].tolist() for part in ("train", "valid", "test")]
        assert found == [expected[:480], expected[480:540], expected[540:]]
    assert 1 in ids_row_by_row(
        frame["user"].to_list(), frame["user"].to_list()[:480], 12
    )  # there are rare ones
    assert (
        task.vocabulary("user")[0]
        == frame["user"][:480]
        .value_counts()
        .sort(["count", "user"], descending=[True, False])["user"][0]
    )


def test_numbers_are_standardised_by_train_rows_and_missing_ones_are_shown():
    frame = log()
    task = in_order(frame)
    age = frame["age"].to_numpy().astype(np.float64)
    expected = (age - age[:480].mean()) / age[:480].std()
    assert values_of(task, "age", "test")[:, 0].numpy() == pytest.approx(expected[540:], abs=1e-6)
    price = values_of(task, "price")
    missing = frame["price"][:480].is_null().to_numpy()
    assert price[:, 1].numpy().tolist() == missing.astype(float).tolist()
    assert not price[missing, 0].any()
    assert price[~missing, 0].mean().item() == pytest.approx(0, abs=1e-6)
    assert price[~missing, 0].std(unbiased=False).item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("scale", ["quantile", "log", "none"])
def test_other_scales(scale):
    frame = log().with_columns((pl.col("age") ** 3 - 100_000).alias("age"))
    age = frame["age"].to_numpy().astype(np.float64)[:480]
    found = values_of(in_order(frame, columns={"age": {"scale": scale}}), "age")[:, 0].numpy()
    if scale == "quantile":
        ranks = np.array([(age < value).mean() + (age == value).mean() / 2 for value in age])
        assert found == pytest.approx(2 * ranks - 1, abs=0.02)
    elif scale == "log":
        logs = np.sign(age) * np.log1p(np.abs(age))
        assert found == pytest.approx((logs - logs.mean()) / logs.std(), abs=1e-5)
    else:
        assert found == pytest.approx(age, rel=1e-6)


def test_lists_are_padded_with_zeros_in_their_order():
    frame = log()
    task = in_order(frame, min_count=1)
    names = task.vocabulary("tags")
    rows = values_of(task, "tags").tolist()
    assert [[names[number - 2] for number in row if number] for row in rows] == frame[
        "tags"
    ].to_list()[:480]


def test_a_vector_keeps_its_directions():
    frame = log()
    vectors = frame["vector"].to_numpy()[:480].astype(np.float64)
    centred = vectors - vectors.mean(0)
    found = values_of(in_order(frame), "vector").numpy()
    assert found == pytest.approx(centred / np.sqrt((vectors.std(0) ** 2).mean()), abs=1e-5)


def test_hashed_categories_need_no_vocabulary_and_stay_the_same_in_another_frame():
    task = in_order(log(), columns={"user": {"buckets": 50}})
    users = dict(zip(log()["user"], values_of(task, "user")[:, 0].tolist(), strict=False))
    again = in_order(log(seed=1), columns={"user": {"buckets": 50}})
    for user, number in zip(
        log(seed=1)["user"], values_of(again, "user")[:, 0].tolist(), strict=False
    ):
        assert users.get(user, number) == number
        assert 2 <= number < 52
    assert len(set(users.values())) > 15


def test_nothing_is_learnt_from_valid_and_test_rows():
    frame = log()
    other = log(seed=5).with_columns(
        pl.lit("never seen").alias("user"), pl.col("age") * 1000, pl.col("price") * -7
    )
    mixed = pl.concat([frame[:480], other[480:]])
    first, second = in_order(frame), in_order(mixed)
    assert first.columns == second.columns
    one, two = first.train.all(), second.train.all()
    assert torch.equal(one.ids, two.ids)
    assert torch.equal(one.numbers, two.numbers)
    assert set(values_of(second, "user", "test")[:, 0].tolist()) == {1}


def written(frame, folder):
    """The same rows in every format."""
    text, nested = frame.select(TEXT), frame
    text.write_csv(folder / "log.csv")
    text.write_csv(folder / "log.tsv", separator="\t")
    with gzip.open(folder / "packed.csv.gz", "wb") as file:
        text.write_csv(file)
    nested.write_parquet(folder / "log.parquet")
    nested.write_ipc(folder / "log.arrow")
    for number, part in enumerate((frame[:200], frame[200:])):
        (folder / "many").mkdir(exist_ok=True)
        part.write_parquet(folder / "many" / f"part-{number}.parquet")
    (folder / "by" / "day=1").mkdir(parents=True)
    (folder / "by" / "day=2").mkdir(parents=True)
    frame[:200].write_parquet(folder / "by" / "day=1" / "a.parquet")
    frame[200:].write_parquet(folder / "by" / "day=2" / "a.parquet")


def test_all_formats_give_the_same_rows(tmp_path):
    frame = log()
    written(frame, tmp_path)
    expected = in_order(frame, only=["user", "city", "price", "age"])
    sources = [
        "log.csv",
        "log.tsv",
        "packed.csv.gz",
        "log.parquet",
        "log.arrow",
        "many",
        "many/part-*.parquet",
        "by",
    ]
    for name in sources:
        task = in_order(
            tmp_path / name, only=["user", "city", "price", "age"], cache=tmp_path / "cache"
        )
        for part in ("train", "valid", "test"):
            ours, theirs = getattr(task, part).all(), getattr(expected, part).all()
            assert torch.equal(ours.ids, theirs.ids), name
            assert torch.allclose(ours.numbers, theirs.numbers, atol=1e-6), name
            assert torch.equal(ours.label, theirs.label), name
    assert "day" in in_order(tmp_path / "by", cache=tmp_path / "cache").fields.names


@pytest.mark.parametrize("library", ["pandas", "pyarrow", "polars.lazy"])
def test_frames_of_other_libraries(library):
    frame = log().select(TEXT)
    other = {"pandas": frame.to_pandas, "pyarrow": frame.to_arrow, "polars.lazy": frame.lazy}[
        library
    ]()
    assert torch.equal(in_order(other).train.all().ids, in_order(frame).train.all().ids)


def test_text_packed_by_zstandard(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow packs the file")
    with pyarrow.CompressedOutputStream(str(tmp_path / "log.csv.zst"), "zstd") as file:
        file.write(log().select(TEXT).write_csv().encode())
    assert len(in_order(tmp_path / "log.csv.zst").train) == 480


def test_splits_by_time_group_and_lot():
    frame = log().sample(fraction=1.0, shuffle=True, seed=1)
    by_time = tl.data.read(frame, label="click", time="time")
    assert "time" not in by_time.fields.names
    assert len(by_time.train) == 480
    order = frame["time"].to_numpy().argsort()
    assert by_time.test.label.sum().item() == frame["click"].to_numpy()[np.sort(order[540:])].sum()
    by_group = tl.data.read(frame, label="click", split="group", group="user", min_count=1)
    groups = [
        set(getattr(by_group, part).all().group.tolist()) for part in ("train", "valid", "test")
    ]
    assert all(groups)
    assert sum(map(len, groups)) == len(groups[0] | groups[1] | groups[2])
    first, second, other = (tl.data.read(frame, label="click", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.train.all().numbers, second.train.all().numbers)
    assert not torch.equal(first.train.label, other.train.label)


def test_separate_files_are_the_three_parts(tmp_path):
    for name, part in (("a", log(100)), ("b", log(50, seed=1)), ("c", log(30, seed=2))):
        part.write_parquet(tmp_path / f"{name}.parquet")
    task = tl.data.read(
        tmp_path / "a.parquet",
        valid=tmp_path / "b.parquet",
        test=tmp_path / "c.parquet",
        label="click",
    )
    assert (len(task.train), len(task.valid), len(task.test)) == (100, 50, 30)
    assert task.test.label.tolist() == log(30, seed=2)["click"].to_list()


def test_ratings_and_names_become_labels():
    frame = log().with_columns(
        (pl.col("age") % 5 + 1).alias("rating"),
        pl.when(pl.col("click") == 1).then(pl.lit("yes")).otherwise(pl.lit("no")).alias("bought"),
    )
    rated = tl.data.read(frame, label="rating", threshold=3, split="order")
    assert rated.train.label.tolist() == (frame["rating"][:480] > 3).cast(pl.Float32).to_list()
    bought = tl.data.read(frame, label="bought", positive="yes", split="order", drop=["click"])
    assert bought.train.label.tolist() == frame["click"][:480].cast(pl.Float32).to_list()


def test_a_schema_can_come_from_toml(tmp_path):
    (tmp_path / "schema.toml").write_text(
        '[columns.age]\nkind = "categorical"\nwidth = 5\n[columns.city]\nmin_count = 40\n'
    )
    task = in_order(log(), columns=tmp_path / "schema.toml")
    assert task.fields["age"].width == 5
    assert task.columns[task.fields.index("city")].column.min_count == 40


def test_encoded_data_is_kept_until_the_file_or_the_settings_change(tmp_path):
    path = tmp_path / "log.parquet"
    log().write_parquet(path)
    first = in_order(path)
    assert first.folder.parent == tmp_path / ".torchleap"
    before = (first.folder / "0.bin").stat().st_mtime_ns
    assert (in_order(path).folder / "0.bin").stat().st_mtime_ns == before
    assert in_order(path, min_count=9).folder != first.folder
    log(seed=3).write_parquet(path)
    assert in_order(path).folder != first.folder


def test_two_threads_encode_once(tmp_path):
    path = tmp_path / "log.parquet"
    log(5000).write_parquet(path)
    found = []
    threads = [threading.Thread(target=lambda: found.append(in_order(path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({task.folder for task in found}) == 1
    key = found[0].folder.name
    assert {p.name for p in (tmp_path / ".torchleap").iterdir()} == {
        ".gitignore",
        key,
        f"{key}.lock",
    }


def test_a_kill_half_way_leaves_nothing_that_is_taken_for_whole(tmp_path):
    path = tmp_path / "log.parquet"
    log().write_parquet(path)
    code = (
        "import os, torchleap as tl\n"
        "def die(stage, done, total):\n"
        "    if stage == 'encoding' and done == 3: os._exit(9)\n"
        f"tl.data.read({str(path)!r}, label='click', split='order', progress=die)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    (left,) = [item for item in (tmp_path / ".torchleap").iterdir() if item.is_dir()]
    assert left.name.startswith(".")
    assert len(in_order(path).train) == 480
    assert not left.exists()


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path):
    path = tmp_path / "log.parquet"
    log(20_000).write_parquet(path)
    code = (
        "import resource, torchleap as tl\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        f"tl.data.read({str(path)!r}, label='click')"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )
    assert "The disk is full: the encoded data does not fit into" in result.stderr
    assert not [item for item in (tmp_path / ".torchleap").iterdir() if item.is_dir()]


def test_progress_tells_what_is_done_and_of_how_much():
    seen = []
    in_order(log(), progress=lambda *step: seen.append(step))
    assert seen[0] == ("reading", 600, 600)
    assert seen[-1] == ("encoding", 7, 7)


# Bad input: one clear sentence each


def refuse(message, data, **settings):
    with pytest.raises(tl.DataError, match=message) as caught:
        tl.data.read(data, **{"label": "click", **settings})
    assert "\n" not in str(caught.value)


def test_what_is_not_there_is_named(tmp_path):
    refuse("There is no file .*nowhere.csv", tmp_path / "nowhere.csv")
    refuse("There is no file to read in", tmp_path)
    refuse("There is no column 'clicks' for label=. Did you mean 'click'", log(), label="clicks")
    refuse("There is no column 'usr'", log(), drop=["usr"])
    refuse("There is no column 'ag' for columns=", log(), columns={"ag": "numeric"})
    refuse(
        "no setting 'min_cuont'. Did you mean 'min_count'", log(), columns={"age": {"min_cuont": 2}}
    )
    refuse("Expected a path or a frame", 7)
    refuse("No input column is left", log(), only=[])
    refuse("take several names", log(), drop="age")


def test_bad_settings_are_refused(tmp_path):
    refuse("shares must be three numbers", log(), shares=(0.5, 0.5))
    refuse("split must be", log(), split="hour")
    refuse("split='time' needs the name of a column: time=", log(), split="time")
    refuse("threshold= or positive=, but found both", log(), threshold=1, positive="1")
    refuse("Expected files for both valid= and test=", log(), valid=log())
    refuse("seed must be a whole number", log(), seed="x")
    refuse("kind must be one of", log(), columns={"age": "number"})
    refuse("width must be a whole number", log(), columns={"age": {"width": 0}})
    refuse("There is no schema file", log(), columns=tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[colums.age]\n")
    refuse(
        "expected tables .columns.NAME. alone, but found colums",
        log(),
        columns=tmp_path / "bad.toml",
    )
    (tmp_path / "bad.toml").write_text("[columns")
    refuse("is not TOML", log(), columns=tmp_path / "bad.toml")
    refuse("a vector has no quantiles", log(), columns={"vector": {"scale": "quantile"}})
    refuse("is to be a list, but holds String. Name the separator", log(), columns={"user": "list"})
    refuse("is to be numeric, but holds Array", log(), columns={"vector": "numeric"})


def test_bad_labels_are_told_with_a_cure():
    frame = log()
    refuse(
        "row 1, column 'age': expected the label 0 or 1, but found .* threshold=",
        frame,
        label="age",
    )
    refuse("expected the label 0 or 1, but found 'u.*positive='u", frame, label="user")
    refuse(
        "The label 'click' is 1 in all 480 train rows: expected both",
        frame.with_columns(pl.lit(1).alias("click")),
    )
    missing = frame.with_columns(
        pl.when(pl.col("time") == frame["time"][7])
        .then(None)
        .otherwise(pl.col("click"))
        .alias("click")
    )
    refuse("row 8, column 'click': expected the label 0 or 1, but found None", missing)


def test_bad_files_are_told_with_the_line(tmp_path):
    path = tmp_path / "log.csv"
    lines = log().select(TEXT).write_csv().splitlines()

    def with_line(number, text):
        path.write_bytes("\n".join([*lines[: number - 1], text, *lines[number:]]).encode("latin-1"))

    path.write_text("")
    refuse("is empty", path)
    path.write_text(lines[0] + "\n")
    refuse("has columns but no rows", path)
    with_line(5, lines[4] + ",1,2")
    refuse("log.csv, line 5: expected 6 columns, but found 8", path)
    with_line(6, "1,\xff\xfe,c1,1.0,30,5")
    refuse("log.csv, line 6: expected UTF-8, but found the byte 0xff", path)
    with_line(300, "1,u1,c1,cheap,30,5")
    refuse(
        "log.csv, line 300, column 'price': expected a number, as in the first rows, but found 'cheap'",
        path,
    )
    with_line(301, "1,u1,c1,inf,30,5")
    refuse("line 301, column 'price': expected a finite number, but found 'inf'", path)
    with_line(302, "1,u1,c1,1.0,30,later")
    refuse(
        "line 302, column 'time': expected a time or a number, but found 'later'", path, time="time"
    )
    with_line(303, "1,u1,c1, 1.5 ,30,5")
    assert len(tl.data.read(path, label="click").train) == 480


def test_a_column_that_changes_half_way_is_told_with_its_row(tmp_path):
    rows = 150_000
    text = "click,age\n" + "\n".join(
        f"{number % 2},{number if number < 140_000 else 'old'}" for number in range(rows)
    )
    (tmp_path / "log.csv").write_text(text)
    refuse(
        "line 140002, column 'age': expected a number, as in the first rows, but found 'old'",
        tmp_path / "log.csv",
    )
    assert not [item for item in (tmp_path / ".torchleap").iterdir() if item.is_dir()]


def test_truncated_files_are_refused(tmp_path):
    written(log(20_000).drop("tags", "vector").with_columns(pl.lit(None).alias("tags")), tmp_path)
    for name in ("packed.csv.gz", "log.parquet", "log.arrow"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
        refuse("cannot be read", tmp_path / name)


def test_files_with_other_columns_are_refused():
    refuse(
        "has other columns than the frame: it lacks user and it has users",
        log(),
        valid=log(),
        test=log().rename({"user": "users"}),
    )


def test_vectors_of_two_lengths_and_infinite_ones_are_refused():
    frame = log(50).with_columns(pl.Series("vector", [[1.0, 2.0]] * 49 + [[1.0]]))
    refuse(
        "row 50, column 'vector': expected a vector of 2 numbers, as in the first row, but found 1",
        frame,
        columns={"vector": "vector"},
    )
    frame = log(50).with_columns(pl.Series("vector", [[1.0, 2.0]] * 49 + [[1.0, float("inf")]]))
    refuse("row 50, column 'vector': expected finite numbers", frame)


def test_a_column_that_nobody_can_read_is_refused():
    refuse("holds Struct.*drop=\\['s'\\]", log().with_columns(pl.struct("age", "price").alias("s")))
    refuse(
        "holds List.*drop=\\['s'\\]",
        log().with_columns(
            pl.concat_list(pl.concat_list("age")).reshape((-1, 1, 1)).arr.to_list().alias("s")
        ),
    )


def test_every_plain_type_can_be_read():
    frame = log().with_columns(
        pl.Series("yes", [True, False, None] * 200),
        (pl.lit(date(2024, 1, 1)) + pl.duration(days="age")).alias("day"),
        (pl.lit(datetime(2024, 1, 1)) + pl.duration(hours="age")).alias("hour"),
        pl.col("age").cast(pl.Decimal(10, 2)).alias("decimal"),
        pl.col("age").cast(pl.UInt8).alias("small"),
        pl.col("user").cast(pl.Categorical).alias("category"),
        pl.col("tags").list.eval(pl.element().str.slice(1).cast(pl.Int64)).alias("numbers"),
        pl.lit(None).alias("nothing"),
    )
    task = in_order(frame)
    kinds = {column.name: column.column.kind for column in task.columns}
    for name, kind in (
        ("yes", "numeric"),
        ("day", "numeric"),
        ("hour", "numeric"),
        ("decimal", "numeric"),
        ("small", "numeric"),
    ):
        assert kinds[name] == kind
    assert torch.allclose(values_of(task, "hour"), values_of(task, "age"), atol=1e-5)
    assert torch.equal(values_of(task, "category"), values_of(task, "user"))
    assert kinds["numbers"] == "list"
    assert task.columns[task.fields.index("nothing")].missing == 1.0


def test_parts_without_rows_are_refused():
    refuse("No row is left for valid", log(3), shares=(0.8, 0.1, 0.1))


@settings(max_examples=60, deadline=None)
@given(
    content=st.binary(max_size=400),
    ending=st.sampled_from([".csv", ".tsv", ".parquet", ".arrow", ".csv.gz"]),
)
def test_any_bytes_are_read_or_refused_in_one_sentence(content, ending, tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / f"log{ending}"
    path.write_bytes(content)
    with pytest.raises(tl.DataError):
        tl.data.read(path, label="a label that is not there")


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_damage_to_a_csv_file_is_read_or_refused(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    content = bytearray(log(40).select(TEXT).write_csv().encode())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    (folder / "log.csv").write_bytes(bytes(content))
    try:
        task = tl.data.read(folder / "log.csv", label="click")
    except tl.DataError as error:
        assert "\n" not in str(error)
        assert not [
            item for item in folder.rglob("*") if item.is_dir() and item.name != ".torchleap"
        ]
    else:
        assert torch.isfinite(task.train.all().numbers).all()


def test_the_manifest_is_plain_json():
    task = in_order(log())
    content = json.loads((task.folder / "task.json").read_text())
    assert content["rows"] == {"train": 480, "valid": 60, "test": 60}
    (task.folder / "task.json").write_text("{")
    with pytest.raises(tl.DataError, match="does not hold encoded data"):
        tl.data.Task.load(task.folder)
    (task.folder / "task.json").write_text('{"format": 99}')
    with pytest.raises(tl.DataError, match="expected encoded data of format 2, but found 99"):
        tl.data.Task.load(task.folder)


def test_long_numbers_are_ids_and_blank_cells_are_missing(tmp_path):
    lines = [
        f"{i % 2},{10**18 + i},{'' if i % 3 else ' '}{(i % 3 and i * 0.5) or ''}"
        for i in range(300)
    ]
    (tmp_path / "log.csv").write_text("\n".join(["click,serial,price", *lines]))
    task = in_order(tmp_path / "log.csv")
    assert [column.column.kind for column in task.columns] == ["categorical", "numeric"]
    assert task.columns[1].missing == pytest.approx(1 / 3, abs=0.01)
    frame = pl.DataFrame({"click": [0, 1] * 50, "serial": [10**18 + i for i in range(100)]})
    assert in_order(frame).columns[0].column.kind == "categorical"
