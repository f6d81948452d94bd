"""The gate optimizer: a pressure without units, decoupled from the loss as AdamW's decay is."""

from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from .._common.checks import check_arguments, in_range
from .._common.errors import TorchleapError
from ..distributed import ranks
from .leap import LeAP


class GateOptimizer(Optimizer):
    """Take Adam's steps on the task's gradient plus a decoupled pressure, over the gates alone.

    It takes the place of the penalty: do not add `penalty()` to the loss as well. With Adam's
    moments m and v of the gradient of the task loss, each step is

        theta <- clip(theta - lr * (m / sqrt(v) + strength), -bound, bound)

    Each gate is thus a running significance test, whatever the scale, width and sparsity of its
    field and the scale of the loss, so that one strength is meant to serve every data set. A field
    has to show a mean gradient of `strength` standard deviations to stay open. `GateTrainer` adds
    the schedule.

    Args:
        gates: The gates to move.
        lr: The learning rate: how far a gate's theta moves per step at a pressure of 1.
        strength: The size of the pressure, kappa: 0 never closes a gate on purpose, 1 closes
            nearly all.
        optimism: How much it counts against a field that it helps on train rows more than on
            held-out rows. Such a field is memorised: its gate would settle half open, while the
            model would be better without it. It needs steps within `Plugin.held_out()`, right
            after the gates' gradient on train rows, of the same loss in the same scale.
        betas: The decay of the two moments per step.
        eps: Added to the root of the second moment.
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
        are_decays = all(0 <= beta < 1 for beta in betas)
        check_arguments(
            {f"betas must lie in [0, 1), but are {betas}": are_decays},
            lr=in_range(lr, above=0),
            strength=in_range(strength, at_least=0),
            optimism=in_range(optimism, at_least=0),
            eps=in_range(eps, at_least=0),
            bound=in_range(bound, above=0),
        )
        self._gates = gates
        pressure = {"strength": strength, "optimism": optimism}
        defaults = {"lr": lr, **pressure, "betas": betas, "eps": eps, "bound": bound}
        super().__init__([gates.theta], defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add the gates, which are the only group; other parameters are refused."""
        if any(parameter is not self._gates.theta for parameter in param_group["params"]):
            raise TorchleapError(
                "A GateOptimizer moves the gates alone, but found other parameters. "
                "Give them an optimizer of their own."
            )
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy or a pickle, with the gates: some may be protected."""
        return {**super().__getstate__(), "_gates": self._gates}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore moments and settings, also those of gates that are sharded by now."""
        super().load_state_dict(ranks.sharded_state(state_dict, [self._gates.theta]))

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move each gate that has a gradient.

        Args:
            closure: Computes the gradient and returns the loss; None uses the gradient there is.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._gates.wait_for_ranks()  # which refuses values that no gate must learn from
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
        free = ranks.own_part(self._gates.free, like=theta)  # of gates that are sharded
        theta = ranks.own_part(theta)
        gradient = ranks.own_part(gradient)
        state["step"] += 1
        signal = self._signal(gradient, state, group)
        if group["strength"] > 0:
            self._gates.note_pressure()
        # NOTE[PAPER] Ours: the paper's penalty goes through Adam with the task's gradient and
        # needs a weight for each data set.
        moved = theta - group["lr"] * (signal + group["strength"])
        moved = moved.clamp(-group["bound"], group["bound"])
        theta.copy_(torch.where(free > 0, moved, theta))  # a protected gate does not move

    def _signal(self, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        """Return the mean gradient in units of its spread, (G,), and update both moments."""
        on_train = self._gates.context.train_gradient
        optimism = group["optimism"]
        if on_train is None:
            on_train = gradient
            optimism = 0.0
        on_train = ranks.own_part(on_train)
        average = ranks.own_part(state["exp_avg"])
        squares = ranks.own_part(state["exp_avg_sq"])
        beta1, beta2 = group["betas"]
        # NOTE[PAPER] Ours: what a gate gains on train rows beyond held-out rows is memorised, and
        # counts against it.
        average.lerp_(gradient + optimism * (gradient - on_train), 1 - beta1)
        # The train rows' part is all the noise there is of a field that held-out rows do not have.
        squares.lerp_(gradient.square() + (optimism * on_train).square(), 1 - beta2)
        first = average / (1 - beta1 ** state["step"])
        second = squares / (1 - beta2 ** state["step"])
        signal: Tensor = first / (second.sqrt() + group["eps"])
        return signal
