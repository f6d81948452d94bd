"""Models of deepctr-torch 0.3.0, trained by their own compile() and fit()."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import torchleap as tl
from tests.zoos.log import FIELDS, HISTORY, IDS, LENGTH, VOCABULARY, Log
from tests.zoos.run import Combination

WIDTH = 4
MLP = (16,)
SETTINGS: dict[str, Any] = {"l2_reg_embedding": 1e-6}
HISTORY_OF_DIN = "hist_item"  # DIN wants this name
LENGTHS = "length"
IN_DIN = (*IDS, HISTORY_OF_DIN)


def column(name: str) -> Any:
    """Return the feature column of a field."""
    from deepctr_torch.inputs import DenseFeat, SparseFeat, VarLenSparseFeat

    if name == HISTORY:
        return VarLenSparseFeat(SparseFeat(name, VOCABULARY, WIDTH), LENGTH, "mean")
    return SparseFeat(name, VOCABULARY, WIDTH) if name in IDS else DenseFeat(name)


def columns(names: tuple[str, ...]) -> list[Any]:
    """Return the feature columns of some fields."""
    return [column(name) for name in names]


def compiled(model: Any) -> nn.Module:
    """Compile a model, as its users do before fit()."""
    model.compile(torch.optim.Adam(model.parameters(), lr=1e-2), "binary_crossentropy")
    return model


def wide(kind: str, **settings: Any) -> Callable[[tuple[str, ...]], nn.Module]:
    """Return the function that builds a model with a linear part."""

    def build(names: tuple[str, ...]) -> nn.Module:
        from deepctr_torch import models

        both = columns(names)
        made = getattr(models, kind)(both, both, dnn_hidden_units=MLP, **SETTINGS, **settings)
        return compiled(made)

    return build


def deep(kind: str, **settings: Any) -> Callable[[tuple[str, ...]], nn.Module]:
    """Return the function that builds a model whose linear part has no columns."""

    def build(names: tuple[str, ...]) -> nn.Module:
        from deepctr_torch import models

        return compiled(
            getattr(models, kind)([], columns(names), dnn_hidden_units=MLP, **SETTINGS, **settings)
        )

    return build


def pnn(names: tuple[str, ...]) -> nn.Module:
    from deepctr_torch.models import PNN

    return compiled(PNN(columns(names), MLP, **SETTINGS))


def din(names: tuple[str, ...]) -> nn.Module:
    """Return a DIN; its history needs another column, with the lengths."""
    from deepctr_torch import models
    from deepctr_torch.inputs import SparseFeat, VarLenSparseFeat

    own = columns(tuple(name for name in names if name != HISTORY_OF_DIN))
    shared = SparseFeat(HISTORY_OF_DIN, VOCABULARY, WIDTH, embedding_name="item")
    if HISTORY_OF_DIN not in names:
        return compiled(models.WDL([], own, dnn_hidden_units=MLP, **SETTINGS))
    own.append(VarLenSparseFeat(shared, LENGTH, length_name=LENGTHS))
    made = models.DIN(own, ["item"], dnn_hidden_units=MLP, att_hidden_size=(8,), **SETTINGS)
    return compiled(made)


def ple(names: tuple[str, ...]) -> nn.Module:
    from deepctr_torch.models import PLE

    return compiled(PLE(columns(names), 1, 1, 1, MLP, (8,), (8,), **SETTINGS))


def mmoe(names: tuple[str, ...]) -> nn.Module:
    from deepctr_torch.models import MMOE

    return compiled(MMOE(columns(names), 2, MLP, (8,), (8,), **SETTINGS))


def inputs(model: Any, log: Log) -> dict[str, np.ndarray]:
    """Return the columns that a model reads, by name."""
    values = dict(log.columns)
    values[HISTORY_OF_DIN] = values[HISTORY]
    values[LENGTHS] = (values[HISTORY] != 0).sum(1)
    return {name: values[name] for name in model.feature_index}


def fit(model: Any, log: Log) -> None:
    """Train a model with its own fit()."""
    labels = log.clicks
    if hasattr(model, "task_names"):
        labels = np.stack([labels, labels], axis=1)
    model.fit(inputs(model, log), labels, batch_size=200, epochs=1, verbose=0)


def batch_of(names: tuple[str, ...]) -> Callable[[Log], tuple[Any, ...]]:
    """Return the function that makes the matrix of a model, as its fit() does."""

    def batch(log: Log) -> tuple[Any, ...]:
        blocks = []
        for name in names:
            values = log.columns[HISTORY if name == HISTORY_OF_DIN else name]
            blocks.append(values.reshape(len(log), -1))
        if HISTORY_OF_DIN in names:
            blocks.append((log.columns[HISTORY] != 0).sum(1, keepdims=True))
        return (torch.from_numpy(np.concatenate(blocks, axis=1)).float(),)

    return batch


def recipe(model: nn.Module, example: Any) -> tl.Plugin:
    from torchleap.integrations import deepctr

    return deepctr.attach_to(model, example[0])


def _one(name: str, build: Any, names: tuple[str, ...] = FIELDS, **more: Any) -> Combination:
    return Combination("deepctr-torch", name, build, recipe, fit, batch_of(names), names, **more)


OF_IDS = ("item", "city")
SMALL_CIN = {"cin_layer_size": (6, 6)}

COMBINATIONS = [
    _one("WDL-nolin", deep("WDL")),
    _one("DCN-nolin", deep("DCN")),
    _one("DCNmatrix-nolin", deep("DCN", cross_parameterization="matrix")),
    _one("DeepFM-tables", wide("DeepFM")),
    _one("xDeepFM-tables", wide("xDeepFM", **SMALL_CIN)),
    _one("AutoInt-tables", wide("AutoInt", att_layer_num=1), fails=("load",)),
    _one("FiBiNET-tables", wide("FiBiNET")),
    _one("PNN", pnn),
    _one("NFM-tables", wide("NFM")),
    _one("WDL-tables", wide("WDL")),
    _one("PLE", ple),
    _one("MMOE", mmoe),
    _one("DIN-dnn", din, IN_DIN, useful=OF_IDS),
    _one("WDL-varlen", wide("WDL"), (*FIELDS, HISTORY)),
]
