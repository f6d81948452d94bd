"""AutoField (Wang et al. 2022): a choice between keep and drop for each field."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .._common.checks import setting
from ..training.fit import Run
from .base import Method, Scores, Search, put_before_net
from .field_gates import FieldGates, HeldOutGateHook


@dataclass(frozen=True)
class AutoField(Method):
    """A keep and a drop logit per field, which learn from validation rows through Gumbel noise.

    Args:
        lr: The learning rate of the logits.
        every: Steps of the model between two steps of the logits.
        decay: How much the temperature falls per step of the model; it starts at 1.
        coldest: The lowest temperature.
        as_published: Whether each evaluation on the validation rows also draws noise and lowers
            the temperature, as in the public code.
    """

    lr: float = 1e-3
    every: int = setting(10, at_least=1)
    decay: float = 5e-5
    coldest: float = 0.01
    as_published: bool = False

    def score(self, search: Search) -> Scores:
        """Return the keep logits at the end of training."""
        model = search.model()
        layer = KeepOrDrop(search, self)
        put_before_net(model, layer)
        hook = AutoFieldHook(search, layer, lr=self.lr, every=self.every)
        search.fit(model, hook)
        return hook.scores


class KeepOrDrop(FieldGates):
    """The keep probability of a softmax over two logits, with Gumbel noise in training.

    **Shape**: (B, D) -> (B, D)
    """

    def __init__(self, search: Search, method: AutoField) -> None:
        super().__init__(search)
        self.method = method
        self.logits = nn.Parameter(torch.full((len(search.task.fields), 2), 0.5))  # drop, keep
        # A buffer: a checkpoint saves it, and a compiled model does not treat it as a constant.
        self.register_buffer("step", torch.zeros(()))

    @property
    def temperature(self) -> Tensor:
        """Return the temperature, which falls with the steps of the model."""
        return (1 - self.method.decay * self.get_buffer("step")).clamp_min(self.method.coldest)

    def gates(self, x: Tensor) -> Tensor:
        """Return the keep probabilities, (F,)."""
        published = self.method.as_published
        if published:
            self.get_buffer("step").add_(1)
        logits: Tensor = self.logits
        if self.training or published:
            logits = logits - torch.empty_like(logits).exponential_().log()  # Gumbel noise
        return torch.softmax(logits / self.temperature, dim=1)[:, 1]

    def field_scores(self) -> Tensor:
        """Return the keep logits, (F,)."""
        return self.logits[:, 1]


class AutoFieldHook(HeldOutGateHook):
    """Train the logits, and lower the temperature."""

    layer: KeepOrDrop

    def __init__(self, search: Search, layer: KeepOrDrop, *, lr: float, every: int) -> None:
        super().__init__(search, layer, [layer.logits], lr=lr, every=every)

    def after_step(self, run: Run) -> None:
        """Move the logits, and count the steps of the model for the temperature."""
        super().after_step(run)
        if not self.layer.method.as_published:
            self.layer.get_buffer("step").fill_(run.step)
