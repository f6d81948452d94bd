"""The public sets, in the formats in which people have them; real samples where TORCHLEAP_DATA names them."""

import functools
import http.server
import os
import threading
import zipfile
from hashlib import md5
from pathlib import Path

import pytest

import torchleap as tl

REAL = os.environ.get("TORCHLEAP_DATA")
real = pytest.mark.skipif(
    not REAL, reason="TORCHLEAP_DATA does not name a folder with the real data"
)


def values(task, name, part="train"):
    ids = getattr(task, part).all().ids[:, task.slots(ids=True)[name]]
    words = ["missing", "unseen", *task.vocabulary(name)]
    return [[words[number] for number in row] for row in ids.tolist()]


def movielens(folder):
    folder.mkdir()
    (folder / "ratings.dat").write_text(
        "".join(
            f"{u}::{m}::{1 + (u * m) % 5}::97830{u}{m}\n" for u in range(1, 9) for m in (1, 2, 3)
        )
    )
    (folder / "users.dat").write_text(
        "".join(f"{u}::{'MF'[u % 2]}::{18 + u}::{u}::9{u}000\n" for u in range(1, 9))
    )
    movies = ["1::Caf\xe9 (1995)::Comedy|Drama", '2::The "Sea"::Drama', "3::Tea, and ; so::Action"]
    (folder / "movies.dat").write_bytes("\n".join(movies).encode("latin-1"))
    return folder


def test_movielens_from_a_folder_and_from_the_zip(tmp_path):
    folder = movielens(tmp_path / "ml-1m")
    with zipfile.ZipFile(tmp_path / "ml-1m.zip", "w") as archive:
        for name in ("ratings", "users", "movies"):
            archive.write(folder / f"{name}.dat", f"ml-1m/{name}.dat")
    for path in (folder, tmp_path / "ml-1m.zip", tmp_path):
        task = tl.data.movielens_1m(
            path, split="order", shares=(1 / 3, 1 / 3, 1 / 3), cache=tmp_path / "cache"
        )
        assert task.fields.names == (
            "user_id",
            "movie_id",
            "timestamp",
            "gender",
            "age",
            "occupation",
            "zip",
            "title",
            "genres",
        )
        assert set(task.fields.widths) == {8}
        assert values(task, "title")[:3] == [["Caf\xe9 (1995)"], ['The "Sea"'], ["Tea, and ; so"]]
        assert task.train.label.tolist()[:4] == [
            float(1 + (u * m) % 5 > 3) for u, m in ((1, 1), (1, 2), (1, 3), (2, 1))
        ]
    pooled = tl.data.movielens_1m(folder, genres="list", split="order", cache=tmp_path / "cache")
    assert values(pooled, "genres")[0] == ["Comedy", "Drama"]


def test_movielens_with_wrong_lines_is_refused(tmp_path):
    folder = movielens(tmp_path / "ml-1m")
    with pytest.raises(
        tl.DataError, match="genres must be 'categorical' or 'list', but is 'lists'"
    ):
        tl.data.movielens_1m(folder, genres="lists")
    ratings = (folder / "ratings.dat").read_text()
    for line, found in (("1::1::bad::97", "'bad'"), ("1::1", "None")):
        (folder / "ratings.dat").write_text(f"{ratings}{line}\n")
        with pytest.raises(
            tl.DataError, match=f"ratings.dat, line 25: expected a rating, but found {found}"
        ):
            tl.data.movielens_1m(folder)
    (folder / "ratings.dat").write_text(ratings)
    (folder / "users.dat").write_text("1::F::1::10::48067\n1::M::1::10::48067\n")
    with pytest.raises(
        tl.DataError, match="expected one line per user_id in users.dat, but found '1' twice"
    ):
        tl.data.movielens_1m(folder)


def test_text_among_the_numbers_of_criteo_is_refused(tmp_path):
    def write(number):
        lines = ["\t".join([str(i % 2), number, *["1"] * 12, *["abc"] * 26]) for i in range(40)]
        (tmp_path / "train.txt").write_text("\n".join(lines) + "\n")
        return tl.data.criteo(tmp_path / "train.txt")

    with pytest.raises(
        tl.DataError, match="cannot be read: conversion from `str` to `f64` failed in column 'I1'"
    ):
        write("x")
    for number, found in (("nan", []), ("", []), ("2.7", ["0"]), ("1e30", ["4771"])):
        assert write(number).vocabulary("I1") == found


def test_sets_of_several_files_want_their_folder(tmp_path):
    (tmp_path / "train.csv").write_text("click\n1\n")
    for read in (tl.data.aliccp, tl.data.census_income):
        with pytest.raises(
            tl.DataError, match="Expected a folder with the files of all parts, but found the file"
        ):
            read(tmp_path / "train.csv")


def test_a_damaged_movielens_is_refused(tmp_path):
    (tmp_path / "ml-1m.zip").write_bytes(b"PK not a zip")
    with pytest.raises(
        tl.DataError, match="is not a complete MovieLens-1M: ratings.dat cannot be read"
    ):
        tl.data.movielens_1m(tmp_path / "ml-1m.zip")


def test_criteos_numbers_become_steps(tmp_path):
    def line(number, label):
        return "\t".join([str(label), str(number), *[""] * 12, *["68fd1e64"] * 26])

    numbers = [-3, 0, 1, 2, 3, 10, 1000, ""]
    (tmp_path / "train.txt").write_text(
        "".join(line(n, i % 2) + "\n" for i, n in enumerate(numbers * 4))
    )
    task = tl.data.criteo(tmp_path, shares=(0.5, 0.25, 0.25))
    assert len(task.columns) == 39
    expected = [
        "-5",
        "-2",
        "-1",
        "0",
        "1",
        "5",
        "47",
        "missing",
    ]  # int(log(x) ** 2) above 2, else x - 2
    assert [value for (value,) in values(task, "I1")[:8]] == expected
    assert values(task, "I2")[0] == ["missing"]
    assert values(task, "C1")[0] == ["68fd1e64"]


def test_avazu_has_22_fields_and_no_id(tmp_path):
    names = ["id", "click", "hour", "C1", "banner_pos"]
    rows = [f"{1000 + i},{i % 2},1410210{i % 3},1005,{i % 4}" for i in range(40)]
    (tmp_path / "train.csv").write_text("\n".join([",".join(names), *rows]))
    task = tl.data.avazu(tmp_path)
    assert task.fields.names == ("hour", "C1", "banner_pos")
    assert [value for (value,) in values(task, "hour")[:3]] == ["14102100", "14102101", "14102102"]
    (tmp_path / "train.csv").write_text("a,b\n1,2\n")
    with pytest.raises(tl.DataError, match="expected Avazu's column 'click', but found a, b"):
        tl.data.avazu(tmp_path)


def test_the_original_aliccp_files_are_joined(tmp_path):
    def features(**pairs):
        return "\x01".join(
            f"{field.lstrip('f')}\x02{value}\x031.0" for field, value in pairs.items()
        )

    for part, rows in (("train", 20), ("test", 10)):
        common = [f"u{i},2,{features(f101=70 + i, f109_14=900 + i)}" for i in range(3)]
        (tmp_path / f"common_features_{part}.csv").write_text("\n".join(common))
        skeleton = [
            f"{i},{i % 2},0,u{i % 3},2,{features(f205=500 + i % 4, f301=1)}" for i in range(rows)
        ]
        (tmp_path / f"sample_skeleton_{part}.csv").write_text("\n".join(skeleton))
    task = tl.data.aliccp(tmp_path, cache=tmp_path / "cache")
    assert (len(task.train), len(task.valid), len(task.test)) == (20, 5, 5)
    assert len(task.columns) == 23
    assert [value for (value,) in values(task, "101")[:4]] == ["70", "71", "72", "70"]
    assert [value for (value,) in values(task, "109_14")[:2]] == ["900", "901"]
    assert [value for (value,) in values(task, "205")[:5]] == ["500", "501", "502", "503", "500"]
    assert values(task, "121")[0] == ["missing"]
    assert task.train.label.tolist()[:3] == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("name", ["criteo", "avazu", "aliccp", "census_income", "movielens_1m"])
def test_a_set_that_is_not_there_says_where_to_get_it(name, tmp_path):
    with pytest.raises(tl.DataError, match="Get it: torchleap.data.download|: get .* and put"):
        getattr(tl.data, name)(tmp_path)


@pytest.fixture
def server(tmp_path):
    """A server on this machine that has a file."""
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "ml-1m.zip").write_bytes(b"a data set" * 100_000)
    handler = functools.partial(
        http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "served")
    )
    handler.log_message = lambda *_: None  # type: ignore[attr-defined]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}/ml-1m.zip"
        running.shutdown()


def test_movielens_is_fetched_once_and_verified(server, tmp_path):
    right = md5(b"a data set" * 100_000).hexdigest()
    seen = []
    path = tl.data.download(
        "movielens_1m",
        tmp_path / "data",
        address=server,
        checksum=right,
        progress=lambda *s: seen.append(s),
    )
    assert path.read_bytes() == b"a data set" * 100_000
    assert seen[-1] == ("downloading", 1_000_000, 1_000_000)
    again = tl.data.download(
        "movielens_1m", tmp_path / "data", address="http://127.0.0.1:1/nowhere", checksum=right
    )
    assert again == path


def test_what_comes_damaged_or_not_at_all_leaves_no_file(server, tmp_path):
    with pytest.raises(tl.DataError, match="expected the MD5 0000, but found"):
        tl.data.download("movielens_1m", tmp_path / "data", address=server, checksum="0000")
    with pytest.raises(tl.DataError, match="cannot be reached"):
        tl.data.download("movielens_1m", tmp_path / "data", address=server + ".nowhere")
    assert not list((tmp_path / "data").iterdir())


def test_sets_that_may_not_be_fetched_and_unknown_ones_are_refused(tmp_path):
    with pytest.raises(
        tl.DataError, match="criteo may not be fetched for you.*put its train.txt into"
    ):
        tl.data.download("criteo", tmp_path)
    with pytest.raises(
        tl.DataError, match="There is no data set 'movielens'. Did you mean 'movielens_1m'"
    ):
        tl.data.download("movielens", tmp_path)


@real
def test_the_real_samples_load(tmp_path):
    expected = {
        "criteo": ("criteo", 39, 14_765),
        "avazu": ("avazu", 22, 9_999),
        "aliccp": ("aliccp", 23, 200),
        "census_income": ("census", 41, 299_285),
        "movielens_1m": ("ml-1m.zip", 9, 1_000_209),
    }
    for name, (path, fields, rows) in expected.items():
        task = getattr(tl.data, name)(Path(REAL) / path, cache=tmp_path)
        assert len(task.fields) == fields, name
        assert sum(task.rows.values()) == rows, name
    assert len(set(task.vocabulary("movie_id"))) == 3_677  # of the last, in train rows
