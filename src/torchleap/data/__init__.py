"""Data: files and frames become tasks with batches; public sets; data with known ground truth.

    columns, batches, rows, manifest, task    a Task: encoded rows on disk, and the batches of them
    files/                                    files and frames are opened, inspected and encoded
    sets/                                     public data sets
    synthetic/                                data with known ground truth

`files` produces a Task, and `sets` and `synthetic` read through `files`; nothing imports the other
way round.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .._common.errors import DataError
from .._common.optional import needing
from .synthetic.industrial import IndustrialLog, industrial
from .synthetic.truth import KnownTruth, known_truth

if TYPE_CHECKING:
    from .batches import Batch, Batches
    from .columns import Column
    from .files.convert import convert
    from .files.encoding import Encoding, save_encoding
    from .files.inspection import inspect
    from .files.read import read
    from .rows import Rows
    from .sets.aliccp import aliccp
    from .sets.avazu import avazu
    from .sets.census import census_income
    from .sets.criteo import criteo
    from .sets.download import download
    from .sets.movielens import movielens_1m
    from .task import Task

MODULES = {  # imported when they are used: polars is an extra and takes long to import
    "Batch": "batches",
    "Batches": "batches",
    "Column": "columns",
    "Encoding": "files.encoding",
    "Rows": "rows",
    "Task": "task",
    "aliccp": "sets.aliccp",
    "avazu": "sets.avazu",
    "census_income": "sets.census",
    "convert": "files.convert",
    "criteo": "sets.criteo",
    "download": "sets.download",
    "inspect": "files.inspection",
    "movielens_1m": "sets.movielens",
    "read": "files.read",
    "save_encoding": "files.encoding",
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
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needing("polars", "pyarrow", extra="data", purpose="Reading data", refused=DataError):
        module = import_module(f".{MODULES[name]}", __name__)
    found = getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
