"""Find the batch of a model whose training calls `self.forward(batch)`, so that no hook of it runs.

Its modules are called as usual. From a hook on one of them, the call of the model's forward() is
found among the calls that Python is in.
"""

import dis
import inspect
import sys
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

from ..gates.leap import LeAP
from .calls import Call, few_rows

_STORES = ("STORE_FAST", "STORE_DEREF", "DELETE_FAST", "DELETE_DEREF")


class ExampleKeeper:
    """Keeps a few rows of the first batch of a model; its method `begin` is a hook on the model.

    Args:
        example: A few rows, as the model takes them; None keeps those of the first batch.
    """

    def __init__(self, example: Call | None) -> None:
        self.example = example

    def gates_of(self, model: nn.Module) -> LeAP | None:
        """Return the gates of a model that has this hook."""
        raise NotImplementedError

    def keep(self, call: Call) -> None:
        """Keep a few rows of a batch, if it is the first."""
        if self.example is None:
            self.example = few_rows(call)


def keep_missing_example(gates: LeAP) -> None:
    """Keep the batch of a model whose hooks do not run."""
    if torch.compiler.is_compiling():
        return
    context = gates.context
    if not context.running and not context.has_example:
        keep_example(gates)


def keep_example(gates: LeAP) -> None:
    """Keep the batch of the model with these gates whose forward() is running.

    Args:
        gates: The gates, in a hook of which this is called.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        keeper = _keeper_of(_first_argument(frame), gates)
        if keeper is not None:
            call = None if keeper.example is not None else _call_of_forward(frame)
            if call is not None:
                keeper.keep(call)
            if keeper.example is not None:
                gates.context.note_example()
                return
        frame = frame.f_back


def _first_argument(frame: FrameType) -> Any:
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def _keeper_of(model: Any, gates: LeAP) -> ExampleKeeper | None:
    """Return the hook of a model that keeps the example, if it is the model with these gates."""
    if not isinstance(model, nn.Module):
        return None
    for hook in model._forward_pre_hooks.values():
        owner = getattr(hook, "__self__", None)
        if isinstance(owner, ExampleKeeper) and owner.gates_of(model) is gates:
            return owner
    return None


def _call_of_forward(frame: FrameType) -> Call | None:
    """Return the arguments of forward(); None if this is another function, or has changed them."""
    model = _first_argument(frame)
    function = inspect.unwrap(model.forward)
    function = getattr(function, "__func__", function)
    code = frame.f_code
    if getattr(function, "__code__", None) is not code or _changes_arguments(code, frame.f_lasti):
        return None
    args, varargs, keywords, values = inspect.getargvalues(frame)
    count = code.co_argcount
    by_place = [values[name] for name in args[1:count]]
    by_name = {name: values[name] for name in args[count:]}
    if varargs is not None:
        by_place += values[varargs]
    if keywords is not None:
        by_name |= values[keywords]
    return tuple(by_place), by_name


def _changes_arguments(code: CodeType, place: int) -> bool:
    """Return whether code may have set one of its arguments before it reached a place.

    Args:
        code: The code of a function.
        place: The offset of the instruction that runs.
    """
    stars = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    names = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + stars])
    instructions = list(dis.get_instructions(code))
    loops = any("BACKWARD" in one.opname for one in instructions)
    for one in instructions:
        if one.opname in _STORES and one.argval in names and (loops or one.offset < place):
            return True
    return False
