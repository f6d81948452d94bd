"""PriceSchedule: how fast the price of a path rises, and when it waits."""

import math
from typing import Any

from torch import Tensor

DECADES = 4.0  # that the price rises in the steps of a path, without waiting and hurry
FIRST_PRICE = 1e-4  # of the loss at the start; no field of less worth than that can be seen
LAST_PRICE = 1e4  # of the loss at the start, at which the path ends in any case
UNKNOWN_LOSS = math.log(2)  # nats, where no held-out loss is known

ON_ITS_WAY = 4.0  # the logit below which a gate is on its way to 0: 0.98
HURRY = 3.0  # times faster the price rises while no gate is on its way
AT_ONCE = 3  # the price rises slowly while more than one in so many open gates is collapsing,
FEW = 2  # and more than this number
SLOWLY = 0.25  # of its usual speed

PATIENCE = 4  # evaluations that the price waits for a better loss
PART = 0.25  # of the price by which a loss must be lower to be better,
BEYOND_NOISE = 2.0  # and standard errors of the difference
MOST_ROWS = 50_000  # whose losses are compared
WAITS = 0.4  # of the steps, at most, are added by waiting

TURN = 0.1  # of the open gates that close in a turn, rounded up
ABOVE = 1 + 1e-3  # times its limit that a price must be for a gate to close


class PriceSchedule:
    """The price of an open gate: it rises by equal factors, hurries and waits.

    It hurries while no gate is on its way to 0, and slows down while many collapse at once.
    It waits while the loss on validation rows still falls, for a limited time. Where the worth of
    the fields is measured (`let_close`), it rises from turn to turn instead.

    Args:
        steps: The steps of the model in which the price rises four decades at its usual speed.

    Attributes:
        scale: The held-out loss at the start, which the first price is relative to; None before
            it is known.
        risen: Decades that the price has risen.
        waited: The steps during which the price waited.
        is_waiting: Whether it waits at present.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.scale: float | None = None
        self.risen = 0.0
        self.waited = 0
        self.is_waiting = False
        self.best_losses: Tensor | None = None  # (N,) of the rows at the best evaluation
        self.since_best = 0  # evaluations

    @property
    def price(self) -> float:
        """The price of an open gate, in the unit of the loss."""
        return FIRST_PRICE * self.first_loss * 10**self.risen

    @property
    def is_over(self) -> bool:
        """Whether the price is above any worth."""
        return self.price > LAST_PRICE * self.first_loss

    @property
    def first_loss(self) -> float:
        """The held-out loss at the start, that of a coin before it is known."""
        return UNKNOWN_LOSS if self.scale is None else self.scale

    def begin(self, loss: float) -> None:
        """Take the first held-out loss as the scale of the price; later ones change nothing."""
        if self.scale is None:
            self.scale = max(loss, 1e-12)

    def step(self, logits: Tensor) -> None:
        """Let the price rise for one step of the model, unless it waits.

        Args:
            logits: Those of the gates that are open and may close, (M,).
        """
        if not self.wait():
            self.risen += DECADES / self.steps * _hurry(logits)

    def wait(self) -> bool:
        """Return whether the price waits in this step of the model, which is counted."""
        if not self.is_waiting:
            return False
        self.waited += 1
        self.is_waiting = self.waited < WAITS * self.steps
        return True

    def wait_for_model(self, losses: Tensor) -> None:
        """Wait until the loss no longer falls, before the first gate closes.

        Args:
            losses: The loss of each validation row at the start, (N,), as in `evaluated`.
        """
        self.evaluated(losses)
        self.since_best = 0
        self.is_waiting = True

    def let_close(self, worth: Tensor) -> None:
        """Raise the price to twice the worth of the least valuable tenth of the gates.

        Args:
            worth: That of the gates that are open and may close, (M,), per unit of cost.
        """
        if not len(worth):
            return
        count = math.ceil(TURN * len(worth))
        price = 2 * ABOVE * float(worth.kthvalue(count).values)
        if price > self.price:
            self.risen = math.log10(price / (FIRST_PRICE * self.first_loss))

    def evaluated(self, losses: Tensor) -> None:
        """Let the price wait until the best loss is some evaluations old, as in early stopping.

        A loss counts as better if it is lower by more than a quarter of the price and by more than
        two standard errors over the rows, so that chance does not delay a path.

        Args:
            losses: The loss of each validation row at present, (N,); always of the same rows.
        """
        every = -(-len(losses) // MOST_ROWS)
        now = losses.detach()[::every].clone()
        if self.best_losses is None:
            self.best_losses = now
            self.since_best = PATIENCE
            return
        fall = self.best_losses - now  # (N,)
        error = 0.0
        if len(fall) > 1:
            error = float(fall.std()) / len(fall) ** 0.5
        self.since_best += 1
        if float(fall.mean()) > max(PART * self.price, BEYOND_NOISE * error):
            self.best_losses = now
            self.since_best = 0
        has_time = self.waited < WAITS * self.steps
        self.is_waiting = self.since_best < PATIENCE and has_time

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed path needs of the price."""
        return {name: getattr(self, name) for name in STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the price, and what it has waited for."""
        self.scale = None if state["scale"] is None else float(state["scale"])
        self.risen = float(state["risen"])
        self.waited = int(state["waited"])
        self.is_waiting = bool(state["is_waiting"])
        losses = state["best_losses"]
        self.best_losses = None if losses is None else losses.clone()
        self.since_best = int(state["since_best"])


STATE = (
    "scale",
    "risen",
    "waited",
    "is_waiting",
    "best_losses",
    "since_best",
)


def _hurry(logits: Tensor) -> float:
    """Return how fast the price rises: slowly while many gates collapse, faster if none moves.

    >>> import torch
    >>> _hurry(torch.tensor([5.0, 4.5])), _hurry(torch.tensor([5.0, 1.0]))
    (3.0, 1.0)
    >>> _hurry(torch.tensor([5.0, -1.0, -1.0, -1.0]))
    0.25
    """
    collapsing = int((logits < 0).sum())
    if collapsing > max(FEW, len(logits) // AT_ONCE):
        return SLOWLY
    if not bool((logits < ON_ITS_WAY).any()):
        return HURRY
    return 1.0
