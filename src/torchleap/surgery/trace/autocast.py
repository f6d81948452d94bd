"""Follow models that compute under autocast: the graph enters it around all operations.

This is the form of `model.forward = torch.autocast("cpu")(model.forward)` and of Accelerate. A
forward() that enters autocast for a part of its operations is not followed.
"""

import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, update_wrapper
from types import FunctionType
from typing import Any

import torch
from torch import fx
from torch.fx.graph import CodeGen
from torch.fx.proxy import TraceError

from ..runtime import parts_of

DEVICES = ("cpu", "cuda")  # that have settings of autocast
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
DECORATOR = "_torchleap_autocast"
Settings = tuple[tuple[bool, torch.dtype], ...]  # for each device: whether it is on, and its dtype

# Operations that compute the same under autocast, and may therefore stand outside of it.
_SAME = (operator.getitem, getattr, parts_of)
_SAME_METHODS = frozenset(("float", "double", "half", "bfloat16", "to", "type", "size", "dim"))


def autocast() -> Settings:
    """Return the present settings of autocast."""
    return tuple((torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in DEVICES)


@contextmanager
def within_autocast(settings: Settings) -> Iterator[None]:
    """Set autocast as it was elsewhere within this context."""
    with ExitStack() as stack:
        for device, now, (is_on, dtype) in zip(DEVICES, autocast(), settings, strict=True):
            if now != (is_on, dtype) and (is_on or now[0]):
                stack.enter_context(torch.autocast(device, dtype=dtype, enabled=is_on))
        yield


class Precision:
    """The settings of autocast around the operations of one trace.

    Args:
        same: Further functions that compute the same under autocast.

    Attributes:
        outside: The settings around the model.
        inside: Those around all its operations; None if they are the same.
    """

    def __init__(self, same: Iterable[Any]) -> None:
        self.same = (*_SAME, *same)
        self.outside = autocast()
        self.inside: Settings | None = None
        self.has_left = False
        self.has_computed = False

    def see(self, node: fx.Node) -> None:
        """Note the settings around an operation.

        Raises:
            TraceError: Other operations are computed with other settings.
        """
        now = autocast()
        is_same = self._is_same(node)
        if now == self.outside:
            self.has_left = self.inside is not None
            self.has_computed = self.has_computed or not is_same
            is_refused = self.has_left and not is_same
        else:
            is_refused = self.has_computed or self.has_left or self.inside not in (None, now)
            self.inside = now
        if is_refused:
            raise TraceError("it switches autocast")

    def _is_same(self, node: fx.Node) -> bool:
        """Return whether an operation computes the same under autocast."""
        if node.op == "call_method":
            return node.target in _SAME_METHODS
        return node.op in ("placeholder", "get_attr", "output") or node.target in self.same


class AutocastCode(CodeGen):
    """Writes the Python of a graph whose operations are computed under autocast.

    Args:
        settings: The settings of autocast.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings

    def gen_fn_def(self, *args: Any, **kwargs: Any) -> str:
        """Return the first line of the function, with a decorator."""
        return f"@{DECORATOR}\n{super().gen_fn_def(*args, **kwargs)}"

    def additional_globals(self) -> list[tuple[str, Any]]:
        """Return the decorator."""
        return [*super().additional_globals(), (DECORATOR, self._decorated)]

    def _decorated(self, function: Callable[..., Any]) -> Callable[..., Any]:
        enter = partial(within_autocast, self.settings)

        def forward(*args: Any, **kwargs: Any) -> Any:
            with enter():
                return function(*args, **kwargs)

        # torch.fx looks for the functions that it does not enter among the global variables
        space: dict[str, Any] = getattr(function, "__globals__", {})
        made = FunctionType(forward.__code__, space, closure=forward.__closure__)
        return update_wrapper(made, function)


def settings(*each: tuple[str, bool, torch.dtype]) -> Settings:
    """Return settings of autocast as they are in a file; the devices are those of `DEVICES`.

    Raises:
        ValueError: They are no such settings.
    """
    found = []
    for expected, (device, is_on, dtype) in zip(DEVICES, each, strict=True):
        if device != expected or type(is_on) is not bool or dtype not in DTYPES:
            raise ValueError(f"autocast on {device!r:.20} with {dtype!r:.20}")
        found.append((is_on, dtype))
    return tuple(found)


def settings_of(graph: fx.Graph) -> Settings | None:
    """Return the settings of autocast that a graph enters; None if it enters none."""
    code = graph._codegen
    return code.settings if isinstance(code, AutocastCode) else None
