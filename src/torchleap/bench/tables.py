"""Tables of results, as plain text, Markdown, LaTeX and a record of the report."""

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
    """A table of results.

    Floats show 4 digits after the point, None and NaN a dash; a string is shown as it is.

    Args:
        title: The line above the table.
        columns: The titles of the columns.
        rows: The cells of each row, one per column.
        notes: Sentences below the table.

    >>> rows = (("leap", 0.80974), ("lasso", None))
    >>> print(Table("Test AUC", ("method", "AUC"), rows, ("Three seeds.",)).text())
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
        wrong = []
        for place, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                wrong.append(f"row {place} has {len(row)}")
        if wrong:
            raise TorchleapError(
                f"Expected {len(self.columns)} cells in each row of the table {self.title!r}, "
                f"but {', '.join(wrong[:5])}."
            )

    def text(self) -> str:
        """Return plain text: the title above, aligned columns, the notes below."""
        notes = "\n".join(map(_one_line, self.notes))
        return _stacked(_one_line(self.title), table(self._header(), self._lines()), notes)

    def markdown(self) -> str:
        r"""Return Markdown as GitHub reads it; columns of numbers are aligned to the right.

        >>> print(Table("Test AUC", ("method", "AUC"), (("a|b", 0.8),)).markdown())
        ### Test AUC
        <BLANKLINE>
        | method | AUC |
        | --- | ---: |
        | a\|b | 0.8000 |
        """
        marks = ["---:" if is_number else "---" for is_number in self._numeric()]
        head, *body = [list(map(_in_markdown, row)) for row in (self._header(), *self._lines())]
        lines = ["| " + " | ".join(row) + " |" for row in (head, marks, *body)]
        notes = "\n\n".join(map(_one_line, self.notes))
        return _stacked(f"### {_one_line(self.title)}", "\n".join(lines), notes)

    def latex(self) -> str:
        """Return a table for LaTeX with the package booktabs; the title is its caption."""
        rows = [" & ".join(map(_in_latex, row)) for row in (self._header(), *self._lines())]
        head, *body = [row + r" \\" for row in rows]
        alignment = "".join("r" if is_number else "l" for is_number in self._numeric())
        lines = [
            r"\begin{table}[tbp]",
            r"\centering",
            rf"\caption{{{_in_latex(_one_line(self.title))}}}",
            rf"\begin{{tabular}}{{{alignment}}}",
            r"\toprule",
            head,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
        ]
        if self.notes:
            lines.append(r"\par\smallskip")
        for note in self.notes:
            lines.append(rf"{{\footnotesize {_in_latex(_one_line(note))}\par}}")
        return "\n".join([*lines, r"\end{table}"])

    def record(self) -> dict[str, Any]:
        """Return plain JSON for the report, in which cells are strings with the same digits."""
        return {
            "title": self.title,
            "columns": self._header(),
            "rows": self._lines(),
            "notes": list(self.notes),
        }

    def _header(self) -> list[str]:
        return [_one_line(column) for column in self.columns]

    def _lines(self) -> list[list[str]]:
        return [list(map(_shown, row)) for row in self.rows]

    def _numeric(self) -> list[bool]:
        """Return which columns contain numbers, or text that begins with one."""
        found = []
        lines = self._lines()
        for place in range(len(self.columns)):
            known = [row[place] for row in lines if row[place] not in ("", _UNKNOWN)]
            found.append(bool(known) and all(map(_NUMBER.match, known)))
        return found


def interval_text(mean: Mean, digits: int = 4) -> str:
    """Return a mean and half the width of its interval, where it has one.

    >>> interval_text(Mean(0.80971, 0.80911, 0.81031, 5))
    '0.8097 ± 0.0006'
    >>> interval_text(Mean(0.80971, math.nan, math.nan, 1))
    '0.8097'
    """
    return f"{mean.value:.{digits}f}{_margin(mean, digits)}"


def signed(mean: Mean, digits: int = 4) -> str:
    """Return a difference with its sign, unless it rounds to 0, and half of its interval.

    >>> signed(Mean(0.0032, 0.0027, 0.0037, 5)), signed(Mean(-0.00001, math.nan, math.nan, 1))
    ('+0.0032 ± 0.0005', '0.0000')
    """
    text = f"{mean.value:+.{digits}f}"
    if not float(text):
        text = text[1:]
    return text + _margin(mean, digits)


def over_seeds(seeds: int) -> str:
    """Return how many seeds the numbers of a table are from, for its notes.

    >>> over_seeds(3), over_seeds(1)
    ('Mean and 95 % interval over 3 seeds', 'One seed, so there is no interval')
    """
    if seeds == 1:
        return "One seed, so there is no interval"
    return f"Mean and 95 % interval over {seeds} seeds"


def write_tables(tables: Sequence[Table], folder: Path, name: str) -> None:
    """Write the tables below each other to NAME.txt, NAME.md and NAME.tex.

    Args:
        tables: The tables.
        folder: The folder, which is made if it does not exist.
        name: The name of the files.
    """
    make_folder(folder)
    text = "\n\n\n".join(each.text() for each in tables)
    markdown = "\n\n".join(each.markdown() for each in tables)
    latex = "\n\n".join([r"% \usepackage{booktabs}", *(each.latex() for each in tables)])
    for ending, content in (("txt", text), ("md", markdown), ("tex", latex)):
        write_atomically(folder / f"{name}.{ending}", content + "\n")


def _shown(cell: Cell) -> str:
    """Return a cell as text, in every format alike."""
    if isinstance(cell, str):
        return _one_line(cell)
    if cell is None or (is_number(cell) and math.isnan(cell)):
        return _UNKNOWN
    if is_number(cell) and not is_whole(cell):
        return f"{cell:z.4f}"
    return str(cell)


def _one_line(text: str) -> str:
    """Return the same words in one line: a line break within a cell would end its row."""
    return " ".join(text.split())


def _stacked(title: str, grid: str, notes: str) -> str:
    parts = [title, grid]
    if notes:
        parts.append(notes)
    return "\n\n".join(parts)


def _in_markdown(cell: str) -> str:
    return cell.replace("\\", "\\\\").replace("|", "\\|")


def _in_latex(text: str) -> str:
    minus = ""
    if text.startswith("-") and _NUMBER.match(text):
        minus = "$-$"
        text = text[1:]
    return minus + "".join(_LATEX.get(character, character) for character in text)


def _margin(mean: Mean, digits: int) -> str:
    if math.isnan(mean.low):
        return ""
    return f" ± {(mean.high - mean.low) / 2:.{digits}f}"
