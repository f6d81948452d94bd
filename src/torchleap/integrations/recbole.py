"""Attach to the context-aware models of RecBole."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Unpack

from torch import nn

from .._common.errors import AttachError
from ..gates.settings import SettingsByName, with_settings_in_signature
from ..plugin import Plugin, attach
from ..sites.batches import register_batch
from ..sites.notation import Place
from .versions import require
from .watch import outputs, watch


@with_settings_in_signature
def attach_to(model: nn.Module, example: Any, **settings: Unpack[SettingsByName]) -> Plugin:
    """Gate the fields of a context-aware model of RecBole in its tables.

    A model with a first-order part reads each field through two tables, which share one gate.

        model = DeepFM(config, train_data.dataset)
        plugin = attach_to(model, next(iter(train_data)))
        plugin.learn(steps=len(train_data) * config["epochs"])
        Trainer(config, model).fit(train_data, saved=False)
        small = plugin.prune(plugin.select())

    Args:
        model: The model; its fields are single ids and numbers.
        example: A batch, an `Interaction`, which shows whether the model has a first-order part.
        settings: Those of `torchleap.attach`.
    """
    require("recbole")
    _refuse_others(model)
    register_batches()
    return attach(model, at=_places(model, example), example=example, **settings)


def register_batches() -> None:
    """Let surgery see the tensors in an `Interaction`, for plans without `attach_to`."""
    kind = import_module("recbole.data.interaction").Interaction

    def to_parts(batch: Any) -> Mapping[str, Any]:
        return dict(batch.interaction)

    def from_parts(parts: Mapping[str, Any], like: Any) -> Any:
        names = list(like.interaction)  # not those of the parts: a label beside them is not read
        batch = kind({})
        batch.interaction = {name: parts[name] for name in names}
        batch.length = len(parts[names[0]]) if names else 0
        return batch

    register_batch(kind, to_parts, from_parts)


def _refuse_others(model: Any) -> None:
    if not hasattr(model, "first_order_linear"):
        raise AttachError(
            "Expected a context-aware model of RecBole, but found a "
            f"{type(model).__name__}. Name the places of the fields in attach(at=)."
        )
    sequences = [*model.token_seq_field_names, *model.float_seq_field_names]
    if sequences:
        raise AttachError(
            f"Expected fields that are single ids and numbers, but found the sequences {sequences}."
            " Leave them out of load_col, or name the places of the fields in attach(at=)."
        )


def _places(model: Any, example: Any) -> dict[str | Place, dict[str, int]]:
    """Return the tables that a batch reaches, with the widths of the fields in them.

    Every model has a first-order part, but some do not call it.
    """
    names = {}
    for prefix in ("", "first_order_linear."):
        names[f"{prefix}float_embedding_table"] = model.float_field_names
        names[f"{prefix}token_embedding_table"] = model.token_field_names
    calls = watch(model, example, lambda path, _: path in names)
    return {
        place: dict.fromkeys(names[call.path], call.output.shape[-1])
        for place, call in outputs(calls)
    }
