"""Three things that no optimizer may do to the gates, whichever it is.

Weight decay would pull theta towards 0, which is every gate towards 0.5, and AdamW decays by
default. So within each step of any optimizer, a gate in a decaying group is in a group of its own
without decay, and returns afterwards: schedulers and state_dict do not see it, not even after a
step that failed.

During the warm-up theta's gradient is zero. Adam would count these steps, and leap when the real
gradients arrive. So gates that warm up have no gradient when an optimizer steps.

Gates that a `GateTrainer` trains are moved by it alone, although `Adam(model.parameters())` holds
them too. So before another optimizer steps, their gradient is set aside for the trainer, where
that optimizer's `zero_grad()` does not reach it.

All of this holds for gradients from before the step and for those of a closure.
"""

import weakref
from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from .._common.errors import TorchleapError


class Gated(Protocol):
    """A module with gates, as far as the guard has to know it."""

    @property
    def theta(self) -> nn.Parameter:
        """The parameter of the gates, (G,)."""

    @property
    def warming_up(self) -> bool:
        """Whether the gates are still held at 1."""


class Trainer(Protocol):
    """An object that alone may move some gates."""

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer that moves the gates."""

    def set_aside(self, gradient: Tensor) -> None:
        """Keep the gates' gradient, (G,), for the trainer's next step."""


_APART = "torchleap: taken out of"
_guarded: "weakref.WeakSet[Gated]" = weakref.WeakSet()
_trainers: "weakref.WeakKeyDictionary[Gated, weakref.ref[Trainer]]" = weakref.WeakKeyDictionary()
_mended: "weakref.WeakSet[Optimizer]" = weakref.WeakSet()  # restore their groups before saving
_handles: list[Any] = []


def guard(gates: Gated) -> None:
    """Keep every optimizer from decaying these gates and from counting their warm-up."""
    _guarded.add(gates)
    if not _handles:
        _handles.append(register_optimizer_step_pre_hook(_before_step))
        _handles.append(register_optimizer_step_post_hook(_put_back))


def reserve(gates: Gated, trainer: Trainer) -> None:
    """Keep every optimizer but the trainer's from moving these gates, as long as it exists."""
    _trainers[gates] = weakref.ref(trainer)


def trainer_of(gates: Gated) -> Trainer | None:
    """Return the latest trainer of these gates, if it still exists."""
    reference = _trainers.get(gates)
    return None if reference is None else reference()


def _before_step(
    optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Any]] | None:
    if not hasattr(optimizer, "_optimizer_state_dict_pre_hooks"):
        return None  # a wrapper, such as TorchRec's; the hook also sees the optimizer in it
    guarded = {id(gates.theta): gates for gates in _guarded}
    held = _set_apart(optimizer, guarded)
    withheld = [gates for gates in held if gates.warming_up or _trainer_beside(gates, optimizer)]
    if not withheld:
        return None
    _refuse_optimizer_of_gates_alone(optimizer, withheld)
    _withhold(withheld, optimizer)
    wrapped = [_then_withhold(value, withheld, optimizer) for value in args]
    named = {name: _then_withhold(value, withheld, optimizer) for name, value in kwargs.items()}
    return tuple(wrapped), named


def _trainer_beside(gates: Gated, optimizer: Optimizer) -> Trainer | None:
    """Return the trainer of these gates, if they are not this optimizer's to move."""
    trainer = trainer_of(gates)
    if trainer is None or trainer.optimizer is optimizer:
        return None
    return trainer


def _refuse_optimizer_of_gates_alone(optimizer: Optimizer, withheld: list[Gated]) -> None:
    reserved = {id(gates.theta) for gates in withheld if _trainer_beside(gates, optimizer)}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if all(id(parameter) in reserved for parameter in parameters):
        _put_back(optimizer)
        raise TorchleapError(
            f"Expected the gates to be trained by their latest GateTrainer alone, but found a step "
            f"of another {type(optimizer).__name__}. Use trainer.step() instead of it; after "
            "plugin.learn() no step is needed."
        )


def _withhold(withheld: list[Gated], optimizer: Optimizer) -> None:
    """Leave the optimizer no gradient of these gates."""
    for gates in withheld:
        gradient = gates.theta.grad
        trainer = _trainer_beside(gates, optimizer)
        if gradient is None or (trainer is None and not gates.warming_up):
            continue
        gates.theta.grad = None
        if trainer is not None and not gates.warming_up:
            trainer.set_aside(gradient)


def _then_withhold(argument: Any, withheld: list[Gated], optimizer: Optimizer) -> Any:
    """Return the argument of a step; a closure then leaves no gradient of these gates either."""
    if not callable(argument):
        return argument
    closure: Callable[[], Any] = argument

    def closure_then_withhold() -> Any:
        loss = closure()
        _withhold(withheld, optimizer)
        return loss

    return closure_then_withhold


def _set_apart(optimizer: Optimizer, guarded: dict[int, Gated]) -> list[Gated]:
    """Take gates out of decaying groups, and return all gates that this optimizer holds."""
    found = []
    for group in list(optimizer.param_groups):
        places = []
        for place, parameter in enumerate(group["params"]):
            if id(parameter) in guarded:
                places.append(place)
                found.append(guarded[id(parameter)])
        if places and group.get("weight_decay"):
            _restore_groups_before_saving(optimizer)
            thetas = [group["params"][place] for place in places]
            rest = [parameter for parameter in group["params"] if id(parameter) not in guarded]
            group["params"][:] = rest
            apart = {**group, "params": thetas, "weight_decay": 0.0, _APART: (group, places)}
            optimizer.param_groups.append(apart)
    return found


def _restore_groups_before_saving(optimizer: Optimizer) -> None:
    if optimizer not in _mended:
        optimizer.register_state_dict_pre_hook(_put_back)
        optimizer.register_load_state_dict_pre_hook(_put_back)
        _mended.add(optimizer)


def _put_back(optimizer: Optimizer, *_: Any) -> None:
    for temporary in [group for group in optimizer.param_groups if _APART in group]:
        group, places = temporary[_APART]
        for place, theta in zip(places, temporary["params"], strict=True):
            group["params"].insert(place, theta)
    optimizer.param_groups[:] = [group for group in optimizer.param_groups if _APART not in group]
