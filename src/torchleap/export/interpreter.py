"""Run a graph from a file step by step, without ever making Python source of the file."""

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import itemgetter
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx._symbolic_trace import is_fx_symbolic_tracing

from .._common.errors import SurgeryError
from ..distributed.torchrec import is_jagged, is_keyed
from ..surgery.trace.autocast import Settings, settings, within_autocast
from .bags import refuse_outside
from .limits import COUNTS, refuse_huge

FUNCTION, METHOD, LAYER, ATTRIBUTE, PLACE = range(5)


@dataclass(frozen=True)
class Ref:
    """The result of an earlier node."""

    name: str


class Device:
    """Stands for the device of the model's weights."""


DEVICE = Device()


class Node(NamedTuple):
    """One operation of a checked graph.

    Attributes:
        target: A function, the name of a method or argument, or the path of a layer or tensor.
        args: Constants and `Ref`s, possibly within lists, tuples, dicts and slices.
    """

    name: str
    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Step(NamedTuple):
    """A call, with the places of its arguments and its result among the values of a run.

    Attributes:
        kind: FUNCTION, METHOD, LAYER, ATTRIBUTE, or PLACE for the device of the weights.
        target: The function, the name of the method, or the path of the layer or attribute.
        places: The places of the arguments; those of the keywords `names` come last.
        take: Takes the arguments from the values; C code, since each step calls it.
        fixed: Keywords that are constants.
        names: Keywords that are results of other steps.
        place: The place of the result.
        free: Places that no later step reads.
        is_limited: Whether the size of the result is checked first.
    """

    kind: int
    target: Any
    places: tuple[int, ...]
    take: Any
    fixed: dict[str, Any]
    names: tuple[str, ...]
    place: int
    free: tuple[int, ...]
    is_limited: bool


class Program:
    """The steps of a graph, prepared once, so that a call costs one loop over them.

    Args:
        nodes: The checked nodes of the graph.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        inputs = [node for node in nodes if node.op == "placeholder"]
        self.arguments = _named(inputs)
        self.has_stars = any(str(node.target).startswith("*") for node in inputs)
        self.autocast = _autocast(nodes)
        self.count = len(inputs)
        self.places = {node.name: place for place, node in enumerate(inputs)}
        self.later: list[Any] = []  # constants, and room for results
        self.steps: list[Step] = []
        for node in nodes:
            if node.target is not settings:
                self._add(node)
        self._free_early()

    def _add(self, node: Node) -> None:
        if node.op == "output":
            self.result = self._place(node.args[0])
        elif node.op == "call_function":
            self.places[node.name] = self._step(FUNCTION, node.target, node.args, node.kwargs)
        elif node.op == "call_method":
            self.places[node.name] = self._step(METHOD, node.target, node.args, node.kwargs)
        elif node.op == "call_module":
            path = tuple(node.target.split("."))
            self.places[node.name] = self._step(LAYER, path, node.args, node.kwargs)
        elif node.op == "get_attr":
            *parents, last = node.target.split(".")
            self.places[node.name] = self._step(ATTRIBUTE, (tuple(parents), last), (), {})

    def _step(self, kind: int, target: Any, args: Iterable[Any], kwargs: dict[str, Any]) -> int:
        names = tuple(name for name, value in kwargs.items() if _varies(value))
        fixed = {name: value for name, value in kwargs.items() if name not in names}
        places = tuple(self._place(value) for value in (*args, *(kwargs[name] for name in names)))
        result = self._room(None)
        is_limited = kind in (FUNCTION, METHOD) and target in COUNTS
        take = _taker(places)
        self.steps.append(Step(kind, target, places, take, fixed, names, result, (), is_limited))
        return result

    def _room(self, value: Any) -> int:
        self.later.append(value)
        return self.count + len(self.later) - 1

    def _place(self, value: Any) -> int:
        """Return the place of an argument; a step of its own makes one that contains results."""
        if isinstance(value, Ref):
            return self.places[value.name]
        if value is DEVICE:
            return self._step(PLACE, None, (), {})
        if not _varies(value):
            return self._room(value)
        if isinstance(value, slice):
            return self._step(FUNCTION, slice, (value.start, value.stop, value.step), {})
        if isinstance(value, dict):
            return self._step(FUNCTION, partial(_dict_of, tuple(value)), value.values(), {})
        make = _list_of if isinstance(value, list) else _tuple_of
        return self._step(FUNCTION, make, value, {})

    def _free_early(self) -> None:
        """Free each result after the last step that reads it."""
        kept = {self.result}
        for at, value in enumerate(self.later):
            if value is not None:
                kept.add(self.count + at)
        for at in reversed(range(len(self.steps))):
            step = self.steps[at]
            free = set(step.places) - kept
            kept |= free
            if step.place not in kept:  # nothing reads it
                free.add(step.place)
            self.steps[at] = step._replace(free=tuple(free))

    def run(self, model: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Compute the output for the arguments of a call."""
        if self.autocast is None:
            return self._run(model, given, named)
        with within_autocast(self.autocast):
            return self._run(model, given, named)

    def _run(self, model: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if named or self.has_stars or len(given) != self.count:
            bound = inspect.signature(self.arguments).bind(model, *given, **named)
            bound.apply_defaults()
            given = tuple(bound.arguments.values())[1:]
            named = {}
        values = [*given, *self.later]
        compiling = torch.compiler.is_compiling()  # torch.compile cannot follow an itemgetter
        checks = not compiling and not is_fx_symbolic_tracing()
        for kind, target, places, take, fixed, names, place, free, is_limited in self.steps:
            taken = tuple([values[at] for at in places]) if compiling else take(values)
            if names:
                count = len(taken) - len(names)
                fixed = {**fixed, **dict(zip(names, taken[count:], strict=True))}
                taken = taken[:count]
            if checks and is_limited:
                refuse_huge(target, taken, fixed, (given, named))
            if kind == FUNCTION:
                found = target(*taken, **fixed)
            elif kind == LAYER:
                layer = model
                for name in target:
                    layer = layer._modules[name]  # type: ignore[assignment]
                if type(layer) is nn.EmbeddingBag and not compiling:
                    refuse_outside(layer, taken, fixed)
                found = layer(*taken, **fixed)
            elif kind == METHOD:
                if checks and not isinstance(taken[0], Tensor):
                    _refuse_others(taken[0], target)
                found = getattr(taken[0], target)(*taken[1:], **fixed)
            elif kind == PLACE:
                found = next(chain(model.parameters(), model.buffers())).device
            else:
                found = _attribute(model, *target)
            taken = None
            values[place] = found
            for old in free:
                values[old] = None
        return values[self.result]


def _named(inputs: Sequence[Node]) -> FunctionType:
    """Return a function that is never called, but has the signature of forward().

    Args:
        inputs: The arguments, of which the last may be `*args` and `**named`.
    """

    def nothing() -> None: ...

    flags = {"*": inspect.CO_VARARGS, "**": inspect.CO_VARKEYWORDS}
    given = [str(node.target) for node in inputs]
    stars = [name[: name.count("*")] for name in given if name.startswith("*")]
    names = ("self", *(name.lstrip("*") for name in given))
    code = nothing.__code__.replace(
        co_argcount=len(names) - len(stars),
        co_nlocals=len(names),
        co_varnames=names,
        co_flags=nothing.__code__.co_flags | sum(flags[star] for star in stars),
    )
    defaults = tuple(node.args[0] for node in inputs if node.args)
    return FunctionType(code, {}, "forward", defaults)


def _autocast(nodes: Sequence[Node]) -> Settings | None:
    """Return the settings of autocast around all operations; None if there are none."""
    for node in nodes:
        if node.target is settings:
            try:
                found: Settings = settings(*node.args)
                return found
            except (TypeError, ValueError) as error:
                raise SurgeryError(
                    f"The manifest describes a model with {error}, which torchleap does not build."
                ) from error
    return None


def _varies(value: Any) -> bool:
    """Return whether an argument contains the result of a node."""
    if isinstance(value, slice):
        return any(map(_varies, (value.start, value.stop, value.step)))
    if isinstance(value, dict):
        return any(map(_varies, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_varies, value))
    return isinstance(value, Ref) or value is DEVICE


def _refuse_others(value: Any, method: str) -> None:
    """Refuse a method of anything but a tensor, such as of a string of the batch."""
    if is_keyed(value) or is_jagged(value):
        return
    raise SurgeryError(
        f"The manifest describes a model that calls {method}() of a {type(value).__name__}, which "
        "torchleap does not run: expected a tensor."
    )


def _taker(places: Sequence[int]) -> Any:
    """Return a function that takes the values at some places, as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1) if places else slice(0))


def _attribute(model: nn.Module, parents: tuple[str, ...], name: str) -> Any:
    for parent in parents:
        model = model._modules[parent]  # type: ignore[assignment]
    return getattr(model, name)


def _list_of(*parts: Any) -> list[Any]:
    return list(parts)


def _tuple_of(*parts: Any) -> tuple[Any, ...]:
    return parts


def _dict_of(keys: tuple[Any, ...], *values: Any) -> dict[Any, Any]:
    return dict(zip(keys, values, strict=True))
