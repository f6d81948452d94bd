"""Settings: LeAP's, with the values that make sense, and what all frozen dataclasses of settings share."""

import math
from collections.abc import Callable
from typing import Any, Literal, TypedDict, get_args

from .._common.checks import is_number, is_whole, refuse_settings
from ..mix.shuffle import Shuffle

Divergence = Literal["mean", "rms"]


class Settings(TypedDict, total=False):
    """What `LeAP` and `attach` take by name; explained at `LeAP`."""

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


def check(settings: Settings) -> None:
    """Refuse values that make no sense, all at once; every setting has to be there."""
    clip = settings["clip"]
    pair = (
        isinstance(clip, tuple | list)
        and len(clip) == 2
        and all(map(is_number, clip))
        and 0 < clip[0] <= clip[1] < math.inf
    )
    rules: dict[str, tuple[str, Callable[[Any], bool]]] = {
        "alpha": (
            "a number of at least 0",
            lambda value: is_number(value) and 0 <= value < math.inf,
        ),
        "temperature": (
            "a number above 0",
            lambda value: is_number(value) and 0 < value < math.inf,
        ),
        "momentum": ("at least 0 and below 1", lambda value: is_number(value) and 0 <= value < 1),
        "adaptive": ("True or False", lambda value: isinstance(value, bool)),
        "divergence": ("'mean' or 'rms'", lambda value: value in get_args(Divergence)),
        "normalize": ("True or False", lambda value: isinstance(value, bool)),
        "clip": ("two numbers with 0 < low <= high", lambda value: pair),
        "init": ("a finite number", lambda value: is_number(value) and math.isfinite(value)),
        "warmup": (
            "a whole number of batches, at least 0",
            lambda value: is_whole(value) and value >= 0,
        ),
        "floor": ("at least 0 and below 1", lambda value: is_number(value) and 0 <= value < 1),
        "shuffle": ("'uniform' or 'cyclic'", lambda value: value in get_args(Shuffle)),
        "per_dimension": ("True or False", lambda value: isinstance(value, bool)),
        "sync_every": (
            "a whole number of steps, at least 0",
            lambda value: is_whole(value) and value >= 0,
        ),
        "seed": ("a whole number or None", lambda value: value is None or is_whole(value)),
    }
    found: dict[str, Any] = {**settings}
    refuse_settings(
        {
            f"{name} must be {wanted}, but is {found[name]!r}": holds(found[name])
            for name, (wanted, holds) in rules.items()
        }
    )
