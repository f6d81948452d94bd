"""The cache of encoded data: folders that are made once, for all processes that need them."""

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path

from ..._common.errors import DataError
from ..._common.files import FULL, remove_leftovers, replace_folder
from ..._common.locks import locked
from ..._common.text import first_line

VARIABLE = "TORCHLEAP_CACHE"
HIDDEN = ".torchleap"  # the folder beside a user's data
IGNORE = ".gitignore"
IGNORED = "# made by torchleap\n*\n"
Make = Callable[[Path], None]  # fills an empty folder


def cache_folder(beside: Path | None, wanted: str | os.PathLike[str] | None) -> Path:
    """Return the folder in which encoded data is kept.

    Args:
        beside: The folder of the data; None if it has none. It is used if it can be written to
            and nothing else is wanted; otherwise the user's own cache is.
        wanted: The folder that the user names; None uses the variable TORCHLEAP_CACHE, if set.
    """
    named = wanted or os.environ.get(VARIABLE)
    if named:
        return Path(named)
    if beside is not None and _can_hold(beside):
        return beside / HIDDEN
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchleap"


def _can_hold(beside: Path) -> bool:
    """Return whether a cache beside the data can be written to, or be made."""
    ours = beside / HIDDEN
    if ours.is_dir():
        return os.access(ours, os.W_OK | os.X_OK)
    if not os.access(beside, os.W_OK):
        return False
    return not ours.exists() or ours.is_dir()  # another reader may have made it meanwhile


class TemporaryFolder:
    """A folder that is removed with this object, by the process that made it alone."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="torchleap_"))
        weakref.finalize(self, _remove, self.path, os.getpid())


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)


def temporary(make: Make) -> TemporaryFolder:
    """Return a folder that exists for as long as it is needed, filled by `make`."""
    try:
        folder = TemporaryFolder()
        make(folder.path)
    except OSError as error:
        cure = "Name another folder: TMPDIR."
        raise _explained(error, Path(tempfile.gettempdir()), cure) from error
    return folder


def once(folder: Path, key: str, make: Make, *, complete: str) -> Path:
    """Return the folder of a key, which is made if it does not exist.

    A second process waits for the first; the leftovers of a killed one are removed.

    Args:
        folder: The cache.
        key: The name of the folder in the cache.
        make: Fills a temporary folder, which is then renamed.
        complete: A file that every finished folder has.
    """
    target = folder / key
    if (target / complete).exists():
        return target
    try:
        _make_cache(folder)
        with locked(folder / f"{key}.lock"):
            if not (target / complete).exists():
                remove_leftovers(target)
                with replace_folder(target) as new:
                    make(new)
    except OSError as error:
        cure = f"Nothing was left there. Name another folder: cache=..., or {VARIABLE}."
        raise _explained(error, folder, cure) from error
    return target


def _make_cache(folder: Path) -> None:
    """Make the folder of a cache, which git ignores; a folder of the user's own is not changed."""
    is_ours = folder.name == HIDDEN or not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    if is_ours and not (folder / IGNORE).exists():
        (folder / IGNORE).write_text(IGNORED, encoding="utf-8")


def _explained(error: OSError, folder: Path, cure: str) -> DataError:
    if error.errno in FULL:
        return DataError(f"The disk is full: the encoded data does not fit into {folder}. {cure}")
    reason = os.strerror(error.errno) if error.errno else first_line(error)
    return DataError(f"The encoded data cannot be written to {folder}: {reason}. {cure}")
