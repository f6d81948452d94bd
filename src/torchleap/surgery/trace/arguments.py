"""Give forward() arguments like those of the example, with stand-ins in place of their tensors."""

import operator
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import is_namedtuple_instance

from ...distributed.torchrec import is_jagged, is_keyed
from ...sites.batches import (
    Adapter,
    adapter_of,
    attributes_of,
    holds_tensors,
    registered_adapter,
    with_attributes,
)
from ..runtime import class_of, parts_of
from ..trial.state import DEPTH, containers, unchanged
from .entries import Entries
from .inputs import Expected, Path

if TYPE_CHECKING:
    from .tracer import SiteTracer

_PLAIN = (bool, str, bytes, Enum, torch.dtype, torch.device, type(None))


_MORE = "torchleap_one_part_more"


class _UnknownError(Exception):
    """A part of an object of which it cannot be checked that other batches have the same."""


class Arguments:
    """The arguments of forward() while it is traced.

    A container is opened: forward() gets one of the same class, whose tensors are stand-ins. What
    it could learn from the container besides is recorded.

    Args:
        tracer: The tracer that is following the model.

    Attributes:
        entries: The dicts of the batch.
        fixed: What the trace takes from the batch as it is in the example.
    """

    def __init__(self, tracer: "SiteTracer") -> None:
        self.tracer = tracer
        self.entries: dict[Path, Entries] = {}
        self.fixed: list[Expected] = []
        self._objects: dict[int, tuple[Any, fx.Proxy]] = {}
        self._held: list[tuple[Any, Any]] = []
        self._views: list[Entries] = []  # dicts of a batch that record their questions elsewhere

    def open(self, proxy: fx.Proxy, value: Any, path: Path) -> Any:
        """Return an argument, or a part of one, for forward().

        Args:
            proxy: The stand-in for it.
            value: Its value in the example.
            path: Where it is found in the arguments.
        """
        if value is None:
            self.tracer.nothing.append(path)
            return None
        if registered_adapter(value) is None:
            if isinstance(value, Mapping):
                return self._open_dict(proxy, value, path)
            if isinstance(value, list | tuple) and (not value or holds_tensors(value)):
                return self._open_sequence(proxy, value, path)
        if adapter_of(value) is not None:
            return self._open_object(proxy, value, path)
        return self.tracer.opened(proxy)

    def node_of(self, value: Any) -> fx.Node | None:
        """Return the node of an object that was opened."""
        found = self._objects.get(id(value))
        return None if found is None else found[1].node

    def is_open(self, value: Any) -> bool:
        """Return whether a value is an object that was opened."""
        return id(value) in self._objects

    def changed(self) -> bool:
        """Return whether forward() has changed a container of the batch."""
        return not all(unchanged(*pair) for pair in self._held)

    def _open_dict(
        self, proxy: fx.Proxy, value: Mapping[Any, Any], path: Path, *, of_object: bool = False
    ) -> Entries:
        name, steps = path
        parts = {}
        for key, part in value.items():
            inner = (name, (*steps, ("item", key)))
            if of_object and _is_plain(part):
                parts[key] = self._same(part, inner)
            else:
                item = self.tracer.create_proxy("call_function", operator.getitem, (proxy, key), {})
                parts[key] = self.open(item, part, inner)
        self.entries[path] = Entries(parts)
        return self.entries[path]

    def _open_sequence(self, proxy: fx.Proxy, value: Any, path: Path) -> Any:
        name, steps = path
        self.fixed.append(Expected(path, "count", (len(value),)))
        parts = []
        for place, part in enumerate(value):
            item = self.tracer.create_proxy("call_function", operator.getitem, (proxy, place), {})
            parts.append(self.open(item, part, (name, (*steps, ("item", place)))))
        if is_namedtuple_instance(value):
            return type(value)(*parts)
        if isinstance(value, tuple):
            return tuple(parts)
        self._hold(parts)
        return parts

    def _open_object(self, proxy: fx.Proxy, value: Any, path: Path) -> Any:
        before = len(self.fixed), len(self.tracer.nothing)
        self.fixed.append(Expected(path, "class", value=class_of(value)))
        try:
            made = self._made(proxy, value, path)
        except _UnknownError:
            del self.fixed[before[0] :]
            del self.tracer.nothing[before[1] :]
            return proxy
        self._objects[id(made)] = made, proxy
        self._hold(made)
        return made

    def _made(self, proxy: fx.Proxy, value: Any, path: Path) -> Any:
        """Return an object like the example's, made of stand-ins."""
        name, steps = path
        registered = registered_adapter(value)
        if registered is not None:
            parts = self.tracer.create_proxy("call_function", parts_of, (proxy,), {})
            inner = (name, (*steps, ("parts", "")))
            given = registered.to_parts(value)
            entries = self._open_dict(parts, given, inner, of_object=True)
            made = registered.from_parts(entries, value)
            copies = bool(entries.walks) and copies_all_parts(registered, given, value)
            if copies and self._opened_again(made, entries):
                entries.walks.clear()
            return made
        plain: dict[str, Path] = {}
        opened: dict[str, Any] = {}
        for attribute, part in attributes_of(value).items():
            inner = (name, (*steps, ("attribute", attribute)))
            if _is_plain(part):
                plain[attribute] = inner
            else:
                opened[attribute] = self._attribute(proxy, attribute, part, inner)
        try:
            return self._watched(with_attributes(opened, value), plain)
        except Exception as error:  # the class's own code copies and changes its objects
            raise _UnknownError from error

    def _opened_again(self, made: Any, entries: Entries) -> bool:
        """Let a batch hold its parts in dicts that record the questions of forward().

        Returns:
            Whether it holds stand-ins nowhere else, where nothing would record these questions.
        """
        walks = list(entries.walks)
        parts = {name: entries[name] for name in entries.example}
        for attribute, held in attributes_of(made).items():
            if type(held) is dict and held and _is_part_of(held, parts):
                view = entries.replaced({}, only=held)
                self._views.append(view)
                object.__setattr__(made, attribute, view)
            elif not isinstance(held, fx.Proxy | Entries) and _holds_stand_ins(held):
                return False
        entries.walks[:] = walks
        return True

    def _attribute(self, proxy: fx.Proxy, name: str, value: Any, path: Path) -> Any:
        opens = isinstance(value, Mapping | list | tuple) or adapter_of(value) is not None
        known = isinstance(value, Tensor | int | float) or is_jagged(value) or is_keyed(value)
        if not opens and not known:
            raise _UnknownError
        part = self.tracer.create_proxy("call_function", getattr, (proxy, name), {})
        return self.open(part, value, path)

    def _watched(self, made: Any, plain: dict[str, Path]) -> Any:
        """Let an object record which of its plain attributes are read."""
        kind = type(made)
        arguments = self

        class Watched(kind):  # type: ignore[misc, valid-type]
            __slots__ = ()  # so that an object of `kind` can become one of this class

            def __getattribute__(self, name: str) -> Any:
                value = super().__getattribute__(name)
                if name in plain:
                    arguments._same(value, plain[name])
                return value

        Watched.__module__ = kind.__module__
        Watched.__qualname__ = kind.__qualname__
        object.__setattr__(made, "__class__", Watched)
        return made

    def _same(self, value: Any, path: Path) -> Any:
        """Return a value that other batches must share, since forward() may decide by it."""
        self.fixed.append(Expected(path, "like", value=repr(value)))
        return value

    def _hold(self, value: Any) -> None:
        """Remember what containers hold, to detect that forward() changes them."""
        seen = {id(entries) for entries in (*self.entries.values(), *self._views)}
        self._held += containers(value, DEPTH, seen)


def copies_all_parts(adapter: Adapter, parts: Mapping[str, Any], like: Any) -> bool:
    """Return whether one part more changes nothing in a batch but that it holds this part as well.

    Args:
        adapter: The functions that take a batch apart and make one.
        parts: The parts of the example.
        like: The example.
    """
    rows = [len(part) for part in parts.values() if isinstance(part, Tensor) and part.dim()]
    longer = torch.zeros(max(rows, default=0) + 1)
    try:
        without = attributes_of(adapter.from_parts(dict(parts), like))
        more = attributes_of(adapter.from_parts({_MORE: longer, **parts}, like))
    except Exception:  # the class's own code decides how its objects are made
        return False
    return without.keys() == more.keys() and all(_same_but_more(without[n], more[n]) for n in more)


def _same_but_more(one: Any, more: Any) -> bool:
    """Return whether two attributes are alike, but for the part that only the second one has."""
    if isinstance(one, dict) and isinstance(more, dict):
        rest = {name: part for name, part in more.items() if name != _MORE}
        return list(one) == list(rest) and all(_same_but_more(one[n], rest[n]) for n in one)
    if isinstance(one, Tensor):
        return isinstance(more, Tensor) and one.shape == more.shape and torch.equal(one, more)
    return one is more or (_is_number_or_plain(one) and repr(one) == repr(more))


def _is_part_of(held: dict[Any, Any], parts: Mapping[str, Any]) -> bool:
    """Return whether a dict holds parts of a batch under their own names."""
    return all(name in parts and parts[name] is held[name] for name in held)


def _holds_stand_ins(value: Any, depth: int = DEPTH) -> bool:
    """Return whether there is a stand-in among the elements or attributes of a value."""
    if isinstance(value, fx.Proxy):
        return True
    if depth < 0 or isinstance(value, Tensor | type):
        return False
    inside = list(attributes_of(value).values())
    if isinstance(value, Mapping):
        inside += value.values()
    elif isinstance(value, list | tuple | set):
        inside += value
    return any(_holds_stand_ins(part, depth - 1) for part in inside)


def _is_plain(value: Any) -> bool:
    """Return whether everything that can be known about a value is in its `repr`."""
    if isinstance(value, Mapping):
        return all(map(_is_number_or_plain, (*value.keys(), *value.values())))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_number_or_plain, value))
    return isinstance(value, _PLAIN)


def _is_number_or_plain(value: Any) -> bool:
    return isinstance(value, int | float) or _is_plain(value)
