"""Models of pytorch-frame 0.3.0, trained in a loop as in its examples."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pandas as pd
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import torchleap as tl
from tests.zoos.log import BATCH, FIELDS, IDS, NUMBERS, Log, make_log
from tests.zoos.run import Combination
from torchleap.integrations import frame

WIDTH = 8
ROWS_TO_BUILD = 2_000  # enough to see every id
Names = tuple[str, ...]


def data_set(log: Log, names: Names = FIELDS) -> Any:
    """Return a log as a materialized data set."""
    from torch_frame import stype
    from torch_frame.data import Dataset

    kinds = {name: stype.categorical if name in IDS else stype.numerical for name in names}
    rows = pd.DataFrame({name: log.columns[name] for name in names} | {"click": log.clicks})
    made = Dataset(rows, kinds | {"click": stype.numerical}, target_col="click")
    return made.materialize()


@cache
def columns(names: Names) -> dict[str, Any]:
    """Return what the models have to know about the columns."""
    found = data_set(make_log(ROWS_TO_BUILD), names)
    names_by_kind = found.tensor_frame.col_names_dict
    return {"col_stats": found.col_stats, "col_names_dict": names_by_kind, "out_channels": 1}


def resnet(names: Names) -> nn.Module:
    from torch_frame.nn import ResNet

    return ResNet(WIDTH, num_layers=2, **columns(names))


def mlp(names: Names) -> nn.Module:
    from torch_frame.nn import MLP

    return MLP(WIDTH, num_layers=2, **columns(names))


def ft_transformer(names: Names) -> nn.Module:
    from torch_frame.nn import FTTransformer

    return FTTransformer(WIDTH, num_layers=1, **columns(names))


def tab_transformer(names: Names) -> nn.Module:
    from torch_frame.nn import TabTransformer

    return TabTransformer(
        WIDTH,
        num_layers=1,
        num_heads=2,
        encoder_pad_size=2,
        attn_dropout=0.0,
        ffn_dropout=0.0,
        **columns(names),
    )


def fit(model: nn.Module, log: Log) -> None:
    """Train a model in the loop of the examples of pytorch-frame."""
    from torch_frame.data import DataLoader

    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    model.train()
    for batch in DataLoader(data_set(log).tensor_frame, batch_size=BATCH, shuffle=True):
        loss = binary_cross_entropy_with_logits(model(batch).squeeze(1), batch.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def batch(log: Log) -> tuple[Any, ...]:
    """Return a log as a TensorFrame without labels."""
    from torch_frame import TensorFrame, stype

    names = columns(FIELDS)["col_names_dict"]
    found = log.tensors()
    parts = {
        stype.categorical: torch.stack([found[name] for name in names[stype.categorical]], dim=1),
        stype.numerical: torch.stack([found[name] for name in names[stype.numerical]], dim=1),
    }
    return (TensorFrame(parts, names),)


def at_backbone(model: nn.Module, example: Any) -> "tl.Plugin":
    """Attach by hand where all columns are side by side; numbers come first, sorted by name."""
    frame.register_batches()
    widths = dict.fromkeys([*sorted(NUMBERS), *sorted(IDS)], WIDTH)
    return tl.attach(model, widths, at="backbone", example=example)


def at_encoder(model: nn.Module, example: Any) -> "tl.Plugin":
    """Attach by hand to the encoder, which returns the columns and their names."""
    frame.register_batches()
    widths = dict.fromkeys([*sorted(NUMBERS), *sorted(IDS)], WIDTH)
    place = tl.Place("encoder", side="output", part=0)
    return tl.attach(model, widths, at=place, example=example)


def _one(name: str, build: Callable[[Names], nn.Module], attach: Any = frame.attach_to) -> Any:
    return Combination("pytorch-frame", name, build, attach, fit, batch)


COMBINATIONS = [
    _one("ResNet-encoder", resnet, at_encoder),
    _one("ResNet-backbone", resnet, at_backbone),
    _one("ResNet-encoders", resnet),
    _one("MLP-encoders", mlp),
    _one("FTTransformer", ft_transformer),
    _one("TabTransformer", tab_transformer),
]
