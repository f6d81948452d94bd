"""Attach to the models of DeepCTR-Torch."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any, Unpack

import torch
from torch import nn

from .._common.errors import AttachError
from ..gates.settings import SettingsByName, with_settings_in_signature
from ..plugin import Plugin, attach
from ..sites.notation import Place
from .versions import require
from .watch import Called, outputs, watch

Widths = dict[str, int]
TABLES = "embedding_dict"


@with_settings_in_signature
def attach_to(model: nn.Module, example: Any, **settings: Unpack[SettingsByName]) -> Plugin:
    """Gate the feature columns of a model of DeepCTR, each by one gate, in all of its parts.

        plugin = attach_to(model, torch.from_numpy(x[:256]).float())
        plugin.learn(steps=len(x) // batch_size * epochs)
        model.fit(x, y, batch_size=batch_size, epochs=epochs)
        small = plugin.prune(plugin.select())

    Args:
        model: A model of `deepctr_torch.models`, compiled or not.
        example: A few rows of what its `forward` receives: all columns side by side, as floats,
            in the order of `model.feature_index`.
        settings: Those of `torchleap.attach`.
    """
    require("deepctr-torch")
    if not hasattr(model, "feature_index") or not hasattr(model, "dnn_feature_columns"):
        raise AttachError(
            "Expected a model of deepctr_torch.models, which has a feature_index, but found "
            f"{type(model).__name__}. Name the places of the fields in attach(at=)."
        )
    if type(model).__name__ == "DIN":
        places = _in_front_of_din(model)
    else:
        places = {}
        for place, widths in [*_numbers(model), *_tables(model, example)]:
            places[place] = widths
    return attach(model, at=places, example=example, **settings)


def _in_front_of_din(model: Any) -> dict[str | Place, Widths]:
    """Return the fields of DIN's net: behind the attention, which a history needs as a sequence."""
    pooled = [*model.sparse_varlen_feature_columns, *model.history_feature_columns]
    widths = {one.name: one.embedding_dim for one in [*model.sparse_feature_columns, *pooled]}
    for column in model.dnn_feature_columns:
        if hasattr(column, "dimension"):
            widths[column.name] = column.dimension
    return {Place("dnn", side="input"): widths}


def _numbers(model: Any) -> Iterator[tuple[Place, Widths]]:
    """Return the columns of numbers in the input of the model; ids beside them are not gated."""
    linear = model.linear_model.dense_feature_columns
    dense = [one for one in model.dnn_feature_columns if hasattr(one, "dimension")]
    names = {one.name for one in [*linear, *dense]}
    index = model.feature_index
    for is_number, group in groupby(index, key=lambda name: name in names):
        if is_number:
            run = list(group)
            columns = (index[run[0]][0], index[run[-1]][1])
            place = Place("", side="input", columns=columns)
            yield place, {name: index[name][1] - index[name][0] for name in run}


def _tables(model: Any, example: Any) -> Iterator[tuple[Place, Widths]]:
    """Return the outputs of the tables of ids: of the deep, the linear and other parts."""

    def is_table(path: str, module: nn.Module) -> bool:
        return f".{path}".rsplit(".", 2)[-2] == TABLES and isinstance(module, nn.Embedding)

    for place, call in outputs(watch(model, example, is_table)):
        yield place, {_owner(model, call, example): call.output[0].numel()}


def _owner(model: Any, call: Called, example: torch.Tensor) -> str:
    """Return which feature a table was called for: several may share one table."""
    table = call.path.rsplit(".", 1)[1]
    names: list[str] = list(model.feature_index)
    owners = [name for name in names if _table_of(model, name) == table]
    if len(owners) == 1:
        return owners[0]
    ids = call.args[0]
    for name in owners:
        start, stop = model.feature_index[name]
        columns = example[:, start:stop].long()
        if columns.shape == ids.shape and bool((columns == ids).all()):
            return name
    raise AttachError(
        f"Expected the table {call.path!r} to read the column of a feature, but it reads neither "
        f"of {', '.join(owners)}. Name the places of the fields in attach(at=)."
    )


def _table_of(model: Any, name: str) -> str | None:
    """Return the name of the table that embeds a feature; None for numbers and lengths."""
    linear = model.linear_model
    own = [*linear.sparse_feature_columns, *linear.varlen_sparse_feature_columns]
    for column in [*model.dnn_feature_columns, *own]:
        if column.name == name:
            found: str | None = getattr(column, "embedding_name", None)
            return found
    return None
