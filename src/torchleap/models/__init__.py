"""Backbones: a task's columns become a ranking model, `inputs` and then `net`."""

from .backbones import (
    BACKBONES,
    DCN,
    DLRM,
    MLP,
    Backbone,
    DeepFM,
    FiBiNET,
    WideDeep,
    benchmark,
    named,
)
from .inputs import FieldInputs
from .ranker import Ranker, build

__all__ = [
    "BACKBONES",
    "DCN",
    "DLRM",
    "MLP",
    "Backbone",
    "DeepFM",
    "FiBiNET",
    "FieldInputs",
    "Ranker",
    "WideDeep",
    "benchmark",
    "build",
    "named",
]
