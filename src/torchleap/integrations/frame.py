"""Attach to the models of pytorch-frame."""

from collections.abc import Mapping
from copy import copy
from importlib import import_module
from typing import Any, Unpack

from torch import nn

from .._common.errors import AttachError
from ..gates.settings import SettingsByName, with_settings_in_signature
from ..plugin import Plugin, attach
from ..sites.batches import register_batch
from ..sites.notation import Place
from .versions import require

Places = dict[str | Place, dict[str, int]]


@with_settings_in_signature
def attach_to(model: nn.Module, example: Any = None, **settings: Unpack[SettingsByName]) -> Plugin:
    """Gate the columns of a model of pytorch-frame behind the encoder of each semantic type.

        model = ResNet(..., col_stats=dataset.col_stats, col_names_dict=frame.col_names_dict)
        plugin = attach_to(model)
        plugin.learn(steps=len(loader) * epochs)
        train(model, loader)
        small = plugin.prune(plugin.select())

    Args:
        model: A model with a `StypeWiseFeatureEncoder` called `encoder`, or a `TabTransformer`.
        example: A `TensorFrame`, to check the columns at once; None checks at the first batch.
        settings: Those of `torchleap.attach`.
    """
    require("pytorch-frame")
    places = _places(model)
    register_batches()
    return attach(model, at=places, side="output", example=example, **settings)


def register_batches() -> None:
    """Let surgery see the tensors in a `TensorFrame`, for plans without `attach_to`."""

    def to_parts(batch: Any) -> Mapping[str, Any]:
        return {stype.value: columns for stype, columns in batch.feat_dict.items()}

    def from_parts(parts: Mapping[str, Any], like: Any) -> Any:
        batch = copy(like)
        batch.feat_dict = {stype: parts[stype.value] for stype in like.feat_dict}
        batch.y = None
        batch._num_rows = None
        return batch

    register_batch(import_module("torch_frame").TensorFrame, to_parts, from_parts)


def _places(model: Any) -> Places:
    """Return the widths of the columns behind each encoder, in the order of the columns."""
    encoder: Any = getattr(model, "encoder", None)
    if type(encoder).__name__ == "StypeWiseFeatureEncoder":
        names = {stype.value: columns for stype, columns in encoder.col_names_dict.items()}
        return {
            f"encoder.encoder_dict.{kind}": dict.fromkeys(names[kind], layer.out_channels)
            for kind, layer in encoder.encoder_dict.items()
        }
    if type(model).__name__ != "TabTransformer":
        raise AttachError(
            "Expected a model of pytorch-frame with a StypeWiseFeatureEncoder at 'encoder', or a "
            f"TabTransformer, but found {type(encoder).__name__} in a {type(model).__name__}. Name "
            "the places of the fields in attach(at=)."
        )
    names = {stype.value: columns for stype, columns in model.col_names_dict.items()}
    places: Places = {}
    for kind, place in (("categorical", "cat_encoder"), ("numerical", "num_encoder")):
        if kind in names:
            places[place] = dict.fromkeys(names[kind], getattr(model, place).out_channels)
    return places
