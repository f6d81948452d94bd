"""Served: a saved result of `decide`, which scores new rows from a file or a frame."""

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
from .._common.files import refuse_to_replace
from .._common.plain import parse_json, write_json
from .._common.text import first_line
from ..data.files.encoding import MANIFEST as ENCODED
from ..data.files.encoding import Encoding, save_encoding
from ..data.files.open import open_source
from ..data.task import Batch, Task
from ..export.files import save_silently
from ..objectives import OBJECTIVES, Objective, objective_named
from ..selection import Selection

if TYPE_CHECKING:
    from polars import DataFrame

    from .check import Check

LAYOUT = "layout.json"
KINDS = ("ids", "numbers")
LARGEST = 1 << 24  # slots that a row may have
MODEL = "model"
ENCODING = "encoding"
FULL = "full"  # the folder with the full model, and the entry of the layout with its digest
SCORE = "score"  # the column of the scores
Layout = dict[str, dict[str, list[int]]]  # kind -> column -> [start, stop)
Progress = Callable[[str, int, int], None]

# what a model from a file may raise when it is called
OF_MODELS = (
    RuntimeError,
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    ArithmeticError,
    MemoryError,
)


def save_served(
    model: nn.Module,
    task: Task,
    selection: Selection,
    folder: Path,
    metrics: dict[str, float],
    full: str | None = None,
) -> export.Saved:
    """Write a pruned model, the encoding of its columns, and the layout that binds them.

    Args:
        model: The pruned model.
        task: The task that it was trained on.
        selection: The fields that it keeps.
        folder: An existing folder.
        metrics: The metrics to save with the model, by name.
        full: The digest of the full model beside it; None if there is none.

    Returns:
        Whether the model can be loaded without its code.
    """
    saved = save_silently(model, folder / MODEL, metrics)
    save_encoding(task, folder / ENCODING, only=selection)
    content: dict[str, Any] = {"objective": task.objective.name, FULL: full}
    for kind in KINDS:
        slots = task.slots(ids=kind == "ids")
        content[kind] = {name: [place.start, place.stop] for name, place in slots.items()}
    write_json(folder / LAYOUT, {**content, "result": _digest(folder, content)})
    return saved


def refuse_others(folder: Path) -> None:
    """Refuse to replace folders that have the names of results, but are not results."""
    refuse_to_replace(folder / MODEL, export.MANIFEST, "a result", DataError)
    refuse_to_replace(folder / ENCODING, ENCODED, "a result", DataError)
    refuse_to_replace(folder / FULL, export.MANIFEST, "a result", DataError)


def _digest(folder: Path, content: dict[str, Any]) -> str:
    """Return a digest of a result: of its layout and of the manifests of its other parts.

    The manifests have digests of everything else.
    """
    found = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    for path in (folder / MODEL / export.MANIFEST, folder / ENCODING / ENCODED):
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


@dataclass(frozen=True)
class Served:
    """A saved model with its encoding, which needs the kept columns alone.

    Attributes:
        model: The pruned model.
        encoding: The encoding of the kept columns.
        layout: The slots of each column of the task in the ids and numbers of a batch.
        objective: The objective that the model was trained for.
        folder: The folder that it was loaded from; None if it was not loaded.
        full: The digest of the full model in that folder; None if it was saved without it.
        knows_full: Whether the result says so; earlier versions say nothing of a full model.
    """

    model: nn.Module
    encoding: Encoding
    layout: Layout
    objective: Objective = OBJECTIVES["binary"]
    folder: Path | None = None
    full: Any = None
    knows_full: bool = False

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "Served":
        """Read a result that `Decision.save` wrote; no code of it is run."""
        place = Path(folder)
        path = place / LAYOUT
        if not path.is_file():
            raise DataError(
                f"{folder} holds no complete result of `torchleap select`: "
                f"expected {LAYOUT} in it. Select again, with --force."
            )
        content, result = _read_layout(path)
        layout = {kind: content[kind] for kind in KINDS}
        encoding = Encoding.load(place / ENCODING)
        model = export.load(place / MODEL)
        problem = layout_problem(layout, encoding)
        if problem:
            raise DataError(f"{path} is damaged: {problem}. Select again.")
        if _digest(place, content) != result:
            raise DataError(
                f"{folder} mixes several results: its {MODEL}, {ENCODING} and {LAYOUT} "
                "were not written together. Select again."
            )
        objective = objective_named(content.get("objective", "binary"))  # earlier results have none
        full = content.get(FULL)
        return cls(model, encoding, layout, objective, place, full, FULL in content)

    @torch.no_grad()
    def probabilities(
        self,
        data: Any,
        *,
        separator: str | None = None,
        names: Sequence[str] | None = None,
        progress: Progress | None = None,
    ) -> Iterator[Tensor]:
        """Yield the predictions of all rows in their order, some at a time, as float64.

        Args:
            data: A file, several files or a frame with the kept columns.
            separator: As in `torchleap.data.read`, and likewise `names` and `progress`.
        """
        self.model.eval()
        batches = self.encoding.batches(data, separator=separator, names=names, progress=progress)
        for batch in batches:
            outputs = raw_outputs(
                self.model, self.inputs(batch)
            ).double()  # float32 rounds different rows to one value
            yield self.objective.link(outputs)

    def scored(
        self,
        data: Any,
        *,
        ids: Sequence[str] = (),
        separator: str | None = None,
        names: Sequence[str] | None = None,
        progress: Progress | None = None,
    ) -> "DataFrame":
        """Return a frame of all rows in their order: the columns `ids`, and a column "score".

        Args:
            data: A file, several files or a frame with the kept columns.
            ids: Columns of the data to copy unchanged; the model need not read them.
            separator: As in `torchleap.data.read`, and likewise `names` and `progress`.
        """
        import polars

        source = open_source(data, separator=separator, names=names)
        _check_ids(ids, source.names())
        parts = self.probabilities(data, separator=separator, names=names, progress=progress)
        scores = polars.concat([polars.Series(SCORE, part.numpy()) for part in parts])
        wanted = list(dict.fromkeys(ids))
        if not wanted:
            return scores.to_frame()
        return polars.concat(source.blocks(wanted)).with_columns(scores)

    def check(
        self,
        data: Any,
        *,
        margin: float | None = None,
        relative: bool = False,
        ab: bool = False,
        separator: str | None = None,
        names: Sequence[str] | None = None,
        progress: Progress | None = None,
    ) -> "Check":
        """Compare the model with the full one on new labelled rows: is it still safe?

        The arguments are those of `torchleap.pipeline.check.check`.

        >>> found = tl.Served.load("result").check("new.parquet")  # doctest: +SKIP
        >>> found.certificate.verdict  # doctest: +SKIP
        'safe'
        """
        from .check import check

        return check(
            self,
            data,
            margin=margin,
            relative=relative,
            ab=ab,
            separator=separator,
            names=names,
            progress=progress,
        )

    def inputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return a batch of the kept columns as the model takes it, with 0 for dropped columns."""
        return self._spread(batch.ids, "ids"), self._spread(batch.numbers, "numbers")

    def _spread(self, given: Tensor, kind: str) -> Tensor:
        """Return the values in the slots of their columns, (B, kept slots) -> (B, all slots)."""
        slots = self.layout[kind]
        width = max((stop for _, stop in slots.values()), default=0)
        spread = given.new_zeros(len(given), width)
        columns = [column.name for column in self.encoding.columns if column.name in slots]
        if not columns:
            return spread
        kept = torch.cat([torch.arange(*slots[name]) for name in columns])
        return spread.index_copy_(1, kept, given)


def raw_outputs(model: nn.Module, inputs: tuple[Tensor, Tensor]) -> Tensor:
    """Return the outputs of a model; since it comes from a file, it need not be one of rows.

    Args:
        model: The model.
        inputs: The ids and the numbers of some rows.
    """
    try:
        found = model(*inputs)
    except TorchleapError:
        raise
    except OF_MODELS as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise DataError(
            f"The model of this result cannot score rows ({reason:.200}). Select again."
        ) from error
    is_floats = isinstance(found, Tensor) and found.is_floating_point()
    if not is_floats or tuple(found.shape) != (len(inputs[0]),):
        raise DataError(
            "The model of this result does not return one number per row. Select again."
        )
    outputs: Tensor = found
    return outputs


def _check_ids(ids: Sequence[str], known: Sequence[str]) -> None:
    for name in ids:
        if name not in known:
            raise DataError(f"There is no column {name!r} to copy. {nearest(str(name), known)}")
    if SCORE in ids:
        raise DataError(
            f"The column {SCORE!r} cannot be copied: the scores have this name. Rename it."
        )


def _read_layout(path: Path) -> tuple[dict[str, Any], Any]:
    """Return the checked content of a layout file, and the digest of the result apart from it."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        for kind in KINDS:
            content[kind] = _slots(content[kind])
        result = content.pop("result")
        objective_named(content.get("objective", "binary"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, TorchleapError) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise DataError(
            f"{path} is damaged or of an earlier version ({reason:.200}). Select again."
        ) from error
    return content, result


def _slots(layout: Any) -> dict[str, list[int]]:
    """Return the first slot of each column and the one after its last."""
    return {name: [_slot(start), _slot(stop)] for name, (start, stop) in layout.items()}


def _slot(value: Any) -> int:
    if not is_whole(value) or not 0 <= value <= LARGEST:
        raise ValueError(f"{value!r:.40} is not a place in a batch")
    return int(value)


def layout_problem(layout: Layout, encoding: Encoding, *, complete: bool = False) -> str:
    """Return what is wrong with a layout, "" if nothing is.

    Columns lie side by side, and those of the encoding are among them.

    Args:
        layout: The layout.
        encoding: The encoding.
        complete: Whether all columns of the layout have to be in the encoding, in its order.
    """
    for kind, slots in layout.items():
        end = 0
        for name, (start, stop) in sorted(slots.items(), key=lambda item: item[1]):
            if start != end or stop <= start:
                return f"the {kind} of {name!r} do not follow those before"
            end = stop
    for column in encoding.columns:
        kind = "ids" if column.is_ids else "numbers"
        start, stop = layout[kind].get(column.name, (0, 0))
        if stop - start != column.slots:
            return f"{column.name!r} needs {column.slots} slots, but has {stop - start}"
    if complete and not _is_in_order(layout, encoding):
        return "its columns are not those of the layout, in their order"
    return ""


def _is_in_order(layout: Layout, encoding: Encoding) -> bool:
    """Return whether an encoding has exactly the columns of a layout, in the order of slots."""
    for kind, slots in layout.items():
        expected = sorted(slots, key=lambda name: slots[name])
        found = [column.name for column in encoding.columns if column.is_ids == (kind == "ids")]
        if found != expected:
            return False
    return True
