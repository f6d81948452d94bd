"""How gates are trained beside a model: one object that owns the schedule."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .._common.checks import check_arguments, is_whole, number, whole
from .._common.states import check_tensors, checked_optimizer_state, expect
from ..distributed import ranks
from .base_trainer import BaseTrainer
from .held_out import rest
from .leap import LeAP
from .optimizer import GateOptimizer

CLOSING_WAY = 1.6  # of theta, from its start at 1 to a gate of 0.05
SLOW = 1e-3  # the gate learning rate where there are steps enough
FAST = 5e-2  # and the largest one
MEAN_WEIGHT = 0.01  # of a score is the mean gate over all steps


def gate_learning_rate(steps: int | None, strength: float | None) -> float:
    """Return the learning rate at which a useless gate has closed after three quarters of training.

    It is at least 1e-3, which gives the model some thousand steps to learn what a field is for
    before a useless one closes, and at most 5e-2, beyond which gates follow the noise of single
    batches.

    Args:
        steps: The planned steps; None, for a stream without end, gives 1e-3.
        strength: The pressure at its full size; None is the paper's penalty.

    >>> gate_learning_rate(100_000, 0.4)
    0.001
    """
    if steps is None:
        return SLOW
    # The pressure rises over the first half of the way, where a gate moves at half its speed.
    needed = 2 * CLOSING_WAY / (_speed(strength) * 0.75 * steps)
    return min(FAST, max(SLOW, needed))


def rising_steps(steps: int | None, strength: float | None, lr: float) -> float:
    """Return the number of steps in which the pressure rises from 0 to its full strength.

    It is the time in which the full pressure would close a useless gate, and at most half of the
    training. Under a rising pressure fields close one after the other, the least useful first,
    while the model still learns what the others are for.

    Args:
        steps: The planned steps; None is a stream without end.
        strength: The full pressure; None, the paper's penalty, does not rise.
        lr: The learning rate of the gates.
    """
    if strength is None:
        return 0.0
    way = _steps_to_close(strength, lr)
    if steps is None:
        return way
    return min(way, steps / 2)


def closing_steps(rise: float, strength: float | None, lr: float) -> float:
    """Return the number of steps after which a useless gate has had the time to close.

    Until then, a metric that no longer improves is not a reason to end the training: fields that
    are on their way out may still be in the model's way.

    Args:
        rise: The steps in which the pressure rises, during which it is half of the full one.
        strength: The full pressure; None is the paper's penalty.
        lr: The learning rate of the gates.
    """
    return rise / 2 + _steps_to_close(strength, lr)


def _steps_to_close(strength: float | None, lr: float) -> float:
    return CLOSING_WAY / (lr * _speed(strength))


def _speed(strength: float | None) -> float:
    """Return how far a useless gate moves per step, in units of the learning rate.

    Adam turns any penalty into a full step. The noise of the gradient moves a gate even where the
    pressure is weak, so that less than 0.1 does not count.
    """
    if strength is None:
        return 1.0
    return max(strength, 0.1)


class GateTrainer(BaseTrainer):
    """Train the gates of an attached model, one step after each step of the model.

    `Plugin.trainer` makes one. While it exists, no other optimizer moves the gates: their gradient
    is set aside before an optimizer that holds them too takes its step.

        trainer = plugin.trainer(steps=10_000)
        for x, y in loader:
            criterion(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            trainer.step()

    Args:
        model: The attached model.
        gates: The gates in it.
        steps: How many steps are planned. None is a stream without end: the learning rate then is
            1e-3, and `scores()` are the gates as they are, without their mean over the training.
        strength: The full pressure, without units, see `GateOptimizer`. None is the paper's
            penalty, minimised by Adam: add `penalty()` to the loss of the model's own batch.
        lr: The learning rate of the gates; None takes `gate_learning_rate(steps, strength)`.
        optimism: How much it counts against a field that it helps on train rows more than on
            held-out rows, see `GateOptimizer`; steps on the model's own batch do not use it.

    Attributes:
        planned: The planned steps, or None.
        done: The steps taken so far.
        optimizer: The optimizer of the gates: a `GateOptimizer`, or Adam for the paper's penalty.
        rise: The steps in which the pressure rises, see `rising_steps`.
        closing: The steps that a useless gate needs to close, see `closing_steps`.
    """

    def __init__(
        self,
        model: nn.Module,
        gates: LeAP,
        *,
        steps: int | None = None,
        strength: float | None = 0.4,
        lr: float | None = None,
        optimism: float = 0.25,
    ) -> None:
        check_arguments(
            steps="" if steps is None else whole(steps, at_least=1),
            strength="" if strength is None else number(strength, at_least=0),
            lr="" if lr is None else number(lr, above=0),
        )
        super().__init__(model, gates)
        self.planned = steps
        self.strength = strength
        rate = gate_learning_rate(steps, strength) if lr is None else lr
        self.rise = rising_steps(steps, strength, rate)
        self.closing = closing_steps(self.rise, strength, rate)
        if strength is None:
            self.optimizer = torch.optim.Adam([gates.theta], lr=rate, fused=True)
        else:
            self.optimizer = GateOptimizer(gates, lr=rate, strength=strength, optimism=optimism)
        self._total: Tensor | None = None  # (G,) sum of the gates over all steps

    def step(self, loss: Callable[[], Tensor] | None = None) -> None:
        """Move the gates, against a pressure that has risen a little.

        Args:
            loss: As in `BaseTrainer.step`.
        """
        self._raise_pressure()
        self._return_gradient()
        if loss is None:
            self._refuse_missing_gradient("With the model in train(), call loss.backward() first")
            self.optimizer.step()
            self.optimizer.zero_grad()
        else:
            self._step_on_held_out_rows(loss)
        self.done += 1
        self._add_to_mean()

    def penalty(self) -> Tensor | None:
        """Return what to add to the loss of the model's own batch: None under a pressure."""
        if self.strength is None:
            return self.gates.penalty()
        return None

    def scores(self) -> dict[str, float]:
        """Return the score of each field: its gate, and a hundredth of its mean gate.

        Closed gates are all nearly 0; the mean over the training ranks the last to close first.
        """
        rest(self.model, self.gates)
        last = self.gates.scores()
        if self.planned is None:
            return last
        mean = (self._sum_of_gates() / max(1, self.done))[self.gates.field_gate].tolist()
        return {
            name: (1 - MEAN_WEIGHT) * gate + MEAN_WEIGHT * mean_gate
            for (name, gate), mean_gate in zip(last.items(), mean, strict=True)
        }

    @property
    def pressure(self) -> float:
        """The pressure in the latest step: 0 before the first, and under the paper's penalty."""
        if self.strength is None or self.done == 0:
            return 0.0
        return float(self.optimizer.param_groups[0]["strength"])

    @property
    def has_settled(self) -> bool:
        """Whether a useless gate has had the time to close, see `closing_steps`."""
        return self.done >= self.closing

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed training needs besides the model's own state_dict."""
        state = {"optimizer": self.optimizer.state_dict(), "steps": self.done}
        if self.planned is not None:
            state["total"] = self._sum_of_gates()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the optimizer of the gates, the position in the schedule and the mean gates.

        Args:
            state: As `state_dict()` returned it; it is checked before anything is changed.

        Raises:
            StateError: The state does not fit these gates.
        """
        optimizer_state = checked_optimizer_state(self.optimizer, state["optimizer"])
        steps = state["steps"]
        expect(is_whole(steps) and steps >= 0, f"the steps of the gates are {steps!r:.40}")
        if self.planned is not None:
            saved = {"total": state["total"]}
            check_tensors(saved, {"total": self._sum_of_gates()}, "the gates")
            self._total = state["total"].to(self.gates.theta.device)
        theta = self.optimizer.param_groups[0]["params"][0]
        self.optimizer.load_state_dict(ranks.sharded_state(optimizer_state, [theta]))
        self.done = steps
        self._aside = None

    def __repr__(self) -> str:
        of = "" if self.planned is None else f" of {self.planned:,}"
        rate = self.optimizer.param_groups[0]["lr"]
        if self.strength is None:
            push = "the paper's penalty"
        elif self.done < self.rise:
            push = f"pressure {self.pressure:.3g} of {self.strength:g}"
        else:
            push = f"pressure {self.strength:g}"
        settled = "has" if self.has_settled else "has not"
        return (
            f"{type(self).__name__}: step {self.done:,}{of}, learning rate {rate:.2g}, {push}; "
            f"a useless gate {settled} had the time to close ({self.closing:,.0f} steps)"
        )

    def _raise_pressure(self) -> None:
        if self.strength is not None:
            part = min(1.0, (self.done + 1) / self.rise)
            self.optimizer.param_groups[0]["strength"] = self.strength * part

    def _add_to_mean(self) -> None:
        if self.planned is not None:
            rest(self.model, self.gates)
            self._total = self._sum_of_gates() + self.gates.gate().detach()

    def _sum_of_gates(self) -> Tensor:
        if self._total is None:
            self.gates.known_fields()
            self._total = torch.zeros_like(self.gates.distance)
        return self._total
