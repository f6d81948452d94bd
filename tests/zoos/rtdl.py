"""Models of rtdl_revisiting_models 0.0.2, rtdl_num_embeddings 0.0.12 and tabm 0.0.3.

These packages have no training loop: that of their READMEs is used.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import torchleap as tl
from tests.zoos.log import FIELDS, IDS, NUMBERS, VOCABULARY, Log
from tests.zoos.run import Combination

WIDTH = 4
ENSEMBLE = 4
BINS = 6


def numbers_in(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if name in NUMBERS]


def ids_in(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if name in IDS]


def bins(count: int) -> list[Tensor]:
    """Return the bins of numbers, as compute_bins would of standard normal values."""
    return [torch.linspace(-2, 2, BINS + 1)] * count


class Embedded(nn.Module):
    """Embeddings of numbers beside tables of ids, in front of a net: a user's own model.

    Args:
        names: The fields.
        numbers: The embeddings of numbers: (B, numbers) -> (B, numbers, WIDTH).
        net: A function that returns the net for so many columns.
    """

    def __init__(self, names: tuple[str, ...], numbers: nn.Module, net: Any) -> None:
        super().__init__()
        self.numbers = numbers
        self.tables = nn.ModuleList(nn.Embedding(VOCABULARY, WIDTH) for _ in ids_in(names))
        self.net = net(len(names) * WIDTH)

    def forward(self, x_num: Tensor, x_cat: Tensor) -> Tensor:
        columns = [self.numbers(x_num).flatten(1)]
        columns += [table(x_cat[:, place]) for place, table in enumerate(self.tables)]
        return self.net(torch.cat(columns, dim=1))


def periodic_mlp(names: tuple[str, ...]) -> nn.Module:
    from rtdl_num_embeddings import PeriodicEmbeddings
    from rtdl_revisiting_models import MLP

    numbers = PeriodicEmbeddings(
        len(numbers_in(names)), WIDTH, frequency_init_scale=0.3, lite=False
    )
    return Embedded(
        names, numbers, lambda d_in: MLP(d_in=d_in, d_out=1, n_blocks=1, d_block=16, dropout=0.0)
    )


def piecewise_resnet(names: tuple[str, ...]) -> nn.Module:
    from rtdl_num_embeddings import PiecewiseLinearEmbeddings
    from rtdl_revisiting_models import ResNet

    edges = bins(len(numbers_in(names)))
    numbers = PiecewiseLinearEmbeddings(edges, WIDTH, activation=True, version="B")
    settings = {"n_blocks": 1, "d_block": 16, "d_hidden": None, "d_hidden_multiplier": 2.0}
    return Embedded(
        names,
        numbers,
        lambda d_in: ResNet(d_in=d_in, d_out=1, dropout1=0.0, dropout2=0.0, **settings),
    )


def ft_transformer(names: tuple[str, ...]) -> nn.Module:
    from rtdl_revisiting_models import FTTransformer

    return FTTransformer(
        n_cont_features=len(numbers_in(names)),
        cat_cardinalities=[VOCABULARY] * len(ids_in(names)),
        d_out=1,
        n_blocks=1,
        d_block=8,
        attention_n_heads=2,
        attention_dropout=0.0,
        ffn_d_hidden_multiplier=2.0,
        ffn_dropout=0.0,
        residual_dropout=0.0,
    )


def tab_m(
    names: tuple[str, ...], numbers: nn.Module | None = None, kind: str = "tabm"
) -> nn.Module:
    from tabm import TabM

    return TabM.make(
        n_num_features=len(numbers_in(names)),
        cat_cardinalities=[VOCABULARY] * len(ids_in(names)),
        num_embeddings=numbers,
        arch_type=kind,
        d_out=1,
        n_blocks=1,
        d_block=16,
        k=ENSEMBLE,
        dropout=0.0,
    )


def tab_m_embedded(names: tuple[str, ...]) -> nn.Module:
    from rtdl_num_embeddings import PiecewiseLinearEmbeddings

    edges = bins(len(numbers_in(names)))
    return tab_m(names, PiecewiseLinearEmbeddings(edges, WIDTH, activation=False, version="B"))


def tab_m_mini(names: tuple[str, ...]) -> nn.Module:
    return tab_m(names, kind="tabm-mini")


def fit(model: nn.Module, log: Log) -> None:
    """Train a model as the READMEs of these packages do."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-5)
    model.train()
    for batch in log.batches():
        optimizer.zero_grad()
        log_odds = model(*batch_of(FIELDS)(batch)).squeeze(-1)  # (B,) or (B, ENSEMBLE)
        labels = batch.labels() if log_odds.ndim == 1 else batch.labels().unsqueeze(1)
        nn.functional.binary_cross_entropy_with_logits(
            log_odds, labels.expand_as(log_odds)
        ).backward()
        optimizer.step()


def batch_of(names: tuple[str, ...]) -> Any:
    """Return the function that makes the arguments of a model: (x_num, x_cat)."""

    def batch(log: Log) -> tuple[Tensor, Tensor]:
        numbers = np.stack([log.columns[name] for name in numbers_in(names)], axis=1)
        ids = np.stack([log.columns[name] for name in ids_in(names)], axis=1)
        return torch.from_numpy(numbers), torch.from_numpy(ids)

    return batch


ORDER = (*NUMBERS, *IDS)


def at_net(model: nn.Module, example: Any) -> tl.Plugin:
    return tl.attach(model, dict.fromkeys(ORDER, WIDTH), at="net", example=example)


def at_tokens(model: nn.Module, example: Any) -> tl.Plugin:
    places = ["cont_embeddings", "cat_embeddings"]
    return tl.attach(model, dict.fromkeys(ORDER, 8), at=places, side="output", example=example)


def at_view(width: int) -> Any:
    """Return the function that attaches in front of TabM's ensemble."""
    fields = dict.fromkeys(NUMBERS, width) | dict.fromkeys(IDS, VOCABULARY)
    return lambda model, example: tl.attach(model, fields, at="ensemble_view", example=example)


def _one(name: str, build: Any, attach: Any) -> Combination:
    return Combination("rtdl/tabm", name, build, attach, fit, batch_of(FIELDS))


COMBINATIONS = [
    _one("rtdl.FTTransformer", ft_transformer, at_tokens),
    _one("PLR+MLP", periodic_mlp, at_net),
    _one("PLE+ResNet", piecewise_resnet, at_net),
    _one("TabM", tab_m, at_view(1)),
    _one("TabM-backbone", tab_m_embedded, at_view(WIDTH)),
    _one("TabM-onehot", tab_m_mini, at_view(1)),
]
