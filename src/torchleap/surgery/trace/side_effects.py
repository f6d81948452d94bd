"""Find what modules do besides returning a value, since a graph does not show it.

Global variables that forward() changes are found by comparing them before and after (attributes:
see `trial.state`). A module that is not followed may change them on other batches only, so its
bytecode is searched for everything that it could change.
"""

import dis
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

from torch import nn
from torch.fx.proxy import TraceError

from ..._common.text import words
from ..trial.state import LEAVES, containers, unchanged

_CHANGES = frozenset(
    words(
        "append appendleft extend insert add update setdefault pop popitem remove clear "
        "__setitem__ discard"
    )
)
_PLAIN = (bool, int, float, str, type(None))
_SETTINGS = {"environ", "getenv", "get_default_dtype"}
_TYPES = frozenset(
    words(
        "FloatTensor DoubleTensor HalfTensor BFloat16Tensor LongTensor IntTensor ShortTensor "
        "CharTensor ByteTensor BoolTensor"
    )
)


class Globals:
    """The global variables and class attributes that the code of a model's modules can read.

    Args:
        model: The model; the variables are recorded, not copied.
    """

    def __init__(self, model: nn.Module) -> None:
        kinds = {kind for module in model.modules() for kind in _own_classes(module)}
        spaces = {id(space): space for kind in kinds for space in _spaces(kind)}
        self.held = [(space, dict(space)) for space in spaces.values()]
        self.inner: list[tuple[Any, Any]] = []
        for _, space in self.held:
            for value in space.values():
                if _is_state(value, space):
                    self.inner += containers(value, 1, set())

    def changed(self) -> bool:
        """Return whether any variable has changed since this object was made."""
        if not all(unchanged(dict(space), content) for space, content in self.held):
            return True
        return not all(unchanged(*pair) for pair in self.inner)


def _is_state(value: Any, space: dict[str, Any]) -> bool:
    """Return whether a global variable is a container, or an object of a class of its module."""
    return type(value) in (list, dict, set) or type(value).__module__ == space.get("__name__")


def _spaces(kind: type) -> Iterator[Any]:
    yield vars(kind)
    for function in vars(kind).values():
        if isinstance(function, FunctionType):
            yield function.__globals__


def _own_classes(module: nn.Module) -> list[type]:
    """Return the classes of a module that are not PyTorch's."""
    kinds = [kind for kind in type(module).__mro__ if kind is not object]
    return [kind for kind in kinds if not kind.__module__.startswith("torch.")]


def names_changed(module: nn.Module) -> tuple[set[str], set[str]]:
    """Return the names of the attributes and global variables that a module's code could change.

    Its constructor does not count.
    """
    attributes: set[str] = set()
    variables: set[str] = set()
    for code, space in _codes(module):
        instructions = list(dis.get_instructions(code))
        for place, instruction in enumerate(instructions):
            name = str(instruction.argval)
            if instruction.opname in ("STORE_ATTR", "DELETE_ATTR"):
                attributes.add(name)
            elif instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                variables.add(name)
            first = max(0, place - _reach(instruction))
            for loaded in instructions[first:place]:
                name = str(loaded.argval)
                if loaded.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                    attributes.add(name)
                elif loaded.opname == "LOAD_GLOBAL" and not isinstance(space.get(name), LEAVES):
                    variables.add(name)
    return attributes, variables


def _reach(instruction: dis.Instruction) -> int:
    """Return how many instructions before this one may load the object that it changes."""
    if instruction.opname in ("STORE_ATTR", "DELETE_ATTR"):
        return 1
    if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
        return 0
    if str(instruction.argval) in _CHANGES:
        return 1
    return 3 if instruction.opname in ("STORE_SUBSCR", "DELETE_SUBSCR") else 0


def globals_read(module: nn.Module) -> Iterator[tuple[str, str, Any]]:
    """Yield the global numbers, strings and Nones that a module's code reads.

    Each is the name of the Python module, the name of the variable, and its value.
    """
    for code, space in _codes(module):
        for instruction in dis.get_instructions(code):
            name = str(instruction.argval)
            if instruction.opname != "LOAD_GLOBAL" or name not in space:
                continue
            if isinstance(space[name], _PLAIN):
                yield str(space.get("__name__")), name, space[name]


def reads_environment(module: nn.Module) -> bool:
    """Return whether a module's code reads settings of the process, or types that a trace hides.

    `isinstance(x, torch.DoubleTensor)` checks for a dtype, but is False for every stand-in of a
    tensor.
    """
    for code, _ in _codes(module):
        names = set(code.co_names)
        if _SETTINGS & names or ("isinstance" in names and _TYPES & names):
            return True
    return False


def _codes(module: nn.Module) -> Iterator[tuple[CodeType, dict[str, Any]]]:
    """Yield the code of a module's methods, functions and hooks, each with its global variables."""
    functions: list[Any] = []
    for kind in _own_classes(module):
        functions += [value for name, value in vars(kind).items() if name != "__init__"]
    functions += module._forward_pre_hooks.values()
    functions += module._forward_hooks.values()
    functions += vars(module).values()
    plain = [getattr(function, "__func__", function) for function in functions]
    pending = [(f.__code__, f.__globals__) for f in plain if isinstance(f, FunctionType)]
    while pending:
        code, space = pending.pop()
        yield code, space
        pending += [(inner, space) for inner in code.co_consts if isinstance(inner, CodeType)]


@contextmanager
def watched(model: nn.Module, names: set[str], executing: Callable[[], bool]) -> Iterator[None]:
    """Refuse, within this context, that code which is followed reads certain attributes.

    Args:
        model: The model; the attributes of any of its modules count.
        names: Attributes that a module which is not followed could change.
        executing: Returns whether a module is run on the example; it may then read everything.
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
