"""Let functions of Python and PyTorch that refuse stand-ins take them while a model is traced.

Python requires a number from `len()`, `isinstance(x, Tensor)` asks for the class of a stand-in, and
`torch.zeros(rows, 4)` takes no stand-in among its sizes.
"""

import builtins
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx
from torch.overrides import is_tensor_method_or_property
from torch.utils._pytree import tree_leaves

from ..._common.text import words
from .proxies import KnownProxy

if TYPE_CHECKING:
    from .tracer import SiteTracer

FACTORIES = words("zeros ones full empty arange linspace eye tensor as_tensor tril_indices")
METHODS = words("expand repeat reshape tile unflatten view")  # those that take sizes
LIBRARIES = ("torch.", "torchleap.", "numpy.")  # their own code is to see what a stand-in is

_len = builtins.len
_isinstance = builtins.isinstance


@contextmanager
def answered(tracer: "SiteTracer") -> Iterator[None]:
    """Let `len`, `isinstance`, factories and methods of tensors take stand-ins in this context.

    Args:
        tracer: The tracer that is following the model.
    """
    is_tensor_method_or_property(Tensor.add)  # lists PyTorch's methods, once, before any changes
    held: list[tuple[Any, str, Any]] = [
        (builtins, "len", _length(tracer)),
        (builtins, "isinstance", _is),
        (torch, "is_floating_point", _is_floating_point),
    ]
    for name in FACTORIES:
        held.append((torch, name, _factory(getattr(torch, name), tracer)))
    for name in METHODS:
        held.append((Tensor, name, _method(getattr(Tensor, name), tracer)))
    before = [(owner, name, vars(owner).get(name)) for owner, name, _ in held]
    try:
        for owner, name, function in held:
            setattr(owner, name, function)
        yield
    finally:
        for owner, name, function in before:
            if function is None:  # inherited
                delattr(owner, name)
            else:
                setattr(owner, name, function)


def _length(tracer: "SiteTracer") -> Callable[[Any], Any]:
    """Return `len` that takes stand-ins, and batches whose `__len__` returns one."""

    def length(value: Any, /) -> Any:
        if type(value) is KnownProxy:
            return value.length()
        if tracer.arguments.is_open(value):
            return type(value).__len__(value)
        return _len(value)

    return length


def _is(value: Any, kinds: Any, /) -> bool:
    """Return what `isinstance` does, in the code of a model also for the value of a stand-in."""
    if type(value) is not KnownProxy or _isinstance(value, kinds):
        return _isinstance(value, kinds)
    caller = str(sys._getframe(1).f_globals.get("__name__"))
    return not f"{caller}.".startswith(LIBRARIES) and value.is_a(kinds)


def _is_floating_point(value: Any) -> bool:
    """Return what `torch.is_floating_point` does, also for a stand-in."""
    found: bool = value.is_floating_point()
    return found


def _factory(function: Callable[..., Any], tracer: fx.Tracer) -> Callable[..., Any]:
    """Return a factory of tensors that becomes a node if one of its arguments is a stand-in."""

    @wraps(function)
    def make(*args: Any, **kwargs: Any) -> Any:
        if any(type(leaf) is KnownProxy for leaf in tree_leaves((args, kwargs))):
            return tracer.create_proxy("call_function", function, args, kwargs)
        return function(*args, **kwargs)

    return make


def _method(function: Callable[..., Any], tracer: fx.Tracer) -> Callable[..., Any]:
    """Return a method of a fixed tensor that becomes a node if one of its sizes is a stand-in."""

    @wraps(function)
    def call(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if any(type(leaf) is KnownProxy for leaf in tree_leaves((args, kwargs))):
            inputs = (tensor, *args)
            return tracer.create_proxy("call_method", function.__name__, inputs, kwargs)
        return function(tensor, *args, **kwargs)

    return call
