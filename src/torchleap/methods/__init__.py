"""Methods that score fields: LeAP, its baselines and controls, all under one roof."""

from ..errors import TorchleapError, nearest
from .adafs import AdaFS
from .attribution import SFS, Permutation, Shark
from .base import Method, Scores, Search
from .controls import Nothing, Random
from .leap import LeAP, LeAPBase
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
    "LeAP",
    "LeAPBase",
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
    "leap": LeAP,
    "leap_base": LeAPBase,
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


def named(method: str | Method) -> Method:
    """The method with this name, with its default settings; a method stays what it is."""
    if isinstance(method, Method):
        return method
    if method not in METHODS:
        raise TorchleapError(f"There is no method {method!r}. {nearest(str(method), METHODS)}")
    return METHODS[method]()
