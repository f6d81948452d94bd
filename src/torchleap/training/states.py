"""Check what a checkpoint holds against what it is to be given to, before any of it is used.

Fused and native optimizers trust the shapes of their states: one of another shape would be written beyond its end.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._common.checks import is_number, is_whole
from .._common.errors import TorchleapError
from ..distributed import ranks

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
UNFIT = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    RuntimeError,
    IndexError,
    OverflowError,
)  # of a state of another kind
COUNTS = ("step", "evals_since_best")
OTHERS = {"history": list, "best": dict, "stopped": str}


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


def restore_optimizer(optimizer: Optimizer, saved: Any) -> None:
    """Give an optimizer its saved state, if that fits its parameters; these may be sharded by now."""
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
        states[place] = state
        if type(optimizer).__module__.startswith(("torch.optim", "torchleap.gates.optimizer")):
            _check_state(state, parameters[place], type(optimizer))
            states[place] = {
                name: _laid_out(value, parameters[place]) for name, value in state.items()
            }
    optimizer.load_state_dict(ranks.sharded_state({**saved, "state": states}, parameters))


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
    """Return a state that lies in memory as its parameter does: a fused optimizer walks over both in one way."""
    sharded = hasattr(value, "full_tensor") or hasattr(parameter, "full_tensor")
    if (
        not isinstance(value, Tensor)
        or sharded
        or value.shape != parameter.shape
        or value.stride() == parameter.stride()
    ):
        return value
    return torch.empty_like(parameter, dtype=value.dtype, device=value.device).copy_(value)


def restore_run(run: Any, saved: Any, names: Sequence[str]) -> None:
    """Set where a run stands, if each value is of its type."""
    expect(
        isinstance(saved, Mapping) and sorted(saved) == sorted(names),
        "it says something else about the run",
    )
    for name, value in saved.items():
        if name in COUNTS:
            fits = is_whole(value) and 0 <= value < 1 << 62
        elif name in OTHERS:
            fits = isinstance(value, OTHERS[name])
        else:
            fits = is_number(value) and not math.isnan(value)
        expect(fits, f"{name} of the run is {value!r:.40}")
    expect(
        all(isinstance(record, dict) for record in saved["history"]),
        "its history is not a list of records",
    )
    for name, value in saved.items():
        setattr(run, name, value)


def check_random(state: Any) -> None:
    """Refuse what is not the state of PyTorch's random numbers."""
    own = torch.get_rng_state()
    fits = isinstance(state, Tensor) and state.shape == own.shape and state.dtype == own.dtype
    expect(fits and state.device == own.device, "its random numbers are not a state of PyTorch's")


def expect(holds: bool, problem: str) -> None:
    """Raise a StateError unless it holds."""
    if not holds:
        raise StateError(problem)
