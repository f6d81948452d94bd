"""Keeps weight decay off the gates, whatever optimizer they are in.

Decay pulls theta towards 0, that is every gate towards 0.5, and AdamW decays by default. So within each step of any
optimizer, a gate in a decaying group stands in a group of its own without decay, and goes back afterwards: schedulers,
state and state_dict never see it.
"""

import weakref
from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

_APART = "torchleap: taken out of"
_guarded: "weakref.WeakValueDictionary[int, nn.Parameter]" = weakref.WeakValueDictionary()
_handles: list[Any] = []


def keep_decay_off(theta: nn.Parameter) -> None:
    """From now on no optimizer's weight decay moves `theta`."""
    _guarded[id(theta)] = theta
    if not _handles:
        _handles.append(register_optimizer_step_pre_hook(_set_apart))
        _handles.append(register_optimizer_step_post_hook(_put_back))


def _set_apart(optimizer: Optimizer, *_: Any) -> None:
    for group in list(optimizer.param_groups):
        if not group.get("weight_decay"):
            continue
        apart = [(place, p) for place, p in enumerate(group["params"]) if id(p) in _guarded]
        if apart:
            group["params"][:] = [p for p in group["params"] if id(p) not in _guarded]
            gates = [p for _, p in apart]
            optimizer.param_groups.append({**group, "params": gates, "weight_decay": 0.0, _APART: (group, apart)})


def _put_back(optimizer: Optimizer, *_: Any) -> None:
    for temporary in [group for group in optimizer.param_groups if _APART in group]:
        group, apart = temporary[_APART]
        for place, theta in apart:
            group["params"].insert(place, theta)
    optimizer.param_groups[:] = [group for group in optimizer.param_groups if _APART not in group]
