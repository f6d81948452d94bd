"""The moving average of the weights: its values, its place in a training, and bad states."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import torchleap as tl
from torchleap._common.states import StateError
from torchleap.training.average import UPDATES, WeightAverage
from torchleap.training.fit import Hook, Training, TrainingError, evaluate, fit
from torchleap.training.stream import stream

from .test_fit import KINDS, clicks, model_for


@pytest.fixture(scope="module")
def task():
    return tl.data.read(clicks(), label="click", split="order", group="user", columns=KINDS)


@given(steps=st.integers(1, 60), values=st.lists(st.floats(-10, 10), min_size=1, max_size=80))
def test_the_average_is_that_of_a_loop_over_all_steps(steps, values):
    layer = nn.Linear(1, 1, bias=False)
    layer.weight.data.fill_(3.0)
    average = WeightAverage(layer, steps)
    every = max(1, steps // UPDATES)
    expected = 3.0
    for number, value in enumerate(values, start=1):
        layer.weight.data.fill_(value)
        average.step()
        if number % every == 0:
            expected += min(1.0, every / steps) * (layer.weight.item() - expected)
    with average.in_place():
        assert layer.weight.item() == pytest.approx(expected, abs=1e-4)
    assert layer.weight.item() == pytest.approx(values[-1], abs=1e-6)


def test_a_model_has_its_own_weights_again_after_an_error_within_the_context():
    layer = nn.Linear(2, 1)
    own = layer.weight.detach().clone()
    average = WeightAverage(layer, steps=4)
    layer.weight.data += 1
    seen = []

    def evaluate():
        seen.append(layer.weight.detach().clone())
        raise ValueError("any")

    with pytest.raises(ValueError, match="any"), average.in_place():
        evaluate()
    assert torch.equal(seen[0], own)
    assert torch.equal(layer.weight, own + 1)


def test_batch_norm_is_averaged_but_gates_and_counts_are_not():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    plugin = tl.attach(model, {"a": 1, "b": 2}, at="0", seed=0)
    names = set(WeightAverage(model, steps=4).averages)
    assert {"1.weight", "1.running_mean", "1.running_var"} <= names
    assert "1.num_batches_tracked" not in names
    assert not any(plugin.gates is model.get_submodule(name.rpartition(".")[0]) for name in names)


def test_the_average_is_what_is_evaluated_kept_and_shown_to_hooks(task):
    class Weights(Hook):
        def __init__(self):
            self.after_steps = []
            self.at_evaluations = []

        def after_step(self, run):
            self.after_steps.append(next(run.model.net.parameters()).detach().clone())

        def after_eval(self, run, record):
            self.at_evaluations.append(next(run.model.net.parameters()).detach().clone())

    hook = Weights()
    model = model_for(task)
    start = next(model.net.parameters()).detach().clone()
    training = Training(batch=256, lr=1e-2, steps=9, epochs=9, average=4)
    run = fit(model, task, training, hooks=[hook])
    expected = start
    for weights in hook.after_steps:
        expected = expected + (weights - expected) / 4
    torch.testing.assert_close(hook.at_evaluations[-1], expected)
    best = max(record["valid_auc"] for record in run.history)
    assert evaluate(model, task.valid)["auc"] == pytest.approx(best)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(hook.at_evaluations[-1], hook.after_steps[-1])


def test_the_average_does_not_change_the_training(task):
    def losses(average):
        model = model_for(task)
        training = Training(batch=256, steps=40, epochs=40, eval_every=5, average=average)
        return [record["train_loss"] for record in fit(model, task, training).history]

    assert losses(None) == losses(7)


@pytest.mark.parametrize("average", [0, -3, 2.5, "ten", True])
def test_steps_that_are_not_a_whole_number_above_0_are_refused(average):
    with pytest.raises(tl.TorchleapError, match="average"):
        Training(average=average)


def test_a_state_of_other_weights_or_steps_is_refused():
    average = WeightAverage(nn.Linear(2, 1), steps=4)
    other = WeightAverage(nn.Linear(3, 1), steps=4)
    with pytest.raises(StateError, match="another shape"):
        average.load_state_dict(other.state_dict())
    with pytest.raises(StateError, match="other steps"):
        average.load_state_dict({**average.state_dict(), "steps_since": 99})


def test_a_stream_refuses_an_average(task):
    model = model_for(task)
    with pytest.raises(TrainingError, match="average=8"):
        stream(model, iter(()), Training(average=8))
