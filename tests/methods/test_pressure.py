"""LeAP as a method: the rows that gates learn from, their warm-up, their schedule and scores."""

from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch

import torchleap as tl
from tests.data.frames import log
from torchleap import models
from torchleap.methods import LeAPBaseMethod, PressureMethod, Search
from torchleap.methods.pressure import GateSteps
from torchleap.training.fit import Training

BATCH = 64  # 480 train rows are seven batches and a half


@pytest.fixture(scope="module")
def task():
    return tl.data.read(log(), label="click", split="order")


@pytest.fixture
def search(task):
    return Search(task, models.benchmark("mlp"), Training(batch=BATCH, epochs=5))


def started(search, method, **training):
    """Return the hook and the plug-in of a search, where training would begin."""
    seen = []

    class Untrained(Search):
        def fit(self, model, *hooks, training=None):
            seen.extend((hooks[0], tl.attached(model)))

    settings = Training(**{"batch": BATCH, **training})
    method.score(Untrained(search.task, search.backbone, settings, seed=3))
    return seen


def test_the_defaults_are_those_of_the_documentation():
    settings = {
        **{"strength": 0.4, "alpha": 1e-3, "optimism": 0.25, "lr": None, "gates_on": "auto"},
        **{"divergence": "rms", "normalize": False, "adaptive": True, "warmup": 0.0},
    }
    assert asdict(PressureMethod()) == settings
    assert asdict(LeAPBaseMethod()) == {
        **settings,
        "strength": None,
        "divergence": "mean",
        "adaptive": False,
    }


def test_settings_reach_the_gates_and_their_optimizer(search):
    hook, plugin = started(search, PressureMethod(), epochs=2)
    assert hook.trainer.optimizer.defaults["optimism"] == 0.25
    assert hook.trainer.optimizer.defaults["strength"] == 0.4
    assert int(plugin.gates.seed) == 3
    method = PressureMethod(
        strength=None, alpha=0.5, divergence="mean", normalize=True, adaptive=False, lr=0.125
    )
    hook, plugin = started(search, method, epochs=2)
    assert isinstance(hook.trainer.optimizer, torch.optim.Adam)
    assert hook.trainer.optimizer.defaults["lr"] == 0.125
    found = {
        name: getattr(plugin.gates.settings, name)
        for name in ("alpha", "divergence", "normalize", "adaptive")
    }
    assert found == {"alpha": 0.5, "divergence": "mean", "normalize": True, "adaptive": False}


@pytest.mark.parametrize(
    ("gates_on", "epochs", "on_train"),
    [
        ("auto", 1, True),
        ("auto", 2, False),
        ("auto", 3, False),
        ("train", 2, True),
        ("valid", 1, False),
    ],
)
def test_gates_learn_from_train_rows_in_a_single_epoch_alone(gates_on, epochs, on_train, search):
    hook, _ = started(search, PressureMethod(gates_on=gates_on), epochs=epochs)
    assert hook.on_train == on_train


def test_the_warm_up_is_a_share_of_the_first_epoch_whose_batches_count_twice_with_held_out_ones(
    search,
):
    assert search.steps_per_epoch == 8
    for epochs, batches in ((1, 4), (2, 8), (5, 8)):
        _, plugin = started(search, PressureMethod(warmup=0.5), epochs=epochs)
        assert plugin.gates.settings.warmup == batches


def test_planned_steps_end_where_the_training_does(search):
    assert search.planned_steps == 40
    for steps, planned in ((7, 7), (40, 40), (900, 40)):
        settings = Training(batch=BATCH, epochs=5, steps=steps)
        assert Search(search.task, search.backbone, settings).planned_steps == planned


@pytest.mark.parametrize(
    ("method", "epochs", "lr", "rise", "closing"),
    [
        (
            PressureMethod(),
            5,
            0.05,
            20.0,
            10 + 80,
        ),  # so few steps that a gate cannot close: lr at its largest, half the steps to rise
        (PressureMethod(), 100, 2 * 1.6 / (0.4 * 0.75 * 800), 300.0, 150 + 300),
        (PressureMethod(), 4000, 1e-3, 4000.0, 2000 + 4000),
        (PressureMethod(strength=0.05), 4000, 1.6 / (0.05 * 0.75 * 32000), 12000.0, 18000),
        (PressureMethod(strength=None), 4000, 1e-3, 0.0, 1600),
        (PressureMethod(lr=0.02), 100, 0.02, 200.0, 100 + 200),
    ],
)
def test_a_useless_gate_has_time_to_close_while_the_pressure_rises(
    method, epochs, lr, rise, closing, search
):
    hook, _ = started(search, method, epochs=epochs)
    assert hook.trainer.optimizer.defaults["lr"] == pytest.approx(lr)
    assert hook.trainer.rise == pytest.approx(rise)
    assert hook.trainer.closing == pytest.approx(closing)
    hook.trainer.done = closing - 1
    assert not hook.settled(SimpleNamespace())
    hook.trainer.done = closing + 1
    assert hook.settled(SimpleNamespace())


def test_the_pressure_rises_from_0_to_the_strength(search):
    hook, plugin = started(search, PressureMethod(), epochs=1)
    found = []
    for step in range(1, 6):
        plugin.gates.theta.grad = torch.ones_like(plugin.gates.theta)
        hook.after_step(SimpleNamespace(step=step, model=plugin.model))
        found.append(hook.trainer.pressure)
    assert found == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])


def test_the_paper_s_price_is_charged_once_with_the_rows_that_the_gates_learn_from(search):
    loss = torch.zeros(())
    for strength, epochs, charged in (
        (None, 1, True),
        (None, 2, False),
        (0.4, 1, False),
        (0.4, 2, False),
    ):
        hook, plugin = started(
            search, PressureMethod(strength=strength, alpha=1.0, adaptive=False), epochs=epochs
        )
        price = hook.penalty(loss)
        assert (price is not None) == charged
        assert price is None or torch.equal(price, plugin.penalty())


def stepped(search, steps):
    """The same after some steps; an epoch of the validation rows is four batches."""
    hook, plugin = started(search, PressureMethod(), epochs=2, batch=16)
    for step in range(1, steps + 1):
        hook.after_step(SimpleNamespace(step=step, model=plugin.model))
    return hook, plugin


def test_a_score_is_the_last_gate_and_a_hundredth_of_the_mean_gate(search):
    hook, plugin = stepped(search, 0)
    hook.at_end(SimpleNamespace())
    assert list(hook.scores.values()) == pytest.approx(
        [0.99 * gate for gate in plugin.scores().values()]
    )
    state = hook.state_dict()
    hook.load_state_dict({**state, "total": torch.full_like(state["total"], 3.0), "steps": 6})
    hook.at_end(SimpleNamespace())
    assert list(hook.scores.values()) == pytest.approx(
        [0.99 * g + 0.005 for g in plugin.scores().values()]
    )


def test_a_resumed_search_has_the_mean_gates_and_reads_the_validation_rows_that_come_next(search):
    whole, _ = stepped(search, 3)
    state = whole.state_dict()
    other, _ = stepped(search, 1)
    other.load_state_dict(state)
    assert other.trainer.done == 3
    assert torch.equal(other.state_dict()["total"], whole.state_dict()["total"])
    expected = next(whole.valid)
    found = next(other.valid)
    assert torch.equal(found.label, expected.label)
    assert torch.equal(found.numbers, expected.numbers)


def test_validation_steps_move_the_gates_and_no_weight_of_the_model(search):
    hook, plugin = started(search, PressureMethod(), epochs=2)
    before = [parameter.clone() for parameter in plugin.model_parameters()]
    assert isinstance(hook, GateSteps)
    hook.after_step(SimpleNamespace(step=1, model=plugin.model))
    assert plugin.gates.moved
    assert all(torch.equal(*pair) for pair in zip(before, plugin.model_parameters(), strict=True))
