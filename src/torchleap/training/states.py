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
from .._common.states import StateError, check_tensors, checked_optimizer_state, expect
from ..distributed import ranks

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


def restore_optimizer(optimizer: Optimizer, saved: Any) -> None:
    """Give an optimizer its saved state, if that fits its parameters; these may be sharded by now."""
    state = checked_optimizer_state(optimizer, saved)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    optimizer.load_state_dict(ranks.sharded_state(state, parameters))


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
