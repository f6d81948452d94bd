"""Checks of saved states: names, shapes and dtypes, before anything of a checkpoint is used.

Fused and native optimizers trust the shapes of their states: one of another shape would be
written beyond its end.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .checks import is_number, is_whole
from .errors import TorchleapError

PER_WEIGHT = {
    "exp_avg",
    "exp_avg_sq",
    "max_exp_avg_sq",
    "momentum_buffer",
    "sum",
    "square_avg",
    "grad_avg",
}
ADAM = {"step", "exp_avg", "exp_avg_sq"}


class StateError(TorchleapError):
    """A saved state does not fit what it is to be given to."""


def check_tensors(found: Any, own: Mapping[str, Tensor], what: str) -> None:
    """Refuse other names, shapes, dtypes or layouts than there are."""
    expect(isinstance(found, Mapping) and found.keys() == own.keys(), f"{what} has other names")
    for name, tensor in found.items():
        expect(isinstance(tensor, Tensor), f"{name} in {what} is not a tensor")
        expect(tensor.shape == own[name].shape, f"{name} in {what} has another shape")
        expect(tensor.dtype == own[name].dtype, f"{name} in {what} has another dtype")
        expect(tensor.layout == own[name].layout, f"{name} in {what} has another layout")


def checked_optimizer_state(optimizer: Optimizer, saved: Any) -> dict[str, Any]:
    """Return the saved state of an optimizer, if it fits the optimizer's parameters.

    Args:
        optimizer: The optimizer that is to receive the state.
        saved: Its state_dict as a checkpoint contains it.

    Raises:
        StateError: The groups, names, shapes or dtypes are those of another optimizer.
    """
    expect(
        isinstance(saved, Mapping) and {"state", "param_groups"} <= saved.keys(),
        "an optimizer has no state",
    )
    own = optimizer.state_dict()["param_groups"]
    expect(
        isinstance(saved["param_groups"], Sequence) and len(saved["param_groups"]) == len(own),
        "it has other groups",
    )
    for group, ours in zip(saved["param_groups"], own, strict=True):
        _check_group(group, ours)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    expect(isinstance(saved["state"], Mapping), "an optimizer has no state")
    states = {}
    for place, state in saved["state"].items():
        expect(
            is_whole(place) and 0 <= place < len(parameters), f"it has no parameter {place!r:.40}"
        )
        expect(
            isinstance(state, Mapping) and all(isinstance(name, str) for name in state),
            "a state has no names",
        )
        states[place] = _checked_state(optimizer, state, parameters[place])
    return {**saved, "state": states}


def _checked_state(
    optimizer: Optimizer, state: Mapping[str, Any], parameter: Tensor
) -> Mapping[str, Any]:
    """Return the state of one parameter, laid out as the parameter is."""
    if not type(optimizer).__module__.startswith(("torch.optim", "torchleap.gates.optimizer")):
        return state
    _check_state(state, parameter, type(optimizer))
    return {name: _laid_out(value, parameter) for name, value in state.items()}


def _check_group(group: Any, own: Mapping[str, Any]) -> None:
    """Refuse settings of other types; switches, such as `fused`, must be the same."""
    expect(isinstance(group, Mapping), "a group of an optimizer has no settings")
    expect(list(group.get("params", ())) == own["params"], "an optimizer has other parameters")
    for name, value in own.items():
        found = group.get(name, value)
        expect(_is_alike(found, value), f"the setting {name} of an optimizer is {found!r:.40}")


def _is_alike(found: Any, own: Any) -> bool:
    if isinstance(own, Tensor):
        return isinstance(found, Tensor) and found.shape == own.shape and found.dtype == own.dtype
    if is_number(own):
        return is_number(found)
    if isinstance(own, tuple | list):
        return (
            isinstance(found, tuple | list)
            and len(found) == len(own)
            and all(map(_is_alike, found, own))
        )
    return type(found) is type(own) and bool(found == own)


def _check_state(state: Mapping[str, Any], parameter: Tensor, kind: type[Optimizer]) -> None:
    """Refuse tensors that are neither of one number nor as the parameter is."""
    if kind in (torch.optim.LBFGS, torch.optim.Adafactor):  # not fused; theirs have other shapes
        return
    if kind in (torch.optim.Adam, torch.optim.AdamW) and state:
        expect(state.keys() >= ADAM, "a state of Adam is not complete")
    for name, value in state.items():
        if not isinstance(value, Tensor):
            expect(name not in PER_WEIGHT or value is None, f"the state {name} is not a tensor")
            continue
        single = value.dim() == 0 and name not in PER_WEIGHT
        expect(
            single or value.shape == parameter.shape,
            f"the state {name} has another shape than its parameter",
        )
        expect(
            value.layout == torch.strided, f"the state {name} has another layout than its parameter"
        )
        expect(
            value.is_floating_point() == parameter.is_floating_point(),
            f"the state {name} has another dtype",
        )


def _laid_out(value: Any, parameter: Tensor) -> Any:
    """Return a state that lies in memory as its parameter does, as fused optimizers expect."""
    sharded = hasattr(value, "full_tensor") or hasattr(parameter, "full_tensor")
    if (
        not isinstance(value, Tensor)
        or sharded
        or value.shape != parameter.shape
        or value.stride() == parameter.stride()
    ):
        return value
    return torch.empty_like(parameter, dtype=value.dtype, device=value.device).copy_(value)


def expect(holds: bool, problem: str) -> None:
    """Raise a StateError unless it holds."""
    if not holds:
        raise StateError(problem)
