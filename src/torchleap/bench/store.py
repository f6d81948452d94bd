"""The store of finished trials: one JSON line each, only ever appended to."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .._common.errors import TorchleapError
from .._common.files import append, make_folder, writing
from .._common.locks import held
from .._common.plain import as_json, parse_json
from .._common.text import first_line


class Store:
    """Finished trials by their keys; a line that a kill cut short is dropped.

    Args:
        path: The file; it is made when the store is first written to.

    >>> import tempfile
    >>> store = Store(Path(tempfile.mkdtemp()) / "trials.jsonl")
    >>> with store.writing():
    ...     store.add("abc", {"result": {"test_auc": 0.8}})
    >>> Store(store.path)["abc"]["result"]
    {'test_auc': 0.8}
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._records: dict[str, dict[str, Any]] = {}
        self._complete = 0  # bytes of complete lines
        if self.path.exists():
            self._read()

    def __contains__(self, key: str) -> bool:
        return key in self._records

    def __getitem__(self, key: str) -> dict[str, Any]:
        return self._records[key]

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._records.values())

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the folder, so that no other process writes to it; `add` works in this context."""
        folder = make_folder(self.path.parent)
        with held(folder):
            with writing(self.path):
                file = self.path.open("ab")
            with file:
                self._records.clear()
                self._read()  # another run may have written since
                file.truncate(self._complete)
            yield

    def add(self, key: str, record: Mapping[str, Any]) -> None:
        """Append a finished trial; it is on the disk when this returns.

        Args:
            key: The key of the trial.
            record: Its settings and its result, as plain JSON.
        """
        line = as_json({"key": key, **record})
        append(self.path, line.encode())
        self._records[key] = json.loads(line)

    def _read(self) -> None:
        self._complete = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    break  # a kill cut it short; it is overwritten
                self._parse(number, line)
                self._complete += len(line)

    def _parse(self, number: int, line: bytes) -> None:
        try:
            record = parse_json(line)
            self._records[record["key"]] = record
        except (ValueError, KeyError, TypeError) as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise TorchleapError(
                f"{self.path}, line {number} is damaged: {reason}. "
                "Remove that line; its trial is then run again."
            ) from error
