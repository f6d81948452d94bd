"""A hash of texts that is the same on every machine and in every version."""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..splits import scattered

PRIME = 0x100000001B3


def stable_hash(values: pl.Series) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each text; missing ones hash as empty.

    The hash of a text is the sum of its bytes, each times a power of a prime, so all texts are
    hashed together by cumulative sums.
    """
    texts = values.fill_null("")
    lengths = texts.str.len_bytes().to_numpy().astype(np.int64)
    together = str(texts.str.join("").item()).encode()
    content = np.frombuffer(together, dtype=np.uint8).astype(np.uint64)
    starts = np.cumsum(lengths) - lengths
    place = np.arange(len(content)) - np.repeat(starts, lengths)
    with np.errstate(over="ignore"):
        longest = int(lengths.max(initial=0))
        powers = np.cumprod(np.full(longest + 1, PRIME, dtype=np.uint64))
        terms = (content + np.uint64(1)) * powers[place]
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
        found = sums[starts + lengths] - sums[starts] + lengths.astype(np.uint64)
    return scattered(found)
