"""Two things that no optimizer may do to the gates, whichever it is.

Weight decay would pull theta towards 0, that is every gate towards 0.5, and AdamW decays by default. So within each step of
any optimizer, a gate in a decaying group stands in a group of its own without decay, and goes back afterwards: schedulers,
state and state_dict never see it.

During the warm-up theta's gradient is zero, which Adam would count as steps, to leap when the real gradients come. So a gate
that warms up has no gradient when an optimizer steps.
"""

import weakref
from typing import Any, Protocol

from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook


class Gated(Protocol):
    """What the guard needs to know of a module with gates."""

    @property
    def theta(self) -> nn.Parameter:
        """Where the gates stand."""

    @property
    def warming_up(self) -> bool:
        """Whether the gates are still held at 1."""


_APART = "torchleap: taken out of"
_guarded: "weakref.WeakSet[Gated]" = weakref.WeakSet()
_handles: list[Any] = []


def guard(gates: Gated) -> None:
    """From now on no optimizer decays these gates or counts their warm-up."""
    _guarded.add(gates)
    if not _handles:
        _handles.append(register_optimizer_step_pre_hook(_set_apart))
        _handles.append(register_optimizer_step_post_hook(_put_back))


def _set_apart(optimizer: Optimizer, *_: Any) -> None:
    guarded = {id(gates.theta): gates for gates in _guarded}
    for group in list(optimizer.param_groups):
        places = [place for place, parameter in enumerate(group["params"]) if id(parameter) in guarded]
        thetas = [group["params"][place] for place in places]
        for theta in thetas:
            if theta.grad is not None and guarded[id(theta)].warming_up:
                theta.grad = None
        if thetas and group.get("weight_decay"):
            group["params"][:] = [parameter for parameter in group["params"] if id(parameter) not in guarded]
            optimizer.param_groups.append({**group, "params": thetas, "weight_decay": 0.0, _APART: (group, places)})


def _put_back(optimizer: Optimizer, *_: Any) -> None:
    for temporary in [group for group in optimizer.param_groups if _APART in group]:
        group, places = temporary[_APART]
        for place, theta in zip(places, temporary["params"], strict=True):
            group["params"].insert(place, theta)
    optimizer.param_groups[:] = [group for group in optimizer.param_groups if _APART not in group]
