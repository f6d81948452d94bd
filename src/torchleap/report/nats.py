"""The axis of worth: it spans decades, and a worth may be negative.

The axis is logarithmic on both sides of zero and linear next to it ("symlog"), as Vega-Lite and
the page's script draw it.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .record import bounds, least_worth, scored, shown_score

LARGEST_CONSTANT = 1e-4  # nats: what chance alone changes on some ten thousand rows
DECADES = 2  # that are shown below the largest worth, at least
GAP = 0.15  # of the axis, which a label needs


@dataclass(frozen=True)
class NatsAxis:
    """An axis of worth.

    Attributes:
        low: Where it begins, in nats; 0 or less.
        high: Where it ends.
        constant: The worth up to which the axis is linear.
        ticks: Round numbers on it, in order.
    """

    low: float
    high: float
    constant: float
    ticks: tuple[float, ...]


def nats_axis(record: Mapping[str, Any]) -> NatsAxis:
    """Return the axis on which the worth of every field, with its interval, has a place."""
    values = [0.0]
    for field in scored(record):
        values.append(shown_score(field, nats=True))
        values += bounds(field, "worth_low", "worth_high") or ()
    values.append(least_worth(record) or 0.0)
    low, high = min(values), max(values)
    if low == high:
        high = LARGEST_CONSTANT
    largest = max(-low, high)
    constant = min(LARGEST_CONSTANT, 10.0 ** (math.floor(math.log10(largest)) - DECADES))
    return NatsAxis(low, high, constant, _ticks(low, high, constant))


def symlog(value: float, constant: float) -> float:
    """Return the place of a number on an axis, before it is stretched to the axis's length.

    >>> symlog(0, 1e-4), round(symlog(0.0999, 1e-4) / symlog(0.0009, 1e-4), 6)
    (0.0, 3.0)
    """
    return math.copysign(math.log1p(abs(value) / constant), value)


def _ticks(low: float, high: float, constant: float) -> tuple[float, ...]:
    """Return zero and powers of ten that fit on an axis, without those that have no room."""
    length = symlog(high, constant) - symlog(low, constant)
    found: list[float] = []
    for tick in _candidates(low, high, constant):
        place = symlog(tick, constant)
        if all(abs(place - symlog(other, constant)) >= GAP * length for other in found):
            found.append(tick)
    return tuple(sorted(found))


def _candidates(low: float, high: float, constant: float) -> Iterable[float]:
    """Yield the round numbers within an axis, those that matter most first."""
    yield 0.0
    first = round(math.log10(constant))
    last = math.floor(math.log10(max(-low, high)) + 1e-9)
    for power in range(last, first - 1, -1):
        for tick in (10.0**power, -(10.0**power)):
            if low <= tick <= high:
                yield tick
