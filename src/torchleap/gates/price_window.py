"""A price for streams: it rises to a stated top, holds, and falls again, so that fields can return.

On a price path a closed gate is 0 for good, and the path ends. A stream has no end: a field that
is useless today may be useful next week. So a closed gate stays at a small floor, where the model
still sees a little of its field, and in each window the price falls far enough for the gate of a
field that has become useful to open by itself (docs/theory.md).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .._common.checks import Range, check_arguments, check_settings, is_whole, setting
from .._common.errors import TorchleapError
from .._common.states import check_tensors, expect
from ..distributed import ranks
from .base_trainer import BaseTrainer
from .held_out import rest
from .leap import LeAP
from .path_trainer import EVERY
from .price_path import OPEN, PathOptimizer

Phase = Literal["rising", "holding", "falling"]

FLOOR = -3.0  # the logit of a closed gate: 0.047
TRAVEL = 20.0  # logits that a gate can move while the price rises, or falls
LOWEST = 0.02  # of the top price; by theory a field of the stated worth returns from 0.054 on
DOUBT = 1.0  # standard errors by which a closed gate's field must be worth more than the price


@dataclass(frozen=True)
class PriceWindow:
    """A price that rises over some steps, holds, falls again, and repeats.

    >>> window = PriceWindow(worth=1e-4, rise=2_000, hold=1_000, fall=2_000)
    >>> [round(window.price_at(step), 7) for step in (0, 2_000, 3_000, 5_000)]
    [4e-06, 0.0002, 0.0002, 4e-06]

    Args:
        worth: The rise of the loss, in its own unit, that a field has to prevent to stay open: the
            price at the top is twice as much, because a gate collapses when the price exceeds
            twice the worth of its field.
        rise: Steps in which the price rises to its top; some hundred at least, since gates move
            the faster, and follow the noise of batches the more, the fewer there are.
        hold: Steps at the top; at their end the gates show which fields are worth that much.
        fall: Steps in which the price falls, so that closed fields can return; as for `rise`.
    """

    worth: float = field(metadata={"range": Range(above=0)})
    rise: int = setting(2_000, at_least=1)
    hold: int = setting(1_000, at_least=1)
    fall: int = setting(2_000, at_least=1)

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def steps(self) -> int:
        """The steps of one window, after which the next one begins."""
        return self.rise + self.hold + self.fall

    @property
    def top(self) -> float:
        """The highest price, in the unit of the loss."""
        return 2 * self.worth

    def phase_at(self, step: int) -> Phase:
        """Return what the price does in a step, counted from 0."""
        place = step % self.steps
        if place < self.rise:
            return "rising"
        if place < self.rise + self.hold:
            return "holding"
        return "falling"

    def price_at(self, step: int) -> float:
        """Return the price in a step, counted from 0; it rises and falls by equal factors."""
        place = step % self.steps
        part = 1.0  # of the way to the top
        if place < self.rise:
            part = place / self.rise
        elif place >= self.rise + self.hold:
            part = (self.steps - place) / self.fall
        return float(self.top * LOWEST ** (1 - part))


class WindowOptimizer(PathOptimizer):
    """Move gates as on a price path, but let none close for good.

    A closed gate stays at the floor. With m, v and push as in `PathOptimizer`, and s = 0.16 sqrt(v)
    the standard error of m, a gate below 0.5 moves by (m + s + push) / (s + push): it opens only
    if its field is clearly worth more than the price, so that noise does not drift open while the
    price is low. On a stream no row comes twice, so that a field that does harm need not close
    faster than others before the model memorises it.
    """

    def _moved(self, logit: Tensor, mean: Tensor, error: Tensor, push: Tensor) -> Tensor:
        doubt = torch.where(logit < 0, DOUBT * error, 0.0)
        speed = ((mean + doubt + push) / (error + push)).clamp(-1, 1)
        rate: float = self.param_groups[0]["lr"]
        return (logit - rate * speed).clamp(FLOOR, OPEN)


class WindowTrainer(BaseTrainer):
    """Close the fields of a stream that are worth less than a price, and let them return.

    `plugin.trainer(price=PriceWindow(worth=1e-4))` makes one.

        trainer = plugin.trainer(price=PriceWindow(worth=1e-4))
        for x, y in stream:
            criterion(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            trainer.step()

    Args:
        model: The attached model.
        gates: The gates in it.
        window: How the price rises, holds and falls.

    Attributes:
        done: The steps of the model so far, without those of the gates' warm-up.
        decided: The gates at the end of the latest hold, (G,); None before the first.
    """

    optimizer: WindowOptimizer

    def __init__(self, model: nn.Module, gates: LeAP, window: PriceWindow) -> None:
        found = f"price must be a PriceWindow, but is {window!r:.40}"
        check_arguments({found: isinstance(window, PriceWindow)})
        super().__init__(model, gates)
        self.window = window
        rate = TRAVEL * EVERY / min(window.rise, window.fall)
        self.optimizer = WindowOptimizer(gates, lr=rate, optimism=0.0)
        self.decided: Tensor | None = None
        self._sum: Tensor | None = None  # (G,) of the gradients since the gates' last step

    def step(self, loss: Callable[[], Tensor] | None = None) -> None:
        """Note the gates' gradient on the batch of the model; move the gates at every fourth step.

        Args:
            loss: Not supported: on a stream every row is new when the model sees it.
        """
        if loss is not None:
            raise TorchleapError(
                "A price window expects a stream, in which every row is new, but found a loss of "
                "held-out rows. Call trainer.step() without it, or use plugin.trainer(path=True)."
            )
        self._return_gradient()
        self._refuse_missing_gradient("With the model in train(), call loss.backward() first")
        if self.gates.warming_up:  # no gate can move yet, so that the price does not rise either
            return
        self._sum = self._take_gradient(self._sum)
        self.optimizer.price = self.price
        self.done += 1
        if self.done % EVERY == 0:
            self._move_gates()
        if self.done % self.window.steps == self.window.rise + self.window.hold:
            rest(self.model, self.gates)
            self.decided = self.gates.gate().detach().clone()

    def _move_gates(self) -> None:
        theta = self.gates.theta
        theta.grad = None if self._sum is None else self._sum / EVERY
        self._sum = None
        self.optimizer.step()
        theta.grad = None

    @property
    def price(self) -> float:
        """The price of an open gate in the next step, in the unit of the loss."""
        return self.window.price_at(self.done)

    @property
    def phase(self) -> Phase:
        """What the price does in the next step."""
        return self.window.phase_at(self.done)

    @property
    def has_settled(self) -> bool:
        """Whether the price has been at its top for a complete hold."""
        return self.decided is not None

    def scores(self) -> dict[str, float]:
        """Return the gate of each field at the end of the latest hold, or now before the first.

        While the price is low, fields that are worth less than the stated worth may be open.
        """
        rest(self.model, self.gates)
        found = self.gates.scores()
        if self.decided is not None:
            gates = self.decided[self.gates.field_gate].tolist()
            found = dict(zip(found, gates, strict=True))
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed training needs besides the model's own state_dict."""
        return {
            "optimizer": self.optimizer.path_state(),
            "steps": self.done,
            "sum": None if self._sum is None else ranks.full(self._sum),
            "decided": None if self.decided is None else self.decided.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the gates' averages, the position in the window and the latest decision.

        Args:
            state: As `state_dict()` returned it; it is checked before anything is changed.

        Raises:
            StateError: The state does not fit these gates.
        """
        steps = state["steps"]
        expect(is_whole(steps) and steps >= 0, f"the steps of the price are {steps!r:.40}")
        found = {name: state[name] for name in ("sum", "decided") if state[name] is not None}
        own = dict.fromkeys(found, self.optimizer.costs)
        check_tensors(found, own, "the price window")
        self.optimizer.load_path_state(state["optimizer"])
        self.done = steps
        self._sum = self._laid_out(state["sum"])
        self.decided = None
        if state["decided"] is not None:
            self.decided = state["decided"].to(self.gates.theta.device, copy=True)
        self._aside = None

    def __repr__(self) -> str:
        rest(self.model, self.gates)
        gates = self.gates.scores().values()
        count = sum(gate >= 0.5 for gate in gates)
        price = f"price {self.price:.2g} of {self.window.top:.2g}, {self.phase}"
        return f"WindowTrainer: step {self.done:,}, {price}; {count} of {len(gates)} open"
