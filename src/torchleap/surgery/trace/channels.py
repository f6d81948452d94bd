"""Side channels: what a module does besides returning a value, which a graph does not show.

Attributes, lists and global variables that forward() changes are found by comparing them before and after. A module that is
not followed may change them on other batches only, so what its code could change is read off its bytecode, and what it does to
its arguments is checked at each call.
"""

import dis
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.proxy import TraceError
from torch.utils._pytree import tree_leaves

from ..._common.errors import FieldError
from .inplace import versions

_CHANGES = {
    *(
        "append",
        "appendleft",
        "extend",
        "insert",
        "add",
        "update",
        "setdefault",
        "pop",
        "popitem",
        "remove",
        "clear",
    ),
    *("__setitem__", "discard"),
}
_LEAVES = (nn.Module, Tensor, type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
_PLAIN = (bool, int, float, str, type(None))
_SETTINGS = {"environ", "getenv", "get_default_dtype"}
_TYPES = {
    *("FloatTensor", "DoubleTensor", "HalfTensor", "BFloat16Tensor"),
    *("LongTensor", "IntTensor", "ShortTensor", "CharTensor", "ByteTensor", "BoolTensor"),
}
_MOST = 1000  # elements of a container that are looked into
_DEPTH = 4


class Attributes:
    """What the modules of a model hold, to see what forward() changes and to undo it."""

    def __init__(self, model: nn.Module) -> None:
        self.held = [
            (module, list(_containers(vars(module), _DEPTH, set()))) for module in model.modules()
        ]

    def changed(self) -> list[nn.Module]:
        """Return the modules on which forward() has set or changed an attribute."""
        return [module for module, held in self.held if not all(_unchanged(*pair) for pair in held)]

    def restore(self) -> None:
        """Undo it."""
        for _, held in self.held:
            for container, content in held:
                if not _unchanged(container, content):
                    _refill(container, content)


class Globals:
    """Global variables and class attributes that the code of a model's modules can see."""

    def __init__(self, model: nn.Module) -> None:
        kinds = {kind for module in model.modules() for kind in _own_classes(module)}
        spaces = {id(space): space for kind in kinds for space in _spaces(kind)}
        self.held = [(space, dict(space)) for space in spaces.values()]
        values = [
            value for _, space in self.held for value in space.values() if _is_state(value, space)
        ]
        self.inner = [pair for value in values for pair in _containers(value, 1, set())]

    def changed(self) -> bool:
        """Say whether forward() has changed any."""
        spaces = all(_unchanged(dict(space), content) for space, content in self.held)
        return not spaces or not all(_unchanged(*pair) for pair in self.inner)


def _is_state(value: Any, space: dict[str, Any]) -> bool:
    """Say whether a global variable is a container, or an object of a class that stands beside it."""
    return type(value) in (list, dict, set) or type(value).__module__ == space.get("__name__")


def _spaces(kind: type) -> Iterator[Any]:
    yield vars(kind)
    for function in vars(kind).values():
        if isinstance(function, FunctionType):
            yield function.__globals__


def _own_classes(module: nn.Module) -> list[type]:
    """Return the classes of a module that are not PyTorch's."""
    return [
        kind
        for kind in type(module).__mro__
        if kind is not object and not kind.__module__.startswith("torch.")
    ]


def _containers(value: Any, depth: int, seen: set[int]) -> Iterator[tuple[Any, Any]]:
    """Yield everything that can be changed in a value, each with a copy of its content."""
    if isinstance(value, _LEAVES) or id(value) in seen or depth < 0:
        return
    seen.add(id(value))
    inside: list[Any] = []
    if isinstance(value, list | set | dict | tuple):
        inside = list(value.values()) if isinstance(value, dict) else list(value)
        if not isinstance(value, tuple):
            yield value, _content(value)
    elif type(value).__module__ != "builtins" and isinstance(
        getattr(value, "__dict__", None), dict
    ):
        inside = list(vars(value).values())
        yield vars(value), dict(vars(value))
    for part in inside if len(inside) <= _MOST else ():
        yield from _containers(part, depth - 1, seen)


def _content(container: Any) -> Any:
    kind = next(kind for kind in (list, set, dict) if isinstance(container, kind))
    return kind(container)


def _unchanged(container: Any, content: Any) -> bool:
    if isinstance(container, dict):
        skipped = {"training"} if "_parameters" in container else set()
        names = [name for name in container if name not in skipped]
        return names == [name for name in content if name not in skipped] and all(
            container[name] is content[name] for name in names
        )
    if isinstance(container, set):
        return bool(container == content)
    return len(container) == len(content) and all(
        a is b for a, b in zip(container, content, strict=True)
    )


def _refill(container: Any, content: Any) -> None:
    if isinstance(container, list):
        container[:] = content
    else:
        container.clear()
        container.update(content)


def names_changed(module: nn.Module) -> tuple[set[str], set[str]]:
    """Return the attributes and the global variables that a module's code could change, by name, but for its constructor."""
    attributes: set[str] = set()
    variables: set[str] = set()
    for code, space in _codes(module):
        found = list(dis.get_instructions(code))
        for place, instruction in enumerate(found):
            name = str(instruction.argval)
            within = 0
            if instruction.opname in ("STORE_ATTR", "DELETE_ATTR"):
                attributes.add(name)
                within = 1
            elif instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                variables.add(name)
            elif name in _CHANGES:
                within = 1
            elif instruction.opname in ("STORE_SUBSCR", "DELETE_SUBSCR"):
                within = 3
            before = found[max(0, place - within) : place]
            attributes |= {
                str(each.argval) for each in before if each.opname in ("LOAD_ATTR", "LOAD_METHOD")
            }
            loaded = {str(each.argval) for each in before if each.opname == "LOAD_GLOBAL"}
            variables |= {each for each in loaded if not isinstance(space.get(each), _LEAVES)}
    return attributes, variables


def globals_read(module: nn.Module) -> Iterator[tuple[str, str, Any]]:
    """Yield the global variables that a module's code reads and that are numbers, strings or None: where, name and value."""
    for code, space in _codes(module):
        for instruction in dis.get_instructions(code):
            name = str(instruction.argval)
            if (
                instruction.opname == "LOAD_GLOBAL"
                and name in space
                and isinstance(space[name], _PLAIN)
            ):
                yield str(space.get("__name__")), name, space[name]


def reads_environment(module: nn.Module) -> bool:
    """Say whether code asks for what a process may change at any time, or for types that no trace can answer.

    `isinstance(x, torch.DoubleTensor)` asks for a dtype, but is False of everything that stands for a tensor.
    """
    names = [set(code.co_names) for code, _ in _codes(module)]
    return any(_SETTINGS & own or ("isinstance" in own and _TYPES & own) for own in names)


def expect_globals(expected: tuple[tuple[str, str, Any], ...]) -> None:
    """Refuse a call where global variables of the model's code are no longer what they were when it was pruned.

    Args:
        expected: Of each variable: its module, its name and its value. A module that is not there is not imported.
    """
    if torch.compiler.is_compiling():
        return
    for where, name, value in expected:
        found = getattr(sys.modules.get(where), name, value)
        if found is not value and found != value:
            raise FieldError(
                f"Expected the global variable {where}.{name} to be {value!r}, as when the model was pruned, but found "
                f"{found!r}, and forward() may depend on that. Set it back, or prune again."
            )


def _codes(module: nn.Module) -> Iterator[tuple[CodeType, dict[str, Any]]]:
    """Yield the code of a module's own methods, of functions that it holds and of its hooks, with their global variables."""
    functions = [
        f for kind in _own_classes(module) for name, f in vars(kind).items() if name != "__init__"
    ]
    functions += [
        *module._forward_pre_hooks.values(),
        *module._forward_hooks.values(),
        *vars(module).values(),
    ]
    found = [getattr(f, "__func__", f) for f in functions]
    pending = [(f.__code__, f.__globals__) for f in found if isinstance(f, FunctionType)]
    while pending:
        code, space = pending.pop()
        yield code, space
        pending += [
            (constant, space) for constant in code.co_consts if isinstance(constant, CodeType)
        ]


@contextmanager
def watched(model: nn.Module, names: set[str], executing: Callable[[], bool]) -> Iterator[None]:
    """Refuse, within this context, reads of these attributes of any module of a model by code that is followed.

    Args:
        model: The model.
        names: Attributes that a module which is not followed could change.
        executing: Says whether a module is run on the example, and may read what it wants.
    """
    if not names:
        yield
        return

    modules = {id(module) for module in model.modules()}

    def read(module: nn.Module, name: str) -> Any:
        if name in names and id(module) in modules and not executing():
            raise TraceError(f"it reads .{name}, which another module may change")
        return object.__getattribute__(module, name)

    nn.Module.__getattribute__ = read  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del nn.Module.__getattribute__


def call_unchanged(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a module that was not followed, and refuse a batch on which it changes its arguments.

    Others read them too, and on the example it did not change them.
    """
    inputs = (args, kwargs)
    if torch.compiler.is_compiling() or any(
        isinstance(leaf, fx.Proxy) for leaf in tree_leaves(inputs)
    ):
        return module(*args, **kwargs)
    parts = [
        part for value in (*args, *kwargs.values()) for part in _containers(value, _DEPTH, set())
    ]
    before = versions(inputs)
    output = module(*args, **kwargs)
    if versions(inputs) != before or not all(_unchanged(*part) for part in parts):
        raise FieldError(
            f"Expected {type(module).__name__} to leave its input alone, as on the example that the model was pruned with, but "
            "found that it changes it on this batch. Prune with example= such a batch."
        )
    return output
