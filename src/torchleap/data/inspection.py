"""inspect: what each column of a file holds, and which columns look wrong, before a model reads them."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars import selectors

from ..errors import DataError, is_whole, nearest
from ..metrics import auc
from ..text import plural, table
from .encoding import Label, Progress, Roles
from .reading import SAMPLE_ROWS
from .schema import MISSING_TEXT, Kind, infer
from .sources import Source, open_source

LEAK = 0.99  # an AUC that no honest column reaches on its own
DEFAULT = 0.99  # the share of the most common value from which on a column hardly varies
ENOUGH = 10  # rows of each class, below which an AUC of 0.99 may be luck
SCORED = 200_000  # rows, at most, that an AUC is measured on
LONGEST_VALUE = 20  # characters of a value that are shown

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ColumnFacts:
    """What one column holds.

    Attributes:
        kind: What the column would be to a model; "label" for the label.
        dtype: Its type; for CSV the one that its text stands for.
        distinct: Different values, missing ones aside.
        common: The share of rows at the most common value.
        common_value: That value as text; None if it is "missing".
        notes: What looks wrong, a phrase each.
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
    """What a file holds; `print()` shows it as a table.

    Attributes:
        all_rows: Whether these were all rows, and not the first ones.
        base_rate: The share of rows with label 1.
    """

    source: str
    rows: int
    all_rows: bool
    label: str | None
    base_rate: float | None
    columns: tuple[ColumnFacts, ...]

    def __getitem__(self, name: str) -> ColumnFacts:
        """The facts of one column."""
        for column in self.columns:
            if column.name == name:
                return column
        raise DataError(f"There is no column {name!r}. {nearest(name, [column.name for column in self.columns])}")

    def to_json(self) -> dict[str, Any]:
        """A plain dict, which JSON can hold."""
        return asdict(self)

    def __str__(self) -> str:
        rows = f"{'' if self.all_rows else 'the first '}{plural(self.rows, 'row')}"
        label = f"; {_percent(self.base_rate)} have the label" if self.base_rate is not None else ""
        title = f"{self.source}: {rows}, {plural(len(self.columns), 'column')}{label}"
        return "\n\n".join([title, self._table(), self._notes()])

    def _table(self) -> str:
        header = ("column", "kind", "type", "missing", "distinct", "most common")
        names, kinds, types, shares, counts, commons = zip(header, *map(_cells, self.columns), strict=True)
        columns = (names, _left(kinds), _left(types), shares, counts, _left(commons))
        first, *rows = zip(*columns, strict=True)
        return table(first, rows)

    def _notes(self) -> str:
        noted = [column for column in self.columns if column.notes]
        if not noted:
            return "No column looks wrong."
        names = _left([_printable(column.name) for column in noted])
        lines = [f"  {name}  {'; '.join(column.notes)}" for name, column in zip(names, noted, strict=True)]
        return "\n".join(["Worth a look:", *lines])


def inspect(
    data: Any,
    *,
    label: str | None = None,
    threshold: float | None = None,
    positive: str | float | None = None,
    rows: int = 1_000_000,
    separator: str | None = None,
    names: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Inspection:
    """Look at the first rows of a file, a folder, a pattern or a frame.

    Args:
        data, label, threshold, positive, separator, names, progress: As `read` has them; without a label, leaks are not looked for.
        rows: At most that many are looked at.

    >>> frame = pl.DataFrame({"click": [0, 1] * 50, "bought": [0, 1] * 50, "country": ["de"] * 100})
    >>> [(column.name, column.notes) for column in inspect(frame, label="click").columns[1:]]
    [('bought', ("same as the label 'click'",)), ('country', ('constant',))]
    """
    source = open_source(data, separator=separator, names=names)
    present = source.names()
    _check(present, label, threshold, positive, rows)
    taken, all_rows = _first_rows(source, rows)
    target = None if label is None else _Target.read(taken, Roles(label, threshold, positive, None, None, "order", (1, 0, 0), 0))
    known = {} if target is None else {_identity(target.seen): target.name}
    facts = []
    for number, name in enumerate(present):
        (progress or (lambda *_: None))("inspecting", number, len(present))
        facts.append(_facts(_see(taken, name), taken, target, known))
    length = int(taken.frame.select(pl.len()).collect().item())
    return Inspection(source.name, length, all_rows, label, None if target is None else float(target.label.mean()), tuple(facts))


def _check(present: Sequence[str], label: str | None, threshold: float | None, positive: object, rows: int) -> None:
    if not is_whole(rows) or rows < 1:
        raise DataError(f"rows must be a whole number of at least 1, but is {rows!r}.")
    if threshold is not None and positive is not None:
        raise DataError("Expected threshold= or positive=, but found both.")
    if label is None and (threshold is not None or positive is not None):
        raise DataError("threshold= and positive= say how to read the label, but there is none. Name its column: label=...")
    if label is not None and label not in present:
        raise DataError(f"There is no column {label!r} for label=. {nearest(str(label), present)}")


def _first_rows(source: Source, rows: int) -> tuple[Source, bool]:
    """The first rows, and whether they are all; text is read at once, other columns later, one by one, to save memory."""
    if source.text:
        frame = source.head(rows + 1)
        found, taken = len(frame), replace(source, frame=frame.head(rows).lazy())
    else:
        taken = replace(source, frame=source.frame.head(rows))
        found = len(replace(source, frame=source.frame.select(selectors.first())).head(rows + 1))
    if not found:
        raise DataError(f"{source.name} has columns but no rows.")
    return taken, found <= rows


@dataclass(frozen=True)
class _Seen:
    """A column as it is looked at.

    Attributes:
        values: With null where a value is missing.
        hashes: A number a value; equal for equal values.
        first: For each row the first row with the same value: what remains of a column when its values are renamed.
        numbers: NaN where there is none; None if the column does not hold numbers.
    """

    values: pl.Series
    kind: Kind
    dtype: str
    hashes: pl.Series
    first: NDArray[np.uint32]
    numbers: Floats | None

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """How many rows have the value of this row; 0 where an earlier row has it already."""
        return np.bincount(self.first, minlength=len(self.first))

    @cached_property
    def distinct(self) -> int:
        return int(np.count_nonzero(self.counts)) - (self.values.null_count() > 0)


def _see(source: Source, name: str) -> _Seen:
    given = replace(source, frame=source.frame.select(selectors.by_name(name))).head(2**62).to_series()
    try:
        kind = infer(given.head(SAMPLE_ROWS).to_frame(), [name], text=source.text)[name].kind
        return _seen(_without_missing(given, text=source.text), kind, text=source.text)
    except pl.exceptions.PolarsError as error:
        raise DataError(f"Column {name!r} has values of type {given.dtype}, which cannot be compared. Leave it out.") from error


def _seen(values: pl.Series, kind: Kind, *, text: bool) -> _Seen:
    hashes = values.hash()
    groups = hashes.alias("hash").to_frame().with_row_index("row")
    first = groups.select(pl.col("row").min().over("hash")).to_series().to_numpy()
    numbers = None if kind != "numeric" else values.to_physical().cast(pl.Float64, strict=False).to_numpy()
    dtype = str(values.dtype).replace("shape=", "").replace("(", " ").replace(",)", "").replace(")", "").replace(",", "")
    if text:
        whole = kind == "numeric" and values.cast(pl.Int64, strict=False).null_count() == values.null_count()
        dtype = "Int64" if whole else "Float64" if kind == "numeric" else "String"
    return _Seen(values, kind, dtype, hashes, first, numbers)


def _without_missing(given: pl.Series, *, text: bool) -> pl.Series:
    if given.dtype.is_float():
        return given.fill_nan(None)
    if not text:
        return given
    stripped = given.str.strip_chars()
    return pl.select(pl.when(~stripped.is_in(MISSING_TEXT)).then(stripped).alias(given.name)).to_series()


@dataclass(frozen=True)
class _Target:
    """The label, the rows that teach a value's mean of it, and those that test it; drawn, since rows may come in pairs."""

    name: str
    label: Floats
    teach: NDArray[np.int64]
    test: NDArray[np.int64]

    @classmethod
    def read(cls, source: Source, roles: Roles) -> "_Target":
        given = replace(source, frame=source.frame.select(selectors.by_name(roles.label))).head(2**62).to_series()
        encoder = Label(roles, text=source.text)
        values = given.to_frame().select(encoder.expression()).to_series()
        label = encoder.read(values, given, lambda row: f"{source.name}, {source.row(row)}")[:, 0].astype(np.float64)
        if roles.positive is not None and not label.any():
            known = given.drop_nulls().unique().cast(pl.String).sort().to_list()
            raise DataError(f"No row has {roles.label!r} = {roles.positive!r}. {nearest(str(roles.positive), known)}")
        order = np.random.default_rng(0).permutation(len(label))
        tested = min(SCORED, len(label) // 2)
        return cls(roles.label, label, order[tested:], order[:tested])

    @property
    def seen(self) -> _Seen:
        return _seen(pl.Series(self.label), "numeric", text=False)
