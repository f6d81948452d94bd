"""Fields that are the same but for their names, units or rotation."""

from collections import Counter

import numpy as np
import polars as pl
import pytest
import torch

import torchleap as tl
from tests.methods.tasks import QUICK
from torchleap import models
from torchleap.methods import Search
from torchleap.methods.equivalents import (
    are_equivalent,
    codes_of,
    determined_ids,
    determined_numbers,
    equivalents,
    values_of,
)

ROWS = 4000


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_a_rotated_scaled_and_shifted_vector_is_the_same_field():
    x = normal(ROWS, 4)
    rotation = torch.linalg.qr(normal(4, 4, seed=1)).Q
    assert are_equivalent(x, 3 * x @ rotation + 1, ids=False)
    noisy = x @ rotation + 0.05 * normal(ROWS, 4, seed=2)
    assert are_equivalent(x, noisy, ids=False)


@pytest.mark.parametrize(
    "other",
    [
        normal(ROWS, 4, seed=5),
        normal(ROWS, 4)[:, :2],
        normal(ROWS, 4) + 0.5 * normal(ROWS, 4, seed=5),
        normal(ROWS, 4) ** 2,
        torch.ones(ROWS, 4),
    ],
    ids=["noise", "part", "half noise", "squares", "constant"],
)
def test_what_determines_a_field_only_in_part_is_another_field(other):
    x = normal(ROWS, 4)
    assert not are_equivalent(x, other, ids=False)
    assert not are_equivalent(other, x, ids=False)


def test_the_determined_share_of_numbers_is_that_of_a_regression_on_other_rows():
    x = normal(ROWS, 3)
    y = x @ normal(3, 2, seed=1) + normal(ROWS, 2, seed=2)
    design = np.c_[x[::2].numpy() - x[::2].mean(0).numpy()]
    target = (y[::2] - y[::2].mean(0)).numpy()
    weights = np.linalg.lstsq(design, target, rcond=None)[0]
    rest = (y[1::2] - y[::2].mean(0)).numpy()
    missed = rest - (x[1::2] - x[::2].mean(0)).numpy() @ weights
    expected = 1 - (missed**2).sum() / (rest**2).sum()
    assert determined_numbers(x, y) == pytest.approx(expected, abs=1e-3)


def slowly_determined(known, wanted):
    """Return the share of errors that the known id saves, row by row."""
    counts = Counter(known)
    rows = [row for row in range(len(known)) if counts[known[row]] > 1]
    errors = 0
    for row in rows:
        same = [wanted[other] for other in rows if other != row and known[other] == known[row]]
        votes = Counter(same).most_common()
        tie = len(votes) > 1 and votes[0][1] == votes[1][1]
        errors += tie or votes[0][0] != wanted[row]
    most = Counter(wanted[row] for row in rows).most_common(1)[0][1]
    return 1 - errors / (len(rows) - most)


def test_the_determined_share_of_ids_is_that_of_votes_of_the_other_rows():
    rng = np.random.default_rng(0)
    known = rng.integers(0, 30, 400)
    wanted = np.where(rng.random(400) < 0.7, known % 11, rng.integers(0, 11, 400))
    table = normal(40, 3)
    found = determined_ids(table[torch.tensor(known)], table[torch.tensor(wanted)])
    assert found == pytest.approx(slowly_determined(known.tolist(), wanted.tolist()), abs=0.02)


def test_renamed_ids_are_the_same_field_and_merged_ones_are_not():
    ids = torch.randint(0, 50, (ROWS,), generator=torch.Generator().manual_seed(0))
    first, second = normal(50, 4), normal(50, 2, seed=1)
    assert are_equivalent(first[ids], second[ids], ids=True)
    assert not are_equivalent(first[ids], second[ids // 2], ids=True)
    once = normal(ROWS, 4)
    assert determined_ids(once, once) == 0.0, "an id of a single row cannot be compared"
    assert determined_ids(first[ids], second[ids * 0]) == 0.0


def test_equal_rows_have_equal_codes():
    table = normal(5, 3)
    ids = torch.tensor([4, 0, 4, 2, 0])
    codes = codes_of(table[ids]).tolist()
    assert codes[0] == codes[2] != codes[1] == codes[4] != codes[3]


@pytest.fixture(scope="module")
def movies():
    """Return a search in which title renames movie, and celsius is fahrenheit."""
    rng = np.random.default_rng(0)
    movie = rng.integers(0, 40, 6000)
    heat = rng.normal(size=6000)
    frame = pl.DataFrame(
        {
            "click": (rng.random(6000) < 0.5).astype(int),
            "movie": movie,
            "title": [f"film {number * 7 % 41}" for number in movie],
            "genre": movie % 4,
            "celsius": heat,
            "fahrenheit": 32 + 1.8 * heat,
        }
    )
    columns = {
        "movie": {"kind": "categorical", "width": 8},
        "title": {"kind": "categorical", "width": 4},
        "genre": {"kind": "categorical", "width": 4},
    }
    task = tl.data.read(frame, label="click", split="order", columns=columns)
    search = Search(task, models.benchmark("wide_deep"), QUICK)
    return search, search.fit_plain()


def test_the_cheaper_of_two_equivalents_stays(movies):
    search, model = movies
    names = search.task.fields.names
    every = [(one, other) for place, one in enumerate(names) for other in names[place + 1 :]]
    assert equivalents(search, model, every) == {"movie": "title", "fahrenheit": "celsius"}
    assert equivalents(search, model, [("movie", "genre")]) == {}
    assert equivalents(search, model, []) == {}


def test_values_are_those_of_evenly_spaced_validation_rows(movies):
    search, model = movies
    with torch.no_grad():
        x = model.inputs(*search.task.valid.all().inputs)
    expected = x[:, search.task.fields.columns("movie")]
    assert torch.equal(values_of(search, model, "movie", 10_000), expected)
    assert torch.equal(values_of(search, model, "movie", 250), expected[::3])
