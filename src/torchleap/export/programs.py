"""torch.export and ONNX, each written, read again and compared with the model before the file appears."""

import copy
import importlib
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

from .._common.errors import SurgeryError, TorchleapError
from .._common.files import writing
from ..sites.calls import Call, as_call
from ..surgery import Plan
from ..surgery.compare import alike, difference
from ..surgery.rounding import with_other_rounding
from ..surgery.trace.examples import batch_rows, in_eval, run


def to_program(model: nn.Module, path: str | os.PathLike[str], example: Any) -> None:
    """Write a model, pruned or not, as a program of torch.export with any number of rows: `torch.export.load(path).module()`.

    Args:
        example: A batch as the model takes it; a tuple is several arguments. Entries that the pruned model does not read are
            left out, and need not be given to the program.
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
        example: As in `to_program`. The inputs of the ONNX model are its tensors, in order.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            raise SurgeryError(
                f"ONNX needs the package {package}. Install it: pip install 'torchleap[onnx]'."
            )
    call = _still_read(model, as_call(example))

    def write(file: Path) -> Callable[[Call], Any]:
        import onnxruntime

        with _quiet():
            written = torch.onnx.export(
                _program(_without_bags(model), call), dynamo=True, verbose=False
            )
            assert written is not None
            written.save(str(file))
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        names = [entry.name for entry in session.get_inputs()]

        def run_session(batch: Call) -> Any:
            leaves = [
                leaf.detach().cpu().numpy()
                for leaf in tree_leaves(batch)
                if isinstance(leaf, Tensor)
            ]
            return [
                torch.from_numpy(array)
                for array in session.run(None, dict(zip(names, leaves, strict=True)))
            ]

        return run_session

    _write_checked(model, Path(path), call, write)


def _program(model: nn.Module, call: Call) -> torch.export.ExportedProgram:
    rows = batch_rows(call)
    batch = torch.export.Dim("batch")

    def dims(leaf: Any) -> Any:
        return (
            {0: batch}
            if isinstance(leaf, Tensor) and leaf.dim() and leaf.shape[0] == rows
            else None
        )

    shapes = (*(tree_map(dims, argument) for argument in call[0]),) or None
    named = {name: tree_map(dims, argument) for name, argument in call[1].items()}
    with in_eval(model), _quiet():
        return torch.export.export(
            model, call[0], call[1], dynamic_shapes=named if named and not shapes else shapes
        )


def _write_checked(
    model: nn.Module, target: Path, call: Call, write: Callable[[Path], Callable[[Call], Any]]
) -> None:
    """Write to a folder beside the target, compare on random batches, and only then put it in place."""
    if batch_rows(call) < 2:
        call = tree_map(
            lambda leaf: (
                torch.cat([leaf, leaf]) if isinstance(leaf, Tensor) and leaf.dim() else leaf
            ),
            call,
        )
    with (
        writing(target),
        tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder,
    ):
        try:
            with writing(target):
                program = write(Path(folder) / target.name)
        except TorchleapError:
            raise
        except Exception as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [
                type(error).__name__
            ]
            raise SurgeryError(
                f"{type(model).__name__} cannot be exported to {target.name}: {lines[0]}"
            ) from error
        for batch in _random_batches(call):
            found, expected = tree_leaves(program(batch)), tree_leaves(run(model, batch))
            if not (
                alike(found, expected) or alike(found, expected, partial(_rounded, model, batch))
            ):
                raise SurgeryError(
                    f"{target.name} differs from the model by {difference(found, expected):.2g} on {batch_rows(batch)} random "
                    "rows, so it was not written. Does the model do something else for other numbers of rows?"
                )
        for file in Path(folder).iterdir():
            file.replace(target.parent / file.name)


def _rounded(model: nn.Module, batch: Call) -> list[Any]:
    """Compute what the model returns, with other roundings of every operation."""
    return [tree_leaves(output) for output in with_other_rounding(partial(run, model, batch))]


def _random_batches(call: Call) -> Iterator[Call]:
    """Batches of several sizes, each column of the example drawn anew and for itself."""
    rng = torch.Generator().manual_seed(0)
    rows = batch_rows(call)
    for size in (rows, 2, 3 * rows + 1):

        def draw(leaf: Any, size: int = size) -> Any:
            if not isinstance(leaf, Tensor) or not leaf.dim() or leaf.shape[0] != rows:
                return leaf
            return leaf[torch.randint(rows, (size,), generator=rng).to(leaf.device)]

        drawn: Call = tree_map(draw, call)
        yield drawn


def _still_read(model: nn.Module, call: Call) -> Call:
    """The batch without the entries that a pruned model does not read."""
    plan = getattr(type(model), "pruned_plan", None)
    unread = (
        {item.name for item in plan.unread if item.columns is None}
        if isinstance(plan, Plan)
        else set()
    )

    def strip(value: Any) -> Any:
        return (
            {key: entry for key, entry in value.items() if key not in unread}
            if isinstance(value, dict)
            else value
        )

    args, kwargs = call
    return tuple(strip(value) for value in args), {
        name: strip(value) for name, value in kwargs.items()
    }


class GatheredBag(nn.Module):
    """An EmbeddingBag of ids (rows, length), as gather and reduction."""

    def __init__(self, bag: nn.EmbeddingBag) -> None:
        super().__init__()
        self.weight = bag.weight
        self.mode = bag.mode
        self.padding_idx = bag.padding_idx

    def forward(self, ids: Tensor) -> Tensor:
        """Shape: (B, L) -> (B, E)."""
        vectors = functional.embedding(ids, self.weight)  # (B, L, E)
        if self.padding_idx is None:
            return vectors.mean(1) if self.mode == "mean" else vectors.sum(1)
        present = (ids != self.padding_idx).unsqueeze(-1).to(vectors.dtype)
        total = (vectors * present).sum(1)
        return total / present.sum(1).clamp_min(1) if self.mode == "mean" else total


def _without_bags(model: nn.Module) -> nn.Module:
    bags = [
        path
        for path, module in model.named_modules()
        if type(module) is nn.EmbeddingBag and module.mode != "max"
    ]
    if not bags:
        return model
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    light = copy.deepcopy(model, shared)
    for path in bags:
        bag: Any = light.get_submodule(path)
        light.set_submodule(path, GatheredBag(bag))
    return light


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporters talk a lot; what matters they raise."""
    loggers = [
        logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "torch.export")
    ]
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
