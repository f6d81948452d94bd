"""Criteo's display advertising challenge."""

import os
from collections.abc import Sequence
from typing import Unpack

import polars as pl

from ..files import splits
from ..files.open import open_source
from ..files.read import NamedChange
from ..task import Task
from .options import SHARES, WIDTH, Options, read_categories
from .places import Place

NUMBERS = [f"I{number}" for number in range(1, 14)]
CATEGORIES = [f"C{number}" for number in range(1, 27)]
PLACE = Place(
    "criteo",
    "the Criteo Kaggle Display Advertising Challenge: "
    "get dac.tar.gz from Criteo AI Lab and put its train.txt",
)


def criteo(
    path: str | os.PathLike[str],
    *,
    width: int = WIDTH,
    shares: Sequence[float] = SHARES,
    split: splits.Split = "order",
    **options: Unpack[Options],
) -> Task:
    """Return Criteo's display advertising challenge as a task of 39 fields.

    Numbers are categories too: `int(log(x)^2)` above 2, else `int(x) - 2`, as the winners of the
    challenge had them.

    Args:
        path: train.txt, perhaps packed, or its folder.
        width: The width of all embeddings.
        shares: The fractions of train, valid and test rows.
        split: How the rows are split; by default in their order, which is that of time.
        options: As for `read`.
    """
    file = PLACE.find(path, ["train.txt", "train*.txt", "train.txt.gz"])
    fields = [*NUMBERS, *CATEGORIES]
    source = open_source(file, separator="\t", names=["label", *fields])
    return read_categories(
        [source],
        label="label",
        fields=fields,
        options=options,
        change=NamedChange("criteo", _with_steps),
        width=width,
        shares=shares,
        split=split,
    )


def _with_steps(frame: pl.LazyFrame) -> pl.LazyFrame:
    return frame.with_columns([_in_steps(name).alias(name) for name in NUMBERS])


def _in_steps(name: str) -> pl.Expr:
    number = pl.col(name).cast(pl.Float64).fill_nan(None)  # strict: other text is an error
    logarithm = number.log() ** 2
    small = number.cast(pl.Int64, strict=False) - 2
    steps = pl.when(number > 2).then(logarithm).otherwise(small)
    return steps.cast(pl.Int64).cast(pl.String)
