"""Make the pruned model of a plan, again and again, as long as the old model does not change."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from .._common.errors import SurgeryError
from ..distributed.ranks import own_part
from ..sites.calls import Call
from ..sites.model import hooks_of
from .holdings import carry_holdings
from .trial.compare import alike
from .trial.run import run, untouched
from .trial.state import versions
from .write.build import as_pruned


@dataclass(frozen=True)
class State:
    """A mark of a model's weights and gates, to detect that they have changed.

    It holds no tensors, so it keeps no memory alive.

    Attributes:
        parameters: The identity, place in memory and version of each parameter, by name.
        buffers: A digest of each buffer, by name, since a model may write to its buffers and
            surgery then restores them.
        hooks: The identities of the hooks that hold the gates.
    """

    parameters: dict[str, tuple[int, ...]]
    buffers: dict[str, str]
    hooks: tuple[int, ...]

    @classmethod
    def of(cls, model: nn.Module) -> "State":
        """Return the present state of an attached model."""
        return cls(
            {name: _mark(tensor) for name, tensor in model.named_parameters()},
            {name: _digest(tensor) for name, tensor in model.named_buffers()},
            tuple(id(hook) for _, hook in hooks_of(model)),
        )

    def change(self, model: nn.Module) -> str | None:
        """Return what has changed in a model since, in a few words; None if nothing has."""
        now = State.of(model)
        if now.hooks != self.hooks:
            return "it is no longer attached as it was"
        before: dict[str, Any] = {**self.parameters, **self.buffers}
        after: dict[str, Any] = {**now.parameters, **now.buffers}
        changed = [name for name, mark in before.items() if after.get(name) != mark]
        added = [name for name in after if name not in before]
        for name in (*changed, *added):
            return f"{name} is not the same"
        return None


def _mark(parameter: Tensor) -> tuple[int, ...]:
    own = own_part(parameter.detach())  # of a parameter that is sharded over several ranks
    try:
        pointer = own.data_ptr()
    except RuntimeError:  # a kind of tensor without memory of its own
        pointer = 0
    return (id(parameter), pointer, *versions(own))


def _digest(buffer: Tensor) -> str:
    own = own_part(buffer.detach())
    try:
        content = own.cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
    except (RuntimeError, TypeError):  # a kind of tensor whose bytes cannot be read
        return str(_mark(buffer))
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class Recipe:
    """Everything that is needed to make the pruned model of a plan.

    It refers to the old model, whose weights are copied only when a model is made, and holds the
    few constants that were folded, and a few rows.

    Attributes:
        model: The attached model; of a model that is sharded, a gathered copy.
        source: The model that the plan was requested for.
        state: Its state when the plan was made.
        build: Makes the pruned model; True shares the weights of the old model.
        graph: Its forward(), if that is written from a graph.
        example: A few rows.
        output: What the masked model returned for them.
        masked: Runs the masked model.
    """

    model: nn.Module
    source: nn.Module
    state: State
    build: Callable[[bool], nn.Module]
    graph: fx.Graph | None
    example: Call
    output: Any
    masked: Callable[[Call], Any]

    def make(self, plan: Any) -> nn.Module:
        """Return a new pruned model that remembers a plan, with optimizers of its own.

        Raises:
            SurgeryError: The model has changed since the plan was made.
        """
        self._refuse_change()
        made = as_pruned(self.build(False), plan, self.graph)
        carry_holdings(self.source, made, plan.origins)
        if self.graph is None:  # a model that is fed constants learns the shapes of its entries
            with untouched(made):
                run(made, self.example)
        return made

    def _refuse_change(self) -> None:
        """Refuse a model whose weights, gates or output are no longer those of the plan."""
        change = self.state.change(self.source)
        if change is None:
            with untouched(self.model):
                output = self.masked(self.example)
            if not alike(output, self.output):  # fused optimizers do not count their changes
                change = "it returns something else"
        if change is not None:
            raise SurgeryError(
                f"The model has changed since this plan was made ({change}), so the plan cannot be "
                "applied. Make a new one: plugin.plan(selection)."
            )
