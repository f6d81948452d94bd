"""Deep Lasso equals its formula, and closes noise."""

import math

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import torchleap as tl
from tests.methods.tasks import NOISE, scores_of
from torchleap.methods.deep_lasso import DeepLasso, GradientLasso, WatchedNet, lasso
from torchleap.training.fit import Training


def deep_lasso(search):
    """Return a model whose input is watched, and the hook that adds the lasso."""
    model = search.model()
    net = WatchedNet(model.net)
    model.net = net
    return model, GradientLasso(search, net, 0.1)


def test_the_lasso_is_the_sum_of_norms_by_field(search, task):
    gradient = torch.randn(8, task.fields.dims)
    norms = [
        math.sqrt(float((gradient[:, task.fields.columns(name)] ** 2).sum()) + 1e-8)
        for name in task.fields.names
    ]
    assert lasso(gradient, search.column_field()).item() == pytest.approx(sum(norms), rel=1e-5)


def test_deep_lasso_turns_the_loss_into_a_mixture(search, task):
    model, hook = deep_lasso(search)
    model.net.net.wide.bias.data.fill_(0.5)
    torch.manual_seed(0)
    batch = next(iter(task.train.batches(128, shuffle=True, seed=0)))
    log_odds = model(*batch.inputs)
    loss = binary_cross_entropy_with_logits(log_odds, batch.label)
    x = model.net.seen
    # the gradient by hand: (sigmoid - y) / B * d log_odds / dx
    (slope,) = torch.autograd.grad(
        log_odds, x, (log_odds.sigmoid() - batch.label).detach() / 128, retain_graph=True
    )
    penalty = hook.penalty(loss)
    expected = float(lasso(slope, search.column_field()))
    assert penalty.item() == pytest.approx(0.1 * (expected - loss.item()), rel=1e-5)
    total = loss + penalty
    assert total.item() == pytest.approx(0.9 * loss.item() + 0.1 * expected, rel=1e-5)
    total.backward()
    assert model.inputs.tables["4"].weight.grad.abs().sum() > 0
    assert model.net.seen is None


def test_deep_lasso_closes_noise_where_its_weight_is_large(task):
    light = scores_of(task, DeepLasso(weight=1e-6))
    heavy = scores_of(task, DeepLasso(weight=0.5))
    assert all(heavy[name] < light[name] / 3 for name in NOISE)


def test_deep_lasso_refuses_to_compile(task):
    with pytest.raises(tl.TorchleapError, match="gradients of gradients.*Set compile=False"):
        tl.search(task, method=DeepLasso(), training=Training(batch=128, compile=True))
