"""Attach to the models of torch-rechub."""

from collections.abc import Sequence
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
def attach_to(model: nn.Module, example: Any, **settings: Unpack[SettingsByName]) -> Plugin:
    """Gate the features of a model of torch-rechub, each by one gate, wherever they are embedded.

        plugin = attach_to(model, batch)
        plugin.learn(steps=len(train_dataloader) * epochs)
        CTRTrainer(model, n_epoch=epochs).fit(train_dataloader)
        small = plugin.prune(plugin.select())

    Args:
        model: A model of `torch_rechub.models` whose features pass an EmbeddingLayer.
        example: A batch: a dict of the features, as in the first element of the data loader.
        settings: Those of `torchleap.attach`.
    """
    require("torch-rechub")
    if type(model).__name__ == "DIN":
        places = _in_front_of_din(model)
    else:
        places = _behind_embeddings(model, example)
    return attach(model, at=places, example=example, **settings)


def _in_front_of_din(model: Any) -> dict[str | Place, Widths]:
    """Return the fields of DIN's net: behind the attention, which a history needs as a sequence."""
    features = [*model.history_features, *model.target_features]
    features += [one for one in model.features if not _is_dense(one)]
    return {"mlp": {one.name: one.embed_dim for one in features}}


def _behind_embeddings(model: nn.Module, example: Any) -> dict[str | Place, Widths]:
    """Return the fields in each output of an EmbeddingLayer, and of the layers of numbers."""

    def embeds(path: str, module: nn.Module) -> bool:
        return type(module).__name__ == "EmbeddingLayer" or "dense_embeddings." in path

    places: dict[str | Place, Widths] = {}
    for place, call in outputs(watch(model, example, embeds)):
        if "dense_embeddings." in call.path:  # AutoInt: one layer for each number
            places[place] = {call.path.rsplit(".", 1)[1]: call.output.shape[-1]}
        else:
            places[place] = _widths(call)
    if not places:
        raise AttachError(
            "Expected a model of torch-rechub that calls an EmbeddingLayer, but found none in "
            f"{type(model).__name__}. Name the places of the fields in attach(at=)."
        )
    return places


def _widths(call: Called) -> Widths:
    """Return the width of each field in one output of an EmbeddingLayer: numbers come last."""
    features: Sequence[Any] = call.argument(1, "features", ())
    embedded = [one for one in features if not _is_dense(one)]
    output: Tensor = call.output
    if output.dim() == 4:
        raise AttachError(
            f"Expected features of one vector per row, but {call.path!r} returns the histories "
            f"{', '.join(one.name for one in embedded)} of the shape {tuple(output.shape)}. Gate "
            "what is computed from them: attach(at=)."
        )
    widths = {one.name: one.embed_dim for one in embedded}
    if output.dim() == 2:
        widths |= {one.name: one.embed_dim for one in features if _is_dense(one)}
    return widths


def _is_dense(feature: Any) -> bool:
    return type(feature).__name__ == "DenseFeature"
