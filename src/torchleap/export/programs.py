"""Write torch.export programs and ONNX: each file is compared with the model before it appears."""

import copy
import io
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map

from .._common.copies import memo_of
from .._common.errors import SurgeryError, TorchleapError
from .._common.files import writing
from .._common.optional import need
from ..sites.calls import Call, as_call
from ..surgery import Plan
from ..surgery.trial.compare import alike, difference
from ..surgery.trial.rounding import with_other_rounding
from ..surgery.trial.run import batch_rows, in_eval, run

Write = Callable[[Path], Callable[[Call], Any]]  # writes a file; returns what runs it on a batch
LOGGERS = ("torch.onnx", "onnxscript", "onnx_ir", "torch.export")


def to_program(model: nn.Module, path: str | os.PathLike[str], example: Any) -> None:
    """Write a model, pruned or not, as a program of torch.export with any number of rows.

    `torch.export.load(path).module()` loads it.

    Args:
        model: The model.
        path: The file to write.
        example: A batch as the model takes it; a tuple is several arguments. Entries that the
            pruned model does not read are left out, and need not be given to the program.
    """
    call = _still_read(model, as_call(example))

    def write(file: Path) -> Callable[[Call], Any]:
        content = io.BytesIO()  # on a full disk PyTorch's own writer ends the process
        torch.export.save(_program(model, call), content)
        file.write_bytes(content.getbuffer())
        program = torch.export.load(file).module()
        return lambda batch: program(*batch[0], **batch[1])

    _write_checked(model, Path(path), call, write)


def to_onnx(model: nn.Module, path: str | os.PathLike[str], example: Any) -> None:
    """Write a model, pruned or not, as ONNX with any number of rows. Needs torchleap[onnx].

    `nn.EmbeddingBag` is written as gather and sum, since ONNX would run it as a loop over the rows.

    Args:
        model: The model.
        path: The file to write.
        example: As in `to_program`. The inputs of the ONNX model are its tensors, in order.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        need(package, "onnx", "ONNX", refused=SurgeryError)
    call = _still_read(model, as_call(example))

    def write(file: Path) -> Callable[[Call], Any]:
        with _quiet():
            program = _program(_without_bags(model), call)
            written = torch.onnx.export(program, dynamo=True, verbose=False)
            assert written is not None
            written.save(str(file))
        return _onnx_session(file)

    _write_checked(model, Path(path), call, write)


def _onnx_session(file: Path) -> Callable[[Call], Any]:
    """Return a function that runs an ONNX file on a batch."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]

    def run_session(batch: Call) -> list[Tensor]:
        leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
        arrays = [leaf.detach().cpu().numpy() for leaf in leaves]
        found = session.run(None, dict(zip(names, arrays, strict=True)))
        return [torch.from_numpy(array) for array in found]

    return run_session


def _program(model: nn.Module, call: Call) -> torch.export.ExportedProgram:
    """Export a model in eval mode, with any number of rows."""
    rows = batch_rows(call)
    batch = torch.export.Dim("batch")

    def dims(leaf: Any) -> Any:
        return {0: batch} if _has_rows(leaf, rows) else None

    shapes: Any = tuple(tree_map(dims, argument) for argument in call[0]) or None
    named = {name: tree_map(dims, argument) for name, argument in call[1].items()}
    if named and not shapes:
        shapes = named
    with in_eval(model), _quiet():
        return torch.export.export(model, call[0], call[1], dynamic_shapes=shapes)


def _has_rows(leaf: Any, rows: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == rows


def _write_checked(model: nn.Module, target: Path, call: Call, write: Write) -> None:
    """Write to a folder beside the target, compare on random batches, and then move it in place."""
    if batch_rows(call) < 2:
        call = tree_map(_doubled, call)
    folder_of = partial(tempfile.TemporaryDirectory, dir=target.parent, prefix=f".{target.name}.")
    with writing(target), folder_of() as folder:
        try:
            with writing(target):
                program = write(Path(folder) / target.name)
        except TorchleapError:
            raise
        except Exception as error:
            raise SurgeryError(
                f"{type(model).__name__} cannot be exported to {target.name}: {_reason(error)}"
            ) from error
        for batch in _random_batches(call):
            _compare(model, target, program, batch)
        for file in Path(folder).iterdir():
            file.replace(target.parent / file.name)


def _doubled(leaf: Any) -> Any:
    return torch.cat([leaf, leaf]) if isinstance(leaf, Tensor) and leaf.dim() else leaf


def _reason(error: Exception) -> str:
    """Return the first line of an error that is not empty."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _compare(model: nn.Module, target: Path, program: Callable[[Call], Any], batch: Call) -> None:
    """Refuse a program whose output on a batch differs from the model's by more than rounding."""
    found = tree_leaves(program(batch))
    expected = tree_leaves(run(model, batch))
    if alike(found, expected) or alike(found, expected, partial(_rounded, model, batch)):
        return
    raise SurgeryError(
        f"{target.name} differs from the model by {difference(found, expected):.2g} on "
        f"{batch_rows(batch)} random rows, so it was not written. Does the model do something else "
        "for other numbers of rows?"
    )


def _rounded(model: nn.Module, batch: Call) -> list[Any]:
    """Return the model's output several times, with other roundings of every operation."""
    return [tree_leaves(output) for output in with_other_rounding(partial(run, model, batch))]


def _random_batches(call: Call) -> Iterator[Call]:
    """Yield batches of several sizes, in which the rows of each tensor are drawn on their own."""
    rng = torch.Generator().manual_seed(0)
    rows = batch_rows(call)
    for size in (rows, 2, 3 * rows + 1):

        def draw(leaf: Any, size: int = size) -> Any:
            if not _has_rows(leaf, rows):
                return leaf
            return leaf[torch.randint(rows, (size,), generator=rng).to(leaf.device)]

        drawn: Call = tree_map(draw, call)
        yield drawn


def _still_read(model: nn.Module, call: Call) -> Call:
    """Return the batch without the entries that a pruned model does not read."""
    plan = getattr(type(model), "pruned_plan", None)
    if not isinstance(plan, Plan):
        return call
    unread = {item.name for item in plan.unread if item.columns is None}

    def strip(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: entry for key, entry in value.items() if key not in unread}

    args, kwargs = call
    return tuple(map(strip, args)), {name: strip(value) for name, value in kwargs.items()}


class GatheredBag(nn.Module):
    """An EmbeddingBag as gather and reduction, for exporters that have no operation for it.

    Args:
        bag: The layer whose weight is used.

    **Shape**: ids (B, L) -> (B, E).
    """

    def __init__(self, bag: nn.EmbeddingBag) -> None:
        super().__init__()
        self.weight = bag.weight
        self.mode = bag.mode
        self.padding_idx = bag.padding_idx

    def forward(self, ids: Tensor) -> Tensor:
        """Return the sum or the mean of the vectors of each row's ids."""
        vectors = functional.embedding(ids, self.weight)  # (B, L, E)
        if self.padding_idx is None:
            return vectors.mean(1) if self.mode == "mean" else vectors.sum(1)
        present = (ids != self.padding_idx).unsqueeze(-1).to(vectors.dtype)
        total = (vectors * present).sum(1)
        return total / present.sum(1).clamp_min(1) if self.mode == "mean" else total


def _without_bags(model: nn.Module) -> nn.Module:
    """Return a copy of a model, on the same weights, with `GatheredBag`s."""
    bags = []
    for path, module in model.named_modules():
        if type(module) is nn.EmbeddingBag and module.mode != "max":
            bags.append(path)
    if not bags:
        return model
    light = copy.deepcopy(model, memo_of(model, share=True))
    for path in bags:
        bag: Any = light.get_submodule(path)
        light.set_submodule(path, GatheredBag(bag))
    return light


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters within this context: they raise what matters."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
