"""Plain text: aligned tables, counted nouns and the first line of an error."""

from collections.abc import Sequence

LONGEST_LINE = 300  # characters of an error that are shown


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first column is aligned to the left and the others to the right.

    >>> print(table(["field", "gate"], [["user_id", "0.99"], ["age", "0.1"]]))
    field    gate
    user_id  0.99
    age       0.1
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, *rows):
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[0] = row[0].ljust(widths[0])
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless the count is 1.

    >>> plural(1, "field"), plural(1200, "dimension")
    ('1 field', '1,200 dimensions')
    """
    ending = "" if count == 1 else "s"
    return f"{count:,} {noun}{ending}"


def first_line(error: BaseException) -> str:
    r"""Return the first line of an error's message, at most 300 printable characters.

    An error without a message is named by its class. A full stop at the end is left out, so
    that the line can stand inside a sentence.

    >>> first_line(ValueError("a tab\there.\nmore"))
    'a tab?here'
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    line = lines[0][:LONGEST_LINE]
    return "".join(sign if sign.isprintable() else "?" for sign in line).rstrip(".")


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text: a readable way to write a long list of names.

    >>> words("add sub mul")
    ('add', 'sub', 'mul')
    """
    return tuple(text.split())
