"""Products of two fields that are planted into a network."""

import copy

import pytest
import torch
from torch import nn

from torchleap import models
from torchleap.methods.planting import SIGNS, Product, plant
from torchleap.models.layers import Sum, mlp


def product(columns=6, one=0, other=1, means=(0.0, 0.0)):
    first = torch.zeros(columns)
    second = torch.zeros(columns)
    first[one] = 1.0
    second[other] = 1.0
    return Product(first, second, means)


def trained(net, steps, seed=0):
    """Train on labels that depend on the product of two of 64 columns; return the last loss."""
    rng = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        x = torch.randn(256, 64, generator=rng)
        y = (torch.rand(256, generator=rng) < torch.sigmoid(2 * x[:, 0] * x[:, 1])).float()
        loss = nn.functional.binary_cross_entropy_with_logits(net(x).view(-1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-20:]) / 20


@pytest.mark.parametrize("batch_norm", [True, False])
def test_a_planted_product_is_learned_earlier(batch_norm):
    torch.manual_seed(1)
    net = mlp(64, (32, 16), dropout=0.0, batch_norm=batch_norm)
    other = copy.deepcopy(net)
    assert plant(net, [product(64)]) == 1
    assert trained(net, 150) < trained(other, 150) - 0.04


def test_the_least_used_units_see_both_factors_with_all_signs():
    torch.manual_seed(0)
    net = Sum(wide=nn.Linear(6, 1), deep=mlp(6, (16, 4), dropout=0.1, batch_norm=True))
    first, norm, _, _, second = list(net.deep)[:5]
    with torch.no_grad():
        norm.weight.fill_(1.0)
        second.weight.copy_(torch.arange(16.0).expand(4, 16))
    before = copy.deepcopy(net)
    assert plant(net, [product(means=(2.0, 3.0))]) == 1
    units = first.weight[:4, :2].tolist()
    assert units == [list(signs) for signs in SIGNS]
    assert first.weight[:4, 2:].abs().sum() == 0
    assert first.bias[:4].tolist() == [-(2 * a + 3 * b) for a, b in SIGNS], "centred"
    assert torch.equal(first.weight[4:], before.deep[0].weight[4:])
    assert torch.equal(second.weight, before.deep[4].weight)
    assert torch.equal(net.wide.weight, before.wide.weight)


def test_at_most_half_of_the_units_are_replaced():
    net = mlp(6, (16, 4), dropout=0.0, batch_norm=False)
    before = net[0].weight.clone()
    assert plant(net, [product(other=place) for place in (1, 2, 3)]) == 2
    changed = (net[0].weight != before).any(1)
    assert int(changed.sum()) == 8


def test_a_network_without_hidden_units_behind_a_linear_layer_stays_as_it_is():
    for net in (nn.Linear(6, 1), nn.Sequential(nn.ReLU(), nn.Linear(6, 4), nn.Linear(4, 1))):
        before = copy.deepcopy(net.state_dict())
        assert plant(net, [product()]) == 0
        for name, tensor in net.state_dict().items():
            assert torch.equal(tensor, before[name])
    assert plant(mlp(6, (16,), dropout=0.0, batch_norm=True), []) == 0


def test_every_backbone_takes_a_product_or_stays_as_it_is(mixed):
    for name in models.BACKBONES:
        ranker = models.build(models.benchmark(name), mixed)
        columns = mixed.fields.dims
        plant(ranker.net, [product(columns)])
        batch = next(iter(mixed.valid.batches(8)))
        assert torch.isfinite(ranker(*batch.inputs)).all()
