"""Tables of results, written alike as plain text, Markdown, LaTeX and a record of the report."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._common.checks import is_number, is_whole
from .._common.errors import TorchleapError
from .._common.files import make_folder, write_atomically
from .._common.text import table
from .statistics import Mean

Cell = str | float | int | None

_UNKNOWN = "-"
_NUMBER = re.compile(r"[+-]?\.?\d")  # how a cell with a number begins
_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    # the old fonts show other characters in the place of these
    "<": r"$<$",
    ">": r"$>$",
    "|": r"\textbar{}",
    # at the start of a row these would belong to the line break before it
    "[": "{[}",
    "*": "{*}",
}


@dataclass(frozen=True)
class Table:
    """Results in rows.

    Floats show 4 digits after the point, None and NaN a dash. Give strings where another format is wanted.

    >>> print(Table("Test AUC", ("method", "AUC"), (("leap", 0.80974), ("lasso", None)), ("Three seeds.",)).text())
    Test AUC
    <BLANKLINE>
    method     AUC
    leap    0.8097
    lasso        -
    <BLANKLINE>
    Three seeds.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.columns:
            raise TorchleapError(
                f"Expected at least one column in the table {self.title!r}, but there is none."
            )
        wrong = [
            f"row {place} has {len(row)}"
            for place, row in enumerate(self.rows)
            if len(row) != len(self.columns)
        ]
        if wrong:
            raise TorchleapError(
                f"Expected {len(self.columns)} cells in each row of the table {self.title!r}, but {', '.join(wrong[:5])}."
            )

    def text(self) -> str:
        """Plain text: the title above, aligned columns, the notes below."""
        return _stacked(
            _one_line(self.title),
            table(_header(self), _lines(self)),
            "\n".join(map(_one_line, self.notes)),
        )

    def markdown(self) -> str:
        r"""Markdown as GitHub reads it; columns of numbers stand to the right.

        >>> print(Table("Test AUC", ("method", "AUC"), (("a|b", 0.8),)).markdown())
        ### Test AUC
        <BLANKLINE>
        | method | AUC |
        | --- | ---: |
        | a\|b | 0.8000 |
        """
        marks = ["---:" if right else "---" for right in _numeric(self)]
        rows = [[_in_markdown(cell) for cell in row] for row in (_header(self), *_lines(self))]
        grid = "\n".join("| " + " | ".join(row) + " |" for row in (rows[0], marks, *rows[1:]))
        return _stacked(
            f"### {_one_line(self.title)}", grid, "\n\n".join(map(_one_line, self.notes))
        )

    def latex(self) -> str:
        """A table environment for LaTeX with the package booktabs; the title is its caption."""
        head, *body = (
            " & ".join(map(_in_latex, row)) + r" \\" for row in (_header(self), *_lines(self))
        )
        notes = [rf"{{\footnotesize {_in_latex(_one_line(note))}\par}}" for note in self.notes]
        lines = (
            r"\begin{table}[tbp]",
            r"\centering",
            rf"\caption{{{_in_latex(_one_line(self.title))}}}",
            rf"\begin{{tabular}}{{{''.join('r' if right else 'l' for right in _numeric(self))}}}",
            *(r"\toprule", head, r"\midrule", *body, r"\bottomrule"),
            r"\end{tabular}",
            *([r"\par\smallskip", *notes] if notes else []),
            r"\end{table}",
        )
        return "\n".join(lines)

    def record(self) -> dict[str, Any]:
        """Plain JSON for the report; cells are strings, so that it shows the same digits."""
        return {
            "title": self.title,
            "columns": _header(self),
            "rows": _lines(self),
            "notes": list(self.notes),
        }


def interval_text(mean: Mean, digits: int = 4) -> str:
    """A mean and half the width of its interval, where it has one.

    >>> interval_text(Mean(0.80971, 0.80911, 0.81031, 5)), interval_text(Mean(0.80971, math.nan, math.nan, 1))
    ('0.8097 ± 0.0006', '0.8097')
    """
    return f"{mean.value:.{digits}f}{_margin(mean, digits)}"


def signed(mean: Mean, digits: int = 4) -> str:
    """A difference with its sign, and half the width of its interval; what rounds to nothing has no sign.

    >>> signed(Mean(0.0032, 0.0027, 0.0037, 5)), signed(Mean(-0.00001, math.nan, math.nan, 1))
    ('+0.0032 ± 0.0005', '0.0000')
    """
    text = f"{mean.value:+.{digits}f}"
    return (text if float(text) else text[1:]) + _margin(mean, digits)


def over_seeds(seeds: int) -> str:
    """What the numbers of a table rest on, for its notes.

    >>> over_seeds(3), over_seeds(1)
    ('Mean and 95 % interval over 3 seeds', 'One seed, so there is no interval')
    """
    return (
        f"Mean and 95 % interval over {seeds} seeds"
        if seeds > 1
        else "One seed, so there is no interval"
    )


def write_tables(tables: Sequence[Table], folder: Path, name: str) -> None:
    """Write the tables below each other to NAME.txt, NAME.md and NAME.tex; the folder is made where it is missing."""
    make_folder(folder)
    write_atomically(folder / f"{name}.txt", "\n\n\n".join(each.text() for each in tables) + "\n")
    write_atomically(folder / f"{name}.md", "\n\n".join(each.markdown() for each in tables) + "\n")
    write_atomically(
        folder / f"{name}.tex",
        "\n\n".join(["% \\usepackage{booktabs}", *(each.latex() for each in tables)]) + "\n",
    )


def _header(of: Table) -> list[str]:
    return [_one_line(column) for column in of.columns]


def _lines(of: Table) -> list[list[str]]:
    return [[_shown(cell) for cell in row] for row in of.rows]


def _shown(cell: Cell) -> str:
    """The one rule for a cell."""
    if isinstance(cell, str):
        return _one_line(cell)
    if cell is None or (is_number(cell) and math.isnan(cell)):
        return _UNKNOWN
    return f"{cell:z.4f}" if is_number(cell) and not is_whole(cell) else str(cell)


def _one_line(text: str) -> str:
    """The same words in one line: a line break within a cell would end its row."""
    return " ".join(text.split())


def _numeric(of: Table) -> list[bool]:
    """Which columns hold numbers, written as such or in strings like `0.8097 ± 0.0006`."""
    known = [
        [cell for cell in column if cell not in ("", _UNKNOWN)]
        for column in zip(*_lines(of), strict=True)
    ]
    return [
        bool(cells) and all(_NUMBER.match(cell) for cell in cells)
        for cells in known or [[]] * len(of.columns)
    ]


def _stacked(title: str, grid: str, notes: str) -> str:
    return "\n\n".join([title, grid, *([notes] if notes else [])])


def _in_markdown(cell: str) -> str:
    return cell.replace("\\", "\\\\").replace("|", "\\|")


def _in_latex(text: str) -> str:
    minus = "$-$" if text.startswith("-") and _NUMBER.match(text) else ""
    return minus + "".join(_LATEX.get(character, character) for character in text[bool(minus) :])


def _margin(mean: Mean, digits: int) -> str:
    return "" if math.isnan(mean.low) else f" ± {(mean.high - mean.low) / 2:.{digits}f}"
