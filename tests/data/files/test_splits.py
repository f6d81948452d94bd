"""Which rows train, validate and test, also years later: results name the seed alone."""

import numpy as np
import polars as pl
import pytest

import torchleap as tl
from tests.data.files.reading import (
    refuse,
)
from tests.data.frames import log
from torchleap.data.files import splits
from torchleap.data.files.encoders import stable_hash

GROUPS = [f"u{number}" for number in range(20)]


def parts(hashes, shares, seed):
    return splits.by_group(hashes, np.arange(len(hashes), dtype=np.int32), shares, seed).tolist()


def test_scattered_numbers_are_what_they_always_were():
    given = np.array([0, 1, 2, 2**32, 2**63, 2**64 - 1], np.uint64)
    assert splits.scattered(given).tolist() == [
        *(0, 6238072747940578789, 15839785061582574730),
        *(15573649723082471743, 2720858781877447050, 13029008266876403067),
    ]


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        (0, [0, 0, 0, 2, 1, 0, 0, 0, 1, 0, 0, 2, 0, 1, 0, 0, 1, 0, 2, 0]),
        (1, [2, 2, 0, 2, 0, 1, 0, 1, 0, 0, 0, 1, 1, 1, 2, 0, 0, 0, 0, 2]),
        (2**64 - 1, [0, 2, 0, 0, 0, 0, 2, 0, 0, 2, 1, 0, 2, 1, 1, 0, 0, 2, 0, 0]),
    ],
)
def test_a_group_is_in_the_part_where_it_always_was(seed, expected):
    hashes = stable_hash(pl.Series(GROUPS))
    assert parts(hashes, (0.6, 0.2, 0.2), seed) == expected
    assert parts(hashes, (0.6, 0.2, 0.2), seed + 2**64) == expected


def test_a_row_drawn_at_random_is_in_the_part_where_it_always_was():
    shares = (0.5, 0.25, 0.25)
    assert splits.at_random(12, shares, 0).tolist() == [2, 0, 1, 0, 0, 2, 0, 0, 1, 2, 1, 0]
    assert splits.at_random(12, shares, 1).tolist() == [1, 2, 0, 1, 0, 0, 0, 2, 0, 2, 1, 0]


def test_a_group_at_the_edge_of_a_share_belongs_to_the_next_part(monkeypatch):
    monkeypatch.setattr(splits, "scattered", lambda numbers: numbers)
    lot = np.uint64(0x9E3779B97F4A7C15)  # of seed 0
    drawn = np.array([0, 2**62, 2**63, 3 * 2**62], np.uint64)
    assert parts(drawn ^ lot, (0.25, 0.5, 0.25), 0) == [0, 1, 1, 2]


@pytest.mark.parametrize(
    "shares", [(0.9, 0.1, 0.0), (0.3333333, 0.6666666, 0.0), (1.0, 0.0, 0.0), (0.9999995, 0, 0)]
)
def test_an_empty_test_share_gets_no_row_however_the_others_are_rounded(shares):
    for rows in (1, 2, 3, 10, 11, 1000):
        assert not (splits.by_order(rows, shares) == 2).any()
        assert not (splits.at_random(rows, shares, 0) == 2).any()


@pytest.mark.parametrize("split", ["order", "random"])
def test_a_task_may_have_no_test_rows(split):
    task = tl.data.read(log(100), label="click", split=split, shares=(0.8, 0.2, 0.0))
    assert (len(task.train), len(task.valid), len(task.test)) == (80, 20, 0)


def test_a_share_that_is_too_small_for_a_row_is_refused():
    refuse("No row is left for valid: 12 rows", log(12), split="order", shares=(0.5, 0.01, 0.49))


@pytest.mark.parametrize(
    "shares",
    [
        (0.8, 0.1, 0.05),
        (0.8, 0.2, 0.1),
        (0.0, 0.5, 0.5),
        (-0.5, 1.0, 0.5),
        (1.1, 0.0, -0.1),
        (0.8, 0.2),
    ],
)
def test_shares_that_are_not_three_parts_of_1_are_refused(shares):
    with pytest.raises(tl.DataError, match="three numbers for train, valid and test that sum to 1"):
        splits.check_shares(shares)


def test_shares_that_sum_to_1_up_to_rounding_are_taken():
    for shares in ((0.8, 0.1, 0.1), (1, 0, 0), (0.3333333, 0.3333333, 0.3333333)):
        splits.check_shares(shares)


def test_rows_of_one_moment_stay_together_with_the_later_part():
    times = np.array([5, 1, 3, 3, 3, 9, 2, 8])
    assert splits.by_time(times, (0.5, 0.25, 0.25)).tolist() == [1, 0, 1, 1, 1, 2, 0, 2]
    assert splits.by_time(np.arange(4), (0.5, 0.5, 0.0)).tolist() == [0, 0, 1, 1]


def test_words_are_not_times():
    words = log(20).with_columns(pl.lit("soon").alias("time"))
    refuse(
        "row 1, column 'time': expected a time or a number, but found 'soon'", words, time="time"
    )
