"""Plain text: the tables that `print()` of the library's objects shows, and files that appear whole or not at all."""

import errno
import fcntl
import json
import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .errors import TorchleapError, WriteError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
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
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def plural(count: int, noun: str) -> str:
    """Count a noun.

    >>> plural(1, "field"), plural(1200, "dimension")
    ('1 field', '1,200 dimensions')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, short and printable."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return "".join(sign if sign.isprintable() else "?" for sign in lines[0][:300]).rstrip(".")


def parse_json(content: str | bytes) -> Any:
    """Parse JSON that holds Unicode text and numbers of at most 64 bits; anything else is a ValueError."""
    try:
        found = json.loads(content, parse_int=_whole, parse_constant=_not_a_number)
        json.dumps(found, ensure_ascii=False).encode()  # refuses one half of a surrogate pair
    except (RecursionError, MemoryError) as error:
        raise ValueError("it is nested too deeply") from error
    return found


def _whole(digits: str) -> int:
    if len(digits) > 20 or abs(int(digits)) >= 1 << 63:
        raise ValueError(f"found the number {digits[:20]}..., which is too large")
    return int(digits)


def _not_a_number(word: str) -> None:
    raise ValueError(f"found {word}, which is not a number")


def read_json(
    path: str | os.PathLike[str], what: str, refused: type[TorchleapError] = TorchleapError
) -> Any:
    """Read a JSON file, and say what it should have been if it is damaged."""
    try:
        return parse_json(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise refused(f"{path} is not {what}: expected JSON, but {first_line(error)}.") from error


def read_toml(
    path: str | os.PathLike[str], refused: type[TorchleapError] = TorchleapError
) -> dict[str, Any]:
    """Read a TOML file whose numbers have at most 64 bits."""
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        parse_json(json.dumps(content, default=str))
    except (ValueError, RecursionError, MemoryError) as error:
        raise refused(f"{path} is not TOML: {first_line(error)}.") from error
    return content


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise a WriteError that names the file if the system refuses a write within this context."""
    try:
        yield
    except TorchleapError:
        raise
    except Exception as error:  # polars and safetensors have classes of their own for a full disk
        code = _code(error)
        if code is None:
            raise
        cure = "; make room or give another place" if code in FULL else "; give another place"
        problem = WriteError(f"{path} cannot be written: {os.strerror(code)}{cure}.")
        problem.errno = code
        raise problem from error


def _code(error: Exception) -> int | None:
    """Return the system's number of an error, which libraries written in Rust put into their text."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None


@contextmanager
def replace_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a file to write to, which takes the place of `path` at the end, unless something fails."""
    target = Path(path)
    with writing(target):
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            temporary.chmod(0o644)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Make a folder and those above it, unless it is there."""
    with writing(path):
        Path(path).mkdir(parents=True, exist_ok=True)
    return Path(path)


@contextmanager
def replace_together(folder: str | os.PathLike[str], last: str) -> Iterator[Path]:
    """Yield a folder to write to, whose entries replace those of the same names in `folder`; other files there stay.

    Args:
        last: The entry that shows that all are there: it goes first and comes last, so that a kill between leaves none.
    """
    target = make_folder(folder)
    with writing(target):
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
    made = [entry.name for entry in (staged / "new").iterdir()]
    names = sorted(made, key=lambda name: (name == last, name))
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
            raise TorchleapError(
                f"Another run is writing to {target}. Wait for it, or give another folder."
            ) from error
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


def append(path: str | os.PathLike[str], content: bytes) -> None:
    """Append to a file, all or nothing; it is on the disk when this returns."""
    with writing(path), Path(path).open("ab", buffering=0) as file:
        before = file.tell()
        try:
            while content:
                content = content[file.write(content) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(before)
            raise
