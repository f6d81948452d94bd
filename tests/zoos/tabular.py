"""Models of pytorch-tabular 1.2.0, trained by its TabularModel."""

import contextlib
import tempfile
from collections.abc import Callable
from functools import cache
from typing import Any

import pandas as pd
import torch
from torch import nn

import torchleap as tl
from tests.zoos.log import BATCH, FIELDS, IDS, NUMBERS, VOCABULARY, Log, make_log
from tests.zoos.run import Combination
from torchleap.integrations import tabular

WIDTH = 4
ROWS_TO_BUILD = 2_000  # enough to see every id
TASK = {"task": "classification", "learning_rate": 5e-3}


def category_embedding(names: tuple[str, ...]) -> Any:
    from pytorch_tabular.models import CategoryEmbeddingModelConfig

    return CategoryEmbeddingModelConfig(layers="16-8", **_tables(names), **TASK)


def ft_transformer(names: tuple[str, ...]) -> Any:
    from pytorch_tabular.models import FTTransformerConfig

    return FTTransformerConfig(
        input_embed_dim=8,
        num_heads=2,
        num_attn_blocks=1,
        attn_feature_importance=False,  # it reads arrays of the attention in each forward pass
        **TASK,
    )


def auto_int(names: tuple[str, ...]) -> Any:
    from pytorch_tabular.models import AutoIntConfig

    return AutoIntConfig(
        attn_embed_dim=8, num_heads=2, num_attn_blocks=1, embedding_dim=WIDTH, **TASK
    )


def gandalf(names: tuple[str, ...]) -> Any:
    from pytorch_tabular.models import GANDALFConfig

    return GANDALFConfig(gflu_stages=1, **_tables(names), **TASK)


def _tables(names: tuple[str, ...]) -> dict[str, Any]:
    """Return the sizes of the tables: the ids and one row for unknown values."""
    return {"embedding_dims": [(VOCABULARY + 1, WIDTH) for name in names if name in IDS]}


def frame(log: Log, names: tuple[str, ...] = FIELDS) -> pd.DataFrame:
    """Return a log as a data frame, with ids as texts."""
    columns: dict[str, Any] = {}
    for name in names:
        values = log.columns[name]
        columns[name] = values.astype(str) if name in IDS else values
    return pd.DataFrame(columns | {"click": log.clicks.astype(int)})


def wrapper(config: Any, names: tuple[str, ...]) -> Any:
    """Return a TabularModel of some fields."""
    from pytorch_tabular import TabularModel
    from pytorch_tabular.config import DataConfig, OptimizerConfig, TrainerConfig

    trainer = TrainerConfig(
        batch_size=BATCH,
        max_epochs=1,
        accelerator="cpu",
        progress_bar="none",
        early_stopping=None,
        checkpoints=None,
        load_best=False,
        trainer_kwargs={"enable_model_summary": False},
    )
    data = DataConfig(
        target=["click"],
        continuous_cols=[name for name in names if name in NUMBERS],
        categorical_cols=[name for name in names if name in IDS],
    )
    return TabularModel(
        data_config=data,
        model_config=config,
        optimizer_config=OptimizerConfig(),
        trainer_config=trainer,
        verbose=False,
    )


def prepared(wrapper: Any, log: Log, names: tuple[str, ...]) -> Any:
    """Return the data of a log as pytorch-tabular prepares it."""
    rows = frame(log, names)
    return wrapper.prepare_dataloader(train=rows, validation=rows[:BATCH], seed=0)


@cache
def folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for what Lightning writes."""
    return tempfile.TemporaryDirectory()


def build(config: Callable[[tuple[str, ...]], Any]) -> Callable[[tuple[str, ...]], nn.Module]:
    """Return the function that makes a model of some fields."""

    def make(names: tuple[str, ...]) -> nn.Module:
        with contextlib.chdir(folder().name):  # pytorch-tabular writes files where it is called
            made = wrapper(config(names), names)
            model: nn.Module = made.prepare_model(prepared(made, make_log(ROWS_TO_BUILD), names))
            return model

    return make


def fit(config: Callable[[tuple[str, ...]], Any]) -> Callable[[nn.Module, Log], None]:
    """Return the function that trains a model."""

    def train(model: nn.Module, log: Log) -> None:
        with contextlib.chdir(folder().name):
            made = wrapper(config(FIELDS), FIELDS)
            made.train(model, prepared(made, log, FIELDS))

    return train


def batch(log: Log) -> tuple[Any, ...]:
    """Return a log as one batch of the data loader, as far as a model reads it."""
    columns = log.tensors()
    return (
        {
            "continuous": torch.stack([columns[name] for name in FIELDS if name in NUMBERS], dim=1),
            "categorical": torch.stack([columns[name] for name in FIELDS if name in IDS], dim=1),
        },
    )


def at_backbone(model: nn.Module, example: Any) -> "tl.Plugin":
    """Attach to the input of the backbone, by hand."""
    widths = dict.fromkeys(NUMBERS, 1) | dict.fromkeys(IDS, WIDTH)
    return tl.attach(model, widths, at="_backbone", example=example)


def _one(name: str, config: Any, attach: Any = tabular.attach_to, **more: Any) -> Combination:
    return Combination("pytorch-tabular", name, build(config), attach, fit(config), batch, **more)


COMBINATIONS = [
    _one("CategoryEmbedding", category_embedding, at_backbone),
    _one("CategoryEmbedding-emb", category_embedding),
    _one("FTTransformer", ft_transformer),
    _one("AutoInt", auto_int),
    _one("GANDALF", gandalf, fails=("load",)),
]
