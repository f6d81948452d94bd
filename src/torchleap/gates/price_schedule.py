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
WAITS = 0.25  # of the steps, at most, are added by waiting for the loss,
PAIR_WAITS = 2.0  # and by waiting for pairs

PAIR_PART = 0.1  # of what a pair would gain, at which the price waits for it
LEAST_PAIR = 0.005  # of the loss that a pair must gain for the price to wait for it
PAIR_PATIENCE = 8  # evaluations that the price waits for a pair of which nothing is learned,
PROGRESS = 0.02  # that is, for the sum of such gains to change by this part


class PriceSchedule:
    """The price of an open gate: it rises by equal factors, hurries and waits.

    It hurries while no gate is on its way to 0, and slows down while many collapse at once.
    It waits while the loss on validation rows still falls, and for pairs of fields that the model
    has not learned yet, both for a limited time.

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
        self.waited_for_loss = 0
        self.waited_for_pairs = 0
        self.loss_falls = False
        self.pair_is_due = False
        self.best_losses: Tensor | None = None  # (N,) of the rows at the best evaluation
        self.since_best = 0  # evaluations
        self.last_gain = 0.0  # the sum of what the pairs that the price waits for would gain
        self.since_progress = 0  # evaluations

    @property
    def price(self) -> float:
        """The price of an open gate, in the unit of the loss."""
        return FIRST_PRICE * self._scale * 10**self.risen

    @property
    def is_over(self) -> bool:
        """Whether the price is above any worth."""
        return self.price > LAST_PRICE * self._scale

    @property
    def waited(self) -> int:
        """The steps during which the price waited."""
        return self.waited_for_loss + self.waited_for_pairs

    @property
    def is_waiting(self) -> bool:
        """Whether the price waits, for the loss or for a pair."""
        return self.loss_falls or self.pair_is_due

    @property
    def _scale(self) -> float:
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
        if self.pair_is_due:
            self.waited_for_pairs += 1
            self.pair_is_due = self.waited_for_pairs < PAIR_WAITS * self.steps
        elif self.loss_falls:
            self.waited_for_loss += 1
            self.loss_falls = self.waited_for_loss < WAITS * self.steps
        else:
            self.risen += DECADES / self.steps * _hurry(logits)

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
        has_time = self.waited_for_loss < WAITS * self.steps
        self.loss_falls = self.since_best < PATIENCE and has_time

    def wait_for_pairs(self, gains: Tensor) -> None:
        """Let the price wait before it passes the worth of a pair, while the model learns it.

        Args:
            gains: What each open pair would still gain if the model learned it, (P,), in the unit
                of the loss.
        """
        is_due = (gains > LEAST_PAIR * self._scale) & (self.price > PAIR_PART * gains)
        is_due &= self.price < 2 * gains  # beyond, its fields close whether it is learned or not
        total = float(gains[is_due].sum())
        self.since_progress += 1
        has_changed = abs(total - self.last_gain) > PROGRESS * self.last_gain
        if has_changed or not bool(is_due.any()):  # more is learned, or another pair is due
            self.last_gain = total
            self.since_progress = 0
        has_time = self.waited_for_pairs < PAIR_WAITS * self.steps
        is_learning = self.since_progress < PAIR_PATIENCE
        self.pair_is_due = bool(is_due.any()) and has_time and is_learning

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed path needs of the price."""
        return {name: getattr(self, name) for name in STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the price, and what it has waited for."""
        self.scale = None if state["scale"] is None else float(state["scale"])
        self.risen = float(state["risen"])
        self.waited_for_loss = int(state["waited_for_loss"])
        self.waited_for_pairs = int(state["waited_for_pairs"])
        self.loss_falls = bool(state["loss_falls"])
        self.pair_is_due = bool(state["pair_is_due"])
        losses = state["best_losses"]
        self.best_losses = None if losses is None else losses.clone()
        self.since_best = int(state["since_best"])
        self.last_gain = float(state["last_gain"])
        self.since_progress = int(state["since_progress"])


STATE = (
    "scale",
    "risen",
    "waited_for_loss",
    "waited_for_pairs",
    "loss_falls",
    "pair_is_due",
    "best_losses",
    "since_best",
    "last_gain",
    "since_progress",
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
