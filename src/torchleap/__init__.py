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


def __getattr__(name: str) -> Any:
    if name == "models":  # needs polars, which is an extra and takes a while to import
        return import_module(".models", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
