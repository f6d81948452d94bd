"""Models of DeepTab 2.1.0, trained by its classifiers."""

import contextlib
import tempfile
from collections.abc import Callable
from functools import cache
from typing import Any

import pandas as pd
from torch import nn

import torchleap as tl
from tests.zoos.log import BATCH, FIELDS, IDS, NUMBERS, Log, make_log
from tests.zoos.run import Combination
from torchleap.integrations import deeptab

ROWS_TO_BUILD = 2_000  # enough to see every id
Names = tuple[str, ...]


def mlp(**settings: Any) -> Any:
    """Return an untrained classifier."""
    from deeptab.configs import MLPConfig
    from deeptab.models import MLPClassifier

    return _classifier(MLPClassifier, MLPConfig(layer_sizes=[16, 8], dropout=0.0, **settings))


def mlp_of_tables() -> Any:
    return mlp(use_embeddings=True, d_model=4)


def ft_transformer() -> Any:
    from deeptab.configs import FTTransformerConfig
    from deeptab.models import FTTransformerClassifier

    config = FTTransformerConfig(
        d_model=8, n_layers=1, n_heads=2, transformer_dim_feedforward=16, head_dropout=0.0
    )
    return _classifier(FTTransformerClassifier, config)


def _classifier(kind: Any, config: Any) -> Any:
    from deeptab.configs import PreprocessingConfig, TrainerConfig

    return kind(
        model_config=config,
        preprocessing_config=PreprocessingConfig(numerical_preprocessing="standardization"),
        trainer_config=TrainerConfig(max_epochs=1, batch_size=BATCH, lr=1e-2),
    )


def rows(log: Log, names: Names = FIELDS) -> dict[str, Any]:
    """Return a log as the arguments of `fit` and `build_model`."""
    columns: dict[str, Any] = {}
    for name in names:
        values = log.columns[name]
        columns[name] = values.astype(str) if name in IDS else values
    frame = pd.DataFrame(columns)
    clicks = log.clicks.astype(int)
    return {"X": frame, "y": clicks, "X_val": frame[:BATCH], "y_val": clicks[:BATCH]}


@cache
def folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for what Lightning writes."""
    return tempfile.TemporaryDirectory()


def built(classifier: Callable[[], Any], log: Log, names: Names = FIELDS) -> Any:
    """Return a classifier with a new model of some fields."""
    made = classifier()
    made.build_model(**rows(log, names), batch_size=BATCH)
    return made


def build(classifier: Callable[[], Any]) -> Callable[[Names], nn.Module]:
    """Return the function that makes a model of some fields."""

    def make(names: Names) -> nn.Module:
        made = built(classifier, make_log(ROWS_TO_BUILD), names)
        model: nn.Module = made._task_model.estimator
        return model

    return make


def fit(classifier: Callable[[], Any]) -> Callable[[nn.Module, Log], None]:
    """Return the function that trains a model."""

    def train(model: nn.Module, log: Log) -> None:
        with contextlib.chdir(folder().name):  # DeepTab writes checkpoints where it is called
            made = built(classifier, log)
            made._task_model.estimator = model
            made.fit(**rows(log), rebuild=False)

    return train


def batch(log: Log) -> tuple[Any, ...]:
    """Return a log as the three lists of columns that a model takes."""
    columns = {name: values[:, None] for name, values in log.tensors().items()}
    numbers = [columns[name] for name in FIELDS if name in NUMBERS]
    return numbers, [columns[name] for name in FIELDS if name in IDS], []


def at_first_layer(model: nn.Module, example: Any) -> "tl.Plugin":
    """Attach by hand to the first layer, which reads ids as numbers, behind the numbers."""
    widths = dict.fromkeys([*NUMBERS, *IDS], 1)
    return tl.attach(model, widths, at="layers.0", example=example)


def _one(name: str, classifier: Any, attach: Any = deeptab.attach_to, **more: Any) -> Any:
    return Combination("deeptab", name, build(classifier), attach, fit(classifier), batch, **more)


COMBINATIONS = [
    _one("MLP-layers.0", mlp, at_first_layer, useful=("price", "ctr")),
    _one("MLP-embedding", mlp_of_tables),
    _one("FTTransformer", ft_transformer, fails=("load",)),
]
