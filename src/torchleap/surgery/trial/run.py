"""Run a model on a batch, in eval mode, and leave it as it was."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..._common.errors import SurgeryError
from ...distributed.torchrec import rows_of
from ...gates.leap import LeAP
from ...sites.batches import flatten, map_leaves
from ...sites.calls import Call
from .deadline import check_time
from .state import Attributes


def run(model: nn.Module, example: Call) -> Any:
    """Return the model's output on a batch, in eval mode and without gradients."""
    check_time()
    args, kwargs = fresh(example)
    with in_eval(model):
        return model(*args, **kwargs)


def run_on_cpu(model: nn.Module, example: Call) -> Any:
    """Return the model's output on a batch, computed on the CPU.

    A batch that is only tried may hold an index past the end of a table: on the CPU that is an
    error, on a GPU it ends the process.
    """
    held = (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    )
    tensors = {name: tensor.cpu() for name, tensor in held}
    args, kwargs = map_leaves(_on_cpu, fresh(example))
    with in_eval(model):
        return torch.func.functional_call(model, tensors, args, kwargs)


def _on_cpu(leaf: Any) -> Any:
    return leaf.cpu() if isinstance(leaf, Tensor) else leaf


def fresh(example: Call) -> Call:
    """Return a copy of a batch, since forward() may change its arguments."""
    try:
        return copy.deepcopy(example)
    except Exception:  # an object that cannot be copied is given as it is
        return example


def forget_pass(gates: LeAP) -> None:
    """Make the gates forget a forward pass that raised before its end."""
    gates.context.end()


def leaves_of_batch(call: Any) -> list[Any]:
    """Return the tensors and other values of a batch; a jagged tensor counts as one value."""
    return flatten(call)[0]


def batch_rows(given: Any) -> int:
    """Return the number of rows of a batch, which is that of its first tensor."""
    for leaf in leaves_of_batch(given):
        rows = rows_of(leaf)
        if rows is not None:
            return rows
    raise SurgeryError(
        "The example contains no tensor with rows. Give a batch as the model takes it."
    )


@contextmanager
def in_eval(model: nn.Module) -> Iterator[None]:
    """Put the model in eval mode, without gradients, within this context; then restore its mode."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Restore the model's attributes and buffers after this context, in which it may be run."""
    attributes = Attributes(model)
    buffers = [(buffer, buffer._version, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        attributes.restore()
        with torch.no_grad():
            for buffer, version, value in buffers:
                if buffer._version != version:
                    buffer.copy_(value)
