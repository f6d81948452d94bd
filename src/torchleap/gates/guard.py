"""Two things that no optimizer may do to the gates, whichever it is.

Weight decay would pull theta towards 0, that is every gate towards 0.5, and AdamW decays by default. So within each step of
any optimizer, a gate in a decaying group stands in a group of its own without decay, and goes back afterwards: schedulers and
state_dict do not see it, not even after a step that failed.

During the warm-up theta's gradient is zero, which Adam would count as steps, to leap when the real gradients come. So a gate
that warms up has no gradient when an optimizer steps, whether it is there before or comes from a closure.
"""

import weakref
from collections.abc import Callable
from typing import Any, Protocol

from torch import nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)


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
_mended: "weakref.WeakSet[Optimizer]" = (
    weakref.WeakSet()
)  # put their groups in order before they are saved or loaded
_handles: list[Any] = []


def guard(gates: Gated) -> None:
    """From now on no optimizer decays these gates or counts their warm-up."""
    _guarded.add(gates)
    if not _handles:
        _handles.append(register_optimizer_step_pre_hook(_before_step))
        _handles.append(register_optimizer_step_post_hook(_put_back))


def _before_step(
    optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Any]] | None:
    if not hasattr(
        optimizer, "_optimizer_state_dict_pre_hooks"
    ):  # a wrapper, as TorchRec's; what it wraps comes too
        return None
    guarded = {id(gates.theta): gates for gates in _guarded}
    held = [gates for gates in _set_apart(optimizer, guarded) if gates.warming_up]
    if not held:
        return None
    _forget_gradients(held)
    args = tuple(
        _without_gradients(value, held) if callable(value) else value for value in args
    )  # the closure
    return args, {
        name: _without_gradients(value, held) if callable(value) else value
        for name, value in kwargs.items()
    }


def _forget_gradients(held: list[Gated]) -> None:
    for gates in held:
        gates.theta.grad = None


def _without_gradients(closure: Callable[[], Any], held: list[Gated]) -> Callable[[], Any]:
    def closure_then_forget() -> Any:
        loss = closure()
        _forget_gradients([gates for gates in held if gates.warming_up])
        return loss

    return closure_then_forget


def _set_apart(optimizer: Optimizer, guarded: dict[int, Gated]) -> list[Gated]:
    """Take gates out of decaying groups; returns all gates that this optimizer holds."""
    found = []
    for group in list(optimizer.param_groups):
        places = [
            place for place, parameter in enumerate(group["params"]) if id(parameter) in guarded
        ]
        thetas = [group["params"][place] for place in places]
        found += [guarded[id(theta)] for theta in thetas]
        if thetas and group.get("weight_decay"):
            if optimizer not in _mended:
                optimizer.register_state_dict_pre_hook(_put_back)
                optimizer.register_load_state_dict_pre_hook(_put_back)
                _mended.add(optimizer)
            group["params"][:] = [
                parameter for parameter in group["params"] if id(parameter) not in guarded
            ]
            optimizer.param_groups.append(
                {**group, "params": thetas, "weight_decay": 0.0, _APART: (group, places)}
            )
    return found


def _put_back(optimizer: Optimizer, *_: Any) -> None:
    for temporary in [group for group in optimizer.param_groups if _APART in group]:
        group, places = temporary[_APART]
        for place, theta in zip(places, temporary["params"], strict=True):
            group["params"].insert(place, theta)
    optimizer.param_groups[:] = [group for group in optimizer.param_groups if _APART not in group]
