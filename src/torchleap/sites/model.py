"""The hooks on the complete model, and the search for all hooks in a model."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from .._common.errors import AttachError
from ..gates.leap import LeAP
from .calls import Call
from .frames import ExampleKeeper
from .places import walk
from .site import Site


class ModelHooks(ExampleKeeper):
    """Note where a pass of the model begins and ends, and keep a few rows to try surgery on.

    Args:
        sites: The sites of the gates in the model.
        path: The names that lead from the model to the gates.
        example: A few rows, as the model takes them; None keeps those of the first batch.
    """

    def __init__(
        self, sites: tuple[Site, ...], path: tuple[str, ...], example: Call | None = None
    ) -> None:
        self.sites = sites
        self.path = path
        super().__init__(example)
        self.handles: list[RemovableHandle] = []

    def hold(self, model: nn.Module) -> None:
        """Register the hooks."""
        # Before all others, so that the batch is kept as it is given.
        first = model.register_forward_pre_hook(self.begin, with_kwargs=True, prepend=True)
        self.handles = [first, model.register_forward_hook(self.end)]

    def release(self, model: nn.Module) -> None:
        """Remove the hooks."""
        for handle in self.handles:
            handle.remove()

    def begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep a few rows of the first batch, and begin a pass of the gates."""
        if torch.compiler.is_compiling():
            return
        self.keep((args, kwargs))
        gates = self.gates_of(model)
        if gates is not None:
            gates.wait_for_ranks()
            gates.context.begin(model.training)

    def end(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """End the pass of the gates."""
        gates = self.gates_of(model)
        if gates is not None:
            gates.context.end()

    def gates_of(self, model: nn.Module) -> LeAP | None:
        """Return the gates of a model that has this hook."""
        with suppress(AttachError):  # a layer that was replaced has taken the gates along
            gates = walk(model, self.path)
            if isinstance(gates, LeAP):
                return gates
        return None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the rows of data: neither a copy nor a file may contain them."""
        return {**self.__dict__, "example": None}


def hooks_of(model: nn.Module) -> Iterator[tuple[nn.Module, Site | ModelHooks]]:
    """Yield everything that is hooked into the model, with the module that has the hook."""
    for module in model.modules():
        for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
            owner = getattr(hook, "__self__", None)
            if isinstance(owner, Site | ModelHooks):
                yield module, owner


def sites_of(model: nn.Module) -> Iterator[tuple[nn.Module, Site]]:
    """Yield every site that is attached to the model, with its module."""
    for module, hook in hooks_of(model):
        if isinstance(hook, Site):
            yield module, hook
