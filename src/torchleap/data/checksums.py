"""Checksums of encoded files: a file that is damaged, cut short or replaced is refused."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from zlib import crc32

import numpy as np

from .._common.errors import DataError

PAGE = 4096  # bytes that are summed together
BLOCK = 2048 * PAGE  # bytes that are read together


def checksums(folder: Path) -> dict[str, list[int]]:
    """Return the size in bytes and the checksum of each file of a folder, by its name."""
    files = sorted(folder.iterdir())
    return {path.name: [path.stat().st_size, checksum(path)] for path in files}


def verify(path: Path, expected: Sequence[int] | None) -> None:
    """Refuse a file that is not the one that was written; each is read once per process for this.

    The checksum is made for speed, a fraction of the time of reading: it shows accidents, not
    attacks.

    Args:
        path: The file.
        expected: Its size in bytes and its checksum; None if the manifest does not list it.
    """
    cure = f"Remove {path.parent} and read the data again."
    if expected is None:
        raise DataError(f"{path} is not part of the encoded data there. {cure}")
    try:
        state = path.stat()
        known = _known(path, state.st_size, state.st_mtime_ns, state.st_ino)
    except OSError as error:
        raise DataError(f"{path} is damaged or gone: {error.strerror or error}. {cure}") from error
    if [state.st_size, known] != list(expected):
        raise DataError(f"{path} is damaged: its content is not what was written. {cure}")


@cache
def _known(path: Path, *_: int) -> int:
    """Return the checksum of a file, remembered by its size, time and place on the disk."""
    return checksum(path)


def checksum(path: Path) -> int:
    """Return the CRC-32 of the sums of all pages of 4 KiB, and of the bytes after the last one."""
    found = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            in_pages = len(block) // PAGE * PAGE
            words = np.frombuffer(block, np.uint64, in_pages // 8)
            sums = words.reshape(-1, PAGE // 8).sum(1, dtype=np.uint64)
            found = crc32(sums.tobytes(), found)
            found = crc32(block[in_pages:], found)
    return found
