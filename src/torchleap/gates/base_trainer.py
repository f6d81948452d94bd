"""BaseTrainer: what all trainers of gates share: whose gradient they use, and on which rows."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from .._common.errors import TorchleapError
from ..distributed import ranks
from .guard import reserve
from .held_out import held_out, rest
from .leap import LeAP


class BaseTrainer:
    """Train the gates of an attached model, one step after each step of the model.

    While it exists, no other optimizer moves the gates: their gradient is set aside before an
    optimizer that holds them too takes its step.

    Args:
        model: The attached model.
        gates: The gates in it.

    Attributes:
        done: The steps taken so far.
        optimizer: The optimizer of the gates.
    """

    optimizer: Optimizer

    def __init__(self, model: nn.Module, gates: LeAP) -> None:
        rest(model, gates)
        self.model = model
        self.gates = gates
        self.done = 0
        self._aside: Tensor | None = None  # (G,) gradient that another optimizer must not see
        reserve(gates, self)

    def step(self, loss: Callable[[], Tensor] | None = None) -> None:
        """Move the gates, after a step of the model.

        Args:
            loss: Computes the model's loss on rows that the model does not train on, which is
                needed where rows are seen more than once: gates that learn from train rows keep
                fields that help to memorise them. None learns from the batch whose loss was just
                propagated back, for a stream in which every row is new.
        """
        raise NotImplementedError

    def penalty(self) -> Tensor | None:
        """Return what to add to the loss of the model's own batch; None adds nothing."""
        return None

    def scores(self) -> dict[str, float]:
        """Return the score of each field; the higher, the more it is worth keeping."""
        raise NotImplementedError

    @property
    def has_settled(self) -> bool:
        """Whether a useless gate has had the time to close."""
        raise NotImplementedError

    def set_aside(self, gradient: Tensor) -> None:
        """Keep a gradient of the gates for the next step; several add up, as in `backward()`."""
        if self._aside is None:
            self._aside = gradient.clone()
        else:
            self._aside = self._aside + gradient

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed training needs besides the model's own state_dict."""
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned; it is checked before it is used."""
        raise NotImplementedError

    def _return_gradient(self) -> None:
        """Put the gradient that was set aside back to theta."""
        if self._aside is not None:
            rest(self.model, self.gates)
            theta = self.gates.theta
            theta.grad = self._aside if theta.grad is None else theta.grad + self._aside
            self._aside = None

    def _take_gradient(self, so_far: Tensor | None) -> Tensor | None:
        """Return the gradient of the gates plus those of earlier steps, (G,), and clear it."""
        theta = self.gates.theta
        gradient = theta.grad
        theta.grad = None
        if gradient is None:
            return so_far
        return gradient.detach().clone() if so_far is None else so_far + gradient.detach()

    def _laid_out(self, gradient: Tensor | None) -> Tensor | None:
        """Return a saved gradient of all gates, (G,), sharded if the gates are."""
        if gradient is None:
            return None
        rest(self.model, self.gates)
        theta = self.gates.theta
        gradient = gradient.to(theta.device)
        return ranks.sharded(gradient, theta) if ranks.is_sharded(theta) else gradient

    def _step_on_held_out_rows(self, loss: Callable[[], Tensor]) -> None:
        with held_out(self.model, self.gates):
            value = loss()
            penalty = self.penalty()
            if penalty is not None:
                value = value + penalty
            value.backward()  # type: ignore[no-untyped-call]
            self._refuse_missing_gradient("Call the attached model in the function of the loss")
            self.optimizer.step()

    def _refuse_missing_gradient(self, cure: str) -> None:
        theta = self.optimizer.param_groups[0]["params"][0]
        is_elsewhere = ranks.own_part(theta.detach()).numel() == 0  # of gates that are sharded
        if theta.grad is None and not self.gates.warming_up and not is_elsewhere:
            raise TorchleapError(
                f"trainer.step() expects a gradient on the gates, but found none. {cure}."
            )
