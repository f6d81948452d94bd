"""The real classes of TorchRec in one process; tests/distributed/test_torchrec.py has more, with stand-ins."""

import copy

import pytest
import torch
from torch import nn

import torchleap as tl

torchrec = pytest.importorskip("torchrec", reason="make test-torchrec installs TorchRec")
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor  # noqa: E402
from torchrec.distributed.types import LazyNoWait  # noqa: E402
from torchrec.models.dlrm import DLRM, DLRM_DCN, DLRM_Projection  # noqa: E402
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper  # noqa: E402

from torchleap.distributed import torchrec as keyed  # noqa: E402

FEATURES = ["a", "b", "c", "d", "e"]
TABLES = "sparse_arch.embedding_bag_collection"


def configs(width=4):
    shared = EmbeddingBagConfig(
        name="shared", embedding_dim=width, num_embeddings=20, feature_names=["a", "b"]
    )
    own = [
        EmbeddingBagConfig(name=f"t{n}", embedding_dim=width, num_embeddings=20, feature_names=[n])
        for n in FEATURES[2:]
    ]
    return [shared, *own]


def jagged(rows, features=tuple(FEATURES), weighted=False):
    lengths = torch.randint(0, 4, (len(features) * rows,))
    total = int(lengths.sum())
    weights = torch.rand(total) if weighted else None
    return KeyedJaggedTensor(
        keys=list(features), values=torch.randint(0, 20, (total,)), lengths=lengths, weights=weights
    )


def dlrm():
    return DLRM(
        EmbeddingBagCollection(tables=configs()),
        3,
        dense_arch_layer_sizes=[8, 4],
        over_arch_layer_sizes=[8, 1],
    )


def dcn():
    tables = EmbeddingBagCollection(tables=configs())
    return DLRM_DCN(tables, 3, [8, 4], [8, 1], dcn_num_layers=2, dcn_low_rank_dim=3)


def projection():
    tables = EmbeddingBagCollection(tables=configs())
    return DLRM_Projection(
        tables,
        3,
        [8, 4],
        [8, 1],
        interaction_branch1_layer_sizes=[8],
        interaction_branch2_layer_sizes=[12],
    )


def trained(model, plugin, draw):
    optimizer = torch.optim.Adam(plugin.parameter_groups(gate_lr=0.05), lr=1e-2)
    for _ in range(20):
        optimizer.zero_grad()
        (model(*draw(16)).square().mean() + plugin.penalty()).backward()
        optimizer.step()
    with torch.no_grad():
        plugin.gates.theta.copy_(torch.tensor([0.8, -1.0, 0.1, -0.5, 0.3]))
    return plugin.select()


def same_as_masked(model, plugin, selection, small, batch):
    with plugin.masked(selection), torch.no_grad():
        return torch.allclose(small.eval()(*batch), model.eval()(*batch), atol=1e-6)


def batch(rows, features=tuple(FEATURES)):
    return torch.randn(rows, 3), jagged(rows, features)


def test_stand_ins_and_real_classes_are_known_by_the_same_marks():
    tables, ids = EmbeddingBagCollection(tables=configs()), jagged(3)
    value = tables(ids)
    assert keyed.is_collection(tables)
    assert not keyed.is_sharded(tables)
    assert keyed.is_jagged(ids)
    assert not keyed.is_keyed(ids)
    assert keyed.is_keyed(value)
    assert not keyed.is_jagged(value)
    assert keyed.is_awaitable(LazyNoWait(value))
    assert not any(
        is_a(torch.zeros(2)) for is_a in (keyed.is_keyed, keyed.is_jagged, keyed.is_awaitable)
    )
    assert [bag.name for bag in keyed.bags_of(tables.embedding_bag_configs())] == value.keys()


def test_names_of_features_of_several_tables_are_torchrecs():
    tables = [
        EmbeddingBagConfig(name=n, embedding_dim=4, num_embeddings=20, feature_names=["x", n])
        for n in ("s", "t")
    ]
    value = EmbeddingBagCollection(tables=tables)(jagged(2, ("x", "s", "t")))
    assert [bag.name for bag in keyed.bags_of(tables)] == value.keys() == ["x@s", "s", "x@t", "t"]


@pytest.mark.parametrize("weighted", [False, True])
def test_rows_of_a_jagged_batch_are_looked_up_as_before(weighted):
    tables, whole = (
        EmbeddingBagCollection(tables=configs(), is_weighted=weighted),
        jagged(9, weighted=weighted),
    )
    chosen = torch.tensor([3, 3, 8, 0])
    assert torch.equal(
        tables(keyed.take_rows(whole, chosen)).values(), tables(whole).values()[chosen]
    )


def test_a_bare_collection_returns_a_keyed_tensor_by_name_in_any_order():
    tables = EmbeddingBagCollection(tables=configs())
    order = ["d", "a", "e", "b", "c"]
    plugin = tl.attach(tables, dict.fromkeys(order, 4), side="output")
    ids = jagged(6)
    tables(ids)
    with torch.no_grad():
        plugin.gates.theta.copy_(torch.linspace(-1, 1, 5))
    gated = tables.eval()(ids)
    assert isinstance(gated, KeyedTensor)
    assert gated.keys() == FEATURES
    plugin.detach()
    bare, scores = tables(ids), plugin.scores()
    means = dict(zip(order, plugin.gates.means().split(4), strict=True))
    for name in FEATURES:
        expected = scores[name] * bare[name] + (1 - scores[name]) * means[name]
        assert torch.allclose(gated[name], expected, atol=1e-6)


def test_a_lazy_awaitable_is_gated_when_it_is_read():
    class Lazy(nn.Module):
        def forward(self, value):
            return LazyNoWait(value)

    model = Lazy()
    plugin = tl.attach(model, {"x": 2, "y": 3}, side="output")
    promise = model(KeyedTensor(keys=["y", "x"], length_per_key=[3, 2], values=torch.randn(5, 5)))
    assert int(plugin.gates.steps[0]) == 0
    assert promise["x"].shape == (5, 2)
    assert promise.keys() == ["y", "x"]
    assert int(plugin.gates.steps[0]) == 1
    with pytest.raises(tl.FieldError, match="the field 'y' is missing; 'z' is not a field"):
        model(KeyedTensor(keys=["z", "x"], length_per_key=[3, 2], values=torch.randn(5, 5))).wait()


@pytest.mark.parametrize("build", [dlrm, dcn, projection])
def test_pruned_models_equal_the_masked_ones_without_the_tables(build):
    model = build()
    plugin = tl.attach(model, at=TABLES, side="output")
    selection = trained(model, plugin, batch)
    plan, small = plugin.plan(selection), plugin.prune(selection)
    assert same_as_masked(model, plugin, selection, small, batch(13))
    assert selection.dropped == ("b", "d")
    left = small.get_submodule(TABLES).embedding_bag_configs()
    assert {config.name: config.feature_names for config in left} == {
        "shared": ["a"],
        "tc": ["c"],
        "te": ["e"],
    }
    assert list(small.get_submodule(TABLES).embedding_bags) == ["shared", "tc", "te"]
    assert type(small.get_submodule(TABLES)) is EmbeddingBagCollection
    assert [str(unread) for unread in plan.unread] == [
        "sparse_features['b']",
        "sparse_features['d']",
    ]
    dense, _ = batch(5)
    assert small(dense, jagged(5, selection.kept)).shape == (5, 1)
    assert torch.equal(copy.deepcopy(small)(*(again := batch(4))), small(*again))


def test_interactions_of_two_dropped_fields_leave_the_over_arch_of_a_dlrm():
    model = dlrm()
    plugin = tl.attach(model, at=TABLES, side="output")
    selection = trained(model, plugin, batch)
    before = model.over_arch.model[0]._mlp[0]._linear.in_features
    assert plugin.prune(selection).over_arch.model[0]._mlp[0]._linear.in_features == before - 1
    zeros = plugin.prune(selection, fill="zero")
    assert (
        zeros.over_arch.model[0]._mlp[0]._linear.in_features == before - 9
    )  # 4 pairs with others each, and their own


@pytest.mark.parametrize("weighted", [False, True])
def test_weighted_collections_and_mean_pooling_are_pruned(weighted):
    class Regroups(nn.Module):
        def __init__(self):
            super().__init__()
            tables = configs()
            if not weighted:
                tables[2].pooling = torchrec.PoolingType.MEAN
            self.tables, self.over = (
                EmbeddingBagCollection(tables=tables, is_weighted=weighted),
                nn.Linear(20, 1),
            )

        def forward(self, sparse):
            return self.over(KeyedTensor.regroup([self.tables(sparse)], [FEATURES])[0])

    def draw(rows):
        return (jagged(rows, weighted=weighted),)

    model = Regroups()
    plugin = tl.attach(model, at="tables", side="output")
    selection = trained(model, plugin, draw)
    small = plugin.prune(selection)
    assert same_as_masked(model, plugin, selection, small, draw(7))
    assert small.tables.is_weighted() == weighted
    assert list(small.tables.embedding_bags) == ["shared", "tc", "te"]


def test_gates_do_not_decay_in_torchrecs_optimizers():
    model = dlrm()
    plugin = tl.attach(model, at=TABLES, side="output")
    inner = KeyedOptimizerWrapper(
        dict(model.named_parameters()),
        lambda group: torch.optim.AdamW(group, lr=0.1, weight_decay=0.5),
    )
    model(*batch(4)).sum().backward()
    plugin.gates.theta.grad.zero_()
    CombinedOptimizer([inner]).step()
    assert plugin.gates.theta.tolist() == [1.0] * 5


def test_torchrec_is_not_imported_by_torchleap():
    import subprocess
    import sys

    code = "import torchleap, sys; assert not [m for m in sys.modules if m.startswith(('torchrec', 'fbgemm'))]"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
