"""Paths: the files that a path, a folder or a pattern stands for."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ..._common.errors import DataError, shown
from ..manifest import MANIFEST
from .packed import PACKED

WILDCARDS = "*?["
_ADDRESS = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):/+(.+)$", re.DOTALL)
_COPY = {  # the command that copies files from an address, by its scheme
    "s3": "aws s3 cp {address} .",
    "s3a": "aws s3 cp {address} .",
    "gs": "gcloud storage cp {address} .",
    "gcs": "gcloud storage cp {address} .",
    "hdfs": "hdfs dfs -get {address} .",
    "http": "curl -LO {address}",
    "https": "curl -LO {address}",
    "ftp": "curl -O {address}",
}


@dataclass(frozen=True)
class FoundFiles:
    """The files that a path stands for.

    Attributes:
        path: The path as the user gave it.
        root: The folder that all files are in, above which the names of folders mean nothing.
        files: The files, in the order of their names.
        ending: The ending of all files, without that of the packing, such as ".csv".
    """

    path: Path
    root: Path
    files: tuple[Path, ...]
    ending: str


def find_files(path: Path, known: Collection[str]) -> FoundFiles:
    """Return the files of a path, of a folder with all below it, or of a pattern.

    Args:
        path: A file, a folder, or a pattern with *, ? or [.
        known: The endings that can be read, such as ".csv"; of a folder, others are ignored.
    """
    try:
        root, files = _find(path, known)
        is_empty = not any(file.stat().st_size for file in files)
    except DataError:
        raise
    except (OSError, ValueError, NotImplementedError) as error:
        # the name is too long, or pathlib does not know the pattern
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{str(path)[:80]!r} cannot be looked for: {reason}.") from error
    endings = {ending_of(file) for file in files}
    if len(endings) > 1:
        raise DataError(
            f"{path} holds files of several kinds: {', '.join(sorted(endings))}. "
            f"Name one kind: {path}/*{min(endings)}"
        )
    if is_empty:
        raise DataError(f"{path} is empty.")
    return FoundFiles(path, root, tuple(files), endings.pop())


def ending_of(file: Path) -> str:
    """Return the ending of a file in small letters, without that of its packing.

    >>> ending_of(Path("log.CSV.gz")), ending_of(Path("train.gz"))
    ('.csv', '.csv')
    """
    endings = [ending.lower() for ending in file.suffixes]
    for ending in reversed(endings):
        if ending not in PACKED:
            return ending
    return ".csv"


def _find(path: Path, known: Collection[str]) -> tuple[Path, list[Path]]:
    """Return the folder that the files are in, and the files in the order of their names."""
    if path.is_file():
        return path.parent, [path]
    takes_hidden = False
    if path.is_dir():
        root = path
        refuse_table_folder(path)
        found = [file for file in path.rglob("*") if ending_of(file) in known]
    elif _is_pattern(str(path)):
        root, pattern = _split_pattern(path)
        found = list(root.glob(str(pattern)))
        takes_hidden = _is_hidden(pattern)
    else:
        raise DataError(f"There is no file {path}.")
    files = [file for file in found if file.is_file()]
    if not takes_hidden:
        files = [file for file in files if not _is_hidden(file.relative_to(root))]
    encoded = {folder for folder in _folders(files) if (folder / MANIFEST).exists()}
    files = sorted(file for file in files if file.parent not in encoded)
    if not files:
        raise DataError(
            f"There is no file to read in {path}: expected {', '.join(known)}, "
            "perhaps packed as .gz or .zst."
        )
    return root, files


def _folders(files: Collection[Path]) -> set[Path]:
    return {file.parent for file in files}


def _is_pattern(text: str) -> bool:
    return any(sign in text for sign in WILDCARDS)


def _split_pattern(path: Path) -> tuple[Path, Path]:
    """Return the folder above the first part with a wildcard, and the pattern below it."""
    first = next(place for place, part in enumerate(path.parts) if _is_pattern(part))
    return Path(*path.parts[:first]), Path(*path.parts[first:])


def _is_hidden(path: Path) -> bool:
    """Return whether a part of a relative path begins with a dot or an underscore."""
    return any(part.startswith((".", "_")) for part in path.parts)


def refuse_address(path: str) -> None:
    """Raise a DataError on an address such as s3://...: only files of this machine are read."""
    found = _ADDRESS.match(path)
    if found is None:
        return
    scheme = found[1].lower()
    rest = found[2]
    address = f"{scheme}://{rest}"
    if scheme == "file":
        raise DataError(
            f"Expected the path of a file, but found the address {shown(address, 200)}. "
            f"Give /{rest[:200]} instead."
        )
    cure = "Copy it here first."
    if scheme in _COPY:
        cure = f"Copy it here first: {_COPY[scheme].format(address=address[:300])}"
    raise DataError(
        f"Expected a file on this machine, but found the address {shown(address, 300)}. {cure}"
    )


def refuse_table_folder(folder: Path) -> None:
    """Raise a DataError on a folder whose log lists its valid files: the others are old rows."""
    is_delta = (folder / "_delta_log").is_dir()
    is_iceberg = any((folder / "metadata").glob("*.metadata.json"))
    if not is_delta and not is_iceberg:
        return
    kind = "Delta" if is_delta else "Iceberg"
    raise DataError(
        f"{folder} is a {kind} table, some of whose files may hold rows that were removed since. "
        f"Export it first: duckdb -c "
        f"\"COPY (FROM {kind.lower()}_scan('{folder}')) TO 'rows.parquet'\""
    )
