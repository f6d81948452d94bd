"""Methods that score fields: LeAP, its baselines and two controls.

A new method is one file with a frozen dataclass and its `score(search)`, one line in `METHODS`, and
one test.
"""

from collections.abc import Mapping
from typing import Any

from .._common.checks import with_settings
from .._common.errors import TorchleapError, nearest
from .adafs import AdaFS
from .autofield import AutoField
from .base import GateMethod, Method, Replica, Scores, Search, Snapshot
from .controls import Nothing, Random
from .deep_lasso import DeepLasso
from .lasso import Lasso
from .leap import LeAPMethod
from .lpfs import LPFS
from .optfs import OptFS
from .permutation import Permutation
from .pressure import LeAPBaseMethod, PressureMethod
from .sfs import SFS
from .shark import Shark
from .stg import STG
from .trees import GBDT, Forest, XGBoost
from .variational_dropout import VariationalDropout

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
    "GateMethod",
    "Lasso",
    "LeAPBaseMethod",
    "LeAPMethod",
    "Method",
    "Nothing",
    "OptFS",
    "Permutation",
    "PressureMethod",
    "Random",
    "Replica",
    "Scores",
    "Search",
    "Shark",
    "Snapshot",
    "VariationalDropout",
    "XGBoost",
    "named",
]

METHODS: dict[str, type[Method]] = {
    "leap": LeAPMethod,
    "leap_pressure": PressureMethod,
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
    """Return a method with some of its settings changed.

    Args:
        method: The name of a method in `METHODS`, or a method.
        settings: New values by name; None changes nothing.

    >>> named("leap_pressure", {"strength": 0.2}).strength
    0.2
    """
    if not isinstance(method, Method):
        if method not in METHODS:
            raise TorchleapError(f"There is no method {method!r}. {nearest(str(method), METHODS)}")
        method = METHODS[method]()
    return with_settings(method, settings or {})
