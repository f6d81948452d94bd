"""Checks of settings."""

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from .errors import TorchleapError, is_number, is_seed, is_whole, nearest, refuse_settings

__all__ = ["check_types", "is_number", "is_seed", "is_whole", "refuse_settings", "with_settings"]

Chosen = TypeVar("Chosen")  # a frozen dataclass of settings


def with_settings(chosen: Chosen, changes: Mapping[str, Any]) -> Chosen:
    """The same settings but for some, given by name; an unknown name is refused with the nearest known one."""
    known = [field.name for field in fields(chosen)]  # type: ignore[arg-type]
    for name in changes:
        if name not in known:
            raise TorchleapError(
                f"{type(chosen).__name__} has no setting {name!r}. {nearest(str(name), known)}"
            )
    return replace(chosen, **changes)  # type: ignore[type-var]


def check_types(chosen: object, *, also: Mapping[str, bool] | None = None) -> None:
    """Refuse settings that are not of the type they are declared with, and numbers below 0, all at once.

    Args:
        also: More sentences, and whether they hold.
    """
    kinds = get_type_hints(type(chosen))
    values = {field.name: getattr(chosen, field.name) for field in fields(chosen)}  # type: ignore[arg-type]
    rules = {
        f"{name} must be {_wanted(kinds[name])}, but is {value!r}": _is(kinds[name], value)
        for name, value in values.items()
    }
    refuse_settings({**rules, **(also or {})} if all(rules.values()) else rules)


_WANTED = {
    bool: "True or False",
    int: "a whole number of at least 0",
    float: "a number of at least 0",
    str: "a text",
    type(None): "None",
}


def _wanted(kind: Any) -> str:
    if get_origin(kind) is UnionType:
        return " or ".join(map(_wanted, get_args(kind)))
    return (
        " or ".join(map(repr, get_args(kind)))
        if get_origin(kind) is Literal
        else _WANTED.get(kind, str(kind))
    )


def _is(kind: Any, value: Any) -> bool:
    if get_origin(kind) is UnionType:
        return any(_is(one, value) for one in get_args(kind))
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_is(get_args(kind)[0], one) for one in value)
    if kind is int:
        return is_whole(value) and value >= 0
    if kind is float:
        return is_number(value) and 0 <= value < math.inf
    return isinstance(value, kind)
