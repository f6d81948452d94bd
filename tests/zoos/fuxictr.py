"""Models on the layers of fuxictr 2.3.10, trained by their own fit()."""

from collections.abc import Callable
from typing import Any

from torch import nn

import torchleap as tl
from tests.zoos.log import FIELDS, HISTORY, IDS, Log
from tests.zoos.run import Combination

WIDTH = 4
TASKS = ("click", "second")
IN_DIN = (*IDS, HISTORY)


def model(kind: str) -> Callable[[tuple[str, ...]], nn.Module]:
    """Return the function that builds a model."""

    def build(names: tuple[str, ...]) -> nn.Module:
        from tests.zoos import fuxictr_models

        made: nn.Module = getattr(fuxictr_models, kind)(names)
        return made

    return build


def fit(model: Any, log: Log) -> None:
    """Train a model with its own fit(), which keeps the weights of the best evaluation."""
    labels = tuple(model.feature_map.labels)
    read = batch_of(tuple(model.feature_map.features), labels)
    batches = [read(batch)[0] for batch in log.batches()]
    model._eval_steps = None  # fit() keeps the number of steps of its first call
    model.fit(batches, epochs=1, validation_data=batches[:2])


def batch_of(
    names: tuple[str, ...], labels: tuple[str, ...] = ("click",)
) -> Callable[[Log], tuple[Any, ...]]:
    """Return the function that makes a batch, which contains the labels as well."""
    return lambda log: ({**log.tensors(names), **dict.fromkeys(labels, log.labels())},)


def recipe(model: nn.Module, example: Any) -> tl.Plugin:
    from torchleap.integrations import fuxictr

    return fuxictr.attach_to(model, example)


def by_hand(model: nn.Module, example: Any) -> tl.Plugin:
    """Attach to the embedding layer without a recipe."""
    fields = dict.fromkeys(FIELDS, WIDTH)
    return tl.attach(model, fields, at="embedding_layer", side="output", example=example)


def without_example(model: nn.Module, example: Any) -> tl.Plugin:
    """Attach without a batch: fit() calls model.forward(), so that no hook of the model runs."""
    fields = dict.fromkeys(FIELDS, WIDTH)
    return tl.attach(model, fields, at="embedding_layer", side="output")


def _one(
    name: str, build: Any, attach: Any = recipe, names: tuple[str, ...] = FIELDS, **more: Any
) -> Combination:
    batch = more.pop("batch", batch_of(names))
    return Combination("fuxictr", name, build, attach, fit, batch, names, **more)


COMBINATIONS = [
    _one("DCN-natural", model("DCN"), by_hand),
    _one("DCN-noexample", model("DCN"), without_example),
    _one("DCN", model("DCN")),
    _one("DCNv2", model("DCNv2")),
    _one("DeepFM", model("DeepFM")),
    _one("WideDeep", model("WideDeep")),
    _one("xDeepFM", model("XDeepFM")),
    _one("AutoInt", model("AutoInt")),
    _one("FiBiNET", model("FiBiNET")),
    _one("DIN", model("DIN"), recipe, IN_DIN, useful=("item", "city")),
    _one("MMoE", model("MMoE"), batch=batch_of(FIELDS, TASKS)),
    _one("FinalMLP", model("FinalMLP")),
]
