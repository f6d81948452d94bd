"""Plain text: the tables that `print()` of the library's objects shows, and files that appear whole or not at all."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import TorchleapError

STAGED = ".result-"  # what the folder begins with in which results are made


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align columns: the first to the left, the others to the right.

    >>> print(table(["field", "gate"], [["user_id", "0.99"], ["age", "0.1"]]))
    field    gate
    user_id  0.99
    age       0.1
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, *rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def plural(count: int, noun: str) -> str:
    """Count a noun.

    >>> plural(1, "field"), plural(1200, "dimension")
    ('1 field', '1,200 dimensions')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


@contextmanager
def replace_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A file to write to, which takes the place of `path` at the end, unless something fails."""
    target = Path(path)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replace_together(folder: str | os.PathLike[str], last: str) -> Iterator[Path]:
    """A folder to write to, whose entries take the place of those of the same names in `folder`; other files there stay.

    Args:
        last: The entry that shows that all are there: it goes first and comes last, so that a kill between leaves none.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(dir=target, prefix=STAGED))
    try:
        (staged / "new").mkdir()
        (staged / "old").mkdir()
        yield staged / "new"
        _swap(staged, target, last)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _swap(staged: Path, target: Path, last: str) -> None:
    """Move the new entries to where the old ones were; if that fails, move the old ones back."""
    names = sorted((entry.name for entry in (staged / "new").iterdir()), key=lambda name: (name == last, name))
    aside = [name for name in [last, *names[:-1]] if (target / name).exists()]
    try:
        for name in aside:
            (target / name).replace(staged / "old" / name)
        for name in names:
            (staged / "new" / name).replace(target / name)
    except BaseException:
        for name in names:
            if (target / name).exists() and not (staged / "new" / name).exists():
                (target / name).replace(staged / "new" / name)
        for name in reversed(aside):
            if (staged / "old" / name).exists():
                (staged / "old" / name).replace(target / name)
        raise


@contextmanager
def held(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Hold a folder, made if it is not there, against other processes that would write results to it.

    A process that is killed holds nothing. What a killed one was writing is removed, and so is an empty folder at the end.
    """
    target = Path(folder)
    made = [place for place in (target, *target.absolute().parents) if not place.exists()]
    handle = _locked(target)
    try:
        for left in target.glob(f"{STAGED}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        for place in made:
            with suppress(OSError):  # something is in it
                place.rmdir()
        os.close(handle)


def _locked(target: Path) -> int:
    """Open a folder with a lock that ends with the handle."""
    while True:
        target.mkdir(parents=True, exist_ok=True)
        handle = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise TorchleapError(f"Another run is writing to {target}. Wait for it, or give another folder.") from error
        except OSError:  # a file system without locks
            return handle
        with suppress(OSError):
            if os.path.samestat(os.fstat(handle), target.stat()):
                return handle
        os.close(handle)  # the other run has just removed it


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file that appears whole or not at all."""
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
