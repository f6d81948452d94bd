"""Caches: which encoded data is kept where, how much of it, of which file; and how to be rid of it."""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .cache import HIDDEN, IGNORE, IGNORED, cache_folder, locked
from .sources import ENCODED

_KEY = re.compile(r"^(industrial_)?[0-9a-f]{24}$")


@dataclass(frozen=True)
class Cached:
    """One encoded file."""

    path: Path
    bytes: int
    source: str  # what was encoded; empty if that is not known
    changed: float  # when it was written, in seconds since 1970


def cache_folders(place: Path) -> list[Path]:
    """Return the folders that may hold encoded data: beside the files of a place, and the user's own."""
    folder = place.parent if place.is_file() else place
    beside = folder if folder.name == HIDDEN else folder / HIDDEN
    found = [beside.absolute(), cache_folder(None, None).absolute()]
    return [path for path in dict.fromkeys(found) if path.is_dir()]


def cached_in(folder: Path) -> list[Cached]:
    """Return what a folder holds that torchleap has written; nothing else, and no link, is looked at."""
    return [_cached(entry) for entry in sorted(folder.iterdir()) if _is_ours(entry)]


def _is_ours(entry: Path) -> bool:
    if entry.is_symlink() or not entry.is_dir() or not _KEY.match(entry.name):
        return False
    return (entry / ENCODED).is_file() or any(entry.glob("*.parquet"))


def _cached(entry: Path) -> Cached:
    size = sum(
        file.stat().st_size for file in entry.rglob("*") if file.is_file() and not file.is_symlink()
    )
    return Cached(entry, size, _source(entry), entry.stat().st_mtime)


def _source(entry: Path) -> str:
    if entry.name.startswith("industrial_"):
        return "a log made by torchleap"
    try:
        source = json.loads((entry / ENCODED).read_text(encoding="utf-8")).get("source")
        return ", ".join(map(str, source))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return ""


def clear(folder: Path) -> Iterator[Cached]:
    """Remove what `cached_in` finds, and the folder if nothing else is left; what another process writes stays.

    Yields:
        What was removed.
    """
    for found in cached_in(folder):
        lock = folder / f"{found.path.name}.lock"
        with locked(lock, wait=False) as free:
            if free:
                shutil.rmtree(found.path)
                lock.unlink(missing_ok=True)
                yield found
    left = list(folder.iterdir())
    if all(entry.name == IGNORE and entry.read_text(encoding="utf-8") == IGNORED for entry in left):
        shutil.rmtree(folder)
