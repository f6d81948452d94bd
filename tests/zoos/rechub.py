"""Models of torch-rechub 0.9.0, trained by its CTRTrainer and MTLTrainer."""

import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import torchleap as tl
from tests.zoos.log import FIELDS, HISTORY, IDS, NUMBERS, VOCABULARY, Log
from tests.zoos.run import Combination

WIDTH = 4
MLP = {"dims": [16]}
TASKS = ["classification", "classification"]


def feature(name: str) -> Any:
    """Return the feature of a field."""
    from torch_rechub.basic.features import DenseFeature, SequenceFeature, SparseFeature

    if name == HISTORY:
        return SequenceFeature(name, VOCABULARY, WIDTH, pooling="mean", padding_idx=0)
    return SparseFeature(name, VOCABULARY, WIDTH) if name in IDS else DenseFeature(name)


def features(names: tuple[str, ...]) -> list[Any]:
    """Return the features of some fields."""
    return [feature(name) for name in names]


def ids_of(names: tuple[str, ...]) -> list[Any]:
    """Return the features of the ids alone."""
    return [feature(name) for name in names if name in IDS]


def dcn(names: tuple[str, ...]) -> nn.Module:
    from torch_rechub.models.ranking import DCN

    return DCN(features(names), n_cross_layers=2, mlp_params=MLP)


def dcn_v2(names: tuple[str, ...]) -> nn.Module:
    from torch_rechub.models.ranking import DCNv2

    return DCNv2(features(names), 2, MLP, low_rank=4, num_experts=2)


def deep_fm(names: tuple[str, ...]) -> nn.Module:
    from torch_rechub.models.ranking import DeepFM

    return DeepFM(features(names), ids_of(names), MLP)


def wide_deep(names: tuple[str, ...]) -> nn.Module:
    from torch_rechub.models.ranking import WideDeep

    numbers = [feature(name) for name in names if name not in IDS]
    return WideDeep(numbers, features(names), MLP)


def wide_deep_same(names: tuple[str, ...]) -> nn.Module:
    from torch_rechub.models.ranking import WideDeep

    return WideDeep(features(names), features(names), MLP)


def auto_int(names: tuple[str, ...]) -> nn.Module:
    from torch_rechub.models.ranking import AutoInt

    numbers = [feature(name) for name in names if name not in IDS]
    return AutoInt(ids_of(names), numbers, num_layers=1, num_heads=2, mlp_params=MLP)


def fibinet(names: tuple[str, ...]) -> nn.Module:
    from torch_rechub.models.ranking import FiBiNet

    return FiBiNet(ids_of(names), MLP)


def din(names: tuple[str, ...]) -> nn.Module:
    from torch_rechub.basic.features import SequenceFeature
    from torch_rechub.models.ranking import DIN

    history = []
    if HISTORY in names:
        shared = SequenceFeature(HISTORY, VOCABULARY, WIDTH, pooling="concat", shared_with="item")
        history.append(shared)
    profile = ids_of(tuple(name for name in names if name != "item"))
    return DIN(profile, history, [feature("item")], MLP, {"dims": [8]})


def ple(names: tuple[str, ...]) -> nn.Module:
    from torch_rechub.models.multi_task import PLE

    return PLE(features(names), TASKS, 1, 1, 1, MLP, [{"dims": [8]}, {"dims": [8]}])


def mmoe(names: tuple[str, ...]) -> nn.Module:
    from torch_rechub.models.multi_task import MMOE

    return MMOE(features(names), TASKS, 2, MLP, [{"dims": [8]}, {"dims": [8]}])


def fit(model: nn.Module, log: Log) -> None:
    """Train a model with CTRTrainer."""
    from torch_rechub.trainers import CTRTrainer

    loader = [(batch.tensors(tuple(batch.columns)), batch.labels()) for batch in log.batches()]
    with tempfile.TemporaryDirectory() as folder:
        trainer = CTRTrainer(
            model,
            optimizer_params={"lr": 1e-2, "weight_decay": 1e-5},
            regularization_params=penalties(),
            n_epoch=1,
            model_path=folder,
        )
        trainer.fit(loader)


def fit_tasks(model: nn.Module, log: Log) -> None:
    """Train a model of two tasks with MTLTrainer."""
    from torch_rechub.trainers import MTLTrainer

    loader = []
    for batch in log.batches():
        labels = torch.stack([batch.labels(), batch.labels()], dim=1)
        loader.append((batch.tensors(tuple(batch.columns)), labels))
    with tempfile.TemporaryDirectory() as folder:
        trainer = MTLTrainer(
            model,
            TASKS,
            optimizer_params={"lr": 1e-2, "weight_decay": 1e-5},
            regularization_params=penalties(),
            n_epoch=1,
            model_path=folder,
        )
        trainer.fit(loader, loader[:2])


def penalties() -> dict[str, float]:
    """Return the weights of the trainer's own regularization."""
    return {"embedding_l1": 0.0, "embedding_l2": 1e-6, "dense_l1": 0.0, "dense_l2": 1e-6}


def batch_of(names: tuple[str, ...]) -> Callable[[Log], tuple[Any, ...]]:
    """Return the function that makes a batch of the columns of some fields."""
    return lambda log: (log.tensors(names),)


def recipe(model: nn.Module, example: Any) -> tl.Plugin:
    from torchleap.integrations import rechub

    return rechub.attach_to(model, example)


def at_net(model: nn.Module, example: Any) -> tl.Plugin:
    """Attach where the linear part and the net of DeepFM and WideDeep start."""
    numbers = dict.fromkeys(NUMBERS, 1)
    ids = dict.fromkeys(IDS, WIDTH)
    linear = numbers if model.linear.fc.in_features == len(NUMBERS) else ids
    places = {"mlp": ids | numbers, "linear": linear}
    if hasattr(model, "fm"):
        places["fm"] = ids
    return tl.attach(model, at=places, example=example)


def at_tables(model: nn.Module, example: Any) -> tl.Plugin:
    """Attach behind the tables of the ids alone, each of which is called twice."""
    places = {tl.Place(f"embedding.embed_dict.{name}", "output"): {name: WIDTH} for name in IDS}
    return tl.attach(model, at=places, example=example)


def _one(
    name: str, build: Any, attach: Any = recipe, names: tuple[str, ...] = FIELDS, **more: Any
) -> Combination:
    loop = more.pop("fit", fit)
    return Combination("torch-rechub", name, build, attach, loop, batch_of(names), names, **more)


IN_DIN = (HISTORY, "item", *(name for name in IDS if name != "item"))
OF_IDS = ("item", "city")

COMBINATIONS = [
    _one("DCN", dcn),
    _one("DCNv2", dcn_v2),
    _one("DeepFM-embedding", deep_fm),
    _one("DeepFM-mlp+fm", deep_fm, at_net),
    _one("DeepFM-tables", deep_fm, at_tables, useful=OF_IDS),
    _one("WideDeep-embedding", wide_deep),
    _one("WideDeep-linear+mlp", wide_deep, at_net),
    _one("AutoInt", auto_int),
    _one("FiBiNet", fibinet, recipe, IDS, useful=OF_IDS),
    _one("WideDeep-same", wide_deep_same),
    _one("PLE", ple, fit=fit_tasks),
    _one("MMOE", mmoe, fit=fit_tasks),
    _one("DIN-mlp", din, recipe, IN_DIN, useful=OF_IDS),
    _one("DCN-pooled", dcn, recipe, (*FIELDS, HISTORY)),
]
