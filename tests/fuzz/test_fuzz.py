"""Damaged files of every format are read or refused in one sentence; none ends the process."""

import pytest

from tests.fuzz.mutators import damaged
from tests.fuzz.trials import FINDINGS, Worker

FILES = 40  # per format, of which the first is healthy
FORMATS = (
    *("csv", "csv.gz", "csv.zst", "parquet", "parquet of pyarrow", "arrow", "feather", "movielens"),
    *("report", "bench report", "selection", "grid", "columns", "store"),
    *("cache", "served", "model", "fit checkpoint", "stream checkpoint"),
)


@pytest.fixture(scope="module")
def worker():
    with Worker() as found:
        yield found


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_file_is_read_or_refused_in_one_sentence(worker, name):
    assert worker.outcome(name, 0) == ("read", "")
    found = {seed: worker.outcome(name, seed) for seed in range(1, FILES)}
    assert not {seed: told for seed, (outcome, told) in found.items() if outcome in FINDINGS}
    assert "refused" in {outcome for outcome, _ in found.values()}


def test_the_tests_know_every_format():
    from tests.fuzz import formats

    assert list(formats.FORMATS) == list(FORMATS)


def test_a_seed_always_does_the_same_damage():
    content = b'{"a": 1, "b": [true, "text"]}' * 40
    assert [damaged(content, seed) for seed in range(20)] == [
        damaged(content, seed) for seed in range(20)
    ]
    assert all(damaged(content, seed) != content for seed in range(1, 20))
