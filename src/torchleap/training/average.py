"""WeightAverage: a moving average of the weights of a model in training."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .._common.checks import is_whole
from .._common.states import check_tensors, expect
from ..distributed.fsdp import at_rest
from ..gates.leap import LeAP

UPDATES = 8  # of the average in the steps that it reaches back, about: large tables cost time


class WeightAverage:
    """The exponential moving average of the weights of a model, which can take their place.

    The last weights of a training at a constant rate are noisy; their average is close to what a
    falling rate would lead to. It contains the running statistics of batch norm as well, but not
    the gates, which have a trainer and statistics of their own.

    Args:
        model: The model; the average begins with its weights.
        steps: How many steps the average reaches back: a step of so long ago has 1 / e of the
            weight of the last one.

    >>> layer = nn.Linear(1, 1)
    >>> average = WeightAverage(layer, steps=1)
    >>> with torch.no_grad():
    ...     _ = layer.weight.fill_(2.0)
    >>> average.step()
    >>> with average.in_place():
    ...     layer.weight.item()
    2.0
    """

    def __init__(self, model: nn.Module, steps: int) -> None:
        self.model = model
        self.every = max(1, steps // UPDATES)
        self.weight = min(1.0, self.every / steps)
        self.averages = {name: one.clone() for name, one in averaged_tensors(model).items()}
        self.steps_since = 0  # the last update

    @torch.no_grad()
    def step(self) -> None:
        """Take a step of the model into account; most steps cost nothing."""
        self.steps_since += 1
        if self.steps_since < self.every:
            return
        self.steps_since = 0
        at_rest(self.model)
        present = averaged_tensors(self.model)
        torch._foreach_lerp_(list(self.averages.values()), list(present.values()), self.weight)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model have its averaged weights within this context."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        at_rest(self.model)
        for name, tensor in averaged_tensors(self.model).items():
            present = tensor.clone()
            tensor.copy_(self.averages[name])
            self.averages[name] = present

    def state_dict(self) -> dict[str, Any]:
        """Return the averages, and the steps since they were updated."""
        averages = {name: average.clone() for name, average in self.averages.items()}
        return {"averages": averages, "steps_since": self.steps_since}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the averages, if they fit the model."""
        steps = state["steps_since"]
        expect(is_whole(steps) and 0 <= steps < self.every, "the average is of other steps")
        check_tensors(state["averages"], self.averages, "the average of the weights")
        for name, average in self.averages.items():
            average.copy_(state["averages"][name])
        self.steps_since = steps


def averaged_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights and the statistics of a model by name, without those of gates."""
    found = {}
    seen = set()
    for path, module in model.named_modules():
        if isinstance(module, LeAP):
            continue
        own = [*module.named_parameters(path, recurse=False)]
        own += [*module.named_buffers(path, recurse=False)]
        for name, tensor in own:
            if tensor.is_floating_point() and id(tensor) not in seen:
                seen.add(id(tensor))
                found[name] = tensor.detach()
    return found
