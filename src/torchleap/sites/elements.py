"""Elements of the values that submodules receive and return: take one out, put another in."""

import copy
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from typing import Any

from .._common.errors import AttachError, nearest


def take(value: Any, part: int | str, label: str) -> Any:
    """Return one element of a tuple, list, dict or named tuple.

    Args:
        value: The tuple, list, dict or named tuple.
        part: The index or the name of the element.
        label: How messages call the place.
    """
    names = names_of(value)
    if names is not None and part in names:
        return value[part] if isinstance(value, Mapping) else getattr(value, str(part))
    if isinstance(part, int) and isinstance(value, tuple | list):
        with suppress(IndexError):
            return value[part]
    raise AttachError(f"{label}: there is no part {part!r}, but found {_kind(value, part)}")


def put(value: Any, part: int | str, element: Any, label: str) -> Any:
    """Return a copy of a tuple, list, dict or named tuple with another element."""
    if isinstance(value, Mapping):
        return with_entries(value, {part: element}, label)
    if isinstance(part, str):
        return value._replace(**{part: element})
    elements = list(value)
    elements[part] = element
    return like(value, elements)


def like(value: Any, elements: list[Any]) -> Any:
    """Return a tuple, list or named tuple of the same kind with other elements."""
    if hasattr(value, "_fields"):
        return type(value)(*elements)
    return type(value)(elements)


def with_entries(value: Mapping[Any, Any], entries: Mapping[Any, Any], label: str) -> Any:
    """Return a copy of a dict in which some entries are replaced; their order remains."""
    if type(value) is dict:
        return {**value, **entries}
    if not isinstance(value, MutableMapping):
        raise AttachError(
            f"{label}: expected a dict that can be copied and changed, but found "
            f"{type(value).__name__}."
        )
    output = copy.copy(value)
    output.update(entries)
    return output


def names_of(value: Any) -> list[Any] | None:
    """Return the names of a dict's entries or a named tuple's elements; None if it has none."""
    if isinstance(value, Mapping):
        return list(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(value._fields)
    return None


def _kind(value: Any, part: int | str) -> str:
    """Return what a value is, and which parts it has, as the end of a message."""
    kind = type(value).__name__
    names = names_of(value)
    if names is not None:
        return f"a {kind}. {nearest(str(part), [str(name) for name in names])}"
    if isinstance(value, tuple | list):
        return f"a {kind} of {len(value)}. Choose an index from 0 to {len(value) - 1}."
    return f"one value ({kind}). Leave out part=."
