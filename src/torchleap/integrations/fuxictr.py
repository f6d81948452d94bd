"""Attach to the models of FuxiCTR, and to models on its layers."""

from typing import Any, Unpack

from torch import Tensor, nn

from .._common.errors import AttachError
from ..gates.settings import SettingsByName, with_settings_in_signature
from ..plugin import Plugin, attach
from ..sites.notation import Place
from .versions import require
from .watch import Called, outputs, watch

Widths = dict[str, int]


@with_settings_in_signature
def attach_to(
    model: nn.Module, example: Any, *, net: str = "dnn", **settings: Unpack[SettingsByName]
) -> Plugin:
    """Gate the features of a model of FuxiCTR, each by one gate, wherever they are embedded.

        plugin = attach_to(model, next(iter(train_gen)))
        plugin.learn(steps=len(train_gen) * epochs)
        model.fit(train_gen, epochs=epochs, validation_data=valid_gen)
        small = plugin.prune(plugin.select())

    Args:
        model: A model with FeatureEmbedding or FeatureEmbeddingDict layers.
        example: A batch of the data loader: a dict of features and labels.
        net: The submodule that reads all embedded features side by side, in the order of the
            feature map. It is gated instead if the model has histories, to which attention needs
            to see each step.
        settings: Those of `torchleap.attach`.
    """
    require("fuxictr")
    calls = watch(model, example, lambda path, one: type(one).__name__ == "FeatureEmbeddingDict")
    if not calls:
        raise AttachError(
            "Expected a model of FuxiCTR that calls an embedding layer, but found none in "
            f"{type(model).__name__}. Name the places of the fields in attach(at=)."
        )
    places: dict[str | Place, Widths] = {}
    if any(_has_history(call) for call in calls):
        places[Place(net, side="input")] = _side_by_side(model, calls[0])
    else:
        for place, call in outputs(calls):
            places[place] = {name: value.shape[1] for name, value in call.output.items()}
    return attach(model, at=places, example=example, **settings)


def _has_history(call: Called) -> bool:
    return any(isinstance(one, Tensor) and one.dim() > 2 for one in call.output.values())


def _side_by_side(model: Any, call: Called) -> Widths:
    """Return the widths of the features in the order of the feature map."""
    order = [name for name in model.feature_map.features if name in call.output]
    return {name: call.output[name].shape[-1] for name in order}
