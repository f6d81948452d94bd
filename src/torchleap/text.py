"""Plain-text tables: what `print()` of the library's objects shows."""

from collections.abc import Sequence


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
