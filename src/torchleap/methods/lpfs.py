"""LPFS and LPFS++ (Guo et al. 2022): gates that become steps while their width falls."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import softshrink

from .._common.checks import setting
from ..training.fit import Run
from .base import Method, Scores, Search, put_before_net
from .field_gates import FieldGates, GateHook


@dataclass(frozen=True)
class LPFS(Method):
    """Gates x^2 / (x^2 + epsilon), with a soft threshold on x while epsilon falls.

    Args:
        plus: Whether to use LPFS++: an odd gate with a slope at 0, from which a field can return.
        planned_epochs: Epochs in which epsilon falls from `first` to `last`. Training may stop
            earlier; where it lasts longer, epsilon stays at `last`.
        threshold: The amount that |x| loses after each step; None lets the x of a useless field
            reach 0 in half of the planned steps.
        lr: The learning rate of x, by gradient descent with momentum; None is 1.25 times the
            threshold, so that x falls where it lowers the loss by less than 0.08 per unit.
        first: The first epsilon.
        last: The last epsilon.
        amplitude: The factor of the additional slope of LPFS++.
        root: The root of epsilon in that slope.
        as_published: Whether to follow the public code, which reaches no zero in a real run:
            epsilon falls by a factor of 0.9978 every 100 steps, |x| by 1e-5 per step, and x is
            trained by Adam with the model's learning rate.
    """

    plus: bool = False
    planned_epochs: int = setting(5, at_least=1)
    threshold: float | None = None
    lr: float | None = None
    first: float = 0.1
    last: float = 1e-5
    amplitude: float = 10.0  # a
    root: float = 2.0  # t
    as_published: bool = False

    def score(self, search: Search) -> Scores:
        """Return the sizes of x at the end of training."""
        model = search.model()
        layer = SmoothSteps(search, self)
        put_before_net(model, layer)
        hook = LPFSHook(search, layer, self)
        search.fit(model, hook)
        return hook.scores

    def epsilon_at(self, step: int, planned: int) -> float:
        """Return how wide the step of a gate is.

        Args:
            step: Steps of the model so far.
            planned: Steps in which epsilon falls.
        """
        if self.as_published:
            return max(self.last, self.first * 0.9978 ** (step // 100))
        return float(self.first * (self.last / self.first) ** min(1.0, step / planned))

    def threshold_for(self, planned: int) -> float:
        """Return the amount that |x| loses after each step."""
        if self.threshold is not None:
            return self.threshold
        if self.as_published:
            return 1e-5
        return 2 / planned


class SmoothSteps(FieldGates):
    """Gates of nearly 0 or nearly 1.

    **Shape**: (B, D) -> (B, D)
    """

    def __init__(self, search: Search, method: LPFS) -> None:
        super().__init__(search)
        self.method = method
        self.x = nn.Parameter(torch.ones(len(search.task.fields)))
        # A buffer: a checkpoint saves it, and a compiled model does not treat it as a constant.
        self.register_buffer("epsilon", torch.tensor(method.first))

    def gates(self, x: Tensor) -> Tensor:
        """Return the gates, (F,)."""
        epsilon = self.get_buffer("epsilon")
        square = self.x.square()
        step = square / (square + epsilon)
        if not self.method.plus:
            return step
        slope = self.method.amplitude * epsilon ** (1 / self.method.root)
        return self.x.sign() * step + slope * self.x.atan()

    def field_scores(self) -> Tensor:
        """Return how far each x is from 0, (F,)."""
        return self.x.abs()


class LPFSHook(GateHook):
    """Train x, pull it towards 0, and let epsilon fall.

    Attributes:
        planned: Steps in which epsilon falls.
        threshold: The amount that |x| loses after each step.
        lr: The learning rate of gradient descent; as published, Adam has one of its own.
    """

    layer: SmoothSteps

    def __init__(self, search: Search, layer: SmoothSteps, method: LPFS) -> None:
        self.method = method
        epochs = min(method.planned_epochs, search.training.epochs)
        self.planned = epochs * search.steps_per_epoch
        self.threshold = method.threshold_for(self.planned)
        self.lr = 1.25 * self.threshold if method.lr is None else method.lr
        optimizer = None
        if not method.as_published:
            # Adam would push a field that helps the model to memorise a little as far as one that
            # matters, and its step followed by a soft threshold is not a proximal step of any
            # penalty.
            optimizer = torch.optim.SGD([layer.x], lr=self.lr, momentum=0.9)
        super().__init__(search, layer, [layer.x], lr=method.lr, optimizer=optimizer)

    def after_step(self, run: Run) -> None:
        """Move x, apply the threshold, and set the next epsilon."""
        fraction = self._fraction_of_step()
        if not self.method.as_published:
            self.optimizer.param_groups[0]["lr"] = fraction * self.lr
        super().after_step(run)
        with torch.no_grad():
            self.layer.x.copy_(softshrink(self.layer.x, fraction * self.threshold))
        self.layer.get_buffer("epsilon").fill_(self.method.epsilon_at(run.step, self.planned))

    def _fraction_of_step(self) -> float:
        """Return the fraction of the threshold and of the learning rate that this step uses.

        No pull is wider than half of a gate's step: with few steps it would carry a useful field
        past it, from where it does not return.
        """
        if self.method.as_published or not self.threshold:
            return 1.0
        width: float = float(self.layer.get_buffer("epsilon")) ** 0.5
        return min(1.0, 0.5 * width / self.threshold)
