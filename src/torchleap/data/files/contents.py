"""Contents: a hash of each row of a file, by which another split of the file is recognised.

Encoded rows differ from one split to the next, since each learns from its own train rows; what is
hashed here are the values as they were read.
"""

import hashlib
from collections.abc import Iterator
from threading import Lock

import numpy as np

from ..sketch import BLOCK, Hashes, scattered_hashes
from .encoders import Array, Categories, Encoder, stable_hash
from .raw import Raw

VALUES = 1 << 16  # of a vocabulary that are hashed together
CHUNK = 1 << 17  # rows that are returned together


class Contents:
    """The sum of the hashes of the values of each row, which columns are added to in any order.

    Args:
        rows: The number of rows.
    """

    def __init__(self, rows: int) -> None:
        self._sums = np.zeros(rows, np.uint64)
        self._lock = Lock()  # columns are learned several at a time

    def add(self, raw: Raw) -> None:
        """Add a raw column, by its name."""
        factors = _factors(raw.name, raw.encoder.slots)
        vocabulary = _vocabulary(raw.encoder)
        start = 0
        for chunk in raw.chunks():
            part = np.empty(len(chunk), np.uint64)
            for first in range(0, len(chunk), BLOCK):
                rows = slice(first, first + BLOCK)
                words = _words(chunk[rows]) if vocabulary is None else vocabulary[chunk[rows]]
                np.matmul(words, factors[: words.shape[1]], out=part[rows])
            with self._lock:
                self._sums[start : start + len(chunk)] += part
            start += len(chunk)

    def chunks(self) -> Iterator[Array]:
        """Yield the hashes of the rows in their order, some at a time, (rows, 1)."""
        for start in range(0, len(self._sums), CHUNK):
            yield scattered_hashes(self._sums[start : start + CHUNK]).reshape(-1, 1)


def _factors(name: str, slots: int) -> Hashes:
    """Return an odd number for each slot of a column, by its name."""
    seed = hashlib.sha256(name.encode()).digest()
    rng = np.random.default_rng(list(seed))
    factors = rng.integers(1 << 63, size=slots, dtype=np.uint64)
    return 2 * factors + np.uint64(1)


def _vocabulary(encoder: Encoder) -> Hashes | None:
    """Return the hash of each code of a column of categories; None for other columns.

    Codes are numbers in the order of a file; the hashes depend on the values alone.
    """
    if not isinstance(encoder, Categories):
        return None
    values = encoder.codes.values()
    parts = [np.zeros(1, np.uint64)]  # of a missing value
    for start in range(0, len(values), VALUES):
        parts.append(stable_hash(values.slice(start, VALUES)))
    return np.concatenate(parts)


def _words(chunk: Array) -> Hashes:
    """Return values as whole numbers of 64 bits, of which the last bits differ as well.

    Fractions such as 1.0 and 2.0 differ in their first bits alone, which a product would lose.
    """
    unsigned = {4: np.uint32, 8: np.uint64}[chunk.dtype.itemsize]
    words: Hashes = np.ascontiguousarray(chunk).view(unsigned).astype(np.uint64)
    if chunk.dtype.itemsize == 8:
        words ^= words >> np.uint64(32)
    return words
