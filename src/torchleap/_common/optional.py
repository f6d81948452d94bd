"""Imports of packages that belong to an extra: each is imported where it is used.

A package that is not installed becomes one sentence with the line that installs it:

    stats = need("scipy.stats", extra="bench", purpose="An interval")
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from .errors import TorchleapError

# what pip calls a package, where that is not the name of its module
DISTRIBUTIONS = {"sklearn": "scikit-learn", "xgboost": "xgboost-cpu"}


def need(
    module: str,
    extra: str,
    purpose: str,
    *,
    refused: type[TorchleapError] = TorchleapError,
) -> Any:
    """Import a module of an extra and return it.

    Args:
        module: The full name of the module, such as "sklearn.linear_model".
        extra: The extra of torchleap that installs its package, such as "bench".
        purpose: The subject of the sentence if the package is missing, such as "This method".
        refused: The error to raise in that case.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise refused(missing(module, extra, purpose)) from error


@contextmanager
def needing(
    *packages: str,
    extra: str,
    purpose: str,
    refused: type[TorchleapError] = TorchleapError,
) -> Iterator[None]:
    """Explain a missing package within this context, for modules that import it at their top.

    Args:
        packages: The packages that the extra installs; that others are missing is not explained.
        extra: As in `need`, and likewise the other arguments.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in packages:
            raise
        raise refused(missing(error.name, extra, purpose)) from error


def missing(module: str, extra: str, purpose: str) -> str:
    """Return the sentence that names a missing package and the line that installs it.

    >>> missing("sklearn.linear_model", "bench", "This method")
    "This method needs the package scikit-learn. Install it: pip install 'torchleap[bench]'."
    """
    package = module.split(".")[0]
    name = DISTRIBUTIONS.get(package, package)
    return f"{purpose} needs the package {name}. Install it: pip install 'torchleap[{extra}]'."
