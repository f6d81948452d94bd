"""Models of a public package that were not written for this project."""

import pytest
import torch

import torchleap as tl

pytest.importorskip("torch_rechub", reason="torch-rechub is not installed")
from torch_rechub.basic.features import DenseFeature, SparseFeature
from torch_rechub.models import ranking

NAMES = ("user", "item", "city", "shop")
MLP = {"dims": [16, 8]}


def ids():
    return [SparseFeature(name, vocab_size=50, embed_dim=8) for name in NAMES]


def batch(rows=64, seed=0):
    rng = torch.Generator().manual_seed(seed)
    entries = {name: torch.randint(50, (rows,), generator=rng) for name in NAMES}
    return entries | {"price": torch.randn(rows, generator=rng)}


DENSE = [DenseFeature("price")]
AT_TABLES = {"at": "embedding", "side": "output"}
MODELS = {
    "DCN": (lambda: ranking.DCN(ids() + DENSE, n_cross_layers=2, mlp_params=MLP), AT_TABLES, True),
    "DCNv2": (
        lambda: ranking.DCNv2(ids() + DENSE, n_cross_layers=2, mlp_params=MLP),
        AT_TABLES,
        True,
    ),
    "WideDeep": (lambda: ranking.WideDeep(DENSE, ids(), mlp_params=MLP), {"at": "mlp"}, False),
    "DeepFM": (lambda: ranking.DeepFM(ids(), ids(), mlp_params=MLP), {"at": "fm"}, False),
    "FiBiNet": (lambda: ranking.FiBiNet(ids(), mlp_params=MLP), AT_TABLES, False),
    "EDCN": (
        lambda: ranking.EDCN(ids() + DENSE, n_cross_layers=2, mlp_params={"dims": [33, 33]}),
        AT_TABLES,
        True,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_is_pruned_exactly(name):
    torch.manual_seed(0)
    build, place, dense = MODELS[name]
    model = build()
    for name_of, parameter in model.named_parameters():  # tables of the package start at 1e-4
        parameter.data += (0.5 if "embed" in name_of else 0.05) * torch.randn_like(parameter)
    plugin = tl.attach(model, dict.fromkeys(NAMES, 8) | ({"price": 1} if dense else {}), **place)
    for step in range(3):
        model.train()(batch(seed=step))
    with torch.no_grad():
        plugin.gates.theta.copy_(torch.linspace(-0.3, 1.0, len(plugin.gates.theta)))
    selection = plugin.select(share=0.6)
    small = plugin.prune(selection).eval()
    rows = batch(seed=9)
    with plugin.masked(selection):
        expected = model.eval()(rows)
    assert float(expected.std()) > 1e-3
    torch.testing.assert_close(small(rows), expected, rtol=1e-5, atol=1e-6)
    plan = tl.plan_of(small)
    assert "Nothing behind the gates is cut" not in str(plan)
    if name == "DeepFM":  # its first-order part reads the same embeddings past the gates
        assert "still read past the gates: user, item" in str(plan)
    else:
        assert {"embedding.embed_dict.user", "embedding.embed_dict.item"} <= {
            c.path for c in plan.cuts if c.after == "removed"
        }
        assert [str(item) for item in plan.unread] == ["user", "item"]
        assert torch.equal(
            small({key: value for key, value in rows.items() if key not in ("user", "item")}),
            small(rows),
        )
