"""Files and folders that are replaced atomically: a reader finds the old or the new, never a part.

A write that fails raises a WriteError that names the file, and leaves nothing behind.
"""

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import TorchleapError, WriteError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
STAGED = ".result-"  # the prefix of the folder in which results are prepared


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise a WriteError that names `path` if the system refuses a write within this context."""
    try:
        yield
    except TorchleapError:
        raise
    except Exception as error:  # polars and safetensors have classes of their own for a full disk
        code = _system_code(error)
        if code is None:
            raise
        cure = "give another place"
        if code in FULL:
            cure = f"make room or {cure}"
        problem = WriteError(f"{path} cannot be written: {os.strerror(code)}; {cure}.")
        problem.errno = code
        raise problem from error


def _system_code(error: Exception) -> int | None:
    """Return the system's number of an error, which libraries written in Rust put in their text."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error))
    if found is None:
        return None
    return int(found[1])


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Make a folder and its parents, unless they exist, and return its path."""
    folder = Path(path)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def replace_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a file to write to, which replaces `path` at the end, unless something fails."""
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


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file of text or bytes, which replaces the one before it atomically."""
    if isinstance(content, str):
        content = content.encode()
    with replace_file(path) as temporary:
        temporary.write_bytes(content)


def append(path: str | os.PathLike[str], content: bytes) -> None:
    """Append to a file, all or nothing; the content is on the disk when this returns."""
    with writing(path), Path(path).open("ab", buffering=0) as file:
        before = file.tell()
        try:
            while content:
                written = file.write(content)
                content = content[written:]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(before)
            raise


@contextmanager
def replace_folder(
    path: str | os.PathLike[str],
    *,
    marker: str | None = None,
    what: str = "a result",
    refused: type[TorchleapError] = TorchleapError,
) -> Iterator[Path]:
    """Yield a new folder to write to, which replaces `path` at the end, unless something fails.

    The new folder lies beside `path`, whose parents are made if needed.

    Args:
        path: The folder to replace; it need not exist.
        marker: The name of a file that every such folder has: only a folder with it, or an empty
            one, is replaced. None replaces whatever is there.
        what: The kind of folder that may be replaced, for the message.
        refused: The error to raise if something else is there.
    """
    target = Path(path)
    if marker is not None:
        refuse_to_replace(target, marker, what, refused)
    make_folder(target.parent)
    with writing(target):
        staged = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
        try:
            new = staged / "new"
            new.mkdir(mode=0o755)
            yield new
            if marker is not None:  # again: writing may have taken long
                refuse_to_replace(target, marker, what, refused)
            put_in_place(new, target, staged / "old")
        finally:
            shutil.rmtree(staged, ignore_errors=True)


def refuse_to_replace(
    path: Path,
    marker: str,
    what: str,
    refused: type[TorchleapError] = TorchleapError,
) -> None:
    """Raise an error if a folder holds something other than torchleap's own files.

    The arguments are those of `replace_folder`.
    """
    if not path.exists() or (path / marker).exists():
        return
    if not path.is_dir() or any(path.iterdir()):
        raise refused(
            f"{path} exists and is not {what}, so it is not replaced. Choose another folder."
        )


def put_in_place(new: Path, target: Path, old: Path) -> None:
    """Rename a finished folder to `target`; if that fails, what was there returns.

    Args:
        new: The finished folder, on the same disk as the target.
        target: The name that it gets.
        old: The name that a folder of that name gets, for the caller to remove.
    """
    has_old = target.exists()
    if has_old:
        target.replace(old)
    try:
        new.replace(target)
    except BaseException:
        if has_old:
            old.replace(target)
        raise


def remove_leftovers(path: Path) -> None:
    """Remove what killed processes left beside a folder; call it while no other can replace it."""
    for left in path.parent.glob(f".{path.name}.*"):
        shutil.rmtree(left, ignore_errors=True)


@contextmanager
def replace_together(folder: str | os.PathLike[str], last: str) -> Iterator[Path]:
    """Yield a folder to write to, whose entries replace those of the same names in `folder`.

    Other files in `folder` stay. If anything fails, all entries are as they were.

    Args:
        folder: The folder, which is made if it does not exist.
        last: The entry that marks a complete result. It is removed first and written last, so
            that a kill in between leaves a folder without it.
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
    """Move the new entries to the places of the old ones; if that fails, move all back."""
    new = staged / "new"
    old = staged / "old"
    made = [entry.name for entry in new.iterdir()]
    names = sorted(made, key=lambda name: (name == last, name))
    aside = [name for name in [last, *names[:-1]] if (target / name).exists()]
    try:
        for name in aside:
            (target / name).replace(old / name)
        for name in names:
            (new / name).replace(target / name)
    except BaseException:
        for name in names:
            if (target / name).exists() and not (new / name).exists():
                (target / name).replace(new / name)
        for name in reversed(aside):
            if (old / name).exists():
                (old / name).replace(target / name)
        raise
