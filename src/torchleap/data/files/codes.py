"""Codes: distinct values as numbers, in the order in which they first come, block by block."""

import ctypes
import weakref
from ctypes import c_int64, c_void_p

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ...native import library as native

Rows = NDArray[np.int32]


class NativeCodes:
    """Codes by a hash table in C: several times as fast as polars where there are many values.

    Attributes:
        count: The number of different values so far.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        library.torchleap_codes_new.restype = c_void_p
        library.torchleap_codes_free.argtypes = [c_void_p]
        self._codes_of = library.torchleap_codes_of
        self._codes_of.argtypes = [c_void_p, c_void_p, c_int64, c_void_p, c_void_p]
        self._codes_of.restype = c_int64
        self._table = library.torchleap_codes_new()
        if not self._table:
            raise MemoryError("There is no memory for a vocabulary.")
        weakref.finalize(self, library.torchleap_codes_free, self._table)
        self._fresh: list[pl.Series] = []  # the new values of each block
        self.count = 0

    def expression(self, text: pl.Expr) -> pl.Expr:
        """Return what polars computes of a block before `read`."""
        return text.hash()

    def read(self, computed: pl.Series, text: pl.Series) -> Rows:
        """Return the codes of a block, from 1, and 0 where there is no value.

        Args:
            computed: The computed expression.
            text: The column itself, of any type.
        """
        hashes = np.ascontiguousarray(computed.to_numpy(), dtype=np.uint64)
        found = np.empty(len(hashes), np.int32)
        fresh = np.empty(len(hashes), np.int64)  # the rows of new values
        new = self._codes_of(
            self._table, hashes.ctypes.data, len(hashes), found.ctypes.data, fresh.ctypes.data
        )
        if new < 0:
            raise MemoryError(
                f"There is no memory for a vocabulary of more than {self.count:,} values."
            )
        if new:
            self._fresh.append(text.gather(fresh[:new]).cast(pl.String))
            self.count += new
        if text.null_count():
            found[text.is_null().to_numpy()] = 0
        return found

    def values(self) -> pl.Series:
        """Return the values in the order of their codes."""
        if not self._fresh:
            return pl.Series(dtype=pl.String)
        return pl.concat(self._fresh)


class PolarsCodes:
    """Codes by polars' own categories, where there is no compiled library.

    Attributes:
        count: The number of different values so far.
    """

    def __init__(self) -> None:
        self._type = pl.Categorical(pl.Categories.random())
        self._anchor = pl.Series(dtype=self._type)  # polars forgets categories without a series
        self.count = 0

    def expression(self, text: pl.Expr) -> pl.Expr:
        """Return what polars computes of a block before `read`."""
        return (text.cast(self._type).to_physical().cast(pl.Int32) + 1).fill_null(0)

    def read(self, computed: pl.Series, text: pl.Series) -> Rows:
        """Return the codes of a block, from 1, and 0 where there is no value."""
        found: Rows = computed.to_numpy()
        self.count = max(self.count, int(found.max(initial=0)))
        return found

    def values(self) -> pl.Series:
        """Return the values in the order of their codes."""
        return pl.Series(np.arange(self.count, dtype=np.uint32)).cat.to(self._type).cast(pl.String)


Codes = NativeCodes | PolarsCodes


def new_codes() -> Codes:
    """Return an empty table of codes, the faster of the two that this machine has."""
    library = native.load()
    if isinstance(library, str):
        return PolarsCodes()
    return NativeCodes(library.functions)
