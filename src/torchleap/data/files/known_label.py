"""The label and the groups of new rows, read by the rule by which those of a task were read."""

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
import torch
from torch import Tensor

from ..._common.errors import DataError
from .encoders import is_plain
from .encoders.label import Label, LabelRule
from .source import Source, explained


def read_labels(
    source: Source, rule: LabelRule, group: str | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return the labels of all rows, and a number for the group of each.

    Args:
        source: The rows, which have these columns.
        rule: How the label is made of its column.
        group: The column of the groups; None if there are none.

    Returns:
        The labels, (rows,) float32, and the groups, (rows,) int32, or None.
    """
    schema = source.schema()
    named = [rule.name] if group is None else [rule.name, group]
    for name in named:
        if not is_plain(schema[name]):
            raise DataError(
                f"{source.name}: expected numbers, text or dates in column {name!r}, "
                f"but it holds {schema[name]}."
            )
    encoder = Label(rule, text=source.text)
    encoder.begin(schema[rule.name])
    labels = []
    hashes = []
    for block, start in _blocks(source, list(dict.fromkeys(named))):
        labels.append(_labels(encoder, source, block, start))
        if group is not None:
            hashes.append(block[group].cast(pl.String).hash().to_numpy())
    if not labels:
        raise source.without_rows()
    numbers = None
    if group is not None:
        found = np.unique(np.concatenate(hashes), return_inverse=True)[1]
        numbers = torch.from_numpy(found.astype(np.int32))
    return torch.from_numpy(np.concatenate(labels)), numbers


def _blocks(source: Source, names: Sequence[str]) -> Iterator[tuple[pl.DataFrame, int]]:
    """Yield some columns of all rows, some rows at a time, with the number of the first row."""
    start = 0
    for block in source.blocks(names):
        yield block, start
        start += len(block)


def _labels(encoder: Label, source: Source, block: pl.DataFrame, start: int) -> np.ndarray:
    """Return the labels of a block, (rows,)."""
    try:
        values = block.select(encoder.expression()).to_series()
    except pl.exceptions.PolarsError as error:
        raise explained(error, source) from error

    def place(row: int) -> str:
        return f"{source.name}, {source.row(start + row)}"

    found: np.ndarray = encoder.read(values, block[encoder.rule.name], place)[:, 0]
    return found
