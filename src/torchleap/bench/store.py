"""The store of finished trials: one JSON line each, only ever appended to."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .._common.errors import TorchleapError
from .._common.files import append, make_folder, writing
from .._common.plain import parse_json
from .._common.text import first_line


class Store:
    """Finished trials by the key of everything that determines them; what a kill left of a line is dropped.

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
        self._whole = 0  # bytes of whole lines
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
        """Hold the file, so that no other process writes to it; adding is for within this context."""
        make_folder(self.path.parent)
        with writing(self.path):
            file = self.path.open("ab")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise TorchleapError(
                    f"Another run is writing to {self.path}. Wait for it, or give another folder."
                ) from error
            self._records.clear()
            self._read()  # another run may have written since
            file.truncate(self._whole)
            yield

    def add(self, key: str, record: Mapping[str, Any]) -> None:
        """Append a finished trial; it is on the disk when this returns."""
        line = json.dumps({"key": key, **record}, allow_nan=False) + "\n"
        append(self.path, line.encode())
        self._records[key] = json.loads(line)

    def _read(self) -> None:
        self._whole = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    break  # a kill cut it short; it is written over
                try:
                    record = parse_json(line)
                    self._records[record["key"]] = record
                except (ValueError, KeyError, TypeError) as error:
                    reason = f"{type(error).__name__}: {first_line(error)}"
                    cure = "Remove that line; its trial is then run again"
                    raise TorchleapError(
                        f"{self.path}, line {number} is damaged: {reason}. {cure}."
                    ) from error
                self._whole += len(line)
