"""Methods that score fields: LeAP, its baselines and controls, all under one roof."""

from collections.abc import Mapping
from typing import Any

from .._common.checks import with_settings
from .._common.errors import TorchleapError, nearest
from .adafs import AdaFS
from .attribution import SFS, Shark
from .base import Method, Scores, Search
from .controls import Nothing, Random
from .leap import LeAPBaseMethod, LeAPMethod
from .permutation import Permutation
from .shallow import GBDT, Forest, Lasso, XGBoost
from .soft_gates import STG, AutoField, VariationalDropout
from .sparse_gates import LPFS, DeepLasso, OptFS

__all__ = [
    "GBDT",
    "LPFS",
    "METHODS",
    "SFS",
    "STG",
    "AdaFS",
    "AutoField",
    "DeepLasso",
    "Forest",
    "Lasso",
    "LeAPBaseMethod",
    "LeAPMethod",
    "Method",
    "Nothing",
    "OptFS",
    "Permutation",
    "Random",
    "Scores",
    "Search",
    "Shark",
    "VariationalDropout",
    "XGBoost",
    "named",
]

METHODS: dict[str, type[Method]] = {
    "leap": LeAPMethod,
    "leap_base": LeAPBaseMethod,
    "lasso": Lasso,
    "forest": Forest,
    "xgboost": XGBoost,
    "gbdt": GBDT,
    "permutation": Permutation,
    "shark": Shark,
    "sfs": SFS,
    "autofield": AutoField,
    "lpfs": LPFS,
    "adafs": AdaFS,
    "optfs": OptFS,
    "deep_lasso": DeepLasso,
    "stg": STG,
    "variational_dropout": VariationalDropout,
    "random": Random,
    "none": Nothing,
}


def named(method: str | Method, settings: Mapping[str, Any] | None = None) -> Method:
    """The method with this name and these settings; a method stays what it is, but for them.

    >>> named("leap", {"strength": 0.2}).strength
    0.2
    """
    if not isinstance(method, Method) and method not in METHODS:
        raise TorchleapError(f"There is no method {method!r}. {nearest(str(method), METHODS)}")
    found = method if isinstance(method, Method) else METHODS[method]()
    return with_settings(found, settings or {})
