"""Archives of MovieLens that are damaged or become enormous."""

import zipfile

import pytest

import torchleap as tl
from tests.data.sets.test_movielens import movielens


def archive(tmp_path):
    folder = movielens(tmp_path / "ml-1m")
    with zipfile.ZipFile(tmp_path / "ml-1m.zip", "w", zipfile.ZIP_DEFLATED) as made:
        for name in ("ratings", "users", "movies"):
            made.write(folder / f"{name}.dat", f"ml-1m/{name}.dat")
    return tmp_path / "ml-1m.zip", bytearray((tmp_path / "ml-1m.zip").read_bytes())


@pytest.mark.parametrize(
    ("places", "value", "told"),
    [
        ((60, -1), 0x5A, "Error -3 while decompressing"),
        ((8, 10), 99, "compression method is not supported"),
        ((6, 8), 1, "encrypted"),
    ],
)
def test_an_archive_that_is_damaged_encrypted_or_packed_otherwise(tmp_path, places, value, told):
    path, content = archive(tmp_path)
    local, entry = places
    content[local] = value
    if entry >= 0:
        content[content.index(b"PK\x01\x02") + entry] = value
    path.write_bytes(content)
    with pytest.raises(
        tl.DataError,
        match=f"ml-1m.zip is not a complete MovieLens-1M: ratings.dat cannot be read .*{told}",
    ):
        tl.data.movielens_1m(path, cache=tmp_path / "cache")


def test_an_archive_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    path, _ = archive(tmp_path)
    monkeypatch.setattr("torchleap.data.sets.movielens.LARGEST", 50)
    with pytest.raises(tl.DataError, match="ratings.dat cannot be read .it unpacks to more than"):
        tl.data.movielens_1m(path, cache=tmp_path / "cache")
