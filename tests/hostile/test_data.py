"""Hostile caches, encodings, archives, records and settings run no code, write nothing."""

import contextlib
import gzip
import hashlib
import io
import json
import os
import shutil
import zipfile

import numpy as np
import polars as pl
import pytest
import torch

import torchleap as tl
from tests.hostile.test_checkpoints import PICKLES
from tests.hostile.watch import watched
from torchleap._common.plain import key_of
from torchleap.data import checksums
from torchleap.data.files.cache import once
from torchleap.data.files.encoding import Encoding, save_encoding
from torchleap.data.files.open import open_source
from torchleap.pipeline.serve import Served
from torchleap.report import Report
from torchleap.selection import Selection
from torchleap.training.fit import TrainingError


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A file of rows, and the folder of its cache."""
    folder = tmp_path_factory.mktemp("log")
    rng = np.random.default_rng(0)
    columns = {
        "click": rng.integers(0, 2, 600),
        "item": rng.integers(0, 9, 600).astype(str),
        "price": rng.random(600),
    }
    pl.DataFrame(columns).write_parquet(folder / "log.parquet")
    return folder / "log.parquet"


@pytest.fixture
def task(log, tmp_path):
    return tl.data.read(log, label="click", cache=tmp_path / "cache")


@pytest.fixture
def encoding(task, tmp_path):
    save_encoding(task, tmp_path / "encoding")
    return tmp_path / "encoding"


def test_a_link_in_the_place_of_a_lock_is_neither_followed_nor_emptied(tmp_path):
    (tmp_path / "diary").write_text("mine")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "key.lock").symlink_to(tmp_path / "diary")
    with pytest.raises(tl.DataError, match="cannot be written to .*cache: "):
        once(tmp_path / "cache", "key", lambda folder: None, complete="task.json")
    assert (tmp_path / "diary").read_text() == "mine"


def test_a_lock_that_is_there_is_not_emptied(tmp_path):
    (tmp_path / "key.lock").write_text("mine")
    once(tmp_path, "key", lambda folder: (folder / "task.json").touch(), complete="task.json")
    assert (tmp_path / "key.lock").read_text() == "mine"


def test_no_flipped_bit_of_a_cache_is_accepted(task, tmp_path):
    def read(folder):
        checksums._known.cache_clear()  # two changes may be in one millisecond of the clock
        found = tl.data.Task.load(folder)
        save_encoding(found, tmp_path / "encoding")
        assert found.seen is not None
        return [rows.all() for rows in (found.train, found.valid, found.test)], found.vocabulary(
            "item"
        )

    read(task.folder)
    rng = np.random.default_rng(0)
    for file in sorted(task.folder.iterdir()):
        content = file.read_bytes()
        for place in rng.choice(len(content), 8):
            flipped = bytearray(content)
            flipped[place] ^= 1 << int(place) % 8
            file.write_bytes(flipped)
            with pytest.raises(tl.DataError, match="Remove"):
                read(task.folder)
        file.write_bytes(content[: len(content) // 2])
        with pytest.raises(tl.DataError, match="Remove"):
            read(task.folder)
        file.write_bytes(content)
    read(task.folder)


def test_a_column_is_read_for_its_checksum_once(task, monkeypatch):
    found = []
    check = checksums.checksum
    monkeypatch.setattr(checksums, "checksum", lambda path: found.append(path.name) or check(path))
    checksums._known.cache_clear()
    for _ in range(3):
        again = tl.data.Task.load(task.folder)
        for batch in again.train.batches(64, memory=False):
            assert len(batch)
    assert sorted(found) == ["0.bin", "1.bin", "label.bin"]


def test_pages_that_change_places_change_the_checksum(tmp_path):
    pages = [bytes([number]) * checksums.PAGE for number in range(3)]
    (tmp_path / "a").write_bytes(b"".join(pages) + b"tail")
    (tmp_path / "b").write_bytes(b"".join(reversed(pages)) + b"tail")
    assert checksums.checksum(tmp_path / "a") != checksums.checksum(tmp_path / "b")


def places_of(value, place=()):
    """Yield the way to each part of a nested value."""
    yield place
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, part in inner:
        yield from places_of(part, (*place, key))


STRANGE = (None, True, -1, 0, 2, -(10**30), 10**400, 0.5, "a", [], {}, [[]], [None])


def test_an_encoding_of_which_any_value_is_another_one_is_refused_or_works(encoding, log):
    content = json.loads((encoding / "encoding.json").read_text())
    rows = pl.read_parquet(log).head(20)
    for place in [place for place in places_of(content["columns"]) if place]:
        for value in STRANGE:
            changed = json.loads(
                json.dumps({key: part for key, part in content.items() if key != "key"})
            )
            holder = changed["columns"]
            for key in place[:-1]:
                holder = holder[key]
            holder[place[-1]] = value
            (encoding / "encoding.json").write_text(json.dumps({**changed, "key": key_of(changed)}))
            with contextlib.suppress(tl.TorchleapError):
                assert len(list(Encoding.load(encoding).batches(rows))) == 1


def test_an_encoding_without_columns_is_refused(encoding):
    content = json.loads((encoding / "encoding.json").read_text()) | {"columns": []}
    del content["key"]
    (encoding / "encoding.json").write_text(json.dumps({**content, "key": key_of(content)}))
    with pytest.raises(tl.DataError, match="it has no columns"):
        Encoding.load(encoding)


def sealed_task(folder, change):
    """Change a cache as somebody would who knows about its checksums."""
    path = folder / "task.json"
    content = json.loads(path.read_text())
    del content["key"]
    change(content)
    content["files"] = {
        name: value for name, value in checksums.checksums(folder).items() if name != "task.json"
    }
    path.write_text(json.dumps({**content, "key": key_of(content)}))


@pytest.mark.parametrize("value", [None, True, "", [], [1], [1, "a"], {"a": 1}])
def test_a_cache_whose_files_have_no_checksum_is_refused(value, task):
    path = task.folder / "task.json"
    content = json.loads(path.read_text())
    del content["key"]
    content["files"]["0.bin"] = value
    path.write_text(json.dumps({**content, "key": key_of(content)}))
    with pytest.raises(tl.DataError, match="expected a size and a checksum of '0.bin'"):
        tl.data.Task.load(task.folder)


@pytest.mark.parametrize("value", [1 << 30, -5])
def test_ids_that_no_table_has_are_refused(value, task):
    ids = np.fromfile(task.folder / "0.bin", np.int32)
    ids[3] = value
    ids.tofile(task.folder / "0.bin")
    sealed_task(task.folder, lambda content: None)
    with pytest.raises(tl.DataError, match="it has ids that no column has"):
        tl.data.Task.load(task.folder).train.all()


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["rows"].update(train=1 << 50),
        lambda content: content["columns"][0]["learnt"].update(slots=1 << 40),
        lambda content: content["columns"][0]["learnt"].update(evil=1),
        lambda content: content["columns"][0].update(__class__="os"),
        lambda content: content.update(columns={"a": 1}),
        lambda content: content.update(roles=None),
        lambda content: content.update(roles={}),
        lambda content: content["columns"][0].update(name=[]),
        lambda content: content["columns"][0].update(name="a\ud800"),
        lambda content: content["columns"][1]["learnt"].update(width=2),
    ],
)
def test_a_cache_that_claims_the_impossible_is_refused(change, task):
    sealed_task(task.folder, change)
    with watched(task.folder) as seen, pytest.raises(tl.TorchleapError):
        tl.data.Task.load(task.folder).train.all()
    assert seen == []


def sealed(folder, change):
    """Change an encoding as somebody would who knows about its digest."""
    path = folder / "encoding.json"
    content = json.loads(path.read_text())
    del content["key"]
    change(content)
    path.write_text(json.dumps({**content, "key": key_of(content)}))


def digest(content):
    return hashlib.sha256(content).hexdigest()


def elsewhere(name):
    def spoil(folder, secret):
        content = secret.read_bytes()
        sealed(
            folder,
            lambda found: found["files"].update({name.format(secret=secret): digest(content)}),
        )

    return spoil


def linked(folder, secret):
    (folder / "_types.parquet").rename(secret.with_name("types"))
    (folder / "_types.parquet").symlink_to(secret.with_name("types"))


def piped(folder, _):
    (folder / "_types.parquet").unlink()
    os.mkfifo(folder / "_types.parquet")


def grown(folder, _):
    frame = io.BytesIO()
    pl.DataFrame({"value": ["a"] * 3_000_000}).write_parquet(frame)
    (folder / "_0.parquet").write_bytes(frame.getvalue())
    sealed(folder, lambda found: found["files"].update({"_0.parquet": digest(frame.getvalue())}))


def swollen(folder, _):
    frame = io.BytesIO()
    pl.DataFrame({"value": ["\0" * (100 << 20)]}).write_parquet(frame, compression="zstd")
    (folder / "_0.parquet").write_bytes(frame.getvalue())
    sealed(folder, lambda found: found["files"].update({"_0.parquet": digest(frame.getvalue())}))


ENCODINGS = {
    "a file above": elsewhere("../secret"),
    "an absolute path": elsewhere("{secret}"),
    "a path that goes up and down": elsewhere("x/../../secret"),
    "a link": linked,
    "a pipe": piped,
    "many rows in few bytes": grown,
    "one enormous value": swollen,
    "lists in lists": lambda folder, _: (folder / "encoding.json").write_text("[" * 100_000),
    "a row of many places": lambda folder, _: sealed(
        folder, lambda found: found["columns"][0]["learnt"].update(slots=1 << 50)
    ),
    "a setting that is not known": lambda folder, _: sealed(
        folder, lambda found: found["columns"][0].update(evil=1)
    ),
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_an_encoding_reads_only_inside_its_folder(name, encoding, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes((encoding / "_types.parquet").read_bytes())
    Encoding.load(encoding)
    ENCODINGS[name](encoding, secret)
    with watched() as seen, pytest.raises(tl.DataError, match="Write it again"):
        Encoding.load(encoding)
    assert seen == []


def movielens(path, **content):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("ratings", "users", "movies"):
            archive.writestr(f"ml-1m/{name}.dat", content.get(name, "1::1::1::1\n"))
        for name, text in content.items():
            archive.writestr(name, text)


def test_an_archive_that_becomes_enormous_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("torchleap.data.sets.movielens.LARGEST", 1 << 20)
    movielens(tmp_path / "ml-1m.zip", ratings=bytes(2 << 20))
    assert (tmp_path / "ml-1m.zip").stat().st_size < 5000
    with pytest.raises(tl.DataError, match="it unpacks to more than 1 MB"):
        tl.data.movielens_1m(tmp_path / "ml-1m.zip")


def test_an_archive_that_points_elsewhere_writes_nothing_there(tmp_path):
    (tmp_path / "in").mkdir()
    movielens(tmp_path / "in" / "ml-1m.zip", **{"../evil": "x"})
    with watched(tmp_path / "in") as seen, pytest.raises(tl.DataError):
        tl.data.movielens_1m(tmp_path / "in" / "ml-1m.zip", cache=tmp_path / "in" / "cache")
    assert [event for event in seen if event.startswith(("open", "os."))] == []
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_a_packed_file_that_becomes_enormous_is_refused(ending, tmp_path):
    path = tmp_path / f"log.csv.{ending}"
    rows = b"click,item\n" + b"0,a\n" * (30 << 20)
    if ending == "gz":
        path.write_bytes(gzip.compress(rows, 9))
    else:
        pyarrow = pytest.importorskip("pyarrow")
        path.write_bytes(pyarrow.compress(rows, "zstd", asbytes=True))
    with pytest.raises(
        tl.DataError, match="unpacks to more than 300 times its size, which no table of rows does"
    ):
        open_source(path)
    path.write_bytes(gzip.compress(b"click,item\n0,a\n1,b\n") if ending == "gz" else b"")
    if ending == "gz":
        assert open_source(path).count() == 2


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"format": 1, "fields": [{"name": {}}]}', '{"format": 1e999}', "\x00"]
)
def test_hostile_records_run_nothing(text, tmp_path):
    for name, load in (("selection.json", Selection.load), ("report.json", Report.load)):
        (tmp_path / name).write_text(text)
        with watched() as seen, pytest.raises(tl.TorchleapError):
            load(tmp_path / name)
        assert [
            event for event in seen if event.startswith(("open", "os.", "socket", "subprocess"))
        ] == []
    (tmp_path / "layout.json").write_text(text)
    with watched() as seen, pytest.raises(tl.DataError):
        Served.load(tmp_path)
    assert seen == []


def test_columns_from_toml_are_data(tmp_path, log):
    (tmp_path / "columns.toml").write_text(
        "[item]\nkind = \"__import__('os').system('touch MARK')\"\n"
    )
    with watched(tmp_path, log.parent, code=False) as seen, pytest.raises(tl.DataError):
        tl.data.read(
            log, label="click", columns=tmp_path / "columns.toml", cache=tmp_path / "cache"
        )
    assert seen == []


def test_arrays_of_objects_and_pickles_are_not_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "rows.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    for name, content in PICKLES.items():
        (tmp_path / f"{name}.pkl").write_bytes(content)
        (tmp_path / f"{name}.parquet").write_bytes(content)
        (tmp_path / f"{name}.csv").write_bytes(content)
    for path in sorted(tmp_path.iterdir()):
        with (
            watched(tmp_path, code=False) as seen,
            pytest.raises((tl.TorchleapError, TrainingError)),
        ):
            tl.data.read(path, label="click", cache=tmp_path / "cache")
        assert seen == []
    assert not (tmp_path / "MARK").exists()


def test_a_served_folder_with_a_hostile_part_runs_nothing(tmp_path, encoding):
    shutil.copytree(encoding, tmp_path / "result" / "encoding")
    (tmp_path / "result" / "model").mkdir()
    torch.save({"a": torch.ones(2)}, tmp_path / "result" / "model" / "model.safetensors")
    (tmp_path / "result" / "layout.json").write_text(
        json.dumps({"ids": {}, "numbers": {}, "result": "0"})
    )
    with watched() as seen, pytest.raises(tl.TorchleapError):
        Served.load(tmp_path / "result")
    assert seen == []
