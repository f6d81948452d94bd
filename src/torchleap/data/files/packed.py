"""Packed files, .gz and .zst: how they are opened, and which are refused."""

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from ..._common.errors import DataError

PACKED = (".gz", ".zst")
BEGINNING = 1 << 20  # bytes of a packed file that are unpacked to see how it grows
GROWTH = 300  # times its size that a table may become; CSV becomes 3 to 30 times as large


def opened(file: Path) -> IO[bytes]:
    """Open a file for reading, unpacked if it is a .gz file."""
    if file.suffix == ".gz":
        return gzip.open(file)  # type: ignore[return-value]
    return file.open("rb")


def beginning(file: Path, size: int) -> bytes:
    """Return the first bytes of the content of a .gz file; none if it is damaged or not one."""
    try:
        with gzip.open(file) as content:
            return content.read(size)
    except (OSError, EOFError, zlib.error):
        return b""


def refuse_bombs(files: Sequence[Path]) -> None:
    """Refuse packed files whose beginning unpacks to more than any table of rows does."""
    for file in files:
        if file.suffix not in PACKED:
            continue
        limit = GROWTH * min(BEGINNING, file.stat().st_size) + BEGINNING
        if _unpacked_size(file, limit) >= limit:
            raise DataError(
                f"{file} unpacks to more than {GROWTH} times its size, "
                "which no table of rows does. Unpack it, if it is one."
            )


def _unpacked_size(file: Path, limit: int) -> int:
    """Return how many bytes the beginning of a packed file becomes, at most the limit."""
    with file.open("rb") as content:
        packed = content.read(BEGINNING)
    found = 0
    try:
        if file.suffix == ".gz":
            return len(zlib.decompressobj(wbits=31).decompress(packed, limit))
        from pyarrow import BufferReader, CompressedInputStream

        with CompressedInputStream(BufferReader(packed), "zstd") as stream:
            while found < limit and (block := stream.read(BEGINNING)):
                found += len(block)
    except (zlib.error, OSError, ValueError):
        pass  # the beginning ends within a block, or is damaged, which the reader will report
    return found
