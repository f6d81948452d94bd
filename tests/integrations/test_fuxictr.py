"""The recipe on stand-ins for FuxiCTR's layers; `make test-zoos` runs it on FuxiCTR itself."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from torchleap._common.errors import AttachError
from torchleap.integrations import fuxictr


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    monkeypatch.setattr(fuxictr, "require", lambda package: None)


class FeatureEmbeddingDict(nn.Module):
    def __init__(self, names, width):
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.Embedding(10, width) for name in names})

    def forward(self, batch):
        return {name: table(batch[name]) for name, table in self.tables.items()}


class Ranker(nn.Module):
    def __init__(self, names, has_linear=True):
        super().__init__()
        self.feature_map = SimpleNamespace(features=dict.fromkeys(names))
        self.embedding = FeatureEmbeddingDict(names, 4)
        self.linear = FeatureEmbeddingDict(names, 1) if has_linear else None
        self.dnn = nn.Linear(4 * len(names), 1)

    def forward(self, batch):
        embedded = self.embedding(batch)
        flat = [one.mean(1) if one.dim() == 3 else one for one in embedded.values()]
        log_odds = self.dnn(torch.cat(flat, dim=1))
        if self.linear is not None:
            log_odds = log_odds + sum(self.linear(batch).values())
        return {"y_pred": torch.sigmoid(log_odds)}


def batch(names):
    shapes = {"clicks": (6, 3)}
    return {name: torch.randint(10, shapes.get(name, (6,))) for name in names}


def test_embedding_and_linear_part_of_a_feature_share_a_gate():
    names = ("user", "item")
    plugin = fuxictr.attach_to(Ranker(names), batch(names))
    assert plugin.fields.names == names
    assert plugin.fields.widths == (5, 5)


def test_a_model_with_a_history_is_gated_in_front_of_its_net():
    names = ("user", "clicks")
    plugin = fuxictr.attach_to(Ranker(names, has_linear=False), batch(names))
    assert plugin.fields.widths == (4, 4)
    assert [site.at for site in plugin.sites] == ["dnn"]


def test_a_model_without_an_embedding_layer_is_refused():
    with pytest.raises(AttachError, match="found none in Linear"):
        fuxictr.attach_to(nn.Linear(2, 1), torch.randn(3, 2))
