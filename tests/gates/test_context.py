"""The state of a pass: written by its own methods, and left behind by copies."""

import copy

import torch

from torchleap import LeAP
from torchleap.gates.context import PassContext, Passed


def test_a_pass_forgets_its_tensors_when_it_ends():
    context = PassContext()
    context.begin()
    context.remember("deep", Passed(torch.ones(1), (), torch.ones(1)))
    assert context.running
    assert context.reached("deep")
    context.end()
    assert not context.running
    assert context.passed() == {}


def test_a_site_that_is_reached_again_begins_a_new_pass():
    context = PassContext()
    for at in ("first", "second"):
        context.restart_at(at)
        context.remember(at, Passed(None, (), None))
    assert list(context.passed()) == ["first", "second"]
    context.restart_at("first")
    assert context.passed() == {}


def test_a_held_out_step_ends_with_its_context_even_after_an_error():
    context = PassContext()
    try:
        with context.held_out_step(torch.ones(2)):
            assert context.held_out
            assert torch.equal(context.train_gradient, torch.ones(2))
            raise RuntimeError
    except RuntimeError:
        pass
    assert not context.held_out
    assert context.train_gradient is None


def test_a_probe_collects_a_gradient_per_gate_until_it_is_stopped():
    context = PassContext()
    context.start_probe(torch.ones(3))
    assert context.probe.requires_grad
    assert context.probe.tolist() == [0.0, 0.0, 0.0]
    context.stop_probe()
    assert context.probe is None


def test_copies_and_replicas_of_gates_are_in_no_pass_but_know_their_place():
    gates = LeAP({"a": 1})
    gates.context.name_place("at='deep' (input)")
    gates.context.begin()
    for other in (copy.deepcopy(gates), gates._replicate_for_data_parallel()):
        assert not other.context.running
        assert other.context.place == "at='deep' (input)"
    assert gates.context.running
