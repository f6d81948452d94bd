"""The state of a run that checkpoints of `fit` and of `stream` have in common, and its checks.

A state is checked before any of it is used. `fit` saves it in one sealed file, `stream` in a folder
to which every rank writes its part.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .._common.checks import is_number, is_whole
from .._common.states import checked_optimizer_state, expect
from .._common.text import first_line
from ..distributed import ranks
from .settings import TrainingError

FORMAT = 4
UNFIT = (  # raised by a state of another kind
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    RuntimeError,
    IndexError,
    OverflowError,
)
COUNTS = ("step", "evals_since_best")
OTHERS = {"history": list, "best": dict, "stopped": str}


def check_format(state: Any, path: object, cure: str) -> None:
    """Raise a TrainingError if a saved state has another format than this version reads.

    Args:
        state: The state, of any type.
        path: The checkpoint, for the message.
        cure: The last sentence of the message.
    """
    found = state.get("format") if isinstance(state, Mapping) else None
    if found != FORMAT:
        raise TrainingError(
            f"{path} is a checkpoint of format {found!r:.40}, but this version of torchleap reads "
            f"format {FORMAT}. {cure}"
        )


def differences(state: Mapping[str, Any], model: nn.Module, hooks: int) -> list[str]:
    """Return how a saved state differs from the run that is to resume it, as ends of a sentence.

    Args:
        state: The saved state.
        model: The model of the run.
        hooks: The number of hooks of the run that have a state.
    """
    found = []
    saved = {name: tuple(tensor.shape) for name, tensor in state["model"].items()}
    if saved != {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}:
        found.append("its model has other weights")
    if len(state["hooks"]) != hooks:
        found.append("it has other hooks")
    return found


@contextmanager
def restoring(path: object, cure: str) -> Iterator[None]:
    """Raise a TrainingError that names the checkpoint if a part of it does not fit.

    Args:
        path: The checkpoint that is restored within this context.
        cure: The last sentence of the message.
    """
    try:
        yield
    except TrainingError:
        raise
    except UNFIT as error:
        ranks.raise_if_lost(error)
        raise TrainingError(f"{path} cannot be resumed: {first_line(error)}. {cure}") from error


def restore_optimizer(optimizer: Optimizer, saved: Any) -> None:
    """Restore the state of an optimizer if it fits its parameters, which may be sharded by now."""
    state = checked_optimizer_state(optimizer, saved)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    optimizer.load_state_dict(ranks.sharded_state(state, parameters))


def restore_run(run: Any, saved: Any, names: Sequence[str]) -> None:
    """Set attributes of a run to their saved values, if each is of its type.

    Args:
        run: The run.
        saved: The values by name.
        names: The names that are expected, no more and no fewer.
    """
    fits = isinstance(saved, Mapping) and sorted(saved) == sorted(names)
    expect(fits, "it has other values of the run")
    for name, value in saved.items():
        expect(_is_value_of(name, value), f"{name} of the run is {value!r:.40}")
    records = all(isinstance(record, dict) for record in saved["history"])
    expect(records, "its history is not a list of records")
    for name, value in saved.items():
        setattr(run, name, value)


def _is_value_of(name: str, value: Any) -> bool:
    """Return whether a value can be that of an attribute of a run."""
    if name in COUNTS:
        return is_whole(value) and 0 <= value < 1 << 62
    if name in OTHERS:
        return isinstance(value, OTHERS[name])
    return is_number(value) and not math.isnan(value)


def restore_rng(state: Any, seed: int, step: int) -> None:
    """Restore this rank's random generator, or seed it again where its state was not saved.

    Args:
        state: The state of PyTorch's generator; None for another number of ranks than before.
        seed: The seed of the run.
        step: The step that it resumes at.
    """
    if state is None:
        torch.manual_seed(seed + 1_000_003 * step + ranks.rank())
        return
    own = torch.get_rng_state()
    fits = isinstance(state, torch.Tensor) and state.shape == own.shape
    fits = fits and (state.dtype, state.device) == (own.dtype, own.device)
    expect(fits, "its random numbers are not a state of PyTorch's generator")
    torch.set_rng_state(state)
