"""Places of public sets; real samples where TORCHLEAP_DATA names them."""

import os
from pathlib import Path

import pytest

import torchleap as tl

REAL = os.environ.get("TORCHLEAP_DATA")


real = pytest.mark.skipif(
    not REAL, reason="TORCHLEAP_DATA does not name a folder with the real data"
)


def test_sets_of_several_files_want_their_folder(tmp_path):
    (tmp_path / "train.csv").write_text("click\n1\n")
    for read in (tl.data.aliccp, tl.data.census_income):
        with pytest.raises(
            tl.DataError, match="Expected a folder with the files of all parts, but found the file"
        ):
            read(tmp_path / "train.csv")


@pytest.mark.parametrize("name", ["criteo", "avazu", "aliccp", "census_income", "movielens_1m"])
def test_a_set_that_is_not_there_says_where_to_get_it(name, tmp_path):
    with pytest.raises(tl.DataError, match="Get it: torchleap.data.download|: get .* and put"):
        getattr(tl.data, name)(tmp_path)


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
