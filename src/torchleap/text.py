"""Plain text: the tables that `print()` of the library's objects shows, and files that appear whole or not at all."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


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


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file that appears whole or not at all."""
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
