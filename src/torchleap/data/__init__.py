"""Data: files and frames become tasks with batches; public sets; generators whose truth is known."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .._common.errors import DataError
from .synthetic.industrial import IndustrialLog, industrial
from .synthetic.truth import KnownTruth, known_truth

if TYPE_CHECKING:
    from .files.convert import convert
    from .files.encoding import Encoding, save_encoding
    from .files.inspection import inspect
    from .files.read import read
    from .files.schema import Column
    from .sets.public import aliccp, avazu, census_income, criteo, download, movielens_1m
    from .task import Batch, Batches, Rows, Task

_HOME = {  # polars takes a while to import and is an extra, so these are imported when they are asked for
    **dict.fromkeys(
        ("aliccp", "avazu", "census_income", "criteo", "download", "movielens_1m"), "sets.public"
    ),
    **dict.fromkeys(("Batch", "Batches", "Rows", "Task"), "task"),
    **dict.fromkeys(("Encoding", "save_encoding"), "files.encoding"),
    "Column": "files.schema",
    "convert": "files.convert",
    "inspect": "files.inspection",
    "read": "files.read",
}

__all__ = [
    "Batch",
    "Batches",
    "Column",
    "Encoding",
    "IndustrialLog",
    "KnownTruth",
    "Rows",
    "Task",
    "aliccp",
    "avazu",
    "census_income",
    "convert",
    "criteo",
    "download",
    "industrial",
    "inspect",
    "known_truth",
    "movielens_1m",
    "read",
    "save_encoding",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = getattr(import_module(f".{_HOME[name]}", __name__), name)
    except ModuleNotFoundError as error:
        if error.name not in ("polars", "pyarrow"):
            raise
        raise DataError(
            f"Reading data needs the package {error.name}. Install it: pip install 'torchleap[data]'."
        ) from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
