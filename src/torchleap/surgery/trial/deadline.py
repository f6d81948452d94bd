"""Limit the time that surgery takes: work that may take long asks now and then how much is left.

Neither threads nor signals are needed, so this works anywhere. Code that never asks, such as a
forward() that never returns, is not interrupted.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..._common.errors import SurgeryError

PLAN_SECONDS = 60.0  # that a plan may take by default

_end: ContextVar[float] = ContextVar("torchleap_deadline", default=math.inf)


class OutOfTimeError(SurgeryError):
    """The time is over that a step of surgery may take."""


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Limit the time within this context; a limit around it is never exceeded.

    Args:
        seconds: The time from now on; None is no further limit.
    """
    end = math.inf if seconds is None else time.monotonic() + seconds
    token = _end.set(min(_end.get(), end))
    try:
        yield
    finally:
        _end.reset(token)


def time_left() -> float:
    """Return how many seconds are left: 0 when they are over, infinitely many without a limit."""
    return max(0.0, _end.get() - time.monotonic())


def check_time() -> None:
    """Raise if no time is left."""
    if not time_left():
        raise OutOfTimeError("it takes too long, plan(..., time_limit=...) allows more time")


@contextmanager
def plan_within(seconds: float | None) -> Iterator[None]:
    """Refuse within this context, in which a plan is made, to take longer.

    Args:
        seconds: How long it may take; None is no limit.
    """
    if seconds is not None and not seconds > 0:
        raise SurgeryError(
            f"time_limit must be a number of seconds above 0, or None, but is {seconds!r}."
        )
    try:
        with time_limit(seconds):
            yield
    except OutOfTimeError as error:
        raise SurgeryError(
            f"Expected a plan within {seconds:g} s, but running the model on all batches takes "
            "longer. Give it more time, plugin.plan(selection, time_limit=...), or a "
            "smaller batch, example=."
        ) from error
