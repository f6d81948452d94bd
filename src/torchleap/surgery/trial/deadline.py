"""Limit the time that surgery takes: work that may take long asks now and then how much is left.

Neither threads nor signals are needed, so this works anywhere. A model's own code never asks; while
it is followed, Python asks at each of its lines. When it runs as it is, it is not interrupted: the
time is asked between two runs.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

from ..._common.errors import SurgeryError

PLAN_SECONDS = 60.0  # that a plan may take by default
LIBRARIES = frozenset(("torch", "torchleap", "numpy"))

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


def interruptible(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that asks for the time at each line of a model's own code that it runs.

    Code of libraries is never interrupted, since it may be about to restore what it has changed.
    With a debugger, or where there is no limit, nothing is interrupted.

    Args:
        function: The forward() of a model.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        if sys.gettrace() is not None or math.isinf(time_left()):
            return function(*args, **kwargs)
        sys.settrace(_at_call)
        try:
            return function(*args, **kwargs)
        finally:
            sys.settrace(None)

    return call


def _at_call(frame: FrameType, event: str, argument: Any) -> Any:
    """Watch the lines of a function if it is not one of a library."""
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    is_library = package in LIBRARIES or package in sys.stdlib_module_names
    return None if is_library else _at_line


def _at_line(frame: FrameType, event: str, argument: Any) -> Any:
    if event == "line":
        check_time()
    return _at_line


@contextmanager
def plan_within(seconds: float | None) -> Iterator[None]:
    """Refuse within this context, in which a plan is made, to take longer.

    Args:
        seconds: How long it may take; None is no limit.
    """
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if seconds is not None and not (is_number and seconds > 0):
        raise SurgeryError(
            f"time_limit must be a number of seconds above 0, or None, but is {seconds!r}."
        )
    try:
        with time_limit(seconds):
            yield
    except OutOfTimeError as error:
        raise SurgeryError(
            f"Expected a plan within {seconds} s, but running the model on all batches takes "
            "longer. Give it more time, plugin.plan(selection, time_limit=...), or a "
            "smaller batch, example=."
        ) from error
