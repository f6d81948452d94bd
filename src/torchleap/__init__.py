"""torchleap finds out, during ordinary training, which input fields a deep ranking model can do without."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import (
    AttachError,
    DataError,
    FieldError,
    MetricError,
    RemovedTableError,
    SelectionError,
    SurgeryError,
    TorchleapError,
    WriteError,
)

if TYPE_CHECKING:
    from . import callbacks, data, export, methods, metrics, models, train
    from .drift import Drift
    from .fields import Field, Fields
    from .finetuning import carry_over, finetune, plan_of
    from .gates import LeAP
    from .metrics import auc, gauc, log_loss, s_auc
    from .optimizer import GateOptimizer
    from .plugin import Plugin, attach, attached
    from .report import Report
    from .searching import retrain, search
    from .selecting import decide
    from .selection import Rule, Selection
    from .streaming import LearnGates, stream
    from .surgery import Plan
    from .train import Training, fit

__version__ = "0.1.0"

# What is imported when it is first asked for: torch takes seconds to import, and the command line answers --help without it.
_LATER = {
    **dict.fromkeys(("callbacks", "data", "export", "methods", "metrics", "models", "train"), ""),
    **dict.fromkeys(("Field", "Fields"), "fields"),
    **dict.fromkeys(("carry_over", "finetune", "plan_of"), "finetuning"),
    **dict.fromkeys(("auc", "gauc", "log_loss", "s_auc"), "metrics"),
    **dict.fromkeys(("Plugin", "attach", "attached"), "plugin"),
    **dict.fromkeys(("retrain", "search"), "searching"),
    **dict.fromkeys(("Training", "fit"), "train"),
    **dict.fromkeys(("LearnGates", "stream"), "streaming"),
    **{"GateOptimizer": "optimizer", "LeAP": "gates", "Plan": "surgery", "Report": "report", "Drift": "drift"},
    **{"Rule": "selection", "Selection": "selection", "decide": "selecting"},
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = import_module(f".{_LATER[name] or name}", __name__)
    except ModuleNotFoundError as error:
        if error.name != "polars":
            raise
        raise DataError("Tasks need the package polars. Install it: pip install 'torchleap[data]'.") from error
    return getattr(found, name) if _LATER[name] else found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


__all__ = [
    "AttachError",
    "DataError",
    "Drift",
    "Field",
    "FieldError",
    "Fields",
    "GateOptimizer",
    "LeAP",
    "LearnGates",
    "MetricError",
    "Plan",
    "Plugin",
    "RemovedTableError",
    "Report",
    "Rule",
    "Selection",
    "SelectionError",
    "SurgeryError",
    "TorchleapError",
    "Training",
    "WriteError",
    "attach",
    "attached",
    "auc",
    "callbacks",
    "carry_over",
    "data",
    "decide",
    "export",
    "finetune",
    "fit",
    "gauc",
    "log_loss",
    "methods",
    "metrics",
    "models",
    "plan_of",
    "retrain",
    "s_auc",
    "search",
    "stream",
    "train",
]
