"""Caches: the encoded data that is kept, listed by its source and its size, and removed."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..._common.locks import locked
from ..._common.plain import parse_json
from ..manifest import MANIFEST
from .cache import HIDDEN, IGNORE, IGNORED, cache_folder

INDUSTRIAL = "industrial_"  # the prefix of synthetic logs
_KEY = re.compile(rf"^({INDUSTRIAL})?[0-9a-f]{{24}}$")


@dataclass(frozen=True)
class Cached:
    """One encoded file.

    Attributes:
        path: The folder that holds it.
        bytes: Its size.
        source: The paths of the files that were encoded; empty if they are not known.
        changed: The time when it was written, in seconds since 1970.
    """

    path: Path
    bytes: int
    source: str
    changed: float


def cache_folders(place: Path) -> list[Path]:
    """Return the caches that exist: beside the files of a place, and the user's own."""
    folder = place.parent if place.is_file() else place
    beside = folder if folder.name == HIDDEN else folder / HIDDEN
    found = [beside.absolute(), cache_folder(None, None).absolute()]
    return [path for path in dict.fromkeys(found) if path.is_dir()]


def cached_in(folder: Path) -> list[Cached]:
    """Return what torchleap has written to a cache; nothing else, and no link, is looked at."""
    return [_cached(entry) for entry in sorted(folder.iterdir()) if _is_ours(entry)]


def _is_ours(entry: Path) -> bool:
    if entry.is_symlink() or not entry.is_dir() or not _KEY.match(entry.name):
        return False
    return (entry / MANIFEST).is_file() or any(entry.glob("*.parquet"))


def _cached(entry: Path) -> Cached:
    files = [file for file in entry.rglob("*") if file.is_file() and not file.is_symlink()]
    size = sum(file.stat().st_size for file in files)
    return Cached(entry, size, _source(entry), entry.stat().st_mtime)


def _source(entry: Path) -> str:
    if entry.name.startswith(INDUSTRIAL):
        return "a log made by torchleap"
    try:
        content = parse_json((entry / MANIFEST).read_text(encoding="utf-8"))
        return ", ".join(map(str, content.get("source")))
    except (OSError, ValueError, TypeError, AttributeError):
        return ""


def clear(folder: Path) -> Iterator[Cached]:
    """Remove what `cached_in` finds, and the folder if nothing else is left in it.

    What another process is writing stays.

    Yields:
        Each folder that was removed.
    """
    for found in cached_in(folder):
        lock = folder / f"{found.path.name}.lock"
        with locked(lock, wait=False) as is_held:
            if is_held:
                shutil.rmtree(found.path)
                lock.unlink(missing_ok=True)
                yield found
    if all(_is_ignore_file(entry) for entry in folder.iterdir()):
        shutil.rmtree(folder)


def _is_ignore_file(entry: Path) -> bool:
    return entry.name == IGNORE and entry.read_text(encoding="utf-8") == IGNORED
