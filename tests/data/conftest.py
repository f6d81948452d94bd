"""Fixtures of the tests of tasks and batches."""

import polars as pl
import pytest

import torchleap as tl
from tests.data.frames import log
from torchleap.data import batches as module


@pytest.fixture(scope="module")
def task():
    """Return a task whose column `age` is the number of the row."""
    frame = log(1000).with_columns(pl.Series("age", range(1000)))  # the age identifies the row
    return tl.data.read(
        frame,
        label="click",
        split="order",
        group="user",
        columns={"age": {"kind": "numeric", "scale": "none"}},
    )


@pytest.fixture
def small_blocks(monkeypatch):
    """Read from disk in blocks so small that a test has several."""
    monkeypatch.setattr(module, "BLOCK", 32)
    monkeypatch.setattr(module, "WINDOW", 4)
