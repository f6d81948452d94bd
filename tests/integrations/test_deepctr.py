"""The recipe on stand-ins for DeepCTR's models; `make test-zoos` runs it on DeepCTR itself."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from torchleap._common.errors import AttachError
from torchleap.integrations import deepctr


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    monkeypatch.setattr(deepctr, "require", lambda package: None)


def sparse(name, table=None):
    return SimpleNamespace(name=name, embedding_name=table or name, embedding_dim=4)


def dense(name, width=1):
    return SimpleNamespace(name=name, dimension=width)


class Linear(nn.Module):
    def __init__(self, tables, numbers):
        super().__init__()
        self.sparse_feature_columns = tables
        self.varlen_sparse_feature_columns = []
        self.dense_feature_columns = numbers
        names = {one.embedding_name for one in tables}
        self.embedding_dict = nn.ModuleDict({name: nn.Embedding(10, 1) for name in names})


class Ranker(nn.Module):
    """Numbers between ids: user, price, item, seller, age; item and seller share a table."""

    def __init__(self, reads=("user", "item", "seller")):
        super().__init__()
        tables = [sparse("user"), sparse("item"), sparse("seller", "item")]
        numbers = [dense("price", 2), dense("age")]
        self.dnn_feature_columns = [tables[0], numbers[0], *tables[1:], numbers[1]]
        self.feature_index = {
            "user": (0, 1),
            "price": (1, 3),
            "item": (3, 4),
            "seller": (4, 5),
            "age": (5, 6),
        }
        self.embedding_dict = nn.ModuleDict(
            {"user": nn.Embedding(10, 4), "item": nn.Embedding(10, 4)}
        )
        self.linear_model = Linear([tables[0]], [numbers[0]])
        self.dnn = nn.Linear(15, 1)
        self.reads = reads

    def forward(self, x):
        pieces = []
        for name in self.reads:
            table = self.embedding_dict["user" if name == "user" else "item"]
            start, stop = self.feature_index.get(name, (0, 1))
            pieces.append(table(x[:, start:stop].long()).flatten(1))
        pieces += [x[:, 1:3], x[:, 5:6]]
        linear = self.linear_model.embedding_dict["user"](x[:, 0].long())
        return self.dnn(torch.cat(pieces, dim=1)) + linear + x[:, 1:3].sum(1, keepdim=True)


def batch(rows=20):
    ids = [torch.randint(10, (rows, 1)).float() for _ in range(3)]
    return torch.cat([ids[0], torch.randn(rows, 2), ids[1], ids[2], torch.randn(rows, 1)], dim=1)


def test_ids_are_gated_behind_their_tables_and_numbers_in_the_input():
    plugin = deepctr.attach_to(Ranker(), batch())
    widths = {name: plugin.fields[name].width for name in plugin.fields.names}
    assert widths == {"price": 2, "age": 1, "user": 5, "item": 4, "seller": 4}


def test_ids_that_lie_between_numbers_reach_their_tables_unchanged():
    torch.manual_seed(0)
    model = Ranker()
    x = batch()
    seen = []
    model.embedding_dict["item"].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    deepctr.attach_to(model, x)
    seen.clear()
    model.train()(x)
    assert torch.equal(seen[0], x[:, 3:4].long())
    assert torch.equal(seen[1], x[:, 4:5].long())


def test_a_table_that_reads_another_column_is_refused():
    with pytest.raises(AttachError, match="reads neither of item, seller"):
        deepctr.attach_to(Ranker(reads=("user", "another", "seller")), batch())


def test_a_model_of_another_kind_is_refused():
    with pytest.raises(AttachError, match=r"has a feature_index, but found Linear"):
        deepctr.attach_to(nn.Linear(2, 1), torch.randn(3, 2))
