"""Data: files and frames become tasks with batches; public sets; generators whose truth is known."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import DataError
from .industrial import IndustrialLog, industrial
from .truth import KnownTruth, known_truth

if TYPE_CHECKING:
    from .applying import Encoding, save_encoding
    from .converting import convert
    from .inspection import inspect
    from .public import aliccp, avazu, census_income, criteo, download, movielens_1m
    from .reading import read
    from .schema import Column
    from .task import Batch, Batches, Rows, Task

_HOME = {  # polars takes a while to import and is an extra, so these are imported when they are asked for
    **dict.fromkeys(("aliccp", "avazu", "census_income", "criteo", "download", "movielens_1m"), "public"),
    **dict.fromkeys(("Batch", "Batches", "Rows", "Task"), "task"),
    **dict.fromkeys(("Encoding", "save_encoding"), "applying"),
    "Column": "schema",
    "convert": "converting",
    "inspect": "inspection",
    "read": "reading",
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
        raise DataError(f"Reading data needs the package {error.name}. Install it: pip install 'torchleap[data]'.") from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
