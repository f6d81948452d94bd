"""Gradient checkpointing around the gates gives the gradients of the same model without it."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchleap as tl

FIELDS = dict.fromkeys("abcd", 4)


def attached(warmup=0):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))
    plugin = tl.attach(model, FIELDS, at="0", seed=0, warmup=warmup)
    with torch.no_grad():
        plugin.gates.theta.fill_(0.4)
    return model, plugin


def batches(count):
    rng = torch.Generator().manual_seed(1)
    return [torch.randn(32, 16, generator=rng).requires_grad_() for _ in range(count)]


def plain(model, x):
    return model(x)


def with_hooks(model, x):
    return checkpoint(model, x, use_reentrant=False)


def reentrant(model, x):
    return checkpoint(model, x, use_reentrant=True)


def of_a_part(model, x):
    return model[2](checkpoint(model[:2], x, use_reentrant=False))


def backward_of_each(losses):
    for loss in losses:
        loss.backward()


def backward_of_the_sum(losses):
    sum(losses).backward()


def backward_twice(losses):
    for loss in losses:
        loss.backward(retain_graph=True)
        loss.backward()


def state_after(call, backward, warmup=0):
    """Gradients, and everything that the gates have measured."""
    model, plugin = attached(warmup)
    for _ in range(2):
        backward([call(model, x).square().sum() for x in batches(3)])
    found = {name: weight.grad for name, weight in model.named_parameters()}
    return found | dict(plugin.gates.named_buffers())


@pytest.mark.parametrize("warmup", [0, 4])
@pytest.mark.parametrize("backward", [backward_of_each, backward_of_the_sum, backward_twice])
@pytest.mark.parametrize("call", [with_hooks, reentrant, of_a_part])
def test_gradients_and_statistics_are_those_without_checkpointing(call, backward, warmup):
    if (call, backward) == (reentrant, backward_twice):
        pytest.skip("PyTorch refuses it")
    expected = state_after(plain, backward, warmup)
    found = state_after(call, backward, warmup)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=name)


def test_gates_learn_by_themselves_under_checkpointing():
    scores = []
    for call in (plain, with_hooks, reentrant):
        model, plugin = attached()
        plugin.learn(steps=40)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for x in batches(40):
            optimizer.zero_grad()
            (call(model, x) - x[:, :1].detach()).square().mean().backward()
            optimizer.step()
        scores.append(torch.tensor(list(plugin.scores().values())))
    torch.testing.assert_close(scores[1], scores[0])
    torch.testing.assert_close(scores[2], scores[0])


def test_values_that_differ_the_second_time_are_warned_of():
    model, _ = attached()
    model[0].register_forward_pre_hook(lambda module, args: args[0] + torch.rand(1), prepend=True)
    y = checkpoint(model, batches(1)[0], use_reentrant=False, preserve_rng_state=False)
    with pytest.warns(UserWarning, match="on other values than in the forward pass"):
        y.sum().backward()


def test_passes_without_checkpointing_are_not_kept():
    model, plugin = attached()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in batches(3):
            model(x).sum().backward()
    assert not plugin.gates.context.passes._passes
