"""KnownColumn: one column of new rows, encoded by what train rows have taught."""

from typing import Any

import numpy as np
import polars as pl

from ..._common.errors import DataError
from .codes import new_codes
from .encoders import Array, Categories, Encoder, Place, encoder_for, is_text
from .encoding_folder import SavedColumn

ROOM = 1 << 18  # unseen values that a table of codes may hold, beside twice its vocabulary


class KnownColumn:
    """One column of new rows: its encoder, filled with what train rows have taught.

    A vocabulary no longer grows: values that it lacks are unseen.

    Args:
        saved: What a saved encoding holds about the column.
    """

    def __init__(self, saved: SavedColumn) -> None:
        self.column = saved.column
        self.dtype = saved.dtype
        self._vocabulary = saved.vocabulary
        self.encoder = self._encoder()
        if isinstance(self.encoder, Categories):
            self.encoder.slots = self.column.slots  # a longer list has no place in a batch
            self._fill(self.encoder)

    def _encoder(self) -> Encoder:
        """Return the encoder of the column, which takes the length of vectors from a sample."""
        settings = self.column.column
        length = self.column.slots - (self.column.missing > 0)
        row: Any = None
        if settings.kind == "vector":
            row = [None] * length
            if settings.separator:
                row = settings.separator.join("0" * length)
        sample = pl.Series(self.column.name, [row], dtype=self.dtype)
        return encoder_for(settings, sample, text=is_text(self.dtype))

    def _fill(self, encoder: Categories) -> None:
        """Number the vocabulary; other values will have larger codes, which share one id."""
        encoder.codes = new_codes()
        values = self._vocabulary.to_frame("")
        computed = values.select(encoder.codes.expression(pl.col("")))[""]
        codes = encoder.codes.read(computed, self._vocabulary)
        encoder.number(codes, len(values) + 2)

    def encoded(self, values: pl.Series, given: pl.Series, place: Place) -> Array:
        """Return the rows of a block, as batches have them; the arguments are those of `read`."""
        encoder = self.encoder
        try:
            raw = np.ascontiguousarray(encoder.read(values, given, place), dtype=encoder.dtype)
        except DataError as error:
            message = str(error).partition(" If it holds categories")[0]  # which is for `read`
            raise DataError(message) from error
        if isinstance(encoder, Categories):
            raw = np.minimum(raw, len(encoder.id_of) - 1)
            if encoder.codes.count > 2 * len(encoder.id_of) + ROOM:
                self._fill(encoder)  # so that memory does not grow with unseen values
        return encoder.encode(raw, self.column)
