"""torchleap finds out, during ordinary training, which input fields a deep ranking model can do without."""

from importlib import import_module
from typing import Any

from . import data, export, metrics
from .errors import AttachError, DataError, FieldError, MetricError, SelectionError, SurgeryError, TorchleapError
from .fields import Field, Fields
from .finetune import carry_over, finetune, plan_of
from .gates import LeAP
from .metrics import auc, gauc, log_loss, s_auc
from .optimizer import GateOptimizer
from .plugin import Plugin, attach, attached
from .selection import Selection
from .surgery import Plan

__version__ = "0.1.0"

_LATER = {  # modules and what is in them that need polars, which is an extra and takes a while to import
    **dict.fromkeys(("callbacks", "models", "methods", "train"), ""),
    **dict.fromkeys(("search", "retrain"), "searching"),
    **dict.fromkeys(("fit", "Training"), "train"),
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f".{_LATER[name]}", __name__), name) if _LATER[name] else import_module(f".{name}", __name__)
    except ModuleNotFoundError as error:
        if error.name != "polars":
            raise
        raise DataError("Tasks need the package polars. Install it: pip install 'torchleap[data]'.") from error


__all__ = [
    "AttachError",
    "DataError",
    "Field",
    "FieldError",
    "Fields",
    "GateOptimizer",
    "LeAP",
    "MetricError",
    "Plan",
    "Plugin",
    "Selection",
    "SelectionError",
    "SurgeryError",
    "TorchleapError",
    "attach",
    "attached",
    "auc",
    "carry_over",
    "data",
    "export",
    "finetune",
    "gauc",
    "log_loss",
    "metrics",
    "plan_of",
    "s_auc",
]
