"""What a model holds besides its layers: optimizers, their schedulers, lists of weights.

Some libraries keep the optimizer, its schedule and the weights that are regularised as attributes
of the model, so that its own `fit` can train it. Here the pruned model gets its own: each optimizer
is carried over, and removed weights leave the lists. What cannot be carried over is reported.
"""

from collections.abc import Mapping
from types import BuiltinFunctionType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from .._common.functions import FUNCTIONS, refers
from .._common.text import first_line
from .optimizers import Kept, carried, unwrapped
from .rules.written import Origin

DEPTH = 6  # levels of containers and objects within an attribute that are searched
LARGEST = 10_000  # elements of a container that is searched
REMOVED = object()  # stands for a weight that the pruned model does not have
OF_MODULES = frozenset(vars(nn.Module()))  # parameters, submodules, hooks
ATOMS = (nn.Module, Tensor, type, ModuleType, BuiltinFunctionType, str, bytes, int, float)
OURS = __name__.partition(".")[0]


def carry_holdings(
    model: nn.Module,
    pruned: nn.Module,
    origins: Mapping[str, Origin],
    *,
    with_state: bool = True,
) -> tuple[str, ...]:
    """Let a pruned model have its own optimizers and lists of weights, as the old model had.

    Args:
        model: The model that was pruned; it is not changed.
        pruned: The pruned model, made as a copy of it, whose attributes are changed.
        origins: Where its cut parameters come from, by name.
        with_state: Whether optimizers keep the state of the weights.

    Returns:
        Notes on what could not be carried over.
    """
    carrier = _Carrier(model, Kept.of(model, pruned, origins), with_state)
    copies = dict(pruned.named_modules())
    for path, module in model.named_modules():
        if path in copies:
            carrier.carry_attributes(module.__dict__, copies[path].__dict__, path, DEPTH)
    return tuple(carrier.notes)


class _Carrier:
    """Walk through the attributes of a model and those of its copy side by side.

    Args:
        model: The model that was pruned.
        kept: The parameters that are left.
        with_state: Whether optimizers keep the state of the weights.
    """

    def __init__(self, model: nn.Module, kept: Kept, with_state: bool) -> None:
        self.kept = kept
        self.with_state = with_state
        self.notes: list[str] = []
        self.modules = {id(module) for module in model.modules()}
        self.weights = {id(parameter) for parameter in kept.old.values()}
        self.left = {id(parameter) for parameter in kept.new.values()}
        self.removed = self.weights - set(kept.names)
        self.results: dict[int, Any] = {}  # by the id of the old value

    def carry_attributes(
        self, old: dict[str, Any], new: dict[str, Any], path: str, depth: int
    ) -> None:
        """Carry over the attributes of one module or object; a removed weight becomes None."""
        for name, value in list(old.items()):
            if name in OF_MODULES or name not in new:
                continue
            result = self.carry(value, new[name], f"{path}.{name}".lstrip("."), depth)
            if result is not new[name]:
                new[name] = None if result is REMOVED else result

    def carry(self, old: Any, new: Any, path: str, depth: int) -> Any:
        """Return what the pruned model holds in place of a value, usually its copy.

        Args:
            old: The value in the model that was pruned.
            new: Its copy, which may be changed in place.
            path: How notes call it.
            depth: How many levels of containers are searched.
        """
        if isinstance(old, nn.Parameter):
            is_removed = id(old) in self.weights and id(new) not in self.left
            return REMOVED if is_removed else new
        if isinstance(old, ATOMS) or old is None or depth < 0:
            return new
        if id(old) not in self.results:
            self.results[id(old)] = new  # a value may contain itself
            self.results[id(old)] = self._carried(old, new, path, depth - 1)
        return self.results[id(old)]

    def _carried(self, old: Any, new: Any, path: str, depth: int) -> Any:
        if isinstance(old, Optimizer):
            return self._optimizer(old, path)
        if isinstance(old, FUNCTIONS) or (old is new and not isinstance(old, tuple)):
            self._note_references(old, new, path)
        elif type(old) is not type(new) or _is_ours(old):
            return new
        elif isinstance(old, dict):
            self._dict(old, new, path, depth)
        elif isinstance(old, list | tuple):
            return self._sequence(old, new, path, depth)
        elif isinstance(getattr(old, "__dict__", None), dict):
            self.carry_attributes(vars(old), vars(new), path, depth)
        return new

    def _optimizer(self, old: Optimizer, path: str) -> Optimizer | None:
        kind = type(old).__name__
        try:
            new = carried(old, self.kept, with_state=self.with_state)
        except Exception as error:  # the class of a user may take other arguments
            self.notes.append(
                f"{path} ({kind}) cannot be carried over, and is None in the pruned model: "
                f"{first_line(error)}"
            )
            return None
        if unwrapped(old) is not old:
            self.notes.append(
                f"{path} is a plain {type(new).__name__} in the pruned model, without the {kind} "
                "around it. Prepare it again."
            )
        return new

    def _dict(self, old: dict[Any, Any], new: dict[Any, Any], path: str, depth: int) -> None:
        """Carry over the values of a dict; removed weights leave it, as keys and as values."""
        if len(old) != len(new) or len(old) > LARGEST:
            return
        for (key, value), (twin, copied) in list(zip(old.items(), new.items(), strict=True)):
            result = self.carry(value, copied, path, depth)
            if result is REMOVED or self.carry(key, twin, path, depth) is REMOVED:
                del new[twin]
            elif result is not copied:
                new[twin] = result

    def _sequence(self, old: Any, new: Any, path: str, depth: int) -> Any:
        """Carry over the elements of a list or tuple.

        Removed weights leave a list. A tuple with one, such as a pair with its name, is removed.
        """
        if len(old) != len(new) or len(old) > LARGEST:
            return new
        parts = [self.carry(one, twin, path, depth) for one, twin in zip(old, new, strict=True)]
        left = [part for part in parts if part is not REMOVED]
        if isinstance(new, list):
            new[:] = left
        elif len(left) < len(parts):
            return REMOVED
        elif any(part is not twin for part, twin in zip(parts, new, strict=True)):
            return type(new)(*parts) if hasattr(new, "_fields") else type(new)(parts)
        return new

    def _note_references(self, old: Any, new: Any, path: str) -> None:
        """Note a value, such as a function, that works on the old model or on removed weights."""
        if self._refers_to_old(new) or refers(old, self._is_removed):
            self.notes.append(
                f"{path} refers to weights or an optimizer of the model that was pruned. Set it "
                "again on the pruned model."
            )

    def _refers_to_old(self, value: Any) -> bool:
        """Return whether a value holds the old model, its weights or an optimizer.

        Functions were made again with the copies, but optimizers are replaced afterwards.
        """
        if isinstance(value, FUNCTIONS):
            return refers(value, self._is_old)
        return any(map(self._is_old, tree_leaves(getattr(value, "__dict__", value))))

    def _is_old(self, value: Any) -> bool:
        is_weight = id(value) in self.weights and id(value) not in self.left
        return is_weight or id(value) in self.modules or isinstance(value, Optimizer)

    def _is_removed(self, value: Any) -> bool:
        return id(value) in self.removed


def _is_ours(value: Any) -> bool:
    """Return whether a value is of a class of this library, such as a plug-in or a trainer."""
    return type(value).__module__.partition(".")[0] == OURS
