"""Attach to the models of pytorch-tabular."""

from typing import Any, Unpack

from torch import nn

from .._common.errors import AttachError
from ..gates.settings import SettingsByName, with_settings_in_signature
from ..plugin import Plugin, attach
from .versions import require

PLACE = "_embedding_layer"


@with_settings_in_signature
def attach_to(model: nn.Module, example: Any = None, **settings: Unpack[SettingsByName]) -> Plugin:
    """Gate the columns of a model of pytorch-tabular behind its embedding layer.

        model = tabular_model.prepare_model(datamodule)
        plugin = attach_to(model)
        plugin.learn(steps=len(datamodule.train_dataloader()) * epochs)
        tabular_model.train(model, datamodule)
        small = plugin.prune(plugin.select())

    Args:
        model: What `TabularModel.prepare_model` returns.
        example: A batch, to check the columns at once; None checks at the first batch.
        settings: Those of `torchleap.attach`.
    """
    require("pytorch-tabular")
    return attach(model, _widths(model), at=PLACE, side="output", example=example, **settings)


def _widths(model: nn.Module) -> dict[str, int]:
    """Return the width of each field in the output of the embedding layer: numbers come first."""
    layer: Any = getattr(model, PLACE, None)
    kind = type(layer).__name__
    if kind not in ("Embedding1dLayer", "Embedding2dLayer"):
        raise AttachError(
            "Expected a model of pytorch-tabular with an Embedding1dLayer or an Embedding2dLayer "
            f"at {PLACE!r}, as prepare_model() returns it, but found {kind} in a "
            f"{type(model).__name__}. Name the place of the fields in attach(at=)."
        )
    settings: Any = model.hparams
    numbers = list(settings.continuous_cols)
    categories = list(settings.categorical_cols)
    if kind == "Embedding2dLayer":
        return dict.fromkeys([*numbers, *categories], layer.embedding_dim)
    widths = dict.fromkeys(numbers, 1)
    for name, (_, width) in zip(categories, layer.categorical_embedding_dims, strict=True):
        widths[name] = width
    return widths
