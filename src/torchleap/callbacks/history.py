"""HistoryFile: the history of a run as a file that grows."""

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path

from .._common.checks import is_number
from .._common.errors import TorchleapError
from .._common.files import append, make_folder, write_atomically
from .._common.plain import as_json, plain
from ..training.fit import Run
from .watcher import Record, Watcher


class HistoryFile(Watcher):
    """A file of the history that grows by one line per evaluation, and that a new run overwrites.

    After a resume it has each evaluation once.

    Args:
        path: The file, whose name ends in .csv or .jsonl.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._columns: list[str] = []
        if self._path.suffix not in (".csv", ".jsonl"):
            raise TorchleapError(
                "A history is written to a file that ends in .csv or .jsonl, "
                f"but path is {str(path)!r}."
            )

    def at_start(self, run: Run) -> None:
        """Write the history of the checkpoint: later evaluations of a killed run come again."""
        make_folder(self._path.parent)
        self._write(run)

    def after_eval(self, run: Run, record: Record) -> None:
        """Append a line."""
        if self._path.suffix == ".csv" and not record.keys() <= set(self._columns):
            self._write(run)  # with a new header
        else:
            append(self._path, self._line(record).encode())

    def at_end(self, run: Run) -> None:
        """Write all again, with the values that later hooks added to the records."""
        self._write(run)

    def _write(self, run: Run) -> None:
        self._columns = list(dict.fromkeys(key for record in run.history for key in record))
        lines = [self._line(record) for record in run.history]
        if self._path.suffix == ".csv" and self._columns:
            lines.insert(0, _csv_line(self._columns))
        write_atomically(self._path, "".join(lines))

    def _line(self, record: Record) -> str:
        if self._path.suffix == ".csv":
            return _csv_line([record.get(name, "") for name in self._columns])
        return _json_line(record)


def _csv_line(cells: Sequence[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _json_line(record: Record) -> str:
    r"""Return a record as a line of JSON, which has null for a value that is not finite.

    >>> _json_line({"step": 8, "valid_auc": 0.75, "own": float("nan")})
    '{"step": 8, "valid_auc": 0.75, "own": null}\n'
    """
    numbers = {}
    for name, value in record.items():
        numbers[name] = value if is_number(value) else float(value)  # a tensor of one number
    return as_json(plain(numbers, "the record", nan_as_none=True))
