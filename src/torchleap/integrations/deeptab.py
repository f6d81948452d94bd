"""Attach to the models of DeepTab."""

from typing import Any, Unpack

from torch import nn

from .._common.errors import AttachError
from ..gates.settings import SettingsByName, with_settings_in_signature
from ..plugin import Plugin, attach
from .versions import require

PLACE = "embedding_layer"


@with_settings_in_signature
def attach_to(model: nn.Module, example: Any = None, **settings: Unpack[SettingsByName]) -> Plugin:
    """Gate the columns of a model of DeepTab behind its embedding layer.

        classifier.build_model(X, y)
        plugin = attach_to(classifier._task_model.estimator, example=(numbers, categories, []))
        plugin.learn(steps=epochs * len(X) // batch_size)
        classifier.fit(X, y, rebuild=False)  # rebuild=True would make a model without gates
        small = plugin.prune(plugin.select())

    Args:
        model: A model with an `EmbeddingLayer`, such as an `MLP` with use_embeddings=True.
        example: A batch as three arguments: the lists of numbers, categories and embeddings. It is
            what the model is pruned with, since DeepTab calls `forward` past all hooks.
        settings: Those of `torchleap.attach`.
    """
    require("deeptab")
    layer: Any = getattr(model, PLACE, None)
    if type(layer).__name__ != "EmbeddingLayer" or layer.use_cls:
        found = "one with a class token" if layer is not None else "none"
        raise AttachError(
            f"Expected a model of DeepTab with an EmbeddingLayer at {PLACE!r} and use_cls=False, "
            f"but found {found} in a {type(model).__name__}. Name the place of the fields in "
            "attach(at=)."
        )
    return attach(model, _widths(layer), at=PLACE, side="output", example=example, **settings)


def _widths(layer: Any) -> dict[str, int]:
    """Return the width of each field in the output of the layer, where categories come first."""
    numbers, categories, embeddings = layer.feature_info
    widths = dict.fromkeys([*categories, *numbers], layer.d_model)
    for name, about in embeddings.items():
        widths[name] = layer.d_model if layer.embedding_projection else about["dimension"]
    return widths
