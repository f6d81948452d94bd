"""Detect and undo what a run changes besides returning a value: attributes, containers, tensors."""

from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

LEAVES = (
    *(nn.Module, Tensor, fx.Proxy, type, ModuleType),
    *(FunctionType, BuiltinFunctionType, MethodType),
)
DEPTH = 4  # levels of containers within containers that are compared
LARGEST = 1000  # elements of a container whose parts are compared as well


class Attributes:
    """Everything that the modules of a model hold, to detect what forward() changes and to undo it.

    Args:
        model: The model; its attributes are recorded, not copied.
    """

    def __init__(self, model: nn.Module) -> None:
        self.held = []
        for module in model.modules():
            self.held.append((module, list(containers(vars(module), DEPTH, set()))))

    def changed(self) -> list[nn.Module]:
        """Return the modules on which forward() has set or changed an attribute."""
        return [module for module, held in self.held if not all(unchanged(*pair) for pair in held)]

    def restore(self) -> None:
        """Give every attribute the value that it had when this object was made."""
        for _, held in self.held:
            for container, content in held:
                if not unchanged(container, content):
                    _refill(container, content)


def containers(value: Any, depth: int, seen: set[int]) -> Iterator[tuple[Any, Any]]:
    """Yield each changeable container inside a value, with a copy of its content.

    Args:
        value: The value to search.
        depth: How many levels of containers within containers to enter.
        seen: Ids of the values that were entered before; they are skipped.
    """
    if isinstance(value, LEAVES) or id(value) in seen or depth < 0:
        return
    seen.add(id(value))
    inside: list[Any] = []
    if isinstance(value, dict):
        inside = list(value.values())
        yield value, dict(value)
    elif isinstance(value, list | set):
        inside = list(value)
        yield value, list(value) if isinstance(value, list) else set(value)
    elif isinstance(value, tuple):
        inside = list(value)
    elif _has_attributes(value):
        inside = list(vars(value).values())
        yield vars(value), dict(vars(value))
    if len(inside) <= LARGEST:
        for part in inside:
            yield from containers(part, depth - 1, seen)


def _has_attributes(value: Any) -> bool:
    own = type(value).__module__ != "builtins"
    return own and isinstance(getattr(value, "__dict__", None), dict)


def unchanged(container: Any, content: Any) -> bool:
    """Return whether a container holds the same objects as its earlier copy."""
    if isinstance(container, dict):
        return _same_entries(container, content)
    if isinstance(container, set):
        return bool(container == content)
    if len(container) != len(content):
        return False
    return all(one is other for one, other in zip(container, content, strict=True))


def _same_entries(container: dict[Any, Any], content: dict[Any, Any]) -> bool:
    """Compare two dicts, but for the flag that train() and eval() set on modules."""
    skipped = {"training"} if "_parameters" in container else set()
    names = [name for name in container if name not in skipped]
    if names != [name for name in content if name not in skipped]:
        return False
    return all(container[name] is content[name] for name in names)


def _refill(container: Any, content: Any) -> None:
    if isinstance(container, list):
        container[:] = content
    else:
        container.clear()
        container.update(content)


def tensors_of(value: Any) -> list[Tensor]:
    """Return all tensors in a value."""
    if isinstance(value, Tensor):
        return [value]
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def versions(value: Any) -> list[int]:
    """Return how often each tensor in a value has been changed in place."""
    # tensors of inference mode do not count their changes
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors_of(value)]
