"""Functions in copies of models: let them refer to the copies instead of the originals.

`copy.deepcopy` keeps functions as they are, so that a closure in a copied model, such as a
`forward` that was replaced on the instance, would go on using the modules of the original.
"""

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

FUNCTIONS = (FunctionType, MethodType, partial)
DEPTH = 6  # levels of containers and objects within an object that are searched
LARGEST = 10_000  # elements of a container that is searched
NOT_SET = object()  # stands for the value of a variable that has none yet


def content(cell: CellType) -> Any:
    """Return the value of a variable in a closure; `NOT_SET` before it is set."""
    try:
        return cell.cell_contents
    except ValueError:
        return NOT_SET


def referred(value: Any) -> list[Any]:
    """Return what a function or a container refers to directly; nothing for other objects."""
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, FunctionType):
        found = [content(cell) for cell in value.__closure__ or ()]
        found += value.__defaults__ or ()
        found += (value.__kwdefaults__ or {}).values()
        return found + list(vars(value).values())
    if isinstance(value, weakref.ref):
        return [value()]
    if isinstance(value, dict):
        return [*value.keys(), *value.values()] if len(value) <= LARGEST else []
    if isinstance(value, list | tuple | set | frozenset):
        return list(value) if len(value) <= LARGEST else []
    return []


def refers(
    value: Any, is_one: Callable[[Any], bool], *, opens: Callable[[Any], bool] | None = None
) -> bool:
    """Return whether a function, or anything that it refers to, is one of certain objects.

    Args:
        value: The function, or another value.
        is_one: Returns whether an object is one of them.
        opens: Returns whether the attributes of an object are searched too; None searches none.
    """
    seen: dict[int, Any] = {}  # holds the objects, so that no id is used again
    pending = [value]
    while pending and len(seen) < LARGEST:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen[id(one)] = one
        if is_one(one):
            return True
        pending += referred(one)
        if opens is not None and not isinstance(one, FUNCTIONS) and opens(one):
            pending += list(getattr(one, "__dict__", {}).values())
    return False


class Rebuild:
    """Make functions again that refer to copies instead of the originals.

    Args:
        memo: The memo of the copy.deepcopy that has made the copies.
    """

    def __init__(self, memo: dict[int, Any]) -> None:
        self.memo = memo
        self.copies = {id(copy) for copy in memo.values()}
        self.made: dict[int, tuple[Any, Any]] = {}  # by id: an old value, and the new one
        self.seen: dict[int, Any] = {}

    def rebuild_in(self, attributes: Iterable[dict[str, Any]]) -> None:
        """Rebuild all functions in the attributes of copied objects, in place."""
        for each in attributes:
            self._fix(each, DEPTH, is_copy=True)

    def _fix(self, value: Any, depth: int, *, is_copy: bool = False) -> Any:
        """Return a value inside of a copy with functions rebuilt; containers change in place."""
        if isinstance(value, (*FUNCTIONS, weakref.ref)):
            return self.rebuilt(value)
        if type(value) is tuple and len(value) <= LARGEST and depth >= 0:
            parts = [self._fix(part, depth - 1) for part in value]
            is_same = all(one is other for one, other in zip(parts, value, strict=True))
            return value if is_same else tuple(parts)
        if depth < 0 or id(value) in self.seen or isinstance(value, nn.Module | Tensor | type):
            return value
        if not is_copy and id(value) not in self.copies:
            return value
        self.seen[id(value)] = value
        if isinstance(value, dict) and len(value) <= LARGEST:
            for key, part in list(value.items()):
                fixed = self._fix(part, depth - 1)
                if fixed is not part:
                    value[key] = fixed
        elif isinstance(value, list) and len(value) <= LARGEST:
            value[:] = [self._fix(part, depth - 1) for part in value]
        elif isinstance(getattr(value, "__dict__", None), dict):
            self._fix(vars(value), depth - 1, is_copy=True)
        return value

    def rebuilt(self, value: Any) -> Any:
        """Return a value that refers to the copies; the value itself if it needs no change."""
        if id(value) in self.memo:  # also what the copy shares with the original
            return self.memo[id(value)]
        if id(value) in self.made:
            return self.made[id(value)][1]
        if not refers(value, self._is_replaced):
            return value
        if isinstance(value, FunctionType):
            return self._function(value)
        made: Any = value
        if isinstance(value, partial):
            arguments = [self.rebuilt(one) for one in value.args]
            named = {name: self.rebuilt(one) for name, one in value.keywords.items()}
            made = type(value)(self.rebuilt(value.func), *arguments, **named)
        elif isinstance(value, MethodType):
            made = MethodType(self.rebuilt(value.__func__), self.rebuilt(value.__self__))
        elif isinstance(value, weakref.ref):
            made = weakref.ref(self.rebuilt(value()))
        elif type(value) is dict:
            made = {self.rebuilt(key): self.rebuilt(part) for key, part in value.items()}
        elif type(value) in (list, tuple, set, frozenset):
            made = type(value)(self.rebuilt(part) for part in value)
        self.made[id(value)] = value, made
        return made

    def _is_replaced(self, value: Any) -> bool:
        return id(value) in self.memo and self.memo[id(value)] is not value

    def _function(self, function: FunctionType) -> FunctionType:
        """Return a function with a closure of its own; it may refer to itself."""
        cells = tuple(self._cell(cell) for cell in function.__closure__ or ())
        made = FunctionType(
            function.__code__, function.__globals__, function.__name__, closure=cells
        )
        self.made[id(function)] = function, made
        made.__qualname__ = function.__qualname__
        made.__module__ = function.__module__
        made.__doc__ = function.__doc__
        made.__annotations__ = function.__annotations__
        made.__defaults__ = self.rebuilt(function.__defaults__)
        made.__kwdefaults__ = self.rebuilt(function.__kwdefaults__)
        vars(made).update({name: self.rebuilt(one) for name, one in vars(function).items()})
        for cell, old in zip(cells, function.__closure__ or (), strict=True):
            if cell is not old and content(old) is not NOT_SET and content(cell) is NOT_SET:
                cell.cell_contents = self.rebuilt(old.cell_contents)
        return made

    def _cell(self, cell: CellType) -> CellType:
        """Return the variable of a closure, without its value if that has to be another."""
        if id(cell) not in self.made:
            needs_another = refers(content(cell), self._is_replaced)
            self.made[id(cell)] = cell, CellType() if needs_another else cell
        made: CellType = self.made[id(cell)][1]
        return made
