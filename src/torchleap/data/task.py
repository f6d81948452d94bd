"""Task: encoded rows with a label, split into train, valid and test, for a model to train on."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from zlib import crc32

from .._common.errors import DataError, FieldError, nearest
from .._common.plain import key_of
from .._common.text import first_line, plural, table
from ..fields import Field, Fields
from ..objectives import OBJECTIVES, Objective
from ..selection import Selection
from .batches import Batch, Batches
from .checksums import verify
from .columns import TaskColumn
from .manifest import DEFAULT_OBJECTIVE, Manifest
from .rows import PARTS, Division, Rows
from .sketch import Sketch

REMEMBERED = 1 << 14  # hashes of the train and valid rows of a task

__all__ = ["Batch", "Batches", "Rows", "Task", "TaskColumn"]


@dataclass(frozen=True)
class Task:
    """Rows with a label, split and encoded; `print(task)` shows its columns.

    Attributes:
        folder: The folder with the encoded rows, one file per column.
        columns: The input columns, in order.
        rows: The number of rows of each part: "train", "valid" and "test".
        roles: The columns that are not inputs, such as the label, and how the rows were split.
        keep: An object that holds a temporary folder as long as there is a task; None if the
            folder stays.
        costs: The cost of keeping a column's field, by its name; the width by default.
        protected: The names of fields that are always kept.
        files: The size in bytes and the checksum of each file, by its name.
        objective: What a model is trained for: the loss, the link and the metrics of the label.
        division: Which rows each part has, where it is a fold; None is the split of the files.
    """

    folder: Path
    columns: tuple[TaskColumn, ...]
    rows: dict[str, int]
    roles: dict[str, Any]
    keep: Any = None
    costs: Mapping[str, float] = field(default_factory=dict)
    protected: frozenset[str] = frozenset()
    files: Mapping[str, Sequence[int]] = field(default_factory=dict, repr=False)
    objective: Objective = OBJECTIVES[DEFAULT_OBJECTIVE]
    division: Division | None = field(default=None, repr=False)

    @classmethod
    def load(cls, folder: Path, keep: Any = None) -> "Task":
        """Return the task whose encoded rows lie in a folder.

        Args:
            folder: The folder, which `read` has written.
            keep: An object that holds a temporary folder; None if the folder stays.
        """
        found = Manifest.read(folder)
        return cls(
            folder,
            found.task_columns,
            found.rows,
            found.roles,
            keep,
            files=found.files,
            objective=found.objective,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a worker, without the temporary folder, which its owner holds."""
        return {**vars(replace(self, keep=None))}

    def __copy__(self) -> "Task":
        return replace(self)  # in this process, so it holds the folder as well

    def __deepcopy__(self, memo: dict[int, Any]) -> "Task":
        return replace(self, rows=dict(self.rows), roles=dict(self.roles))

    @cached_property
    def fields(self) -> Fields:
        """The fields that a model reads: one for each column, with its width."""
        found = []
        for column in self.columns:
            cost = self.costs.get(column.name)
            protected = column.name in self.protected
            found.append(Field(column.name, column.width, cost=cost, protected=protected))
        return Fields(found)

    @cached_property
    def train(self) -> Rows:
        """The rows to train on."""
        return Rows(self, "train")

    @cached_property
    def valid(self) -> Rows:
        """The rows to stop training by, and to choose models and fields by."""
        return Rows(self, "valid")

    @cached_property
    def test(self) -> Rows:
        """The rows to report results on."""
        return Rows(self, "test")

    @cached_property
    def fingerprint(self) -> str:
        """A short name of the content of the rows: facts about the columns, and all labels."""
        parts = (self.train, self.valid, self.test)
        content = {
            "rows": self.rows,
            "roles": self.roles,
            "columns": [asdict(column) for column in self.columns],
            "labels": [crc32(rows.label.numpy().tobytes()) for rows in parts],
        }
        if self.objective.name != DEFAULT_OBJECTIVE:
            content["objective"] = self.objective.name
        if self.division is not None:
            content["division"] = self.division.key
        return key_of(content)

    @cached_property
    def seen(self) -> Sketch | None:
        """A sample of the contents of the train and valid rows, which a model has seen.

        None for data that an earlier version encoded.
        """
        contents = (self.train.contents, self.valid.contents)
        known = [one for one in contents if one is not None]
        return Sketch.of(known, REMEMBERED) if len(known) == len(contents) else None

    def only(self, names: Iterable[str] | Selection) -> "Task":
        """Return the same task with fewer input columns; nothing is read or encoded again."""
        wanted = set(names.kept if isinstance(names, Selection) else names)
        unknown = wanted - set(self.fields.names)
        if unknown:
            name = min(unknown, key=str)
            raise FieldError(f"There is no field {name!r}. {nearest(str(name), self.fields.names)}")
        if not wanted:
            raise FieldError("No field is left: expected at least one name.")
        left = tuple(column for column in self.columns if column.name in wanted)
        return replace(self, columns=left)

    def priced(
        self, *, costs: Mapping[str, float] | None = None, protect: Iterable[str] = ()
    ) -> "Task":
        """Return the same task with other costs of some fields, and more fields protected.

        Args:
            costs: The cost of keeping a field, by its name; others keep theirs.
            protect: The names of fields that are always kept.
        """
        new_costs = dict(costs or {})
        protected = frozenset(protect)
        for name in (*new_costs, *protected):
            self.fields.index(name)  # raises with the nearest names
        return replace(
            self, costs={**self.costs, **new_costs}, protected=self.protected | protected
        )

    def vocabulary(self, name: str) -> list[str]:
        """Return the categories of a column, in the order of their ids, which begin at 2."""
        import polars

        column = self.columns[self.fields.index(name)]
        path = self.verified(Path(column.file).with_suffix(".parquet").name)
        if not column.is_ids:
            raise DataError(f"{name!r} has no vocabulary: it holds numbers.")
        if column.column.buckets:
            raise DataError(f"{name!r} has no vocabulary: it holds hashed categories.")
        try:
            return polars.read_parquet(path, glob=False)["value"].to_list()
        except (OSError, polars.exceptions.PolarsError) as error:
            raise DataError(
                f"{path} is damaged or gone: {first_line(error)}. "
                f"Remove {self.folder} and read the data again."
            ) from error

    def verified(self, name: str) -> Path:
        """Return the path of one of the task's files, after a check that it is unchanged.

        Files of a temporary folder, which this process holds, are not checked.
        """
        path = self.folder / name
        if self.keep is None:
            verify(path, self.files.get(name))
        return path

    def slots(self, *, ids: bool) -> dict[str, slice]:
        """Return the place of each column in a batch's ids, or in its numbers."""
        found = {}
        start = 0
        for column in self.columns:
            if column.is_ids == ids:
                found[column.name] = slice(start, start + column.slots)
                start += column.slots
        return found

    def __repr__(self) -> str:
        rows = ", ".join(f"{self.rows[part]:,} {part}" for part in PARTS)
        size = f"{plural(len(self.columns), 'field')}, {plural(self.fields.dims, 'dimension')}"
        return f"Task on {self.roles['label']!r}: {size}; {rows} rows"

    def __str__(self) -> str:
        header = ["field", "kind", "width", "ids", "missing", "most common"]
        return f"{self!r}\n{table(header, [_cells(column) for column in self.columns])}"


def _cells(column: TaskColumn) -> list[str]:
    """Return the line of a column in the table that `print(task)` shows."""
    return [
        column.name,
        column.description,
        str(column.width),
        f"{column.categories:,}" if column.is_ids else "",
        f"{column.missing:.1%}",
        f"{column.common:.1%}",
    ]
