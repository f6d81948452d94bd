"""Served: what `decide` saved, scoring new rows from a file or a frame."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .. import export
from .._common.checks import is_whole
from .._common.errors import DataError, TorchleapError, nearest
from .._common.files import write_atomically
from .._common.text import first_line
from ..data.files.encoding import MANIFEST as ENCODED
from ..data.files.encoding import Encoding, save_encoding
from ..data.files.open import open_source
from ..data.task import Batch, Task
from ..selection import Selection

if TYPE_CHECKING:
    from polars import DataFrame

LAYOUT = "layout.json"
KINDS = ("ids", "numbers")
LARGEST = 1 << 24  # places that a row may have
MODEL = "model"
ENCODING = "encoding"
SCORE = "score"  # the column of the scores


def save_served(
    model: nn.Module, task: Task, selection: Selection, folder: Path, metrics: dict[str, float]
) -> None:
    """Write a pruned model, and what it takes to encode new rows of the kept columns for it; the layout binds them."""
    export.save(model, folder / MODEL, metrics=metrics)
    save_encoding(task, folder / ENCODING, only=selection)
    slots = {kind: task.slots(ids=kind == "ids") for kind in ("ids", "numbers")}
    layout = {
        kind: {name: [place.start, place.stop] for name, place in own.items()}
        for kind, own in slots.items()
    }
    write_atomically(
        folder / LAYOUT, json.dumps({**layout, "result": _result(folder, layout)}) + "\n"
    )


def refuse_others(folder: Path) -> None:
    """Refuse to replace folders of the names of results that are not results."""
    for name, shown_by in ((MODEL, export.MANIFEST), (ENCODING, ENCODED)):
        place = folder / name
        if (
            place.exists()
            and not (place / shown_by).exists()
            and (not place.is_dir() or any(place.iterdir()))
        ):
            raise DataError(
                f"{place} is there and is not a result, so it is not replaced. Choose another folder."
            )


def _result(folder: Path, layout: dict[str, Any]) -> str:
    """Return a digest of a result: its manifests, which have digests of everything else, and its layout."""
    found = hashlib.sha256(json.dumps(layout, sort_keys=True).encode())
    for path in (folder / MODEL / export.MANIFEST, folder / ENCODING / ENCODED):
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


@dataclass(frozen=True)
class Served:
    """A saved model with its encoding; it needs the kept columns alone."""

    model: nn.Module
    encoding: Encoding
    layout: dict[
        str, dict[str, list[int]]
    ]  # where each column of the whole task lies in a batch's ids and numbers

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "Served":
        """Read what `Decision.save` wrote; no code is run."""
        path = Path(folder) / LAYOUT
        if not path.is_file():
            raise DataError(
                f"{folder} holds no complete result of `torchleap select`: expected {LAYOUT} in it. Select again, with --force."
            )
        try:
            layout = json.loads(path.read_text(encoding="utf-8"))
            found = {kind: _places(layout[kind]) for kind in KINDS}
            result = layout["result"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise DataError(
                f"{path} is damaged or of an earlier version ({reason:.200}). Select again."
            ) from error
        encoding, model = Encoding.load(Path(folder) / ENCODING), export.load(Path(folder) / MODEL)
        problem = _problem(found, encoding)
        if problem:
            raise DataError(f"{path} is damaged: {problem}. Select again.")
        if _result(Path(folder), found) != result:
            raise DataError(
                f"{folder} mixes several results: its {MODEL}, {ENCODING} and {LAYOUT} were not written together. Select again."
            )
        return cls(model, encoding, found)

    @torch.no_grad()
    def probabilities(
        self,
        data: Any,
        *,
        separator: str | None = None,
        names: Sequence[str] | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> Iterator[Tensor]:
        """The probabilities (float64) of all rows in their order, some at a time."""
        self.model.eval()
        for batch in self.encoding.batches(
            data, separator=separator, names=names, progress=progress
        ):
            yield torch.sigmoid(
                self._log_odds(batch).double()
            )  # float32 would make equal of what is not

    def _log_odds(self, batch: Batch) -> Tensor:
        """Call the model, which a file describes: it may not be one that scores rows."""
        try:
            found = self.model(*self.inputs(batch))
        except TorchleapError:
            raise
        except (
            RuntimeError,
            TypeError,
            ValueError,
            AttributeError,
            LookupError,
            ArithmeticError,
            MemoryError,
        ) as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise DataError(
                f"The model of this result cannot score rows ({reason:.200}). Select again."
            ) from error
        if (
            not isinstance(found, Tensor)
            or found.shape != (len(batch),)
            or not found.is_floating_point()
        ):
            raise DataError(
                "The model of this result does not return one number per row. Select again."
            )
        return found

    def scored(
        self,
        data: Any,
        *,
        ids: Sequence[str] = (),
        separator: str | None = None,
        names: Sequence[str] | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> "DataFrame":
        """Return a frame of all rows in their order: the columns that are carried along, and a column "score".

        Args:
            ids: Columns of the data, as they stand there; the model need not read them.
            separator, names, progress: As in `torchleap.data.read`.
        """
        import polars

        source = open_source(data, separator=separator, names=names)
        known = source.names()
        for name in ids:
            if name not in known:
                raise DataError(
                    f"There is no column {name!r} to carry along. {nearest(str(name), known)}"
                )
        if SCORE in ids:
            raise DataError(
                f"The column {SCORE!r} cannot be carried along: the scores are called so. Rename it."
            )
        parts = self.probabilities(data, separator=separator, names=names, progress=progress)
        scores = polars.concat([polars.Series(SCORE, part.numpy()) for part in parts])
        wanted = list(dict.fromkeys(ids))
        if not wanted:
            return scores.to_frame()
        return polars.concat(source.blocks(wanted)).with_columns(scores)

    def inputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """A batch of the kept columns as the model takes it; it does not read what dropped columns would be."""
        return self._spread(batch.ids, "ids"), self._spread(batch.numbers, "numbers")

    def _spread(self, given: Tensor, kind: str) -> Tensor:
        places = self.layout[kind]
        whole = given.new_zeros(len(given), max((stop for _, stop in places.values()), default=0))
        kept = [
            torch.arange(*places[column.name])
            for column in self.encoding.columns
            if column.name in places
        ]
        return whole.index_copy_(1, torch.cat(kept), given) if kept else whole


def _places(layout: Any) -> dict[str, list[int]]:
    """Return where each column begins and ends in a batch."""
    return {name: [_place(start), _place(stop)] for name, (start, stop) in layout.items()}


def _place(value: Any) -> int:
    """Return a place in a batch."""
    if not is_whole(value) or not 0 <= value <= LARGEST:
        raise ValueError(f"{value!r:.40} is not a place in a batch")
    return int(value)


def _problem(layout: dict[str, dict[str, list[int]]], encoding: Encoding) -> str:
    """What is wrong with a layout: columns lie side by side, and those of the encoding are among them."""
    for kind, places in layout.items():
        end = 0
        for name, (start, stop) in sorted(places.items(), key=lambda item: item[1]):
            if start != end or stop <= start:
                return f"the {kind} of {name!r} do not follow those before"
            end = stop
    for column in encoding.columns:
        start, stop = layout["ids" if column.is_ids else "numbers"].get(column.name, (0, 0))
        if stop - start != column.slots:
            return f"{column.name!r} needs {column.slots} places, but has {stop - start}"
    return ""
