"""The options that all public sets take, and the way that most of them are read."""

import os
from collections.abc import Sequence
from typing import Any, TypedDict

from ..files import splits
from ..files.options import Progress, ReadOptions
from ..files.read import NamedChange, read_sources
from ..files.source import Source
from ..task import Task

WIDTH = 8  # of all embeddings, as in the benchmarks
SHARES = (0.8, 0.1, 0.1)  # the fractions of train, valid and test rows


class Options(TypedDict, total=False):
    """The options that all public sets take by name; `read` explains them."""

    min_count: int
    seed: int
    cache: str | os.PathLike[str]
    progress: Progress


def with_defaults(options: Options) -> dict[str, Any]:
    """Return the options by name; unless they are given, all categories of train rows have ids."""
    return {"min_count": 1, **options}


def read_categories(
    sources: Sequence[Source],
    *,
    label: str,
    fields: Sequence[str],
    options: Options,
    change: NamedChange | None = None,
    width: int = WIDTH,
    shares: Sequence[float] = SHARES,
    split: splits.Split = "order",
) -> Task:
    """Return the task of a set whose fields are all categories.

    Args:
        sources: One source that is to be split, or one for each part.
        label: The column to predict.
        fields: The input columns.
        options: The options that the user gave by name.
        change: A change of every source before it is read; None changes nothing.
        width: The width of all embeddings.
        shares: The fractions of train, valid and test rows.
        split: How the rows are split.
    """
    chosen = ReadOptions(
        label=label,
        columns={field: {"kind": "categorical"} for field in fields},
        only=fields,
        width=width,
        split=split,
        shares=shares,
        **with_defaults(options),
    )
    return read_sources(sources, chosen, change)
