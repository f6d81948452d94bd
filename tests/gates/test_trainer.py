"""The schedule of the gates: its heuristics, its steps, and who may move the gates meanwhile."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import torchleap as tl
from torchleap._common.states import StateError
from torchleap.gates.trainer import closing_steps, gate_learning_rate, rising_steps

FIELDS = {"useful": 1, "noise": 3}


def attached(**settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    return model, tl.attach(model, FIELDS, at="0", seed=0, **settings)


def batch(step, rows=32):
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(step))
    return x, x[:, :1]


def backward(model, step):
    x, y = batch(step)
    mse_loss(model(x), y).backward()


def held_out_loss(model, step):
    x, y = batch(1000 + step)
    return lambda: mse_loss(model(x), y)


# The heuristics


def test_a_useless_gate_closes_after_three_quarters_of_the_planned_steps():
    for steps in (100, 400, 1500):
        for strength in (0.4, 0.8):
            lr = gate_learning_rate(steps, strength)
            rise = rising_steps(steps, strength, lr)
            if lr < 5e-2:
                assert closing_steps(rise, strength, lr) <= 0.75 * steps


@pytest.mark.parametrize(
    ("steps", "strength", "lr"),
    [
        (10, 0.4, 5e-2),  # too few steps to close a gate at any rate
        (800, 0.4, 2 * 1.6 / (0.4 * 0.75 * 800)),
        (32_000, 0.4, 1e-3),  # steps enough
        (None, 0.4, 1e-3),  # a stream without end
        (32_000, 0.05, 2 * 1.6 / (0.1 * 0.75 * 32_000)),  # noise moves a gate as much as 0.1
        (1_000, None, 2 * 1.6 / (0.75 * 1_000)),  # Adam makes a full step of any penalty
    ],
)
def test_the_gate_learning_rate_follows_the_planned_steps(steps, strength, lr):
    assert gate_learning_rate(steps, strength) == pytest.approx(lr)


@pytest.mark.parametrize(
    ("steps", "strength", "lr", "rise"),
    [
        (40, 0.4, 0.05, 20.0),  # at most half of the steps
        (32_000, 0.4, 1e-3, 4000.0),
        (None, 0.4, 1e-3, 4000.0),
        (None, 0.0, 1e-3, 16_000.0),
        (32_000, None, 1e-3, 0.0),  # a penalty does not rise
    ],
)
def test_the_pressure_rises_as_long_as_a_useless_gate_would_need_to_close(
    steps, strength, lr, rise
):
    assert rising_steps(steps, strength, lr) == pytest.approx(rise)


def test_a_rising_pressure_counts_half_until_it_is_full():
    assert closing_steps(4000.0, 0.4, 1e-3) == pytest.approx(2000 + 4000)
    assert closing_steps(0.0, None, 1e-3) == pytest.approx(1600)


def test_a_useless_gate_does_close_within_the_closing_steps():
    model, plugin = attached()
    trainer = plugin.trainer(steps=400)
    optimizer = torch.optim.Adam(plugin.model_parameters(), lr=1e-2)
    while not trainer.has_settled:
        backward(model, trainer.done)
        optimizer.step()
        optimizer.zero_grad()
        trainer.step()
    assert trainer.done <= 0.75 * 400 + 1
    assert plugin.select().kept == ("useful",)


# Steps


def test_the_pressure_rises_from_0_to_the_strength():
    model, plugin = attached()
    trainer = plugin.trainer(steps=8)
    found = []
    for step in range(6):
        backward(model, step)
        trainer.step()
        found.append(trainer.pressure)
    assert found == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])


def test_a_step_on_the_same_batch_uses_the_gradient_up():
    model, plugin = attached()
    trainer = plugin.trainer(steps=8)
    backward(model, 0)
    trainer.step()
    assert plugin.gates.theta.grad is None
    assert trainer.done == 1
    with pytest.raises(tl.TorchleapError, match=r"expects a gradient .* found none.*backward"):
        trainer.step()


def test_a_held_out_step_moves_the_gates_and_no_weight_of_the_model():
    model, plugin = attached()
    trainer = plugin.trainer(steps=8)
    weights = [parameter.clone() for parameter in plugin.model_parameters()]
    backward(model, 0)
    gradients = [parameter.grad.clone() for parameter in plugin.model_parameters()]
    trainer.step(held_out_loss(model, 0))
    assert plugin.gates.moved
    for parameter, weight, gradient in zip(
        plugin.model_parameters(), weights, gradients, strict=True
    ):
        assert torch.equal(parameter, weight)
        assert torch.equal(parameter.grad, gradient)


def test_a_held_out_loss_that_does_not_call_the_model_is_refused():
    _, plugin = attached()
    trainer = plugin.trainer(steps=8)
    unrelated = torch.zeros((), requires_grad=True)
    with pytest.raises(tl.TorchleapError, match="Call the attached model"):
        trainer.step(lambda: unrelated * 2)


def test_held_out_steps_are_those_of_the_gate_optimizer_in_the_held_out_context():
    paths = []
    for by_trainer in (True, False):
        model, plugin = attached()
        trainer = plugin.trainer(steps=100, lr=0.01) if by_trainer else None
        gate_optimizer = plugin.optimizer(lr=0.01, optimism=0.25)
        optimizer = torch.optim.SGD(plugin.model_parameters(), lr=0.1)
        for step in range(20):
            backward(model, step)
            optimizer.step()
            optimizer.zero_grad()
            loss = held_out_loss(model, step)
            if trainer is not None:
                trainer.step(loss)
                continue
            gate_optimizer.param_groups[0]["strength"] = 0.4 * (step + 1) / 50
            with plugin.held_out():
                loss().backward()
                gate_optimizer.step()
        paths.append(plugin.gates.theta.detach().clone())
    assert torch.equal(*paths)


def test_the_paper_s_penalty_is_minimised_by_adam():
    model, plugin = attached(alpha=0.5, adaptive=False)
    trainer = plugin.trainer(steps=8, strength=None, lr=0.1)
    assert isinstance(trainer.optimizer, torch.optim.Adam)
    assert torch.equal(trainer.penalty(), plugin.penalty())
    trainer.step(lambda: 0 * model(batch(0)[0]).sum())  # the penalty alone closes the gates
    assert torch.allclose(plugin.gates.theta, torch.full((2,), 0.9), atol=1e-4)
    assert trainer.has_settled is False
    assert plugin.trainer(steps=8).penalty() is None


def test_gates_that_warm_up_need_no_gradient():
    model, plugin = attached(warmup=2)
    trainer = plugin.trainer(steps=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        backward(model, step)
        optimizer.step()
        optimizer.zero_grad()
        trainer.step()
        assert plugin.gates.moved == (step >= 2)
    assert trainer.done == 4


def test_fields_may_come_from_the_first_batch():
    model = nn.Sequential(nn.Identity())
    plugin = tl.attach(model, at="0")
    trainer = plugin.trainer(steps=8)
    model({"a": torch.randn(8, 2)})["a"].sum().backward()
    trainer.step()
    assert list(trainer.scores()) == ["a"]


def test_bad_settings_are_refused_together():
    _, plugin = attached()
    with pytest.raises(tl.TorchleapError) as error:
        plugin.trainer(steps=0, strength=-1.0, lr=0.0)
    for name in ("steps", "strength", "lr"):
        assert f"{name} must be" in str(error.value)
    with pytest.raises(tl.TorchleapError, match="optimism must be"):
        plugin.trainer(optimism=-1.0)


# Scores and state


def test_a_score_is_the_last_gate_and_a_hundredth_of_the_mean_gate():
    model, plugin = attached()
    trainer = plugin.trainer(steps=8)
    gates = []
    for step in range(3):
        backward(model, step)
        trainer.step()
        gates.append(plugin.scores())
    for name, score in trainer.scores().items():
        mean = sum(one[name] for one in gates) / 3
        assert score == pytest.approx(0.99 * gates[-1][name] + 0.01 * mean)


def test_without_planned_steps_a_score_is_the_gate():
    model, plugin = attached()
    trainer = plugin.trainer()
    backward(model, 0)
    trainer.step()
    assert trainer.scores() == plugin.scores()
    assert "total" not in trainer.state_dict()


def trained(trainer, model, steps):
    for step in steps:
        backward(model, step)
        trainer.step(held_out_loss(model, step))
    return trainer


@pytest.mark.parametrize("strength", [0.4, None])
def test_a_resumed_training_ends_with_the_same_gates(strength, tmp_path):
    model, plugin = attached()
    whole = trained(plugin.trainer(steps=12, strength=strength), model, range(12))
    model, plugin = attached()
    half = trained(plugin.trainer(steps=12, strength=strength), model, range(5))
    torch.save([model.state_dict(), half.state_dict()], tmp_path / "half.pt")
    weights, state = torch.load(tmp_path / "half.pt", weights_only=True)
    model, plugin = attached()
    model.load_state_dict(weights)
    resumed = plugin.trainer(steps=12, strength=strength)
    resumed.load_state_dict(state)
    assert trained(resumed, model, range(5, 12)).scores() == whole.scores()
    assert resumed.done == 12


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", -1),
        ("steps", "many"),
        ("total", torch.zeros(7)),
        ("optimizer", {"state": {}}),
    ],
)
def test_a_state_of_other_gates_is_refused_and_nothing_is_changed(name, value):
    model, plugin = attached()
    trainer = trained(plugin.trainer(steps=8), model, range(2))
    good = trainer.state_dict()
    before = copy.deepcopy(good)
    with pytest.raises(StateError):
        trainer.load_state_dict({**good, "steps": 1, name: value})
    assert trainer.done == 2
    assert torch.equal(trainer.state_dict()["total"], before["total"])


def test_it_prints_where_it_stands():
    model, plugin = attached()
    trainer = plugin.trainer(steps=1_000, lr=0.02)
    backward(model, 0)
    trainer.step()
    assert str(trainer) == (
        "GateTrainer: step 1 of 1,000, learning rate 0.02, pressure 0.002 of 0.4; "
        "a useless gate has not had the time to close (300 steps)"
    )
    assert str(plugin.trainer()).startswith(
        "GateTrainer: step 0, learning rate 0.001, pressure 0 of 0.4;"
    )
    assert "the paper's penalty" in str(plugin.trainer(strength=None))


# Who moves the gates


OPTIMIZERS = {
    "Adam": lambda params: torch.optim.Adam(params, lr=0.05),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.05, weight_decay=0.5),
    "SGD": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=0.1),
    "fused": lambda params: torch.optim.AdamW(params, lr=0.05, fused=True),
    "foreach": lambda params: torch.optim.Adam(params, lr=0.05, foreach=True),
    "single": lambda params: torch.optim.Adam(params, lr=0.05, foreach=False),
}


def gates_after(build, holds_gates, *, micro_batches=1, set_to_none=True, by_closure=False):
    """Return theta after some steps in the order of the documentation."""
    model, plugin = attached()
    parameters = model.parameters() if holds_gates else plugin.model_parameters()
    optimizer = build(parameters)
    trainer = plugin.trainer(steps=20)
    for step in range(10):

        def closure(step=step):
            for part in range(micro_batches):
                backward(model, micro_batches * step + part)

        if by_closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
        trainer.step()
    return plugin.gates.theta.detach().clone(), model[0].weight.detach().clone()


@pytest.mark.parametrize("build", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_an_optimizer_that_holds_the_gates_neither_moves_them_nor_loses_their_gradient(
    build, micro_batches, set_to_none
):
    """It holds them because it was built with model.parameters() after attach()."""
    alone = gates_after(build, holds_gates=False, micro_batches=micro_batches)
    beside = gates_after(
        build, holds_gates=True, micro_batches=micro_batches, set_to_none=set_to_none
    )
    assert torch.equal(alone[0], beside[0])
    assert torch.equal(alone[1], beside[1])
    assert not torch.equal(alone[0], torch.ones(2))


def test_the_gradient_of_a_closure_is_the_trainer_s_too():
    alone = gates_after(OPTIMIZERS["Adam"], holds_gates=False, by_closure=True)
    beside = gates_after(OPTIMIZERS["Adam"], holds_gates=True, by_closure=True)
    assert torch.equal(alone[0], beside[0])
    assert not torch.equal(alone[0], torch.ones(2))


def test_two_optimizers_of_one_model_leave_the_gradient_to_the_trainer():
    model, plugin = attached()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.SGD([*model[2].parameters(), plugin.gates.theta], lr=0.1)
    trainer = plugin.trainer(steps=8)
    backward(model, 0)
    expected = plugin.gates.theta.grad.clone()
    first.step()
    second.step()
    model.zero_grad()
    trainer.step()
    state = trainer.optimizer.state[plugin.gates.theta]
    assert torch.equal(state["exp_avg"], 0.1 * expected)


def test_gradients_that_are_set_aside_add_up_until_the_trainer_steps():
    model, plugin = attached()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    trainer = plugin.trainer(steps=8)
    expected = torch.zeros(2)
    for step in range(2):
        backward(model, step)
        expected += plugin.gates.theta.grad
        optimizer.step()
        optimizer.zero_grad()
    trainer.step()
    state = trainer.optimizer.state[plugin.gates.theta]
    torch.testing.assert_close(state["exp_avg"], 0.1 * expected)


@pytest.mark.parametrize("build", [lambda p: p.optimizer(), lambda p: p.trainer()])
def test_a_second_optimizer_of_the_gates_alone_is_refused(build):
    model, plugin = attached()
    older = build(plugin)
    trainer = plugin.trainer(steps=8)
    backward(model, 0)
    with pytest.raises(tl.TorchleapError, match="latest GateTrainer alone"):
        older.step()
    trainer.step()
    assert plugin.gates.moved


def test_gates_without_a_trainer_belong_to_any_optimizer_again():
    model, plugin = attached()
    trainer = plugin.trainer(steps=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    del trainer
    backward(model, 0)
    optimizer.step()
    assert plugin.gates.moved


def test_a_copy_of_the_model_has_no_trainer():
    model, plugin = attached()
    trainer = plugin.trainer(steps=8)
    other = copy.deepcopy(model)
    backward(other, 0)
    torch.optim.SGD(other.parameters(), lr=0.1).step()
    assert tl.attached(other).gates.moved
    assert not plugin.gates.moved
    assert trainer.done == 0
