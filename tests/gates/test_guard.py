"""No optimizer decays a gate or counts its warm-up."""

import copy

import pytest
import torch
from torch import nn

from torchleap import GateOptimizer, LeAP

OPTIMIZERS = {
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.1, weight_decay=0.5),
    "Adam": lambda params: torch.optim.Adam(params, lr=0.1, weight_decay=0.5),
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.5),
    "Adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1, weight_decay=0.5),
}


@pytest.mark.parametrize("build", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_weight_decay_never_moves_a_gate_but_still_moves_weights(build):
    model = nn.ModuleList([nn.Linear(2, 2), LeAP({"a": 1, "b": 1})])
    optimizer = build(model.parameters())
    weight = model[0].weight.detach().clone()
    groups = [list(group["params"]) for group in optimizer.param_groups]
    for _ in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    assert torch.equal(model[1].theta, torch.ones(2))
    assert not torch.equal(model[0].weight, weight)
    for before, group in zip(groups, optimizer.param_groups, strict=True):
        assert [id(p) for p in before] == [id(p) for p in group["params"]]


def test_the_step_on_the_gates_is_the_one_without_decay():
    with_decay, without = LeAP({"a": 1, "b": 1}), LeAP({"a": 1, "b": 1})
    first = torch.optim.AdamW(with_decay.parameters(), lr=0.1, weight_decay=0.9)
    second = torch.optim.AdamW(without.parameters(), lr=0.1, weight_decay=0.0)
    for _ in range(4):
        for gates in (with_decay, without):
            gates.theta.grad = torch.tensor([1.0, -2.0])
        first.step()
        second.step()
    assert torch.equal(with_decay.theta, without.theta)


def test_a_copy_is_guarded_too():
    gates = copy.deepcopy(LeAP({"a": 1}))
    gates.theta.grad = torch.zeros(1)
    torch.optim.AdamW(gates.parameters(), lr=0.1, weight_decay=0.9).step()
    assert gates.theta.item() == 1.0


def test_schedulers_and_state_dict_see_the_groups_as_the_user_made_them():
    gates, layer = LeAP({"a": 1}), nn.Linear(2, 1)
    optimizer = torch.optim.AdamW([gates.theta, *layer.parameters()], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    for parameter in (gates.theta, *layer.parameters()):
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.05]
    other = torch.optim.AdamW([gates.theta, *layer.parameters()], lr=0.1)
    other.load_state_dict(optimizer.state_dict())
    assert set(optimizer.state_dict()["state"]) == {0, 1, 2}


def test_an_optimizer_that_fails_in_mid_step_recovers():
    gates, layer = LeAP({"a": 1}), nn.Linear(2, 1)
    optimizer = torch.optim.AdamW([*layer.parameters(), gates.theta], lr=0.1)
    gates.theta.grad = torch.zeros(1)

    def fail():
        raise RuntimeError("no batch")

    good = copy.deepcopy(optimizer.state_dict())
    for save in (
        lambda: optimizer.state_dict(),
        lambda: optimizer.load_state_dict(good),
        lambda: optimizer.step(),
    ):
        with pytest.raises(RuntimeError, match="no batch"):
            optimizer.step(fail)
        save()
        assert len(optimizer.param_groups) == 1
        assert len(optimizer.state_dict()["param_groups"]) == 1
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [
        id(p) for p in (*layer.parameters(), gates.theta)
    ]
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("build", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_gates_that_warm_up_have_no_gradient_when_an_optimizer_steps(build):
    gates = LeAP({"a": 1}, warmup=3, init=0.5)
    optimizer = build(gates.parameters())
    for step in range(5):
        optimizer.zero_grad()
        (gates(torch.randn(8, 1)).square().mean() + gates.penalty()).backward()
        assert gates.theta.grad is not None
        optimizer.step()
        assert (gates.theta.grad is None) == (step < 3)
        assert gates.moved == (step >= 3)


@pytest.mark.parametrize("by_keyword", [False, True])
@pytest.mark.parametrize("kind", ["AdamW", "gate optimizer"])
def test_gates_that_warm_up_have_no_gradient_from_a_closure_either(by_keyword, kind):
    gates = LeAP({"a": 1}, warmup=3, init=0.5)
    optimizer = (
        GateOptimizer(gates, lr=0.1)
        if kind == "gate optimizer"
        else torch.optim.AdamW(gates.parameters(), lr=0.1)
    )

    def closure():
        optimizer.zero_grad()
        loss = gates(torch.randn(8, 1)).square().mean() + gates.penalty()
        loss.backward()
        return loss.item()

    for step in range(5):
        loss = optimizer.step(closure=closure) if by_keyword else optimizer.step(closure)
        assert isinstance(loss, float)
        assert gates.moved == (step >= 3)
    assert float(optimizer.state[gates.theta]["step"]) == 2


def test_a_state_dict_that_replaces_theta_is_guarded_too():
    gates = LeAP({"a": 1})
    gates.load_state_dict(LeAP({"a": 1}).state_dict(), assign=True)
    gates.theta.grad = torch.zeros(1)
    torch.optim.AdamW(gates.parameters(), lr=0.1, weight_decay=0.9).step()
    assert gates.theta.item() == 1.0
