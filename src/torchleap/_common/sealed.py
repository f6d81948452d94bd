"""Files of tensors that carry a digest of themselves: a flipped bit is noticed before loading.

The digest is the comment of the zip file that torch.save writes, so that torch.load still reads it.
It shows accidents, not attacks: whoever changes a file can seal it again. Such a file is read with
`weights_only=True`, which runs no code.
"""

import hashlib
import os
from pathlib import Path
from typing import IO, Any

import torch

from .errors import TorchleapError
from .text import first_line

MARK = b"torchleap-sha256:"
BLOCK = 1 << 20  # bytes per read
LENGTH = len(MARK) + 64


class DamagedError(TorchleapError):
    """The content of a file is not what was written."""


def save_sealed(content: Any, path: Path) -> None:
    """Write tensors and plain values with torch.save, with a digest of the file at its end."""
    torch.save(content, path)
    with path.open("r+b") as file:
        file.seek(-2, os.SEEK_END)  # the length of the comment, 0
        file.write(LENGTH.to_bytes(2, "little"))
        digest = _digest(file, file.tell())
        file.write(MARK + digest.encode())


def load_sealed(path: Path) -> Any:
    """Return the content that `save_sealed` wrote; a damaged file is a DamagedError."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - LENGTH))
        comment = file.read()
        if not comment.startswith(MARK):
            raise DamagedError("it has no digest at its end")
        expected = comment.removeprefix(MARK).decode("ascii", "replace")
        if _digest(file, size - LENGTH) != expected:
            raise DamagedError("its content is not what was written")
        refuse_packed(file)
        return torch.load(file, map_location="cpu", weights_only=True)


def refuse_packed(file: IO[bytes]) -> None:
    """Refuse a zip file whose entries are compressed: they could fill the memory.

    torch.save does not compress. PyTorch's own reader lists the entries, because another one may
    find another list in a file that was crafted for that.
    """
    file.seek(0, os.SEEK_END)
    size = file.tell()
    file.seek(0)
    try:
        reader = torch._C.PyTorchFileReader(file)
        total = sum(reader.get_record_size(name) for name in reader.get_all_records())
    except RuntimeError as error:
        raise DamagedError(f"expected a file of torch.save, but {first_line(error)}") from error
    if total > size:
        raise DamagedError(
            f"expected tensors that are not packed, but {size:,} bytes would become {total:,}"
        )
    file.seek(0)


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(file: IO[bytes], size: int) -> str:
    """Return the SHA-256 of the first bytes of a file, which is then positioned after them."""
    found = hashlib.sha256()
    file.seek(0)
    left = size
    while left:
        block = file.read(min(left, BLOCK))
        if not block:
            break
        found.update(block)
        left -= len(block)
    return found.hexdigest()
