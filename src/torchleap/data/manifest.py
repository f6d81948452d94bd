"""The manifest of encoded data, task.json: written last, so that it marks a complete folder."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from .._common.checks import is_whole
from .._common.errors import DataError, MetricError, shown
from .._common.plain import as_json, fits_key, parse_json, with_key
from .._common.text import first_line
from ..objectives import Objective, objective_named
from .checksums import checksums
from .columns import MOST, TaskColumn
from .rows import PARTS

FORMAT = 2
MANIFEST = "task.json"
DEFAULT_OBJECTIVE = "binary"  # of manifests that do not name one


@dataclass(frozen=True)
class Manifest:
    """The content of a manifest.

    Attributes:
        rows: The number of rows of each part, by its name.
        roles: The columns that are not inputs, such as the label, and how the rows were split.
        columns: The settings of each input column and the facts that train rows taught, plain.
        source: The paths of the files that were encoded.
        objective: What a model of this data is trained for.
        files: The size in bytes and the checksum of each file of the folder, by its name.
    """

    rows: dict[str, int]
    roles: dict[str, Any]
    columns: Sequence[dict[str, Any]]
    source: Sequence[str]
    objective: Objective
    files: dict[str, Sequence[int]] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write the manifest of a folder that has all its other files."""
        content = {
            "format": FORMAT,
            "rows": self.rows,
            "roles": self.roles,
            "objective": self.objective.name,
            "columns": self.columns,
            "files": checksums(folder),
            "source": self.source,
        }
        text = as_json(with_key(content), indent=1)
        (folder / MANIFEST).write_text(text, encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Return the manifest of a folder, checked against what any encoded data can have."""
        content = _content(folder)
        try:
            if not fits_key(content):
                raise TypeError("its content is not what was written")
            found = cls(
                content["rows"],
                content["roles"],
                content["columns"],
                content.get("source", ()),
                objective_of(content.get("objective", DEFAULT_OBJECTIVE)),
                dict(content["files"]),
            )
            found.check()
        except DataError as error:
            raise DataError(f"{folder}/{MANIFEST}: {error}") from error
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DataError(
                f"{folder}/{MANIFEST} is damaged: {shown(error, 120)}. "
                f"Remove {folder} and read the data again."
            ) from error
        return found

    @cached_property
    def task_columns(self) -> tuple[TaskColumn, ...]:
        """The input columns of the task."""
        return tuple(
            TaskColumn.from_record(record, f"{number}.bin")
            for number, record in enumerate(self.columns)
        )

    def check(self) -> None:
        """Refuse files without a checksum or of a wrong size, and a task without a label."""
        for name, found in self.files.items():
            if not isinstance(found, list) or len(found) != 2 or not all(map(is_whole, found)):
                raise TypeError(f"expected a size and a checksum of {name!r:.40}")
        if not isinstance(self.roles["label"], str):
            raise TypeError("expected the name of the label")
        counts = [self.rows[part] for part in PARTS]
        if not all(is_whole(count) and 0 <= count < MOST for count in counts):
            raise TypeError("expected the numbers of train, valid and test rows")
        sizes = {column.file: column.slots for column in self.task_columns}
        for name, slots in {"label.bin": 1, **sizes}.items():
            expected = 4 * sum(counts) * slots  # 4 bytes per slot of a row
            if self.files[name][0] != expected:
                raise TypeError(f"{name} is not as long as {sum(counts):,} rows take")


def objective_of(name: Any) -> Objective:
    """Return the objective with this name; raise a DataError with the nearest name if unknown."""
    try:
        return objective_named(name)
    except MetricError as error:
        raise DataError(str(error)) from error


def _content(folder: Path) -> dict[str, Any]:
    """Return the content of a manifest of the current format."""
    try:
        content = parse_json((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{folder} does not hold encoded data: {first_line(error)}. "
            "Remove it and read the data again."
        ) from error
    if not isinstance(content, dict):
        raise DataError(
            f"{folder}/{MANIFEST} is damaged: expected an object, but found {content!r:.40}. "
            f"Remove {folder}."
        )
    if content.get("format") != FORMAT:
        raise DataError(
            f"{folder}: expected encoded data of format {FORMAT}, "
            f"but found {content.get('format')!r}. Remove it."
        )
    return content
