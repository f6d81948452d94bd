"""Codes of distinct values: both ways number them alike, block after block."""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchleap.data.files import codes
from torchleap.native import library

WAYS = [codes.PolarsCodes]
if library.load() is not None:
    WAYS.append(lambda: codes.NativeCodes(library.load()))

texts = st.lists(
    st.one_of(st.none(), st.text(max_size=3), st.sampled_from(["a", "b"])), max_size=40
)


def read(made, values):
    block = pl.DataFrame({"x": pl.Series(values, dtype=pl.String)})
    return made.read(block.select(made.expression(pl.col("x")))["x"], block["x"]).tolist()


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=60, deadline=None)
@given(blocks=st.lists(texts, max_size=4))
def test_a_value_has_one_code_in_all_blocks_and_no_value_has_none(way, blocks):
    made = way()
    found = [read(made, block) for block in blocks]
    values = made.values().to_list()
    assert len(values) == made.count
    for block, numbers in zip(blocks, found, strict=True):
        assert [values[number - 1] if number else None for number in numbers] == block


@pytest.mark.parametrize("way", WAYS)
def test_many_values(way):
    made = way()
    for start in range(0, 60_000, 20_000):
        numbers = read(made, [f"value {number}" for number in range(start, start + 30_000)])
        assert len(set(numbers)) == 30_000
    assert made.values().n_unique() == made.count == 70_000


def test_without_a_kernel_polars_numbers_them(monkeypatch):
    monkeypatch.setattr(codes, "load", lambda: None)
    assert isinstance(codes.new_codes(), codes.PolarsCodes)
