"""AdaFS weighs the fields of each row, once pre-training is over."""

import math

import pytest
import torch

from tests.data.frames import USEFUL
from tests.methods.tasks import NOISE, scores_of
from torchleap import models
from torchleap.methods import Search
from torchleap.methods.adafs import AdaFS, AdaFSHook, RowWeights
from torchleap.methods.base import put_before_net
from torchleap.training.fit import Hook, Training


def test_adafs_weighs_the_fields_of_each_row_with_mean_one(search, task):
    layer = RowWeights(search, AdaFS(pretraining=0)).eval()
    x = torch.randn(6, task.fields.dims)
    linear, norm, _, _ = layer.controller
    normal = x / math.sqrt(1 + 1e-5)  # the statistics of a fresh batch norm
    logits = ((normal @ linear.weight.T + linear.bias) / math.sqrt(1 + norm.eps)).clamp_min(0)
    weights = logits.exp() / logits.exp().sum(1, keepdim=True) * 7
    assert torch.allclose(layer(x), normal * weights[:, search.column_field()], atol=1e-5)
    assert torch.allclose(layer.gates(normal).mean(1), torch.ones(6), atol=1e-6)


def test_hard_adafs_keeps_the_largest_weights_of_each_row(search, task):
    soft = RowWeights(search, AdaFS(pretraining=0))
    hard = RowWeights(search, AdaFS(pretraining=0, keep=0.43))
    hard.load_state_dict(soft.state_dict())
    x = torch.randn(20, task.fields.dims)
    weights = soft.eval().weights(x)
    kept = hard.eval().weights(x)
    assert ((kept > 0).sum(1) == 3).all()
    assert torch.allclose(kept.mean(1), torch.ones(20), atol=1e-6)
    for row in range(20):
        largest = weights[row].topk(3).indices
        assert set(kept[row].nonzero().flatten().tolist()) == set(largest.tolist())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_adafs_gives_useful_fields_more_weight_than_noise(seed, task):
    # Not its three best: the network makes up for weights, and that of a constant means nothing.
    # By default, the controller would take 23 steps of 1e-3 here.
    scores = scores_of(task, AdaFS(lr=3e-2, every=1, dropout=0.0), seed=seed)
    assert max(scores, key=scores.get) in USEFUL
    assert sum(scores[name] for name in USEFUL) > 1.2 * sum(scores[name] for name in NOISE)


def test_adafs_has_no_weights_in_pre_training(task):
    search = Search(task, models.benchmark("mlp"), Training(batch=256, epochs=3))
    method = AdaFS(pretraining=2, every=1)
    model = search.model()
    layer = RowWeights(search, method)
    put_before_net(model, layer)
    hook = AdaFSHook(search, layer, method)
    first = layer.controller[0].weight.detach().clone()
    seen = []

    class Watch(Hook):
        def after_step(self, run):
            weighs = bool(layer.get_buffer("weighs"))
            seen.append((weighs, torch.equal(layer.controller[0].weight, first)))

    search.fit(model, hook, Watch())
    epoch = -(-len(task.train) // 256)
    assert seen[: 2 * epoch - 1] == [(False, True)] * (2 * epoch - 1)
    assert seen[2 * epoch :] == [(True, False)] * epoch
    assert sum(hook.scores.values()) == pytest.approx(7, abs=1e-4)
