"""The settings of LeAP: their names and types, and which values make sense."""

import math
from typing import Literal, TypedDict, get_args

from .errors import refuse_settings

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
    seed: int | None


def check(settings: Settings) -> None:
    """Refuse values that make no sense, all at once; every setting has to be there."""
    alpha, temperature, momentum = settings["alpha"], settings["temperature"], settings["momentum"]
    init, warmup, floor, (low, high) = settings["init"], settings["warmup"], settings["floor"], settings["clip"]
    refuse_settings(
        {
            f"alpha must be at least 0, but is {alpha}": 0 <= alpha < math.inf,
            f"temperature must be above 0, but is {temperature}": 0 < temperature < math.inf,
            f"momentum must be at least 0 and below 1, but is {momentum}": 0 <= momentum < 1,
            f"divergence must be 'mean' or 'rms', but is {settings['divergence']!r}": settings["divergence"]
            in get_args(Divergence),
            f"clip must be two numbers with 0 < low <= high, but is {(low, high)}": 0 < low <= high < math.inf,
            f"init must be a finite number, but is {init}": math.isfinite(init),
            f"warmup must be a number of batches, at least 0, but is {warmup}": warmup >= 0,
            f"floor must be at least 0 and below 1, but is {floor}": 0 <= floor < 1,
        }
    )
