"""Places of public sets on the user's disk: which files are looked for, and where to get them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..._common.errors import DataError
from ..files.source import Source


@dataclass(frozen=True)
class Place:
    """Where a public set comes from.

    Attributes:
        name: The name of the set.
        origin: What it is and where to get it, as the beginning of a sentence that ends with a
            folder; empty if `download` fetches it.
    """

    name: str
    origin: str = ""

    def find(self, path: str | os.PathLike[str], patterns: Sequence[str]) -> Path:
        """Return the path itself if it is a file, or the first file in a folder that fits."""
        given = Path(path)
        if given.is_file():
            return given
        if given.is_dir():
            for pattern in patterns:
                for file in sorted(given.glob(pattern)):
                    if file.is_file():
                        return file
        wanted = " or ".join(patterns[:2])
        raise DataError(f"There is no {wanted} at {given}. {self.how_to_get(given)}")

    def folder(self, path: str | os.PathLike[str]) -> Path:
        """Return a folder with the files of several parts; one file would be all parts at once."""
        folder = Path(path)
        if folder.is_file():
            raise DataError(
                f"Expected a folder with the files of all parts, but found the file {folder}. "
                f"{self.how_to_get(folder)}"
            )
        return folder

    def how_to_get(self, folder: Path) -> str:
        """Return how to get the set into a folder."""
        if not self.origin:
            return f"Get it: torchleap.data.download({self.name!r}, {str(folder)!r})."
        return f"It is {self.origin} there."


def cut(source: Source, fraction: float) -> tuple[Source, Source]:
    """Return the first rows of a source, up to this fraction, and the others."""
    first = int(source.count() * fraction)
    both = replace(source, with_numbers=None, parts=None)
    head = replace(both, name=f"{source.name} (first rows)", frame=source.frame.head(first))
    tail = replace(
        both,
        name=f"{source.name} (last rows)",
        frame=source.frame.slice(first),
        lines_before=source.lines_before + first,
    )
    return head, tail
