import pytest
import torch
from torch import nn

from torchleap._common.errors import AttachError
from torchleap.integrations import rechub

features = pytest.importorskip(
    "torch_rechub.basic.features", reason="torch-rechub is not installed"
)
IDS = ("user", "item")


def sparse(names=IDS):
    return [features.SparseFeature(name, 10, 4) for name in names]


def batch(rows=6):
    ids = {name: torch.randint(10, (rows,)) for name in IDS}
    return {**ids, "price": torch.randn(rows), "clicks": torch.randint(1, 10, (rows, 3))}


def test_parts_of_a_feature_share_a_gate_and_numbers_come_last():
    from torch_rechub.models.ranking import DeepFM

    model = DeepFM([features.DenseFeature("price"), *sparse()], sparse(), {"dims": [8]})
    plugin = rechub.attach_to(model, batch())
    assert set(plugin.fields.names) == {"user", "item", "price"}
    assert {name: plugin.fields[name].width for name in plugin.fields.names} == {
        "user": 8,
        "item": 8,
        "price": 1,
    }


def test_layers_of_numbers_are_gated_beside_the_embedding():
    from torch_rechub.models.ranking import AutoInt

    model = AutoInt(sparse(), [features.DenseFeature("price")], 1, mlp_params={"dims": [8]})
    plugin = rechub.attach_to(model, batch(), seed=3)
    assert plugin.fields["price"].width == 4


def test_din_is_gated_in_front_of_its_net():
    from torch_rechub.models.ranking import DIN

    history = features.SequenceFeature("clicks", 10, 4, pooling="concat", shared_with="item")
    numbers = [features.DenseFeature("price")]
    model = DIN(
        sparse(("user",)) + numbers, [history], sparse(("item",)), {"dims": [8]}, {"dims": [4]}
    )
    model.mlp = nn.Identity()
    plugin = rechub.attach_to(model, batch())
    assert plugin.fields.names == ("clicks", "item", "user")


def test_a_history_that_is_not_pooled_is_refused():
    class Ranker(nn.Module):
        def __init__(self, history):
            super().__init__()
            self.history = history
            from torch_rechub.basic.layers import EmbeddingLayer

            self.embedding = EmbeddingLayer(history)

        def forward(self, x):
            return self.embedding(x, self.history).sum()

    history = [features.SequenceFeature("clicks", 10, 4, pooling="concat")]
    with pytest.raises(AttachError, match=r"the histories clicks of the shape \(6, 1, 3, 4\)"):
        rechub.attach_to(Ranker(history), batch())


def test_a_model_without_an_embedding_layer_is_refused():
    with pytest.raises(AttachError, match="found none in Linear"):
        rechub.attach_to(nn.Linear(2, 1), torch.randn(3, 2))
