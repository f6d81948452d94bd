"""Batches that are objects of a class of their own: find the tensors in them, and put others there.

PyTorch's `tree_map` enters lists, tuples and dicts, but not the batch classes of libraries. Here a
class is entered by the functions that `register_batch` was given, or else by its attributes.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from torch import Tensor, fx, nn
from torch.utils._pytree import (
    SUPPORTED_NODES,
    TreeSpec,
    is_namedtuple_instance,
    tree_flatten,
    tree_unflatten,
)

from .._common.errors import AttachError
from ..distributed.torchrec import is_jagged, is_keyed

ToParts = Callable[[Any], Mapping[str, Any]]
FromParts = Callable[[Mapping[str, Any], Any], Any]
DEPTH = 3  # levels of containers and objects within an object that are searched for tensors


@dataclass(frozen=True)
class Adapter:
    """Two functions that take a batch of a class apart, and make one again.

    Attributes:
        to_parts: Returns everything in a batch that a model reads, by name.
        from_parts: Returns a batch with other parts, given these and a batch to resemble.
    """

    to_parts: ToParts
    from_parts: FromParts


_registered: dict[type, Adapter] = {}


def register_batch(kind: type, to_parts: ToParts, from_parts: FromParts) -> None:
    """Let surgery see the tensors in batches of a class, whose objects a model takes.

    Classes whose objects can be copied, and whose attributes are tensors, plain values and
    containers of these, need no registration. Register a class whose attributes depend on each
    other, such as a number of rows beside the tensors:

        def to_parts(batch):
            return {"ids": batch.ids, "mask": batch.mask}

        def from_parts(parts, like):
            return Batch(parts["ids"], parts["mask"], rows=len(parts["ids"]))

        tl.register_batch(Batch, to_parts, from_parts)

    A pruned model reads such a batch by `to_parts`, and takes a dict of its parts in its place.

    Args:
        kind: The class; subclasses are included.
        to_parts: Returns everything that a model reads of a batch, by name: tensors, None, plain
            values, and lists, tuples and dicts of these.
        from_parts: Returns a batch of the class with these parts. Its second argument is the batch
            that they replace, to copy everything else from. While a model is traced, the parts are
            stand-ins for tensors, so it must not decide by their values.
    """
    if not isinstance(kind, type) or not callable(to_parts) or not callable(from_parts):
        raise AttachError(
            "Expected register_batch(kind, to_parts, from_parts) with a class and two functions, "
            f"but found {kind!r}, {to_parts!r} and {from_parts!r}."
        )
    _registered[kind] = Adapter(to_parts, from_parts)


def registered_adapter(value: Any) -> Adapter | None:
    """Return the functions that the class of a value was registered with, if it was."""
    for kind in type(value).__mro__ if _registered else ():
        if kind in _registered:
            return _registered[kind]
    return None


def adapter_of(value: Any) -> Adapter | None:
    """Return how a value is taken apart; None if it is a leaf, or PyTorch enters it itself."""
    if (
        isinstance(value, (Tensor, nn.Module, fx.Proxy, type))
        or is_jagged(value)
        or is_keyed(value)
    ):
        return None
    known = registered_adapter(value)
    if known is not None or type(value) in SUPPORTED_NODES or is_namedtuple_instance(value):
        return known
    if isinstance(value, dict):
        return _DICT
    attributes = attributes_of(value)
    return _OBJECT if holds_tensors(attributes) and _can_be_copied(value, attributes) else None


def _can_be_copied(value: Any, attributes: Mapping[str, Any]) -> bool:
    try:
        with_attributes(attributes, value)
    except Exception:  # the class's own code decides how its objects are copied
        return False
    return True


def holds_tensors(value: Any, depth: int = DEPTH) -> bool:
    """Return whether there is a tensor in the attributes or elements of a value."""
    if isinstance(value, Tensor):
        return True
    if depth < 0 or isinstance(value, nn.Module | type):
        return False
    if isinstance(value, Mapping):
        inside = list(value.values())
    elif isinstance(value, list | tuple):
        inside = list(value)
    else:
        inside = list(attributes_of(value).values())
    return any(holds_tensors(part, depth - 1) for part in inside)


def attributes_of(batch: Any) -> dict[str, Any]:
    """Return the attributes that an object holds, by name."""
    found = {name: getattr(batch, name) for name in _slots_of(type(batch)) if hasattr(batch, name)}
    if is_dataclass(batch) and not isinstance(batch, type):
        found |= {field.name: getattr(batch, field.name) for field in fields(batch)}
    return found | getattr(batch, "__dict__", {})


def _slots_of(kind: type) -> list[str]:
    """Return the names that a class and its parents list in `__slots__`."""
    found = []
    for base in kind.__mro__ if kind.__module__ != "builtins" else ():
        own = vars(base).get("__slots__", ())
        found += [own] if isinstance(own, str) else list(own)
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def with_attributes(parts: Mapping[str, Any], like: Any) -> Any:
    """Return a copy of an object with other values of some attributes."""
    batch = copy.copy(like)
    for name in parts:
        object.__setattr__(batch, name, parts[name])
    return batch


def _with_entries(parts: Mapping[str, Any], like: Any) -> Any:
    batch = copy.copy(like)
    for name in parts:
        batch[name] = parts[name]
    return batch


_OBJECT = Adapter(attributes_of, with_attributes)
_DICT = Adapter(dict, _with_entries)


@dataclass(frozen=True)
class Form:
    """How the leaves of a batch are put together.

    Attributes:
        spec: The lists, tuples and dicts.
        inside: By the place of a leaf among these: an object, how it is taken apart, and the form
            of its parts.
        counts: The number of leaves that each of these leaves stands for.
    """

    spec: TreeSpec
    inside: dict[int, tuple[Any, Adapter, "Form"]]
    counts: tuple[int, ...]


def flatten(batch: Any, depth: int = DEPTH) -> tuple[list[Any], Form]:
    """Return the tensors and other values of a batch, also those inside of objects, and its form.

    A jagged tensor counts as one value.

    Args:
        batch: The batch.
        depth: How many levels of objects within objects to enter; they may refer to each other.
    """
    outer, spec = tree_flatten(batch, is_leaf=is_jagged)
    inside: dict[int, tuple[Any, Adapter, Form]] = {}
    leaves: list[Any] = []
    counts: list[int] = []
    for place, leaf in enumerate(outer):
        adapter = adapter_of(leaf) if depth else None
        found = [leaf]
        if adapter is not None:
            found, form = flatten(dict(adapter.to_parts(leaf)), depth - 1)
            inside[place] = (leaf, adapter, form)
        leaves += found
        counts.append(len(found))
    return leaves, Form(spec, inside, tuple(counts))


def unflatten(leaves: list[Any], form: Form) -> Any:
    """Return a batch of this form with other leaves."""
    outer: list[Any] = []
    start = 0
    for place, count in enumerate(form.counts):
        found = leaves[start : start + count]
        start += count
        if place in form.inside:
            like, adapter, inner = form.inside[place]
            outer.append(adapter.from_parts(unflatten(found, inner), like))
        else:
            outer.extend(found)
    return tree_unflatten(outer, form.spec)


def map_leaves(function: Callable[[Any], Any], batch: Any) -> Any:
    """Return a batch whose tensors and other values went through a function."""
    leaves, form = flatten(batch)
    return unflatten([function(leaf) for leaf in leaves], form)
