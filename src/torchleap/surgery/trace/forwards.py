"""Follow a forward() that was replaced on the instance, as by `model.forward = wrapper`."""

import inspect
from collections.abc import Sequence
from typing import Any

from torch import nn

from ...sites.calls import Call

KIND = inspect.Parameter
STARS: dict[Any, str] = {KIND.VAR_POSITIONAL: "*", KIND.VAR_KEYWORD: "**"}


def is_replaced(module: nn.Module) -> bool:
    """Return whether the forward() of a module is not that of its class."""
    return "forward" in vars(module)


def is_closure_with_stars(function: Any) -> bool:
    """Return whether a function takes `*args` or `**named` and has a closure, as by `super()`.

    `torch.fx` makes functions with stars again, without their closure.
    """
    kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
    return not kinds.isdisjoint(STARS) and bool(function.__code__.co_freevars)


def call_own_forward(module: nn.Module, *values: Any) -> Any:
    """Call the forward() of a module with one value for each of its parameters, in their order."""
    args, kwargs = call_with(inspect.signature(module.forward), values)
    return module.forward(*args, **kwargs)


def call_with(signature: inspect.Signature, values: Sequence[Any]) -> Call:
    """Return the arguments by position and by name that give each parameter its value.

    Args:
        signature: The signature of a function.
        values: A value for each parameter, in their order: a tuple for `*args`, a dict for
            `**kwargs`.
    """
    by_place: list[Any] = []
    by_name: dict[str, Any] = {}
    for parameter, value in zip(signature.parameters.values(), values, strict=True):
        if parameter.kind is KIND.VAR_POSITIONAL:
            by_place += value
        elif parameter.kind is KIND.VAR_KEYWORD:
            by_name |= value
        elif parameter.kind is KIND.KEYWORD_ONLY:
            by_name[parameter.name] = value
        else:
            by_place.append(value)
    return tuple(by_place), by_name


def values_of(signature: inspect.Signature, call: Call) -> list[Any]:
    """Undo `call_with`."""
    args, kwargs = call
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return list(bound.arguments.values())
