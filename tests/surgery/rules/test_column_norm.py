"""LayerNorm over all columns, of which some are constants: exact, without the self-check."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchleap as tl
from tests.surgery.helpers import COLUMNS
from tests.surgery.rules.test_sums import KEPT, added, cut
from tests.surgery.test_traps import Trap
from tests.surgery.unchecked import keeping, trained
from torchleap.surgery.runtime import moments_of_layer_norm, part_of_layer_norm


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_a_part_of_a_layer_norm_is_that_part_of_the_complete_one(offset):
    torch.manual_seed(0)
    x = torch.randn(7, 5, dtype=torch.float64) + offset
    constants = torch.randn(3, dtype=torch.float64) * 4 + offset
    weight, bias = torch.randn(2, 5, dtype=torch.float64)
    complete = torch.cat([x, constants.expand(7, 3)], 1)
    expected = functional.layer_norm(complete, (8,), eps=0.1)
    mean = float(constants.mean())
    squares = float((constants - mean).square().sum())
    arguments = (0.1, 3, mean, squares)
    found = part_of_layer_norm(x, None, None, *arguments)
    torch.testing.assert_close(found, expected[:, :5], rtol=1e-9, atol=1e-9)
    found = part_of_layer_norm(x, weight, bias, *arguments)
    torch.testing.assert_close(found, expected[:, :5] * weight + bias, rtol=1e-9, atol=1e-9)
    moments = moments_of_layer_norm(x, *arguments)
    others = (constants - mean) * moments[:, :1] - moments[:, 1:]
    torch.testing.assert_close(others, expected[:, 5:], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("affine", [True, False])
def test_a_layer_behind_reads_two_features_in_place_of_the_constants(affine, monkeypatch):
    norm = nn.LayerNorm(COLUMNS, elementwise_affine=affine)
    if affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    model = Trap(lambda m, x: m.layer(m.norm(x)), 3, norm=norm, layer=nn.Linear(COLUMNS, 3))
    small, notes = cut(monkeypatch, model)
    assert notes == ()
    assert (small.layer.in_features, added(small)) == (8, [(3, 2)])
    if affine:
        assert small.norm.normalized_shape == (8,)
        assert [tuple(each.shape) for each in small.norm.parameters()] == [(8,), (8,)]
    else:
        assert small.norm is None


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: m.norm(x).abs(),
        lambda m, x: m.norm(x * m.same(x)),
        lambda m, x: m.norm(m.norm(x)),
        lambda m, x: m.norm(x) * x,
        lambda m, x: m.norm(x) + x,
    ],
)
def test_a_layer_norm_before_other_operations_is_exact(function, monkeypatch):
    layers = {"norm": nn.LayerNorm(COLUMNS), "same": nn.Linear(COLUMNS, COLUMNS)}
    cut(monkeypatch, Trap(function, COLUMNS, **layers))


def test_a_single_column_that_is_kept_is_normed_with_the_constants(monkeypatch):
    model = Trap(lambda m, x: m.layer(m.norm(x)), 3, norm=nn.LayerNorm(20), layer=nn.Linear(20, 3))
    small, _ = cut(monkeypatch, model, "item[2]", per_dimension=True)
    assert small.layer.in_features == 1


def test_it_is_saved_and_loaded(tmp_path):
    torch.manual_seed(0)
    norm = nn.LayerNorm(COLUMNS)
    model = Trap(lambda m, x: m.layer(m.norm(x)), 3, norm=norm, layer=nn.Linear(COLUMNS, 3))
    plugin, make = trained(model, at="fields", side="output")
    small = plugin.prune(keeping(plugin, *KEPT)).eval()
    tl.export.save(small, tmp_path / "small")
    torch.testing.assert_close(tl.export.load(tmp_path / "small")(make()), small(make()))
