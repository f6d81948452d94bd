"""Backbones: a task's columns become a ranking model, `inputs` and then `net`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from .._common.checks import with_settings
from .._common.errors import TorchleapError, nearest
from ..data.task import Task
from .backbones import DCN, DLRM, MLP, Backbone, DeepFM, FiBiNET, WideDeep
from .inputs import FieldInputs

__all__ = [
    "DCN",
    "DLRM",
    "MLP",
    "MODELS",
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

MODELS: dict[str, type[Backbone]] = {
    "wide_deep": WideDeep,
    "deepfm": DeepFM,
    "dcn": DCN,
    "fibinet": FiBiNET,
    "mlp": MLP,
    "dlrm": DLRM,
}


class Ranker(nn.Module):
    """A ranking model: the fields of a batch side by side, then a backbone's network.

    Shape: ids (B, slots of ids), numbers (B, slots of numbers) -> log odds (B,)

    Gates belong between the two: `tl.attach(model, task.fields, at="net")`.
    """

    def __init__(self, inputs: nn.Module, net: nn.Module) -> None:
        super().__init__()
        self.inputs = inputs
        self.net = net

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        """The log odds of each row."""
        log_odds: Tensor = self.net(self.inputs(ids, numbers))
        return log_odds


def named(model: str | Backbone, settings: Mapping[str, Any] | None = None) -> Backbone:
    """The backbone with this name and these settings; a backbone stays what it is, but for them."""
    if not isinstance(model, Backbone) and model not in MODELS:
        raise TorchleapError(f"There is no backbone {model!r}. {nearest(str(model), MODELS)}")
    found = model if isinstance(model, Backbone) else MODELS[model]()
    return with_settings(found, settings or {})


def benchmark(model: str | Backbone) -> Backbone:
    """The same backbone with the settings of the published benchmarks: hidden layers of 32 and 16, dropout 0.2."""
    return replace(named(model), hidden=(32, 16), dropout=0.2, batch_norm=True)


def build(model: str | Backbone, task: Task, *, sparse: bool | None = None) -> Ranker:
    """A fresh model for a task.

    Args:
        sparse: Whether tables have sparse gradients; None is where they are large.
    """
    return Ranker(FieldInputs(task.columns, sparse=sparse), named(model).net(task.fields))
