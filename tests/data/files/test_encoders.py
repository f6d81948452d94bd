"""What an encoder learns and writes: hashes that never change, widths, shares, means and ranks by hand."""

import numpy as np
import polars as pl
import pytest

import torchleap as tl
from tests.data.files.test_read import values_of
from torchleap.data.files.encoders import scales, stable_hash

HASHES = {
    "": 0,
    "a": 1804080386290714614,
    "b": 6672259073711928006,
    "aa": 9730834902103798083,
    "ab": 2709626167113643991,
    "ba": 16327514009099215619,
    "\x00": 17147492313352606780,
    "\x00\x00": 512988655789505201,
    "Zürich": 12998113160674033708,
    "user_1": 5602852863065124943,
    "日本": 6329581011732164061,
}


def read(label_rows=8, **columns):
    """All rows train, and nothing is rare."""
    kinds = columns.pop("columns", None)
    frame = pl.DataFrame({"click": np.arange(label_rows) % 2, **columns})
    return tl.data.read(
        frame, label="click", split="order", shares=(1, 0, 0), min_count=1, columns=kinds
    )


def column(task, name):
    return task.columns[task.fields.index(name)]


def test_a_text_has_the_hash_that_it_always_had():
    assert dict(zip(HASHES, stable_hash(pl.Series(list(HASHES))).tolist(), strict=True)) == HASHES
    assert stable_hash(pl.Series([None, "ab"])).tolist() == [0, HASHES["ab"]]
    assert stable_hash(pl.Series([], dtype=pl.String)).tolist() == []


def test_a_hashed_category_has_the_id_that_it_always_had():
    words = ["a", "b", "ab", "ba", "", "a", None, "Zürich"]
    task = read(word=words, columns={"word": {"kind": "categorical", "buckets": 100}})
    expected = [0 if word is None else 2 + HASHES[word] % 100 for word in words]
    assert values_of(task, "word").flatten().tolist() == expected
    found = column(task, "word")
    assert (found.categories, found.missing, found.common) == (102, 1 / 8, 2 / 8)


def test_one_missing_number_among_many_has_a_column_that_says_so():
    values = np.linspace(0, 1, 1000)
    whole = read(1000, x=values)
    values[17] = np.nan
    task = read(1000, x=values)
    assert (whole.fields["x"].width, task.fields["x"].width) == (1, 2)
    assert column(task, "x").missing == 1 / 1000
    found = values_of(task, "x")
    assert found[:, 1].nonzero().flatten().tolist() == [17]
    assert found[17, 0] == 0


def test_a_vector_that_lacks_any_number_is_missing():
    vectors = [[1.0, 2.0], [3.0, None], [None, 4.0], [5.0, 6.0]] * 2
    task = read(v=pl.Series(vectors, dtype=pl.Array(pl.Float64, 2)))
    assert task.fields["v"].width == 3
    assert column(task, "v").missing == 0.5
    assert values_of(task, "v")[:, 2].tolist() == [0, 1, 1, 0] * 2


def test_the_most_common_share_counts_rows_without_a_value():
    task = read(
        x=[1.5, 1.5, 1.5, 2.5, None, None, None, None], c=["a", "a", "a", "b", None, "c", "d", "e"]
    )
    assert column(task, "x").common == 0.5  # of all rows; 3 of 4 among those with a value
    assert column(task, "c").common == pytest.approx(3 / 8)
    task = read(
        x=[1.5, 1.5, 1.5, 1.5, 2.5, 3.5, None, None], c=["a", None, None, None, "b", "c", "d", "e"]
    )
    assert column(task, "x").common == pytest.approx(0.5)
    assert column(task, "c").common == pytest.approx(3 / 8)


def test_ids_go_by_count_then_by_name_and_missing_is_not_unseen():
    task = read(10, c=["b", "a", "c", "c", "a", "b", "c", None, "d", "z"])
    assert values_of(task, "c").flatten().tolist() == [4, 3, 2, 2, 3, 4, 2, 0, 5, 6]
    frame = pl.DataFrame({"click": [0, 1] * 3, "c": ["a", "a", "a", "b", "b", "x"]})
    rare = tl.data.read(frame, label="click", split="order", shares=(1, 0, 0), min_count=2)
    assert values_of(rare, "c").flatten().tolist() == [2, 2, 2, 3, 3, 1]  # seen twice is not rare


def test_the_scales_by_hand():
    values = [-3.0, 0.0, 0.0, 8.0, None, 8.0, 8.0, 1.0]
    log = read(x=values, columns={"x": {"scale": "log"}})
    logs = np.array([np.sign(v) * np.log1p(abs(v)) for v in values if v is not None])
    expected = (logs - logs.mean()) / logs.std()
    found = values_of(log, "x")
    assert found[[0, 1, 2, 3, 5, 6, 7], 0].tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    quantile = values_of(read(x=values, columns={"x": {"scale": "quantile"}}), "x")
    assert quantile[4].tolist() == [0, 1]
    assert float(quantile[0, 0]) == pytest.approx(-1, abs=2e-3)
    assert float(quantile[1, 0]) == float(quantile[2, 0]) == pytest.approx(-0.5, abs=0.2)
    assert float(quantile[3, 0]) == pytest.approx(
        0.67, abs=0.02
    )  # the middle of the ranks from 4 to 6 of 0 to 6


@pytest.mark.parametrize("sizes", [[10], [3, 7], [1, 1, 8], [5, 0, 5]])
def test_means_and_deviations_do_not_depend_on_how_rows_are_read(sizes):
    values = np.random.default_rng(0).normal(size=(10, 2)) * [1.0, 5.0] + [1e6, -3.0]
    values[4, 0] = np.nan
    chunks = np.split(values, np.cumsum(sizes)[:-1])
    mean, deviation, missing = scales.moments(chunks)
    present = np.delete(values, 4, axis=0)
    assert mean == pytest.approx(present.mean(0))
    assert deviation == pytest.approx(present.std(0))
    assert missing == 1


def test_a_list_as_long_as_allowed_is_kept_to_its_last_value_and_an_absent_one_is_empty():
    lists = [["a", "b", "c"], ["c"], [], None, ["a", "b", "c", "d"]] * 2
    task = read(10, tags=lists, columns={"tags": {"kind": "list", "max_length": 3}})
    found = values_of(task, "tags").tolist()
    assert found[:5] == [[3, 4, 2], [2, 0, 0], [0, 0, 0], [0, 0, 0], [3, 4, 2]]
    assert column(task, "tags").missing == pytest.approx(0.4)
