"""inspect: what each column of a file holds, and which columns look wrong."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from polars import selectors

from ..._common.checks import is_whole
from ..._common.errors import DataError, nearest
from ..._common.text import plural, table
from ..manifest import DEFAULT_OBJECTIVE, objective_of
from .column_findings import column_findings
from .encoders.label import Label, LabelRule
from .findings import Finding, header_findings, renamed_findings, sorted_findings
from .labels import label_problems, positive_of
from .open import open_source
from .options import Progress, no_progress
from .seen import AllColumns, SeenColumn, column_of, see
from .source import SAMPLE_ROWS, Source

DEFAULT = 0.99  # the fraction of the most common value from which on a column hardly varies
LONGEST_VALUE = 20  # characters of a value that are shown


@dataclass(frozen=True)
class ColumnFacts:
    """The facts about one column.

    Attributes:
        name: The name of the column.
        kind: The kind that it would be to a model; "label" for the label.
        dtype: The type of its values; of CSV the type that its text stands for.
        missing: The fraction of rows without a value.
        distinct: The number of different values, without missing ones.
        common: The fraction of rows with the most common value.
        common_value: The most common value as text; None if that is a missing one.
        notes: What looks wrong.
    """

    name: str
    kind: str
    dtype: str
    missing: float
    distinct: int
    common: float
    common_value: str | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Inspection:
    """The facts about a file; `print()` shows them as a table.

    Attributes:
        source: The path of the file, or "the frame".
        rows: The number of rows that were looked at.
        all_rows: Whether these were all rows, and not the first ones.
        label: The name of the label's column; None if there is none.
        base_rate: The fraction of rows with label 1; None without a label.
        columns: The facts about each column.
        findings: What a result may suffer from, the worst first.
    """

    source: str
    rows: int
    all_rows: bool
    label: str | None
    base_rate: float | None
    columns: tuple[ColumnFacts, ...]
    findings: tuple[Finding, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the facts as a plain dict, as JSON has it."""
        columns = [asdict(column) | {"notes": list(column.notes)} for column in self.columns]
        findings = [asdict(found) for found in self.findings]
        return asdict(self) | {"columns": columns, "findings": findings}

    def __str__(self) -> str:
        return "\n\n".join([self._title(), self._table(), self._notes()])

    def _title(self) -> str:
        first = "" if self.all_rows else "the first "
        rows = f"{first}{plural(self.rows, 'row')}"
        title = f"{_printable(self.source)}: {rows}, {plural(len(self.columns), 'column')}"
        if self.base_rate is None:
            return title
        rate = _percent(self.base_rate)
        return f"{title}; {_printable(str(self.label))} is 1 in {rate} of rows"

    def _table(self) -> str:
        header = ["column", "kind", "type", "missing", "distinct", "most common"]
        rows = [header, *map(_cells, self.columns)]
        columns = [list(column) for column in zip(*rows, strict=True)]
        for place in (1, 2, 5):  # text, which a table would align to the right
            columns[place] = _left(columns[place])
        first, *others = zip(*columns, strict=True)
        return table(first, others)

    def _notes(self) -> str:
        lines = [f"  {found.text}" for found in self.findings if found.column is None]
        noted = [column for column in self.columns if column.notes]
        names = _left([_printable(column.name) for column in noted])
        for name, column in zip(names, noted, strict=True):
            lines.append(f"  {name}  {'; '.join(column.notes)}")
        if not lines:
            return "No column looks wrong."
        return "\n".join(["Worth a look:", *lines])


def inspect(
    data: Any,
    *,
    label: str | None = None,
    threshold: float | None = None,
    positive: str | float | None = None,
    only: Iterable[str] | None = None,
    rows: int = 1_000_000,
    separator: str | None = None,
    names: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Inspection:
    """Look at the first rows of a file or frame; with a label also for columns that give it away.

    Args:
        data: A file, a folder, a pattern or a frame, as for `read`.
        label: The column to predict; None looks at the columns alone.
        threshold: The label is 1 where its column is above this number, as for `read`.
        positive: The label is 1 where its column has this value, as for `read`.
        only: The columns to look at, besides the label; None looks at all.
        rows: The number of rows to look at, at most.
        separator: The character between the columns of CSV; None finds it in the first line.
        names: The names of the columns of CSV files without a header; None if they have one.
        progress: Called with the step, how many columns are done, and of how many.

    >>> clicks = {"click": [0, 1] * 50, "bought": ["no", "yes"] * 50, "country": ["de"] * 100}
    >>> [column.notes for column in inspect(pl.DataFrame(clicks), label="click").columns]
    [(), ("same as the label 'click'",), ('constant',)]
    """
    source = open_source(data, separator=separator, names=names)
    present = source.names()
    _check(present, label, threshold, positive, rows)
    if only is not None:
        wanted = {*only, label}
        present = [name for name in present if name in wanted]
    taken, length = _first_rows(source, rows)
    target = None
    if label is not None:
        rule = LabelRule(label, objective_of(DEFAULT_OBJECTIVE), threshold, positive)
        target = _read_label(source, taken, rule)
    found, findings = _look(taken, present, min(rows, length), target, progress or no_progress)
    return Inspection(
        source=source.name,
        rows=min(rows, length),
        all_rows=length <= rows,
        label=label,
        base_rate=None if target is None else float(target.to_numpy().mean()),
        columns=tuple(found),
        findings=sorted_findings(findings),
    )


def _look(
    source: Source,
    names: Sequence[str],
    rows: int,
    target: pl.Series | None,
    progress: Progress,
) -> tuple[list[ColumnFacts], list[Finding]]:
    """Return the facts about each column, and the findings about all of them.

    Args:
        source: The first rows.
        names: The columns to look at.
        rows: The number of rows.
        target: The label as numbers, by its name; None if there is none.
        progress: Called after each column.
    """
    facts = []
    findings: list[Finding] = []
    known: dict[bytes, str] = {}  # the name of the first column of each identity
    if source.text:
        findings += renamed_findings(names)
    if target is not None:
        known[SeenColumn(target.name, target, "numeric").identity()] = target.name
    together = AllColumns(rows)
    for number, name in enumerate(names, start=1):
        seen = see(source, name)
        findings += column_findings(seen, source, target, known)
        own = [one.text for one in findings if one.column == name]
        is_label = target is not None and target.name == name
        facts.append(_facts(seen, source, own, is_label=is_label))
        together.add(seen)
        progress("inspecting", number, len(names))
    if source.text and source.lines_before == 1:
        findings += header_findings(names, together.named_like_values)
    findings += together.findings()
    return facts, findings


def _check(
    present: Sequence[str], label: str | None, threshold: float | None, positive: Any, rows: int
) -> None:
    if not is_whole(rows) or rows < 1:
        raise DataError(f"rows must be a whole number of at least 1, but is {rows!r}.")
    problems = list(label_problems(threshold, positive))
    if problems:
        raise DataError(f"{'; '.join(problems)}.")
    if label is None and (threshold is not None or positive is not None):
        raise DataError(
            "threshold= and positive= say how to read the label, but there is none. "
            "Name its column: label=..."
        )
    if label is not None and label not in present:
        raise DataError(f"There is no column {label!r} for label=. {nearest(str(label), present)}")


def _first_rows(source: Source, rows: int) -> tuple[Source, int]:
    """Return the first rows, and how many there are, counted up to one more than these.

    Text is read into memory, since all its columns are parsed together; other formats are read
    column by column.
    """
    if source.text:
        sample = source.sample(rows + 1)
        return replace(source, frame=sample.head(rows).lazy()), len(sample)
    first = replace(source, frame=source.frame.select(selectors.first()))
    return replace(source, frame=source.frame.head(rows)), len(first.sample(rows + 1))


def _read_label(full: Source, source: Source, rule: LabelRule) -> pl.Series:
    """Return the label of the first rows as numbers; all rows decide which word is positive."""
    given = column_of(source, rule.name)
    if rule.threshold is None:
        found = positive_of([full], rule.name, given.head(SAMPLE_ROWS), rule.positive)
        rule = replace(rule, positive=found or rule.positive)

    def place(row: int) -> str:
        return f"{source.name}, {source.row(row)}"

    encoder = Label(rule, text=source.text)
    values = given.to_frame().select(encoder.expression()).to_series()
    label = encoder.read(values, given, place)[:, 0]
    return pl.Series(rule.name, label.astype(np.float64))


def _facts(
    seen: SeenColumn, source: Source, findings: Sequence[str], *, is_label: bool
) -> ColumnFacts:
    notes = [*_shape_notes(seen), *findings, *_value_notes(seen, source)]
    row = int(seen.counts.argmax())
    value = seen.values[row]
    if isinstance(value, pl.Series):
        value = value.to_list()
    rows = len(seen.values)
    return ColumnFacts(
        name=seen.name,
        kind="label" if is_label else seen.kind,
        dtype=_dtype(seen, text=source.text),
        missing=seen.values.null_count() / rows,
        distinct=seen.distinct,
        common=float(seen.counts[row] / rows),
        common_value=None if value is None else str(value),
        notes=tuple(dict.fromkeys(notes)),
    )


def _dtype(seen: SeenColumn, *, text: bool) -> str:
    dtype = seen.values.dtype
    if text and seen.kind == "numeric":
        whole = seen.values.cast(pl.Int64, strict=False)
        return "Int64" if whole.null_count() == seen.values.null_count() else "Float64"
    if isinstance(dtype, pl.Array):
        return f"{dtype.size} x {dtype.inner}"
    return str(dtype)


def _shape_notes(seen: SeenColumn) -> Iterator[str]:
    """Yield a note if there are too few values."""
    rows = len(seen.values)
    missing = seen.values.null_count()
    if seen.is_constant:
        yield "all missing" if missing else "constant"
    elif seen.most >= DEFAULT * rows:
        value = "missing" if seen.most == missing else "the same value"
        yield f"{value} in {_percent(seen.most / rows)} of rows"


def _value_notes(seen: SeenColumn, source: Source) -> Iterator[str]:
    """Yield notes on infinities and on the lengths of lists."""
    if seen.kind == "numeric":
        infinite = seen.numbers.is_infinite().arg_true()
        if len(infinite):
            count = plural(len(infinite), "infinite value")
            yield f"{count}, the first in {source.row(infinite[0])}"
    if isinstance(seen.values.dtype, pl.List) and seen.values.null_count() < len(seen.values):
        lengths = seen.values.list.len().drop_nulls().to_numpy()
        empty = _percent(float((lengths == 0).mean()))
        yield f"{lengths.mean():.1f} items per row, at most {lengths.max()}; {empty} are empty"


def _cells(column: ColumnFacts) -> list[str]:
    """Return the line of a column in the table."""
    value = "(missing)"
    if column.common_value is not None:
        value = _printable(column.common_value)
    if len(value) > LONGEST_VALUE:
        value = value[: LONGEST_VALUE - 3] + "..."
    return [
        _printable(column.name),
        column.kind,
        column.dtype,
        _percent(column.missing),
        f"{column.distinct:,}",
        f"{_percent(column.common):>7}  {value}",
    ]


def _percent(fraction: float) -> str:
    """Return a fraction in percent, with 0 or 100 only where it is exactly that."""
    if 0 < fraction < 0.0005:
        return "<0.1 %"
    if 0.9995 <= fraction < 1:
        return ">99.9 %"
    return f"{100 * fraction:.1f} %"


def _left(cells: Sequence[str]) -> list[str]:
    """Return cells of one length, which a table leaves on the left."""
    width = max(map(len, cells), default=0)
    return [cell.ljust(width) for cell in cells]


def _printable(text: str) -> str:
    """Return text without line breaks and escape codes, which would spoil a terminal."""
    if text.isprintable():
        return text
    return repr(text)[1:-1]
