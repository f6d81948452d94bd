"""Locks between processes: a process that ends, however it ends, holds nothing."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import TorchleapError
from .files import STAGED

LOCK_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
FOLDER = os.O_RDONLY | os.O_DIRECTORY


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock file, which is made if it does not exist.

    The file is neither emptied nor, if it is a link, followed.

    Args:
        path: The lock file.
        wait: Wait for a process that holds it; otherwise yield False at once.

    Yields:
        Whether the lock is held.
    """
    handle, is_held = _take(path, wait=wait)
    try:
        yield is_held
    finally:
        os.close(handle)


def _take(path: Path, *, wait: bool) -> tuple[int, bool]:
    """Return an open lock file and whether it is locked.

    Another process may remove the file before it is locked: then a third would lock a new file
    of the same name, so this tries again.
    """
    operation = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
    while True:
        handle = os.open(path, LOCK_FILE | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, operation)
        except BlockingIOError:
            return handle, False
        if _is_same(path, handle, follow_symlinks=False):
            return handle, True
        os.close(handle)


@contextmanager
def held(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Hold a folder against other processes that would write results to it.

    The folder is made if it does not exist, and removed at the end if it is empty then. Partial
    results of a process that was killed are removed at the start.

    Raises:
        TorchleapError: Another process holds the folder.
    """
    target = Path(folder)
    made = [place for place in (target, *target.absolute().parents) if not place.exists()]
    handle = _take_folder(target)
    try:
        for left in target.glob(f"{STAGED}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        for place in made:
            with suppress(OSError):  # something is in it
                place.rmdir()
        os.close(handle)


def _take_folder(target: Path) -> int:
    """Return an open folder that is locked for as long as it is open."""
    while True:
        target.mkdir(parents=True, exist_ok=True)
        handle = os.open(target, FOLDER | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise TorchleapError(
                f"Another run is writing to {target}. Wait for it, or give another folder."
            ) from error
        except OSError:  # a file system without locks
            return handle
        if _is_same(target, handle, follow_symlinks=True):
            return handle
        os.close(handle)  # the other run has just removed it


def _is_same(path: Path, handle: int, *, follow_symlinks: bool) -> bool:
    """Return whether a path still leads to the file or folder that was opened."""
    try:
        found = path.stat(follow_symlinks=follow_symlinks)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return os.path.samestat(os.fstat(handle), found)
