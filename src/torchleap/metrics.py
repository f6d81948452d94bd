"""The metrics under their former name."""

from .objectives import (
    Difference,
    auc,
    auc_difference,
    auc_of_classes,
    gauc,
    gauc_difference,
    log_loss,
    s_auc,
)

__all__ = [
    "Difference",
    "auc",
    "auc_difference",
    "auc_of_classes",
    "gauc",
    "gauc_difference",
    "log_loss",
    "s_auc",
]
