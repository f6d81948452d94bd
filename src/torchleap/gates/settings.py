"""The settings of LeAP: written once, with their defaults, meanings and ranges."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict, TypeVar

from .._common.checks import check_settings, is_number, setting
from .._common.errors import nearest
from ..mix.shuffle import Shuffle

Divergence = Literal["mean", "rms"]
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class GateSettings:
    """Choose how gates mix, measure and price their fields; `LeAP` and `attach` take them by name.

    Args:
        alpha: The weight of the penalty.
        temperature: The tau of the paper: a gate is sigmoid(theta / tau).
        momentum: The beta of the paper: the weight of the past in moving averages.
        adaptive: Whether each gate's penalty is scaled by its divergence. False is LeAP-Base, with
            the same penalty for every gate.
        divergence: "mean" is the paper's; "rms" also closes sparse noise.
        normalize: Whether the divergence is measured in units of the field's own values, so that
            rescaling a field changes nothing.
        clip: A field whose divergence is below the first number times the median field's, or times
            the norm of its own mean, counts as constant and is priced as the median. Above the
            second number times the median the price no longer grows.
        init: The theta that every gate starts with; 1 with temperature 0.2 is a gate of 0.993.
        warmup: The number of batches, held-out ones included, during which the gates stay at 1
            while the divergence is already measured.
        floor: The smallest weight of the clean rows in training, so that a closed field is still
            seen and can return.
        shuffle: "uniform" draws a permutation per gate, as the paper does. "cyclic" shifts one
            random order of the rows by a random distance per gate, which is cheaper where there
            are many narrow fields or no native kernel.
        per_dimension: Whether each dimension of a field has a gate, which is then called
            "clicks[3]": surgery narrows embeddings.
        sync_every: The number of steps between two all-reduces of the statistics where there are
            several ranks. Between them the statistics do not change, so that all ranks agree at
            every step. 0 is for gates that each rank trains for itself.
        seed: The seed of the permutations; None follows `torch.manual_seed` without drawing from
            it. Each rank draws its own permutations.
    """

    alpha: float = 1e-3
    temperature: float = setting(0.2, above=0)  # tau
    momentum: float = setting(0.99, at_least=0, below=1)  # beta
    adaptive: bool = True
    divergence: Divergence = "rms"
    normalize: bool = False
    clip: tuple[float, float] = (1e-6, 1e4)
    init: float = setting(1.0)  # theta at step 0
    warmup: int = 0
    floor: float = setting(0.0, at_least=0, below=1)
    shuffle: Shuffle = "uniform"
    per_dimension: bool = False
    sync_every: int = 1
    seed: int | None = setting(None)

    def __post_init__(self) -> None:
        if isinstance(self.clip, list):  # as JSON has it
            object.__setattr__(self, "clip", tuple(self.clip))
        wanted = f"clip must be two numbers with 0 < low <= high, but is {self.clip!r}"
        check_settings(self, {wanted: _is_clip(self.clip)})

    @classmethod
    def named(cls, settings: Mapping[str, Any]) -> "GateSettings":
        """Return the settings with these names; a misspelt one is refused with the nearest name."""
        known = [one.name for one in fields(cls)]
        for name in settings:
            if name not in known:
                raise TypeError(f"LeAP has no setting {name!r}. {nearest(name, known)}")
        return cls(**settings)


class SettingsByName(TypedDict, total=False):
    """The types of `GateSettings`, for type checkers: each may be given by its name."""

    alpha: float
    temperature: float
    momentum: float
    adaptive: bool
    divergence: Divergence
    normalize: bool
    clip: tuple[float, float]
    init: float
    warmup: int
    floor: float
    shuffle: Shuffle
    per_dimension: bool
    sync_every: int
    seed: int | None


def with_settings_in_signature(function: Function) -> Function:
    """Show each of `GateSettings`, in place of `**settings`, in help and in completions."""
    signature = inspect.signature(function)
    own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    for one in inspect.signature(GateSettings).parameters.values():
        own.append(one.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    vars(function)["__signature__"] = signature.replace(parameters=own)
    return function


def _is_clip(clip: Any) -> bool:
    if not isinstance(clip, tuple) or len(clip) != 2 or not all(map(is_number, clip)):
        return False
    return bool(0 < clip[0] <= clip[1] < math.inf)
