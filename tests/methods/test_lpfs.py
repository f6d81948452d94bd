"""LPFS equals its formula, follows its plan, and reaches zero for useless fields."""

import math

import pytest
import torch

from tests.methods.tasks import NOISE, TRAINING, scores_of
from torchleap.methods import Search
from torchleap.methods.lpfs import LPFS, LPFSHook, SmoothSteps
from torchleap.training.fit import Run, Training


@pytest.mark.parametrize("plus", [False, True])
def test_lpfs_equals_its_formula(plus, search, task):
    layer = SmoothSteps(search, LPFS(plus=plus))
    with torch.no_grad():
        layer.x.copy_(torch.tensor([-2.0, -0.3, -0.01, 0.0, 0.01, 0.3, 2.0]))
    layer.get_buffer("epsilon").fill_(0.01)
    for x, gate in zip(layer.x.tolist(), layer.gates(torch.empty(0)).tolist(), strict=True):
        slow = x * x / (x * x + 0.01)
        if plus:
            slow = (slow if x > 0 else -slow) + 10 * math.sqrt(0.01) * math.atan(x)
        assert gate == pytest.approx(slow, abs=1e-6)
    (slope,) = torch.autograd.grad(layer.gates(torch.empty(0)).sum(), layer.x)
    assert slope[3].item() == pytest.approx(1.0 if plus else 0.0)  # LPFS++ can come back from 0


@pytest.mark.parametrize("plus", [False, True])
def test_lpfs_reaches_zero_for_useless_fields_and_for_no_others(plus, task):
    scores = scores_of(task, LPFS(plus=plus))
    assert {name for name, score in scores.items() if score == 0.0} == {*NOISE, "constant"}


def test_lpfs_follows_its_plan(search, task):
    method = LPFS(planned_epochs=5)
    assert method.epsilon_at(0, 1000) == pytest.approx(0.1)
    assert method.epsilon_at(500, 1000) == pytest.approx(1e-3)
    assert method.epsilon_at(1000, 1000) == method.epsilon_at(9999, 1000) == pytest.approx(1e-5)
    hook = LPFSHook(search, SmoothSteps(search, method), method)
    assert hook.planned == 5 * 38
    assert hook.threshold == pytest.approx(2 / hook.planned)
    short = Search(task, search.backbone, Training(batch=128, epochs=2))
    assert LPFSHook(short, SmoothSteps(short, method), method).planned == 2 * 38
    by_hand = LPFS(threshold=0.03, lr=0.7)
    hook = LPFSHook(search, SmoothSteps(search, by_hand), by_hand)
    assert (hook.threshold, hook.lr) == (0.03, 0.7)


def test_the_threshold_of_lpfs_is_soft_and_no_wider_than_half_a_gate(search):
    method = LPFS(threshold=0.1)
    hook = LPFSHook(search, SmoothSteps(search, method), method)
    run = Run(search.model(), search.task, TRAINING)
    with torch.no_grad():
        hook.layer.x.copy_(torch.tensor([-1.0, -0.1, -0.05, 0.0, 0.05, 0.11, 1.0]))
    hook.after_step(run)  # without gradients, the threshold alone
    assert hook.layer.x.tolist() == pytest.approx([-0.9, 0, 0, 0, 0, 0.01, 0.9])
    hook.layer.get_buffer("epsilon").fill_(1e-4)
    hook.after_step(run)
    assert hook.layer.x[6].item() == pytest.approx(0.9 - 0.005)


def test_the_public_lpfs_reaches_no_zero(search, task):
    method = LPFS(as_published=True)
    assert method.epsilon_at(99, 1) == 0.1
    assert method.epsilon_at(250, 1) == pytest.approx(0.1 * 0.9978**2)
    hook = LPFSHook(search, SmoothSteps(search, method), method)
    assert hook.threshold == 1e-5
    assert hook.optimizer.param_groups[0]["lr"] == TRAINING.lr
    assert min(scores_of(task, method).values()) > 0.1
