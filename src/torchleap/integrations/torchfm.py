"""Attach to the models of torchfm."""

from collections.abc import Sequence
from typing import Any, Unpack

from torch import nn

from .._common.errors import AttachError
from ..gates.settings import SettingsByName, with_settings_in_signature
from ..plugin import Plugin, attach
from ..sites.notation import Place
from .versions import require
from .watch import outputs, watch

OWNERS = ("FeaturesEmbedding", "FeaturesLinear", "FieldAwareFactorizationMachine")


@with_settings_in_signature
def attach_to(
    model: nn.Module, names: Sequence[str], example: Any, **settings: Unpack[SettingsByName]
) -> Plugin:
    """Gate the fields of a model of torchfm: embedding, linear and field-aware part by one gate.

        plugin = attach_to(model, ["user", "item", "city"], ids)
        plugin.learn(steps=len(loader) * epochs)
        ...  # train as always
        small = plugin.prune(plugin.select())

    Args:
        model: A model of `torchfm.model`.
        names: The names of the fields, in the order of the columns of a batch.
        example: A batch: the ids, (B, fields).
        settings: Those of `torchleap.attach`.
    """
    require("torchfm")
    owners = [path for path, one in model.named_modules() if type(one).__name__ in OWNERS]

    def is_table(path: str, module: nn.Module) -> bool:
        is_owned = any(path.startswith(f"{owner}.") for owner in owners)
        return is_owned and isinstance(module, nn.Embedding)

    places: dict[str | Place, dict[str, int]] = {}
    for place, call in outputs(watch(model, example, is_table)):
        _, fields, width = call.output.shape  # (B, fields, width)
        if fields != len(names):
            raise AttachError(
                f"Expected the names of {fields} fields, but found {len(names)}: "
                f"{', '.join(names)}. Name the columns of a batch, in their order."
            )
        places[place] = dict.fromkeys(names, width)
    if not places:
        raise AttachError(
            "Expected a model of torchfm with one table for all fields, but found none in "
            f"{type(model).__name__}. Name the places of the fields in attach(at=)."
        )
    return attach(model, at=places, example=example, **settings)
