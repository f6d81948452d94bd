"""Small models on the layers of FuxiCTR, whose package has no models: they are in its repository.

They have the form of those: BaseModel, an embedding layer, `get_inputs` and a dict of outputs.
"""

import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from fuxictr.features import FeatureMap
from fuxictr.pytorch.layers import (
    BilinearInteraction,
    CompressedInteractionNet,
    CrossNet,
    CrossNetV2,
    DIN_Attention,
    FactorizationMachine,
    FeatureEmbedding,
    FeatureEmbeddingDict,
    LogisticRegression,
    MLP_Block,
    ScaledDotProductAttention,
    SqueezeExcitation,
)
from fuxictr.pytorch.models import BaseModel, MultiTaskModel
from torch import Tensor, nn

from tests.zoos.log import HISTORY, IDS, LENGTH, VOCABULARY

WIDTH = 4
HIDDEN = [16]
LABEL = "click"
SECOND = "second"


def feature_map(names: tuple[str, ...], labels: tuple[str, ...] = (LABEL,)) -> FeatureMap:
    """Return the feature map of some fields."""
    made = FeatureMap("log", tempfile.gettempdir())
    made.labels = list(labels)
    made.features = OrderedDict((name, _specification(name)) for name in names)
    made.num_fields = made.get_num_fields()
    made.default_emb_dim = WIDTH
    return made


def _specification(name: str) -> dict[str, Any]:
    if name == HISTORY:
        own = {"type": "sequence", "vocab_size": VOCABULARY, "max_len": LENGTH, "padding_idx": 0}
        return {"source": "", "share_embedding": "item", **own}
    if name in IDS:
        return {"source": "", "type": "categorical", "vocab_size": VOCABULARY}
    return {"source": "", "type": "numeric"}


class Ranker(BaseModel):
    """A base of models that are trained on one label.

    Args:
        names: The fields.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        super().__init__(
            feature_map(names),
            model_id=type(self).__name__,
            verbose=0,
            model_root=tempfile.gettempdir(),
            metrics=["AUC"],
            embedding_regularizer="l2(1.e-6)",
            net_regularizer="l2(1.e-6)",
        )
        Path(self.model_dir).mkdir(exist_ok=True)
        self.width = len(names) * WIDTH
        self.build(len(names))
        self.compile("adam", "binary_crossentropy", 1e-2)
        self.reset_parameters()

    def build(self, fields: int) -> None:
        """Add the layers."""
        raise NotImplementedError

    def predicted(self, log_odds: Tensor) -> dict[str, Tensor]:
        """Return what fit() reads."""
        return {"y_pred": self.output_activation(log_odds)}


class DCN(Ranker):
    cross: Any = CrossNet

    def build(self, fields: int) -> None:
        self.embedding_layer = FeatureEmbedding(self.feature_map, WIDTH)
        self.crossnet = self.cross(self.width, 2)
        self.dnn = MLP_Block(self.width, HIDDEN)
        self.fc = nn.Linear(self.width + HIDDEN[-1], 1)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        flat = self.embedding_layer(self.get_inputs(inputs), flatten_emb=True)
        return self.predicted(self.fc(torch.cat([self.crossnet(flat), self.dnn(flat)], dim=-1)))


class DCNv2(DCN):
    cross = CrossNetV2


class WideDeep(Ranker):
    def build(self, fields: int) -> None:
        self.embedding_layer = FeatureEmbedding(self.feature_map, WIDTH)
        self.lr_layer = LogisticRegression(self.feature_map, use_bias=False)
        self.dnn = MLP_Block(self.width, HIDDEN, output_dim=1)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        x = self.get_inputs(inputs)
        flat = self.embedding_layer(x, flatten_emb=True)
        return self.predicted(self.lr_layer(x) + self.dnn(flat))


class DeepFM(Ranker):
    def build(self, fields: int) -> None:
        self.embedding_layer = FeatureEmbedding(self.feature_map, WIDTH)
        self.fm = FactorizationMachine(self.feature_map)
        self.mlp = MLP_Block(self.width, HIDDEN, output_dim=1)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        x = self.get_inputs(inputs)
        embedded = self.embedding_layer(x)
        return self.predicted(self.fm(x, embedded) + self.mlp(embedded.flatten(start_dim=1)))


class XDeepFM(Ranker):
    def build(self, fields: int) -> None:
        self.embedding_layer = FeatureEmbedding(self.feature_map, WIDTH)
        self.lr_layer = LogisticRegression(self.feature_map, use_bias=False)
        self.cin = CompressedInteractionNet(fields, [6, 6])
        self.dnn = MLP_Block(self.width, HIDDEN, output_dim=1)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        x = self.get_inputs(inputs)
        embedded = self.embedding_layer(x)
        deep = self.dnn(embedded.flatten(start_dim=1))
        return self.predicted(self.lr_layer(x) + self.cin(embedded) + deep)


class SelfAttention(nn.Module):
    """Attention of fields to each other, with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, WIDTH, bias=False)
        self.residual = nn.Linear(WIDTH, WIDTH, bias=False)
        self.attend = ScaledDotProductAttention()

    def forward(self, x: Tensor) -> Tensor:
        attended, _ = self.attend(self.query(x), self.key(x), self.value(x), scale=WIDTH**0.5)
        return torch.relu(attended + self.residual(x))


class AutoInt(Ranker):
    def build(self, fields: int) -> None:
        self.embedding_layer = FeatureEmbedding(self.feature_map, WIDTH)
        self.attention = SelfAttention()
        self.dnn = MLP_Block(self.width, HIDDEN, output_dim=1)
        self.fc = nn.Linear(self.width, 1)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        embedded = self.embedding_layer(self.get_inputs(inputs))
        attended = self.fc(self.attention(embedded).flatten(start_dim=1))
        return self.predicted(attended + self.dnn(embedded.flatten(start_dim=1)))


class FiBiNET(Ranker):
    def build(self, fields: int) -> None:
        self.embedding_layer = FeatureEmbedding(self.feature_map, WIDTH)
        self.lr_layer = LogisticRegression(self.feature_map, use_bias=False)
        self.senet = SqueezeExcitation(fields, 3)
        self.bilinear = BilinearInteraction(fields, WIDTH, "field_interaction")
        self.dnn = MLP_Block(fields * (fields - 1) * WIDTH, HIDDEN, output_dim=1)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        x = self.get_inputs(inputs)
        embedded = self.embedding_layer(x)
        pairs = [self.bilinear(embedded), self.bilinear(self.senet(embedded))]
        deep = self.dnn(torch.cat(pairs, dim=1).flatten(start_dim=1))
        return self.predicted(self.lr_layer(x) + deep)


class DIN(Ranker):
    def build(self, fields: int) -> None:
        self.embedding_layer = FeatureEmbeddingDict(self.feature_map, WIDTH)
        self.attention = DIN_Attention(WIDTH, attention_units=[8])
        self.dnn = MLP_Block(self.width, HIDDEN, output_dim=1)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        x = self.get_inputs(inputs)
        by_name = self.embedding_layer(x)
        if HISTORY in by_name:
            mask = x[HISTORY].long() != 0
            by_name[HISTORY] = self.attention(by_name["item"], by_name[HISTORY], mask)
        flat = self.embedding_layer.dict2tensor(by_name, flatten_emb=True)
        return self.predicted(self.dnn(flat))


class FinalMLP(Ranker):
    """Two streams that a bilinear layer joins."""

    def build(self, fields: int) -> None:
        self.embedding_layer = FeatureEmbedding(self.feature_map, WIDTH)
        self.first = MLP_Block(self.width, HIDDEN)
        self.second = MLP_Block(self.width, HIDDEN)
        self.joined = nn.Bilinear(HIDDEN[-1], HIDDEN[-1], 1)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        flat = self.embedding_layer(self.get_inputs(inputs)).flatten(start_dim=1)
        return self.predicted(self.joined(self.first(flat), self.second(flat)))


class MMoE(MultiTaskModel):
    """Experts whose outputs each of two tasks weights by a gate of its own."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        super().__init__(
            feature_map(names, (LABEL, SECOND)),
            task=["binary_classification"] * 2,
            num_tasks=2,
            verbose=0,
            model_root=tempfile.gettempdir(),
            metrics=["AUC"],
        )
        Path(self.model_dir).mkdir(exist_ok=True)
        width = len(names) * WIDTH
        self.embedding_layer = FeatureEmbedding(self.feature_map, WIDTH)
        self.experts = nn.ModuleList(MLP_Block(width, HIDDEN) for _ in range(2))
        self.gates = nn.ModuleList(MLP_Block(width, [], output_dim=2) for _ in range(2))
        self.towers = nn.ModuleList(MLP_Block(HIDDEN[-1], [8], output_dim=1) for _ in range(2))
        self.compile("adam", "binary_crossentropy", 1e-2)
        self.reset_parameters()

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        flat = self.embedding_layer(self.get_inputs(inputs), flatten_emb=True)
        experts = torch.stack([expert(flat) for expert in self.experts], dim=1)
        found = {}
        for task, label in enumerate((LABEL, SECOND)):
            weights = torch.softmax(self.gates[task](flat), dim=-1).unsqueeze(-1)
            log_odds = self.towers[task]((weights * experts).sum(dim=1))
            found[f"{label}_pred"] = self.output_activation[task](log_odds)
        return found
