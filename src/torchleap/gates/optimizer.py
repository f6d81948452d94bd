"""The gate optimizer: a closing pressure without units, decoupled from the loss as AdamW decouples weight decay."""

from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from .._common.checks import refuse_settings
from .._common.errors import TorchleapError
from ..distributed import ranks
from .leap import LeAP


class GateOptimizer(Optimizer):
    """Adam on the task's gradient plus a decoupled closing pressure, over the gates alone.

    It takes the place of the penalty: do not add `penalty()` to the loss as well. With Adam's moments m and v of the gradient
    of the task loss, each step is `theta <- clip(theta - lr * (m / sqrt(v) + strength), -bound, bound)`. Each gate is thus a
    running significance test, whatever the scale, width and sparsity of its field and the scale of the loss; so one strength
    is meant to serve every data set. A field has to show a mean gradient of `strength` standard deviations to stay open.

    Args:
        strength: The closing pressure, kappa; 0 never closes a gate on purpose, 1 closes nearly all.
        optimism: How much it counts against a field that it helps on train rows more than on held-out rows. Such a field is
            memorised: its gate would settle half open, while the model would be better off without it. Needs steps within
            `Plugin.held_out()`, right after the gates' gradient on train rows, of the same loss in the same scale.
        bound: theta stays within +-bound, so that an open or closed gate can still turn.
    """

    def __init__(
        self,
        gates: LeAP,
        *,
        lr: float = 2e-3,
        strength: float = 0.4,
        optimism: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-20,
        bound: float = 1.5,
    ) -> None:
        refuse_settings(
            {
                f"lr must be above 0, but is {lr}": lr > 0,
                f"strength must be at least 0, but is {strength}": strength >= 0,
                f"optimism must be at least 0, but is {optimism}": optimism >= 0,
                f"betas must lie in [0, 1), but are {betas}": all(0 <= beta < 1 for beta in betas),
                f"eps must be at least 0, but is {eps}": eps >= 0,
                f"bound must be above 0, but is {bound}": bound > 0,
            }
        )
        self._gates = gates
        defaults = {
            "lr": lr,
            "strength": strength,
            "optimism": optimism,
            "betas": betas,
            "eps": eps,
            "bound": bound,
        }
        super().__init__([gates.theta], defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """The gates are the one group that there is."""
        if any(parameter is not self._gates.theta for parameter in param_group["params"]):
            raise TorchleapError(
                "A GateOptimizer moves the gates alone, but found other parameters. Give them an optimizer of their own."
            )
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle needs: the gates as well, for the protected ones among them."""
        return {**super().__getstate__(), "_gates": self._gates}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on; also with gates that are sharded by now."""
        super().load_state_dict(ranks.sharded_state(state_dict, [self._gates.theta]))

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move each gate that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._gates.wait_for_ranks()  # also of values that no gate must learn from
        for group in self.param_groups:
            for theta in group["params"]:
                if theta.grad is not None:  # as during the warm-up, see guard.py
                    self._step_one(theta, theta.grad, self.state[theta], group)
        return loss

    def _step_one(
        self, theta: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        if not state:
            state["step"] = torch.zeros((), dtype=theta.dtype, device=theta.device)
            state["exp_avg"] = torch.zeros_like(theta)
            state["exp_avg_sq"] = torch.zeros_like(theta)
        # each rank moves its own part of gates that are sharded
        free, on_train = (
            ranks.own_part(self._gates.free, like=theta),
            self._gates.context.train_gradient,
        )
        theta, gradient, average, squares = map(
            ranks.own_part, (theta, gradient, state["exp_avg"], state["exp_avg_sq"])
        )
        beta1, beta2 = group["betas"]
        state["step"] += 1
        # NOTE[PAPER] Ours: what a gate gains on train rows beyond held-out rows is memorised, and counts against it.
        on_train, share = (
            (gradient, 0.0) if on_train is None else (ranks.own_part(on_train), group["optimism"])
        )
        average.lerp_(gradient + share * (gradient - on_train), 1 - beta1)
        # the train rows' part is all the noise there is of a field that held-out rows do not have
        squares.lerp_(gradient.square() + (share * on_train).square(), 1 - beta2)
        first = average / (1 - beta1 ** state["step"])
        second = squares / (1 - beta2 ** state["step"])
        # NOTE[PAPER] Ours: the paper's penalty goes through Adam with the task's gradient and needs a weight for each data set.
        signal = first / (second.sqrt() + group["eps"])
        moved = (theta - group["lr"] * (signal + group["strength"])).clamp(
            -group["bound"], group["bound"]
        )
        theta.copy_(torch.where(free > 0, moved, theta))  # a protected gate stays where it is
