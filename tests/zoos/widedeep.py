"""Models of pytorch-widedeep 1.7.0, trained by its Trainer."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import torchleap as tl
from tests.zoos import stubs
from tests.zoos.log import BATCH, FIELDS, IDS, NUMBERS, VOCABULARY, Log
from tests.zoos.run import Combination
from torchleap.integrations import widedeep

stubs.install("torchvision", "cv2", "spacy", "gensim", "transformers", "PIL")

WIDTH = 4
Names = tuple[str, ...]


def columns(names: Names) -> dict[str, Any]:
    """Return the columns of some fields, as the models ask for them: each with its own width."""
    return {
        "column_idx": {name: place for place, name in enumerate(_sorted(names))},
        "cat_embed_input": [(name, VOCABULARY, WIDTH) for name in _ids(names)],
        "continuous_cols": [name for name in names if name in NUMBERS] or None,
    }


def tokens(names: Names) -> dict[str, Any]:
    """Return the columns for models in which all fields have one width."""
    tables = {"cat_embed_input": [(name, VOCABULARY) for name in _ids(names)]}
    return {**columns(names), **tables, "input_dim": 2 * WIDTH, "n_blocks": 1}


def tab_mlp(names: Names) -> nn.Module:
    from pytorch_widedeep.models import TabMlp

    return TabMlp(**columns(names), mlp_hidden_dims=[16, 8])


def tab_resnet(names: Names) -> nn.Module:
    from pytorch_widedeep.models import TabResnet

    return TabResnet(**columns(names), blocks_dims=[16, 16, 8])


def attention_mlp(names: Names) -> nn.Module:
    from pytorch_widedeep.models import ContextAttentionMLP

    return ContextAttentionMLP(**tokens(names))


def ft_transformer(names: Names) -> nn.Module:
    from pytorch_widedeep.models import FTTransformer

    return FTTransformer(**tokens(names), n_heads=2)


def tab_transformer(names: Names) -> nn.Module:
    from pytorch_widedeep.models import TabTransformer

    return TabTransformer(**tokens(names), n_heads=2)


def _ids(names: Names) -> list[str]:
    return [name for name in names if name in IDS]


def _sorted(names: Names) -> list[str]:
    """Return the fields as the columns of a batch: ids first."""
    return _ids(names) + [name for name in names if name in NUMBERS]


def deep(part: Callable[[Names], nn.Module]) -> Callable[[Names], nn.Module]:
    """Return the function that makes a model without a wide part."""

    def make(names: Names) -> nn.Module:
        from pytorch_widedeep.models import WideDeep

        made: nn.Module = WideDeep(deeptabular=part(names))
        return made

    return make


def wide_and_deep(part: Callable[[Names], nn.Module]) -> Callable[[Names], nn.Module]:
    """Return the function that makes a model with a wide part."""

    def make(names: Names) -> nn.Module:
        from pytorch_widedeep.models import Wide, WideDeep

        wide = Wide(VOCABULARY * len(_ids(names)))
        made: nn.Module = WideDeep(wide=wide, deeptabular=part(names))
        return made

    return make


def numbered(names: Names, offset: bool) -> Callable[[Log], torch.Tensor]:
    """Return the function that makes columns of a log: ids begin at 1.

    Args:
        names: The fields.
        offset: Whether all fields share one table, in which each has rows of its own.
    """

    def make(log: Log) -> torch.Tensor:
        found = []
        for place, name in enumerate(names):
            values = torch.from_numpy(log.columns[name])
            if name in IDS:
                values = values + 1 + VOCABULARY * place * offset
            found.append(values)
        kind = torch.float32 if set(names) & set(NUMBERS) else torch.int64
        return torch.stack([values.to(kind) for values in found], dim=1)

    return make


def inputs(with_wide: bool, offset: bool) -> Callable[[Log], dict[str, torch.Tensor]]:
    """Return the function that makes the inputs of the parts of a model."""

    def make(log: Log) -> dict[str, torch.Tensor]:
        table = {"deeptabular": numbered(tuple(_sorted(FIELDS)), offset)(log)}
        if with_wide:
            return {"wide": numbered(IDS, True)(log), **table}
        return table

    return make


def fit(make: Callable[[Log], dict[str, torch.Tensor]]) -> Callable[[nn.Module, Log], None]:
    """Return the function that trains a model on such inputs."""

    def train(model: nn.Module, log: Log) -> None:
        from pytorch_widedeep import Trainer

        parts = {"wide": "X_wide", "deeptabular": "X_tab"}
        arrays = {parts[name]: values.numpy() for name, values in make(log).items()}
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        trainer = Trainer(model, "binary", optimizers=optimizer, verbose=0, num_workers=0)
        rows = arrays | {"target": log.clicks.astype(np.int64)}
        trainer.fit(X_train=rows, n_epochs=1, batch_size=BATCH)

    return train


def deep_by_hand(model: nn.Module, example: Any) -> "tl.Plugin":
    """Attach to the deep part alone; the wide part reads its fields past the gates."""
    widths = dict.fromkeys(IDS, WIDTH) | dict.fromkeys(NUMBERS, 1)
    places = ["deeptabular.0.cat_embed", "deeptabular.0.cont_norm"]
    return tl.attach(model, widths, at=places, side="output", example=example)


def with_wide(model: nn.Module, example: Any) -> "tl.Plugin":
    """Attach with the recipe, which cannot know what the columns of the wide part are."""
    return widedeep.attach_to(model, example, wide=IDS)


def _one(
    name: str,
    part: Callable[[Names], nn.Module],
    attach: Any = widedeep.attach_to,
    has_wide: bool = False,
    offset: bool = True,
    **more: Any,
) -> Combination:
    make = inputs(has_wide, offset)
    build = (wide_and_deep if has_wide else deep)(part)
    return Combination(
        "pytorch-widedeep", name, build, attach, fit(make), lambda log: (make(log),), **more
    )


COMBINATIONS = [
    _one("TabMlp", tab_mlp, offset=False),
    _one("Wide+TabMlp", tab_mlp, with_wide, has_wide=True, offset=False),
    _one("Wide+TabMlp-out", tab_mlp, deep_by_hand, has_wide=True, offset=False),
    _one("TabResnet", tab_resnet, offset=False),
    _one("ContextAttentionMLP", attention_mlp, fails=("load",)),
    _one("FTTransformer", ft_transformer, fails=("load",)),
    _one("TabTransformer", tab_transformer, fails=("load",)),
]
