"""Find out, during ordinary training, which input fields a deep ranking model can do without."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._common.errors import (
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
from ._common.optional import needing

if TYPE_CHECKING:
    from . import callbacks, data, export, methods, models
    from . import objectives as metrics
    from .evidence import Certificate, certify
    from .fields import Field, Fields
    from .gates.leap import LeAP
    from .gates.optimizer import GateOptimizer
    from .gates.price_window import PriceWindow
    from .gates.trainer import GateTrainer
    from .objectives import Metric, Objective, auc, gauc, log_loss, s_auc
    from .pipeline.decide import Decision, decide
    from .pipeline.retrain import retrain
    from .pipeline.search import search
    from .pipeline.serve import Served
    from .plugin import Plugin, attach, attached
    from .report import Report
    from .selection import Rule, Selection
    from .sites.notation import Place
    from .surgery import Plan
    from .surgery.plan import plan_of
    from .training import fit as train
    from .training.drift import Drift
    from .training.finetune import carry_over, finetune
    from .training.fit import Training, fit
    from .training.lazy_adam import LazyAdam
    from .training.stream import LearnGates, stream

__version__ = "0.1.0"

# Imported on first use: torch takes seconds to import, and --help works without it.
_MODULES = {
    "callbacks": "callbacks",
    "data": "data",
    "export": "export",
    "methods": "methods",
    "metrics": "objectives",
    "models": "models",
    "train": "training.fit",
}
_NAMES = {
    "Certificate": "evidence",
    "Decision": "pipeline.decide",
    "Drift": "training.drift",
    "Field": "fields",
    "Fields": "fields",
    "GateOptimizer": "gates.optimizer",
    "GateTrainer": "gates.trainer",
    "LazyAdam": "training.lazy_adam",
    "LeAP": "gates.leap",
    "LearnGates": "training.stream",
    "Metric": "objectives",
    "Objective": "objectives",
    "Place": "sites.notation",
    "Plan": "surgery",
    "Plugin": "plugin",
    "PriceWindow": "gates.price_window",
    "Report": "report",
    "Rule": "selection",
    "Selection": "selection",
    "Served": "pipeline.serve",
    "Training": "training.fit",
    "attach": "plugin",
    "attached": "plugin",
    "auc": "objectives",
    "carry_over": "training.finetune",
    "certify": "evidence",
    "decide": "pipeline.decide",
    "finetune": "training.finetune",
    "fit": "training.fit",
    "gauc": "objectives",
    "log_loss": "objectives",
    "plan_of": "surgery",
    "register_batch": "sites.batches",
    "retrain": "pipeline.retrain",
    "s_auc": "objectives",
    "search": "pipeline.search",
    "stream": "training.stream",
}


def __getattr__(name: str) -> Any:
    home = _MODULES.get(name) or _NAMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needing("polars", extra="data", purpose="A task", refused=DataError):
        module = import_module(f".{home}", __name__)
    return module if name in _MODULES else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_NAMES})


__all__ = [
    "AttachError",
    "Certificate",
    "DataError",
    "Decision",
    "Drift",
    "Field",
    "FieldError",
    "Fields",
    "GateOptimizer",
    "GateTrainer",
    "LazyAdam",
    "LeAP",
    "LearnGates",
    "Metric",
    "MetricError",
    "Objective",
    "Place",
    "Plan",
    "Plugin",
    "PriceWindow",
    "RemovedTableError",
    "Report",
    "Rule",
    "Selection",
    "SelectionError",
    "Served",
    "SurgeryError",
    "TorchleapError",
    "Training",
    "WriteError",
    "attach",
    "attached",
    "auc",
    "callbacks",
    "carry_over",
    "certify",
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
    "register_batch",
    "retrain",
    "s_auc",
    "search",
    "stream",
    "train",
]
