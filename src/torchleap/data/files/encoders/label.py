"""Encoder of the label: the numbers that an objective takes, by a threshold or a positive value."""

from dataclasses import dataclass

import numpy as np
import polars as pl
import torch

from ...._common.errors import DataError, shown
from ....objectives import Objective
from ...columns import Column
from ..labels import cure_of, number_of
from .base import Array, Encoder, Place


@dataclass(frozen=True)
class LabelRule:
    """How a label is made of its column.

    Args:
        name: The name of the column.
        objective: What a model is trained for, which determines the labels there can be.
        threshold: The label is 1 where the column is above this; None if it is not a rating.
        positive: The label is 1 where the column has this value; None takes the column as it is.
    """

    name: str
    objective: Objective
    threshold: float | None = None
    positive: str | float | bool | None = None


class Label(Encoder):
    """The label as a number, checked by the objective."""

    dtype = np.float32
    slots = 1

    def __init__(self, rule: LabelRule, *, text: bool) -> None:
        super().__init__(Column(rule.name, "numeric"), text=text)
        self.rule = rule

    def expression(self) -> pl.Expr:
        given: pl.Expr = pl.col(self.rule.name)
        given = given.cast(pl.String).str.strip_chars() if self.text else self.without_nan(given)
        number = given.cast(pl.Float64, strict=False).fill_nan(None)
        if self.rule.positive is not None:
            number = self._is_positive(given, number).cast(pl.Float64)
        if self.rule.threshold is not None:
            number = (number > self.rule.threshold).cast(pl.Float64)
        return number.alias(self.rule.name)

    def _is_positive(self, given: pl.Expr, number: pl.Expr) -> pl.Expr:
        chosen = self.rule.positive
        text = given.cast(pl.String)
        if not isinstance(chosen, str):
            # True is written in many ways, and so is 1
            same = text.str.to_lowercase() == str(chosen).lower()
            return (number == float(chosen or 0)).fill_null(value=False) | same
        same = text.str.strip_chars() == chosen.strip()
        as_number = number_of(chosen)
        if as_number is None:
            return same
        return same | (number == as_number).fill_null(value=False)

    def read(self, values: pl.Series, given: pl.Series, place: Place) -> Array:
        label = values.to_numpy(writable=True)  # NaN where there is none
        fits = self.rule.objective.is_label(torch.from_numpy(label)).numpy()
        wrong = np.flatnonzero(~fits | np.isnan(label))
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"{place(row)}, column {self.rule.name!r}: expected the label "
                f"{self.rule.objective.label_text}, but found {shown(given[row])}. "
                f"{cure_of(given, row)}"
            )
        return label.astype(np.float32).reshape(-1, 1)
