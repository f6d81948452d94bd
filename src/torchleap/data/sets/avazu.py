"""Avazu's click-through rate competition."""

import os
from collections.abc import Sequence
from typing import Unpack

from ..._common.errors import DataError
from ..files import splits
from ..files.open import open_source
from ..task import Task
from .options import SHARES, WIDTH, Options, read_categories
from .places import Place

PLACE = Place(
    "avazu",
    "the Avazu Kaggle competition: "
    "get train.gz from Kaggle (avazu-ctr-prediction) and put it, or its train.csv,",
)


def avazu(
    path: str | os.PathLike[str],
    *,
    width: int = WIDTH,
    shares: Sequence[float] = SHARES,
    split: splits.Split = "order",
    **options: Unpack[Options],
) -> Task:
    """Return Avazu's click-through rate competition as a task of 22 fields.

    Args:
        path: train.csv or train.gz, or its folder; the rows' own id is not a field.
        width: The width of all embeddings.
        shares: The fractions of train, valid and test rows.
        split: How the rows are split; by default in their order, which is that of time.
        options: As for `read`.
    """
    file = PLACE.find(path, ["train.csv", "train*.csv", "train.csv.gz", "train.gz"])
    source = open_source(file, separator=",")
    names = source.names()
    if "click" not in names:
        found = ", ".join(names[:4])
        raise DataError(f"{source.name}: expected Avazu's column 'click', but found {found}, ...")
    return read_categories(
        [source],
        label="click",
        fields=[name for name in names if name not in ("id", "click")],
        options=options,
        width=width,
        shares=shares,
        split=split,
    )
