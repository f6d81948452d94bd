"""inspect: what each column of a file holds, and which look wrong."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars import selectors

from ..._common.checks import is_whole
from ..._common.errors import DataError, nearest, shown
from ..._common.text import plural, table
from ...objectives import auc
from .encode import Label, Progress, Roles
from .findings import (
    Finding,
    header_findings,
    header_name,
    leave_out,
    renamed_findings,
    row_findings,
    sorted_findings,
    text_findings,
)
from .labels import positive_of
from .read import SAMPLE_ROWS
from .schema import MISSING_TEXT, Kind, infer
from .sources import Source, open_source

LEAK = 0.99  # an AUC that no honest column reaches alone
NEARLY = 0.95  # the share of rows with a value of their own from which on categories are ids
DEFAULT = 0.99  # the share of the most common value from which on a column hardly varies
ENOUGH = 10  # rows of each class, below which such an AUC may be luck
TESTED = 200_000  # rows, at most, that an AUC is measured on
LONGEST_VALUE = 20  # characters of a value that are shown
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ColumnFacts:
    """What one column holds."""

    name: str
    kind: str  # what it would be to a model; "label" for the label
    dtype: str  # for CSV the type that its text stands for
    missing: float
    distinct: int  # values, missing ones aside
    common: float  # the share of rows at the most common value
    common_value: str | None  # None if that is a missing one
    notes: tuple[str, ...]  # what looks wrong


@dataclass(frozen=True)
class Inspection:
    """What a file holds; `print()` shows it as a table."""

    source: str
    rows: int
    all_rows: bool  # whether these were all, and not the first ones
    label: str | None
    base_rate: float | None  # the share of rows with label 1
    columns: tuple[ColumnFacts, ...]
    findings: tuple[Finding, ...] = ()  # what a result may suffer from, the worst first

    def to_json(self) -> dict[str, Any]:
        """A plain dict, as JSON has it."""
        columns = [asdict(column) | {"notes": list(column.notes)} for column in self.columns]
        return asdict(self) | {
            "columns": columns,
            "findings": [asdict(found) for found in self.findings],
        }

    def __str__(self) -> str:
        rows = f"{'' if self.all_rows else 'the first '}{plural(self.rows, 'row')}"
        label = (
            ""
            if self.base_rate is None
            else f"; {_printable(str(self.label))} is 1 in {_percent(self.base_rate)} of rows"
        )
        title = f"{_printable(self.source)}: {rows}, {plural(len(self.columns), 'column')}{label}"
        header = ("column", "kind", "type", "missing", "distinct", "most common")
        names, kinds, types, shares, counts, commons = zip(
            header, *map(_cells, self.columns), strict=True
        )
        first, *cells = zip(
            names, _left(kinds), _left(types), shares, counts, _left(commons), strict=True
        )
        return "\n\n".join([title, table(first, cells), self._notes()])

    def _notes(self) -> str:
        noted = [column for column in self.columns if column.notes]
        names = _left([_printable(column.name) for column in noted])
        lines = [
            f"  {name}  {'; '.join(column.notes)}"
            for name, column in zip(names, noted, strict=True)
        ]
        lines = [*(f"  {found.text}" for found in self.findings if found.column is None), *lines]
        return "\n".join(["Worth a look:", *lines]) if lines else "No column looks wrong."


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
    """Look at the first rows of a file or frame, before a model does; with a label also for columns that give it away.

    The arguments are those of `read`; at most `rows` rows are looked at, and of `only` some columns these and the label.

    >>> frame = pl.DataFrame({"click": [0, 1] * 50, "bought": ["no", "yes"] * 50, "country": ["de"] * 100})
    >>> [column.notes for column in inspect(frame, label="click").columns]
    [(), ("same as the label 'click'",), ('constant',)]
    """
    source = open_source(data, separator=separator, names=names)
    present = source.names()
    _check(present, label, threshold, positive, rows)
    if only is not None:
        wanted = {*only, label}
        present = [name for name in present if name in wanted]
    taken, length, all_rows = _first_rows(source, rows)
    target = None if label is None else _read_label(source, taken, label, threshold, positive)
    known = (
        {}
        if label is None or target is None
        else {_Seen(label, target, "numeric").identity(): label}
    )
    facts = []
    about = list(renamed_findings(present)) if source.text else []
    together = _AllColumns(length)
    for number, name in enumerate(present, start=1):
        seen = _see(taken, name)
        own = _findings(seen, taken, target, known)
        of_column = [found for found in (*about, *own) if found.column == name]
        facts.append(_facts(seen, taken, target, of_column))
        about += own
        together.add(seen)
        if progress is not None:
            progress("inspecting", number, len(present))
    if source.text and source.lines_before == 1:
        about += header_findings(present, together.named_like_values)
    about += together.findings()
    base_rate = None if target is None else float(target.to_numpy().mean())
    return Inspection(
        source.name, length, all_rows, label, base_rate, tuple(facts), sorted_findings(about)
    )


def _check(
    present: Sequence[str], label: str | None, threshold: float | None, positive: object, rows: int
) -> None:
    if not is_whole(rows) or rows < 1:
        raise DataError(f"rows must be a whole number of at least 1, but is {rows!r}.")
    if threshold is not None and positive is not None:
        raise DataError("Expected threshold= or positive=, but found both.")
    if label is None and (threshold is not None or positive is not None):
        raise DataError(
            "threshold= and positive= say how to read the label, but there is none. Name its column: label=..."
        )
    if label is not None and label not in present:
        raise DataError(f"There is no column {label!r} for label=. {nearest(str(label), present)}")


def _first_rows(source: Source, rows: int) -> tuple[Source, int, bool]:
    """The first rows, how many they are, and whether they are all; of text in memory, else to be read column by column."""
    sample = (
        source if source.text else replace(source, frame=source.frame.select(selectors.first()))
    ).head(rows + 1)
    if not len(sample):
        raise DataError(f"{source.name} has columns but no rows.")
    taken = replace(
        source, frame=sample.head(rows).lazy() if source.text else source.frame.head(rows)
    )
    return taken, min(rows, len(sample)), len(sample) <= rows


@dataclass(frozen=True)
class _Seen:
    """A column as it is looked at: its values, with null where they are missing."""

    name: str
    values: pl.Series  # without a name, which polars might take for a pattern
    kind: Kind

    @cached_property
    def hashes(self) -> pl.Series:
        return self.values.hash().alias("hash")

    @cached_property
    def first(self) -> NDArray[np.uint32]:
        """For each row the first row with the same value: what is left of a column if its values are renamed."""
        return (
            self.hashes.to_frame()
            .with_row_index("row")
            .select(pl.col("row").min().over("hash"))
            .to_series()
            .to_numpy()
        )

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """How many rows have the value of this row; 0 if an earlier row has it."""
        return np.bincount(self.first, minlength=len(self.first))

    @cached_property
    def distinct(self) -> int:
        return int(np.count_nonzero(self.counts)) - (self.values.null_count() > 0)

    @cached_property
    def numbers(self) -> pl.Series:
        return self.values.to_physical().cast(pl.Float64, strict=False)

    @property
    def is_measured(self) -> bool:
        """Whether it holds fractions, which seldom repeat."""
        return self.kind == "numeric" and bool((self.numbers % 1 != 0).any())

    def identity(self) -> bytes:
        """Equal for columns that are the same up to the names of their values."""
        # where no value but the most common one repeats, as with measured numbers, any two columns are renamings
        alone = np.count_nonzero(self.counts) - 1 + self.counts.max() == len(self.first)
        return blake2b((self.hashes.to_numpy() if alone else self.first).tobytes()).digest()


def _column(source: Source, name: str) -> pl.Series:
    return (
        replace(source, frame=source.frame.select(selectors.by_name(name))).head(2**31).to_series()
    )


def _see(source: Source, name: str) -> _Seen:
    given = _column(source, name)
    kind = infer(given.head(SAMPLE_ROWS).to_frame(), [name], text=source.text)[name].kind
    values = (
        given.to_frame().select(present_text(name)).to_series() if source.text else given
    ).alias("")
    return _Seen(name, values.fill_nan(None) if values.dtype.is_float() else values, kind)


def present_text(name: str) -> pl.Expr:
    """Text without blanks around it; null where it says that there is no value."""
    text = selectors.by_name(name).as_expr().str.strip_chars()
    return pl.when(~text.is_in(MISSING_TEXT)).then(text).alias(name)


def _read_label(
    full: Source, source: Source, name: str, threshold: float | None, positive: str | float | None
) -> pl.Series:
    """Read the label of the first rows; which word is positive is decided by all rows."""
    given = _column(source, name)
    chosen = positive
    if threshold is None:
        chosen = positive_of([full], name, given.head(SAMPLE_ROWS), positive) or positive
    roles = Roles(
        name, threshold, chosen, group=None, time=None, split="order", shares=(1, 0, 0), seed=0
    )
    encoder = Label(roles, text=source.text)
    values = given.to_frame().select(encoder.expression()).to_series()
    label = encoder.read(values, given, lambda row: f"{source.name}, {source.row(row)}")[
        :, 0
    ].astype(np.float64)
    return pl.Series(name, label)


def _auc_of(seen: _Seen, label: Floats) -> float:
    """How well a column alone tells the label, by its number or by what its values mean in other rows."""
    order = np.random.default_rng(0).permutation(
        len(label)
    )  # not every second row: logs may alternate between 0 and 1
    test, teach = np.split(order, [min(TESTED, len(label) // 2)])
    counts = np.bincount(seen.first[teach], minlength=len(label))
    ones = np.bincount(seen.first[teach], label[teach], minlength=len(label))
    means = (ones + label.mean()) / (counts + 1)  # a value that was not seen gets the base rate
    scores = [
        means[seen.first[test]],
        *([seen.numbers.to_numpy()[test]] if seen.kind == "numeric" else []),
    ]
    return max(_auc(label[test], score) for score in scores)


def _auc(label: Floats, scores: Floats) -> float:
    """The AUC of the finite scores or of their mirror; 0.5 where there are too few rows to tell."""
    finite = np.isfinite(scores)
    ones, rows = label[finite].sum(), finite.sum()
    found = auc(label[finite], scores[finite]) if min(ones, rows - ones) >= ENOUGH else 0.5
    return max(found, 1 - found)


class _AllColumns:
    """What is known of all columns together: which rows repeat, and whether the first line is one of them."""

    def __init__(self, rows: int) -> None:
        self.hashes = np.zeros(rows, dtype=np.uint64)
        self.same_by_chance = (
            1.0  # how often two rows are equal, if columns have nothing to do with each other
        )
        self.named_like_values = 0

    def add(self, seen: _Seen) -> None:
        """Take in a column."""
        self.hashes = self.hashes * np.uint64(0x9E3779B97F4A7C15) + seen.hashes.to_numpy()
        rows, counts = len(self.hashes), seen.counts.astype(np.float64)
        self.same_by_chance *= float((counts * (counts - 1)).clip(0).sum()) / max(
            1, rows * (rows - 1)
        )
        self.named_like_values += _is_a_value(header_name(seen.name).strip(), seen)

    def findings(self) -> Iterator[Finding]:
        """Yield a finding if rows repeat."""
        rows = len(self.hashes)
        return row_findings(
            rows, rows - len(np.unique(self.hashes)), rows * rows / 2 * self.same_by_chance
        )


def _is_a_value(name: str, seen: _Seen) -> bool:
    """Say whether a column's name could stand in one of its rows."""
    if seen.values.dtype != pl.String:
        return False
    numbers = seen.numbers.drop_nulls()
    try:
        number = float(name)
    except ValueError:
        return bool((seen.values == name).any())
    return len(numbers) > 0 and float(numbers.min()) <= number <= float(numbers.max())  # type: ignore[arg-type]


def _findings(
    seen: _Seen, source: Source, target: pl.Series | None, known: dict[bytes, str]
) -> list[Finding]:
    """Return what a result may suffer from; nothing for the label itself."""
    if target is not None and target.name == seen.name:
        known.setdefault(seen.identity(), seen.name)  # as it stands in the file, before a threshold
        return []
    found = [
        *_constant_findings(seen),
        *_twin_findings(seen, target, known),
        *_mixed_findings(seen, source),
    ]
    if seen.kind == "categorical":
        found += text_findings(
            seen.name, seen.values.gather(np.flatnonzero(seen.counts)).drop_nulls()
        )
    if _is_an_id(seen) and not any(one.kind in ("number", "date") for one in found):
        found.append(
            Finding(
                "id",
                seen.name,
                "a value of its own in every row",
                leave_out(seen.name, "It says nothing about other rows; leave it out"),
            )
        )
    return found


def _facts(
    seen: _Seen, source: Source, target: pl.Series | None, found: Sequence[Finding]
) -> ColumnFacts:
    values, row = seen.values, int(seen.counts.argmax())
    is_label = target is not None and target.name == seen.name
    notes = tuple(
        dict.fromkeys(
            (*_shape_notes(seen), *(one.text for one in found), *_value_notes(seen, source))
        )
    )
    value = values[row].to_list() if isinstance(values[row], pl.Series) else values[row]
    kind = "label" if is_label else seen.kind
    missing, common = values.null_count() / len(values), float(seen.counts[row] / len(values))
    most_common = None if value is None else str(value)
    return ColumnFacts(
        seen.name,
        kind,
        _dtype(seen, text=source.text),
        missing,
        seen.distinct,
        common,
        most_common,
        notes,
    )


def _dtype(seen: _Seen, *, text: bool) -> str:
    values, dtype = seen.values, seen.values.dtype
    if text and seen.kind == "numeric":
        return (
            "Int64"
            if values.cast(pl.Int64, strict=False).null_count() == values.null_count()
            else "Float64"
        )
    return f"{dtype.size} x {dtype.inner}" if isinstance(dtype, pl.Array) else str(dtype)


def _shape_notes(seen: _Seen) -> Iterator[str]:
    """Yield a note if there are too few values."""
    rows, missing, most = len(seen.values), seen.values.null_count(), int(seen.counts.max())
    if most == rows:
        yield "all missing" if missing else "constant"
    elif most >= DEFAULT * rows:
        yield f"{'missing' if most == missing else 'the same value'} in {_percent(most / rows)} of rows"


def _constant_findings(seen: _Seen) -> Iterator[Finding]:
    """Yield a finding if all rows are the same."""
    if int(seen.counts.max()) == len(seen.values):
        text = "all missing" if seen.values.null_count() else "constant"
        yield Finding(
            "constant", seen.name, text, leave_out(seen.name, "It says nothing; leave it out")
        )


def _is_an_id(seen: _Seen) -> bool:
    """Say whether every row has a value of its own, as ids and texts have; of categories a few may repeat."""
    rows = len(seen.values)
    if seen.values.dtype.is_nested() or seen.is_measured or rows < 2:
        return False
    nearly = seen.distinct >= NEARLY * rows and rows >= 10 * ENOUGH
    return seen.distinct == rows or (seen.kind == "categorical" and nearly)


def _mixed_findings(seen: _Seen, source: Source) -> Iterator[Finding]:
    """Yield a finding if there is text among numbers."""
    if not source.text:
        return
    rows = np.flatnonzero(seen.counts)  # one of each value
    values = seen.values.gather(rows)
    words = values.is_not_null() & values.cast(pl.Float64, strict=False).is_null()
    wrong, present = (
        int(seen.counts[rows[words.arg_true()]].sum()),
        len(seen.values) - seen.values.null_count(),
    )
    if (
        0 < wrong < present / 2 and words.sum() < seen.distinct / 2
    ):  # of hashes in hex, a common one may look like a number
        row = int(rows[words.arg_true()[0]])
        text = f"numbers but for {plural(wrong, 'row')}, such as {shown(seen.values[row])} in {source.row(row)}"
        yield Finding("mixed", seen.name, text, "Correct these rows, or leave the cells empty.")


def _value_notes(seen: _Seen, source: Source) -> Iterator[str]:
    """Yield notes on infinities and on the lengths of lists."""
    if seen.kind == "numeric" and len(infinite := seen.numbers.is_infinite().arg_true()):
        yield f"{plural(len(infinite), 'infinite value')}, the first in {source.row(infinite[0])}"
    if isinstance(seen.values.dtype, pl.List) and seen.values.null_count() < len(seen.values):
        lengths = seen.values.list.len().drop_nulls().to_numpy()
        yield f"{lengths.mean():.1f} items per row, at most {lengths.max()}; {_percent(float((lengths == 0).mean()))} are empty"


def _twin_findings(
    seen: _Seen, target: pl.Series | None, known: dict[bytes, str]
) -> Iterator[Finding]:
    """Yield findings if the label or another column is the same, or nearly."""
    if np.count_nonzero(seen.counts) < 2:
        return
    twin = known.setdefault(seen.identity(), seen.name)
    why = "Unless it is known before the label is, leave it out"
    if target is not None and twin == target.name:
        yield Finding("leak", seen.name, f"same as the label {twin!r}", leave_out(seen.name, why))
        return
    if twin != seen.name:
        yield Finding(
            "twin", seen.name, f"same as {twin!r}", leave_out(seen.name, "One of the two is enough")
        )
    if target is not None and (found := _auc_of(seen, target.to_numpy())) >= LEAK:
        yield Finding(
            "leak", seen.name, f"tells the label: AUC {found:.3f}", leave_out(seen.name, why)
        )


def _cells(column: ColumnFacts) -> tuple[str, ...]:
    value = "(missing)" if column.common_value is None else _printable(column.common_value)
    short = value if len(value) <= LONGEST_VALUE else value[: LONGEST_VALUE - 3] + "..."
    common = f"{_percent(column.common):>7}  {short}"
    return (
        _printable(column.name),
        column.kind,
        column.dtype,
        _percent(column.missing),
        f"{column.distinct:,}",
        common,
    )


def _percent(share: float) -> str:
    """A share that says 0 or 100 only where it is exactly that."""
    if 0 < share < 0.0005 or 0.9995 <= share < 1:
        return "<0.1 %" if share < 0.5 else ">99.9 %"
    return f"{100 * share:.1f} %"


def _left(cells: Sequence[str]) -> list[str]:
    """Cells of one length, which a table leaves on the left."""
    return [cell.ljust(max(map(len, cells))) for cell in cells]


def _printable(text: str) -> str:
    """Without line breaks and escape codes, which would spoil the table or the terminal."""
    return text if text.isprintable() else repr(text)[1:-1]
