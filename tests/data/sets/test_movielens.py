"""MovieLens-1M, from a folder and from its archive."""

import zipfile

import pytest

import torchleap as tl


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


def test_a_damaged_movielens_is_refused(tmp_path):
    (tmp_path / "ml-1m.zip").write_bytes(b"PK not a zip")
    with pytest.raises(
        tl.DataError, match="is not a complete MovieLens-1M: ratings.dat cannot be read"
    ):
        tl.data.movielens_1m(tmp_path / "ml-1m.zip")
