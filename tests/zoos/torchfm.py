"""Models of torchfm 0.7.0, which has no training loop of its own: that of its examples.

All its fields are ids in one table with offsets, so the numbers of the log are cut into steps.
"""

from typing import Any

import torch
from torch import nn

import torchleap as tl
from tests.zoos.log import FIELDS, VOCABULARY, Log
from tests.zoos.run import Combination

WIDTH = 4
MLP = (16,)


def dims(names: tuple[str, ...]) -> list[int]:
    """Return the vocabularies of some fields."""
    return [VOCABULARY] * len(names)


def dcn(names: tuple[str, ...]) -> nn.Module:
    from torchfm.model.dcn import DeepCrossNetworkModel

    return DeepCrossNetworkModel(dims(names), WIDTH, 2, MLP, 0.0)


def deep_fm(names: tuple[str, ...]) -> nn.Module:
    from torchfm.model.dfm import DeepFactorizationMachineModel

    return DeepFactorizationMachineModel(dims(names), WIDTH, MLP, 0.0)


def wide_deep(names: tuple[str, ...]) -> nn.Module:
    from torchfm.model.wd import WideAndDeepModel

    return WideAndDeepModel(dims(names), WIDTH, MLP, 0.0)


def x_deep_fm(names: tuple[str, ...]) -> nn.Module:
    from torchfm.model.xdfm import ExtremeDeepFactorizationMachineModel

    return ExtremeDeepFactorizationMachineModel(dims(names), WIDTH, MLP, 0.0, (6, 6), False)


def auto_int(names: tuple[str, ...]) -> nn.Module:
    from torchfm.model.afi import AutomaticFeatureInteractionModel

    return AutomaticFeatureInteractionModel(dims(names), WIDTH, 8, 2, 1, MLP, (0.0, 0.0))


def pnn(names: tuple[str, ...]) -> nn.Module:
    from torchfm.model.pnn import ProductNeuralNetworkModel

    return ProductNeuralNetworkModel(dims(names), WIDTH, MLP, 0.0)


def nfm(names: tuple[str, ...]) -> nn.Module:
    from torchfm.model.nfm import NeuralFactorizationMachineModel

    return NeuralFactorizationMachineModel(dims(names), WIDTH, MLP, (0.0, 0.0))


def afm(names: tuple[str, ...]) -> nn.Module:
    """Return a model without dropout: torchfm's AFM drops at random in eval() as well."""
    from torchfm.model.afm import AttentionalFactorizationMachineModel

    return AttentionalFactorizationMachineModel(dims(names), WIDTH, 8, (0.0, 0.0))


def ffm(names: tuple[str, ...]) -> nn.Module:
    from torchfm.model.ffm import FieldAwareFactorizationMachineModel

    return FieldAwareFactorizationMachineModel(dims(names), 2)


def fit(model: nn.Module, log: Log) -> None:
    """Train a model as the examples of torchfm do."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-6)
    criterion = nn.BCELoss()
    model.train()
    for batch in log.batches():
        loss = criterion(model(batch.buckets()), batch.labels())
        model.zero_grad()
        loss.backward()
        optimizer.step()


def recipe(model: nn.Module, example: Any) -> tl.Plugin:
    from torchleap.integrations import torchfm

    return torchfm.attach_to(model, FIELDS, example)


def _one(name: str, build: Any) -> Combination:
    return Combination("torchfm", name, build, recipe, fit, lambda log: (log.buckets(),))


COMBINATIONS = [
    _one("DCN", dcn),
    _one("DeepFM", deep_fm),
    _one("WD", wide_deep),
    _one("xDeepFM", x_deep_fm),
    _one("AutoInt", auto_int),
    _one("PNN", pnn),
    _one("NFM", nfm),
    _one("AFM", afm),
    _one("FFM", ffm),
]
