"""Models of RecBole 1.2.1, trained by its Trainer on data sets that it reads from files."""

import contextlib
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

import torchleap as tl
from tests.zoos.log import BATCH, FIELDS, IDS, NUMBERS, Log, make_log
from tests.zoos.run import Combination
from torchleap.integrations import recbole

WIDTH = 4
ROWS_TO_BUILD = 2_000  # enough to see every id


def config(folder: str, model: str, names: tuple[str, ...]) -> Any:
    """Return the configuration of a model of some fields, for the data set in a folder."""
    from recbole.config import Config

    settings = {
        "data_path": folder,
        "checkpoint_dir": folder,
        "USER_ID_FIELD": None,
        "ITEM_ID_FIELD": None,
        "load_col": {"inter": [*names, "label"]},
        "numerical_features": [name for name in names if name in NUMBERS],
        "eval_args": {
            "split": {"RS": [1, 0, 0]},
            "order": "RO",
            "group_by": None,
            "mode": "labeled",
        },
        "train_neg_sample_args": None,
        "metrics": ["AUC", "LogLoss"],
        "valid_metric": "AUC",
        "embedding_size": WIDTH,
        "mlp_hidden_size": [16, 8],
        "cin_layer_size": [8, 8],
        "attention_size": 8,
        "num_heads": 2,
        "epochs": 1,
        "train_batch_size": BATCH,
        "learning_rate": 5e-3,
        "use_gpu": False,
        "state": "ERROR",
    }
    return Config(model=model, dataset="log", config_dict=settings)


def write(log: Log, folder: str) -> None:
    """Write a log as one of RecBole's atomic files."""
    kinds = {name: "token" if name in IDS else "float" for name in FIELDS}
    lines = ["\t".join([f"{name}:{kind}" for name, kind in kinds.items()] + ["label:float"])]
    columns = [log.columns[name] for name in FIELDS]
    for row in zip(*columns, log.clicks, strict=True):
        lines.append("\t".join(map(str, row)))
    path = Path(folder) / "log" / "log.inter"
    path.parent.mkdir()
    path.write_text("\n".join(lines) + "\n")


@cache
def folder_of_log() -> tempfile.TemporaryDirectory[str]:
    """Return a folder with the data set that models are built for."""
    folder = tempfile.TemporaryDirectory()
    write(make_log(ROWS_TO_BUILD), folder.name)
    return folder


def build(model: str) -> Callable[[tuple[str, ...]], nn.Module]:
    """Return the function that makes a model of some fields."""

    def make(names: tuple[str, ...]) -> nn.Module:
        from recbole.data import create_dataset
        from recbole.utils import get_model

        settings = config(folder_of_log().name, model, names)
        made: nn.Module = get_model(model)(settings, create_dataset(settings))
        return made

    return make


def fit(model: str) -> Callable[[nn.Module, Log], None]:
    """Return the function that trains a model."""

    def train(module: nn.Module, log: Log) -> None:
        from recbole.data import create_dataset, data_preparation
        from recbole.trainer import Trainer

        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            write(log, folder)
            settings = config(folder, model, FIELDS)
            batches, _, _ = data_preparation(settings, create_dataset(settings))
            Trainer(settings, module).fit(batches, saved=False, show_progress=False)

    return train


def batch(log: Log) -> tuple[Any, ...]:
    """Return a log as an Interaction: a number has its value, and the index of its embedding."""
    import torch
    from recbole.data.interaction import Interaction

    columns = log.tensors()
    for name in NUMBERS:
        columns[name] = torch.stack([columns[name], torch.ones(len(log))], dim=1)
    return (Interaction(columns),)


def without_example(model: nn.Module, example: Any) -> tl.Plugin:
    """Attach without a recipe and without a batch; the first one of the training is the example."""
    recbole.register_batches()
    places = {
        "float_embedding_table": dict.fromkeys(model.float_field_names, WIDTH),
        "token_embedding_table": dict.fromkeys(model.token_field_names, WIDTH),
    }
    return tl.attach(model, at=places, side="output")


def _one(model: str, name: str = "", attach: Any = recbole.attach_to) -> Combination:
    return Combination("recbole", name or model, build(model), attach, fit(model), batch)


MODELS = ("DCN", "DeepFM", "WideDeep", "xDeepFM", "AutoInt", "FNN", "PNN")
COMBINATIONS = [
    _one("DCN", "DCN-noexample", without_example),
    *[_one(model) for model in MODELS],
]
