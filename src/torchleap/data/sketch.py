"""Sketch: a sample of the contents of rows, by which rows that were seen before are recognised.

A row is known by a 64-bit hash of its values. A sketch keeps the hashes below a threshold, so that
every row with the same content is either in it or not, in whichever file it stands: the fraction
of new rows below the threshold that the sketch has is an estimate for all of them.
"""

import hashlib
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._common.checks import is_whole
from .._common.errors import DataError
from .batches import Batch
from .rows import Rows

Hashes = NDArray[np.uint64]

CAPACITY = 1 << 16  # hashes that a sketch keeps, at most
EVERYTHING = (1 << 63) - 1  # a threshold that no hash is above
BLOCK = 1 << 13  # rows that are hashed at once, so that they stay in the cache of a core
STREAMED = 1 << 16  # rows of a task that are read at once
SEED = 0x70726368  # of the multipliers of columns
FRACTION_SEEN = 0.05  # of rows, beyond natural duplicates, from which they count as seen
ERRORS = 4.0  # standard errors by which the fraction has to be above that of natural duplicates


def row_hashes(batch: Batch) -> Hashes:
    """Return a hash of the values and the label of each encoded row, (B,), below 2^63.

    It is the sum of all values, each times an odd number of its slot, as 64-bit whole numbers:
    rows that differ in one value never have the same sum, others with a chance of about 2^-40.

    Args:
        batch: The rows, encoded by one encoding.
    """
    parts = (batch.ids.numpy(), batch.numbers.numpy(), batch.label.float().numpy().reshape(-1, 1))
    words = [np.ascontiguousarray(part).view(np.uint32) for part in parts]
    multipliers = _multipliers([part.shape[1] for part in words])
    found = np.zeros(len(batch), np.uint64)
    for start in range(0, len(batch), BLOCK):
        rows = slice(start, start + BLOCK)
        for part, factors in zip(words, multipliers, strict=True):
            if len(factors):
                found[rows] += part[rows].astype(np.uint64) @ factors
    return scattered_hashes(found)


def _multipliers(widths: Iterable[int]) -> list[Hashes]:
    """Return an odd number for each slot of ids, of numbers and of the label."""
    found = []
    for kind, width in enumerate(widths):
        rng = np.random.default_rng([SEED, kind])
        factors = rng.integers(1 << 63, size=width, dtype=np.uint64)
        found.append(2 * factors + np.uint64(1))
    return found


def scattered_hashes(sums: Hashes) -> Hashes:
    """Return a hash of each sum (splitmix64) below 2^63, so that a threshold samples at random."""
    with np.errstate(over="ignore"):
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            sums = (sums ^ (sums >> np.uint64(shift))) * np.uint64(factor)
    return (sums ^ (sums >> np.uint64(31))) >> np.uint64(1)


@dataclass(frozen=True)
class Share:
    """How many rows of a sample a sketch has.

    Attributes:
        known: The rows that it has.
        rows: The rows of the sample.
    """

    known: int
    rows: int

    @property
    def fraction(self) -> float:
        """Return the fraction of the rows that the sketch has; 0 without rows."""
        return self.known / max(1, self.rows)

    @property
    def _variance(self) -> float:
        """Return the variance of the fraction, which is never 0 for a few rows that agree."""
        smoothed = (self.known + 1) / (self.rows + 2)
        return smoothed * (1 - smoothed) / (self.rows + 2)

    def seen_beyond(self, natural: "Share") -> float:
        """Return the fraction of rows that were clearly seen before; 0 where this is not clear.

        Args:
            natural: The share among rows that were surely not seen, which is that of rows that
                are equal by chance.
        """
        above = self.fraction - natural.fraction
        error = math.sqrt(self._variance + natural._variance)
        if not self.rows or above <= ERRORS * error:
            return 0.0
        fraction = above / (1 - natural.fraction)
        return fraction if fraction > FRACTION_SEEN else 0.0


@dataclass(frozen=True, eq=False)
class Sketch:
    """The hashes of some rows up to a threshold, in rising order and without repetitions.

    >>> sketch = Sketch.of([np.array([8, 5, 8], np.uint64)])
    >>> sketch.share([np.array([5, 6], np.uint64)])
    Share(known=1, rows=2)

    Attributes:
        hashes: The hashes.
        threshold: The largest hash that is kept; those of other rows above it are not compared.
        rows: The number of rows, kept or not.
    """

    hashes: Hashes
    threshold: int
    rows: int

    @classmethod
    def of(cls, blocks: Iterable[Hashes], capacity: int = CAPACITY) -> "Sketch":
        """Return the sketch of rows whose hashes come some at a time.

        Args:
            blocks: The hashes of the rows, as `row_hashes` returns them.
            capacity: The largest number of hashes to keep.
        """
        kept = np.zeros(0, np.uint64)
        threshold = EVERYTHING
        rows = 0
        for block in blocks:
            rows += len(block)
            kept = np.union1d(kept, block[block <= np.uint64(threshold)])
            if len(kept) > capacity:
                kept = kept[:capacity]
                threshold = int(kept[-1])
        return cls(kept, threshold, rows)

    def share(self, blocks: Iterable[Hashes]) -> Share:
        """Return how many of other rows it has, among those that its threshold samples.

        Args:
            blocks: The hashes of the other rows, some at a time.
        """
        known = 0
        rows = 0
        for block in blocks:
            sample = block[block <= np.uint64(self.threshold)]
            rows += len(sample)
            known += int(np.isin(sample, self.hashes).sum())
        return Share(known, rows)

    def save(self, path: Path) -> dict[str, Any]:
        """Write the hashes to a file, eight bytes each; return all else that `load` needs."""
        content = self.hashes.astype("<u8").tobytes()
        path.write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        return {"threshold": self.threshold, "rows": self.rows, "sha256": digest}

    @classmethod
    def load(cls, path: Path, described: Any) -> "Sketch":
        """Read the file that `save` wrote; a damaged one is a DataError.

        Args:
            path: The file.
            described: What `save` returned.
        """
        problem = _problem(described)
        if not problem:
            try:
                content = _read(path)
            except OSError as error:
                problem = f"it cannot be read ({error.strerror})"
            else:
                if hashlib.sha256(content).hexdigest() != described["sha256"]:
                    problem = "its content is not what was written"
        if problem:
            raise DataError(f"{path} is damaged: {problem}. Select again.")
        hashes = np.frombuffer(content, "<u8").astype(np.uint64)
        return cls(hashes, described["threshold"], described["rows"])


def _problem(described: Any) -> str:
    """Return what is wrong with the description of a sketch, "" if nothing is."""
    if not isinstance(described, dict) or {"threshold", "rows", "sha256"} - set(described):
        return "its description is not complete"
    counts = (described["threshold"], described["rows"])
    if not all(is_whole(count) and 0 <= count <= EVERYTHING for count in counts):
        return "its threshold or its number of rows is not possible"
    return ""


def _read(path: Path) -> bytes:
    """Return the content of a file of at most `CAPACITY` hashes, which is not a link or a pipe."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        content = file.read(8 * CAPACITY + 1)
    if len(content) > 8 * CAPACITY or len(content) % 8:
        raise OSError(0, f"expected at most {8 * CAPACITY:,} bytes, eight for each hash")
    return content


def encoded_hashes(*parts: Rows) -> Iterator[Hashes]:
    """Yield the hashes of the encoded rows of some parts of a task, some at a time."""
    for rows in parts:
        for batch in rows.between(0, len(rows), STREAMED):
            yield row_hashes(batch)
