"""Raise mistakes instead of falling back, where TORCHLEAP_STRICT=1 requests it."""

import os

from .errors import SurgeryError, TorchleapError

VARIABLE = "TORCHLEAP_STRICT"


class InexactError(SurgeryError):
    """A result that differs from what it should be: always a mistake of the code that made it."""


def is_strict() -> bool:
    """Return whether the environment variable TORCHLEAP_STRICT is set, to anything but 0."""
    return os.environ.get(VARIABLE, "0") not in ("", "0")


def raise_mistake(error: Exception) -> None:
    """Raise an error in strict mode, unless it declares why something is not supported.

    Code that has a simpler way to fall back to calls this first, with the error of the better way.
    A `TorchleapError` names a reason and is not a mistake; every other error is, and so is
    `InexactError`.
    Without TORCHLEAP_STRICT=1 this does nothing, so that users get the simpler way.

    Args:
        error: The error that was caught.
    """
    declared = isinstance(error, TorchleapError) and not isinstance(error, InexactError)
    if is_strict() and not declared:
        raise error
