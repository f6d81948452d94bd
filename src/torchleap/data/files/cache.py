"""Folders that appear whole or not at all, once for all processes that want them."""

import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from zlib import crc32

import numpy as np

from ..._common.errors import DataError
from ..._common.files import FULL
from ..._common.text import first_line

VARIABLE = "TORCHLEAP_CACHE"
PAGE = 4096
HIDDEN = ".torchleap"  # the folder beside a user's data
IGNORE = ".gitignore"
IGNORED = "# made by torchleap\n*\n"


def cache_folder(beside: Path | None, wanted: str | os.PathLike[str] | None) -> Path:
    """Where encoded data is kept: where the user says, else beside the data, else in the user's cache."""
    if wanted or os.environ.get(VARIABLE):
        return Path(wanted or os.environ[VARIABLE])
    if beside is not None:
        ours = beside / HIDDEN
        if (
            os.access(ours, os.W_OK | os.X_OK)
            if ours.is_dir()
            else os.access(beside, os.W_OK) and not ours.exists()
        ):
            return ours
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchleap"


class TemporaryFolder:
    """A folder that goes with the object, in the process that made it: a worker's copy leaves it alone."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="torchleap_"))
        weakref.finalize(self, _remove, self.path, os.getpid())


def temporary(make: Callable[[Path], None]) -> TemporaryFolder:
    """A folder for as long as it is needed, filled by `make`."""
    try:
        folder = TemporaryFolder()
        make(folder.path)
    except OSError as error:
        raise _explained(
            error, Path(tempfile.gettempdir()), "Name another folder: TMPDIR."
        ) from error
    return folder


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)


def once(folder: Path, key: str, make: Callable[[Path], None], *, complete: str) -> Path:
    """The folder of this key, made if it is not there.

    A second process waits for the first; what a killed one left behind is removed.

    Args:
        make: Fills a temporary folder, which is then renamed.
        complete: A file that every finished folder has.
    """
    target = folder / key
    if (target / complete).exists():
        return target
    try:
        _make_folder(folder)
        with locked(folder / f"{key}.lock"):
            if not (target / complete).exists():
                _make(folder, key, make)
    except OSError as error:
        raise _explained(
            error, folder, f"Nothing was left there. Name another folder: cache=..., or {VARIABLE}."
        ) from error
    return target


def _make_folder(folder: Path) -> None:
    """Make the folder of a cache, which git is to pass over; a folder of the user's own is left as it is."""
    ours = folder.name == HIDDEN or not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    if ours and not (folder / IGNORE).exists():
        (folder / IGNORE).write_text(IGNORED, encoding="utf-8")


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock file, which is neither emptied nor followed if somebody has put a link there.

    Yields:
        Whether it is held; without `wait` it is not if another process holds it.
    """
    handle, is_held = _take(path, wait=wait)
    try:
        yield is_held
    finally:
        os.close(handle)


def _take(path: Path, *, wait: bool) -> tuple[int, bool]:
    """Open a lock file and try to hold it, again if it was removed meanwhile: others would hold a new one."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return handle, False
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.lstat()):
                return handle, True
        os.close(handle)


def checksums(folder: Path) -> dict[str, list[int]]:
    """Return the size and the checksum of each file of a folder, by its name."""
    return {path.name: [path.stat().st_size, _checksum(path)] for path in sorted(folder.iterdir())}


def verify(path: Path, expected: Sequence[int] | None) -> None:
    """Refuse a file that is not what was written: damaged, cut short or another one. Each is read for this once per process.

    The checksum is made for speed, a fraction of the time of reading: it shows accidents, not attacks.
    """
    cure = f"Remove {path.parent} and read the data again."
    if expected is None:
        raise DataError(f"{path} is not part of the encoded data there. {cure}")
    try:
        found = path.stat()
        same = [
            found.st_size,
            _known(path, found.st_size, found.st_mtime_ns, found.st_ino),
        ] == list(expected)
    except OSError as error:
        raise DataError(f"{path} is damaged or gone: {error.strerror or error}. {cure}") from error
    if not same:
        raise DataError(f"{path} is damaged: its content is not what was written. {cure}")


@cache
def _known(path: Path, *_: int) -> int:
    """Return the checksum of a file, remembered by its size, time and place on the disk."""
    return _checksum(path)


def _checksum(path: Path) -> int:
    """Return the CRC-32 of the sums of all pages of 4 KiB, and of the bytes that are left."""
    found = 0
    with path.open("rb") as file:
        while block := file.read(2048 * PAGE):
            pages = len(block) // PAGE * PAGE
            sums = (
                np.frombuffer(block, np.uint64, pages // 8)
                .reshape(-1, PAGE // 8)
                .sum(1, dtype=np.uint64)
            )
            found = crc32(block[pages:], crc32(sums.tobytes(), found))
    return found


def _make(folder: Path, key: str, make: Callable[[Path], None]) -> None:
    for left in folder.glob(f".{key}.*"):
        shutil.rmtree(left, ignore_errors=True)
    shutil.rmtree(folder / key, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(dir=folder, prefix=f".{key}."))
    try:
        make(temporary)
        temporary.chmod(0o755)
        temporary.replace(folder / key)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _explained(error: OSError, folder: Path, cure: str) -> DataError:
    if error.errno in FULL:
        return DataError(f"The disk is full: the encoded data does not fit into {folder}. {cure}")
    reason = os.strerror(error.errno) if error.errno else first_line(error)
    return DataError(f"The encoded data cannot be written to {folder}: {reason}. {cure}")
