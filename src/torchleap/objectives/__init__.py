"""Objectives and metrics: losses, links, directions, and differences of two models."""

from .binary import (
    Difference,
    Influence,
    auc,
    auc_difference,
    auc_of_classes,
    gauc,
    gauc_difference,
    log_loss,
    log_loss_difference,
    s_auc,
)
from .metrics import METRICS, Metric, Predictions, metric_named
from .objective import OBJECTIVES, Objective, objective_named

__all__ = [
    "METRICS",
    "OBJECTIVES",
    "Difference",
    "Influence",
    "Metric",
    "Objective",
    "Predictions",
    "auc",
    "auc_difference",
    "auc_of_classes",
    "gauc",
    "gauc_difference",
    "log_loss",
    "log_loss_difference",
    "metric_named",
    "objective_named",
    "s_auc",
]
