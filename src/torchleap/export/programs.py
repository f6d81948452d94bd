"""Write torch.export programs and ONNX: each file is compared with the model before it appears."""

import inspect
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

from .._common.copies import copied, memo_of
from .._common.errors import SurgeryError, TorchleapError, WriteError
from .._common.files import writing
from .._common.optional import need
from ..sites.calls import Call, as_call
from ..surgery import Plan
from ..surgery.trial.compare import alike, difference
from ..surgery.trial.lengths import Sizes, near, stretched
from ..surgery.trial.rounding import with_other_rounding
from ..surgery.trial.run import batch_rows, in_eval, leaves_of_batch, run
from .onnx_names import BATCH, names_of_inputs, names_of_outputs, tidy

Program = torch.export.ExportedProgram
Run = Callable[[Call], Any]  # runs a file on a batch
Write = Callable[[Path, Program], Run]  # writes a program to a file
_ANY: Any = torch.export.Dim.AUTO
LOGGERS = ("torch.onnx", "onnxscript", "onnx_ir", "torch.export")


def to_program(model: nn.Module, path: str | os.PathLike[str], example: Any) -> None:
    """Write a model, pruned or not, as a program of torch.export with any number of rows.

    Lengths of histories may differ as well, where the model's operations allow it.
    `torch.export.load(path).module()` loads it.

    Args:
        model: The model.
        path: The file to write.
        example: A batch as the model takes it; a tuple is several arguments. Entries that the
            pruned model does not read are left out, and need not be given to the program.
    """

    def write(file: Path, program: Program) -> Run:
        content = io.BytesIO()  # on a full disk PyTorch's own writer ends the process
        torch.export.save(program, content)
        file.write_bytes(content.getbuffer())
        module = torch.export.load(file).module()
        return lambda batch: module(*batch[0], **batch[1])

    _write_checked(model, model, Path(path), _still_read(model, as_call(example)), write)


def to_onnx(model: nn.Module, path: str | os.PathLike[str], example: Any) -> None:
    """Write a model, pruned or not, as ONNX with any number of rows. Needs torchleap[onnx].

    Inputs have the names of the batch: the keys of a dict, or the names of arguments; inputs that
    the model does not read are left out. Outputs have the keys or fields of the model's output, or
    the name "output". The rows are the dimension "batch"; lengths of histories may differ, where
    the model's operations allow it, and are called "hist_length" and so on.
    `nn.EmbeddingBag` is written as gather and sum, since ONNX would run it as a loop over the rows.

    Args:
        model: The model.
        path: The file to write.
        example: As in `to_program`.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        need(package, "onnx", "ONNX", refused=SurgeryError)
    call = _still_read(model, as_call(example))
    inputs = names_of_inputs(model, call)

    def write(file: Path, program: Program) -> Run:
        with _quiet():
            written = torch.onnx.export(program, dynamo=True, verbose=False)
            assert written is not None
            tidy(written.model.graph, inputs, names_of_outputs(run(model, call), inputs))
            written.save(str(file))
        return _onnx_session(file, inputs)

    _write_checked(model, _without_bags(model), Path(path), call, write)


def _onnx_session(file: Path, inputs: list[str]) -> Run:
    """Return a function that runs an ONNX file on a batch.

    Args:
        file: The file.
        inputs: The name of each tensor of the batch.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    read = {entry.name for entry in session.get_inputs()}

    def run_session(batch: Call) -> list[Tensor]:
        leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
        named = zip(inputs, leaves, strict=True)
        arrays = {name: leaf.detach().cpu().numpy() for name, leaf in named if name in read}
        return [torch.from_numpy(array) for array in session.run(None, arrays)]

    return run_session


def _program(model: nn.Module, call: Call, *, any_length: bool) -> Program:
    """Export a model in eval mode, with any number of rows.

    Args:
        model: The model.
        call: A batch.
        any_length: Whether other dimensions may differ too, where the model's operations allow it.
    """
    rows = batch_rows(call)
    batch = torch.export.Dim(BATCH)

    def dims(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return None
        found: dict[int, Any] = dict.fromkeys(range(leaf.dim()), _ANY) if any_length else {}
        if _has_rows(leaf, rows):
            found[0] = batch
        return found or None

    given = inspect.signature(model.forward).bind(*call[0], **call[1]).arguments
    shapes: Any = {name: tree_map(dims, argument) for name, argument in given.items()}
    with in_eval(model), _quiet():
        return torch.export.export(model, call[0], call[1], dynamic_shapes=shapes)


def _lengths(program: Program, call: Call) -> Sizes:
    """Return the dimensions of a batch, but for the rows, that may differ in a program."""
    rows = batch_rows(call)
    inputs = set(program.graph_signature.user_inputs)
    values = [node.meta["val"] for node in program.graph.nodes if node.name in inputs]
    leaves = leaves_of_batch(call)
    tensors = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    found: Sizes = {}
    known = [value for value in values if isinstance(value, Tensor)]
    for place, value in zip(tensors, known, strict=True):
        for dim, size in enumerate(value.shape):
            is_rows = dim == 0 and _has_rows(leaves[place], rows)
            if isinstance(size, torch.SymInt) and not is_rows:
                found[place, dim] = leaves[place].shape[dim]
    return found


def _has_rows(leaf: Any, rows: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == rows


def _write_checked(
    model: nn.Module, exported: nn.Module, target: Path, call: Call, write: Write
) -> None:
    """Write to a folder beside the target, compare on random batches, and then move it in place.

    Args:
        model: The model to compare with.
        exported: The model to write, which computes the same.
        target: The file.
        call: A batch.
        write: Writes a program to a file.
    """
    call = tree_map(_doubled if batch_rows(call) < 2 else _own, call)
    folder_of = partial(tempfile.TemporaryDirectory, dir=target.parent, prefix=f".{target.name}.")
    with writing(target), folder_of() as folder:
        file = Path(folder) / target.name
        into = partial(_write_one, model, exported, file, call, write, shown=target)
        try:
            into(any_length=True)
        except WriteError:
            raise
        except (TorchleapError, RuntimeError):  # lengths as in the example may work
            into(any_length=False)
        for written in Path(folder).iterdir():
            written.replace(target.parent / written.name)


def _write_one(
    model: nn.Module,
    exported: nn.Module,
    file: Path,
    call: Call,
    write: Write,
    *,
    shown: Path,
    any_length: bool,
) -> None:
    """Write a program to a file and compare it with the model on random batches.

    Args:
        model: The model to compare with.
        exported: The model to write.
        file: The file to write to.
        call: A batch.
        write: Writes a program to a file.
        shown: The file that messages name, which the written one will replace.
        any_length: Whether lengths of histories may differ from those of the batch.
    """
    try:
        with writing(shown):
            program = _program(exported, call, any_length=any_length)
            runs = write(file, program)
            lengths = _lengths(program, call)
            batches = [*_random_batches(call), *_of_other_lengths(model, call, lengths)]
            found = [tree_leaves(runs(batch)) for batch in batches]
    except TorchleapError:
        raise
    except Exception as error:
        raise SurgeryError(
            f"{type(model).__name__} cannot be exported to {file.name}: {_reason(error)}"
        ) from error
    for batch, outputs in zip(batches, found, strict=True):
        _compare(model, file, outputs, batch)


def _doubled(leaf: Any) -> Any:
    return torch.cat([leaf, leaf]) if isinstance(leaf, Tensor) and leaf.dim() else leaf


def _own(leaf: Any) -> Any:
    """Return a tensor of its own, since one that is given twice would become one input."""
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def _reason(error: Exception) -> str:
    """Return the first line of an error that is not empty."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _compare(model: nn.Module, target: Path, found: list[Any], batch: Call) -> None:
    """Refuse a program whose output on a batch differs from the model's by more than rounding."""
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


def _of_other_lengths(model: nn.Module, call: Call, lengths: Sizes) -> list[Call]:
    """Return batches of other lengths, as far as the model takes them."""

    def accepts(candidate: Call) -> bool:
        try:
            run(model, candidate)
        except Exception:  # the model's own code decides how it refuses a batch
            return False
        return True

    if not lengths:
        return []
    batches = list(_random_batches(call))[::2]
    return [
        stretched(batches[0], lengths, _longer, accepts),
        stretched(batches[1], lengths, near, accepts),
    ]


def _longer(length: int) -> tuple[int, ...]:
    return (2 * length + 1, length + 3, 2 * length)


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
    light = copied(model, memo_of(model, share=True))
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
