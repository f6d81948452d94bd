import copy
import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchleap import Field, GateOptimizer, LeAP, TorchleapError


def by_hand(theta, gradients, lr, strength, betas=(0.9, 0.99), bound=1.5):
    """One gate at a time: Adam's moments of the task gradient, plus the pressure, clipped."""
    m = v = 0.0
    for step, gradient in enumerate(gradients, 1):
        m = betas[0] * m + (1 - betas[0]) * gradient
        v = betas[1] * v + (1 - betas[1]) * gradient**2
        spread = math.sqrt(v / (1 - betas[1] ** step))
        signal = m / (1 - betas[0] ** step) / spread if spread else 0.0
        theta = min(bound, max(-bound, theta - lr * (signal + strength)))
    return theta


GRADIENTS = st.floats(-5, 5).filter(lambda g: g == 0 or abs(g) > 1e-9)


@given(
    st.lists(st.lists(GRADIENTS, min_size=3, max_size=3), min_size=1, max_size=8),
    st.floats(0, 1),
    st.floats(1e-3, 0.5),
)
def test_the_step_equals_the_definition(gradients, strength, lr):
    gates = LeAP({"a": 1, "b": 1, "c": 1}).double()
    optimizer = GateOptimizer(gates, lr=lr, strength=strength)
    for gradient in gradients:
        gates.theta.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
    expected = [by_hand(1.0, [g[i] for g in gradients], lr, strength) for i in range(3)]
    assert gates.theta.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e6])
def test_the_scale_of_the_loss_does_not_matter(scale):
    rng = torch.Generator().manual_seed(0)
    paths = []
    for factor in (1.0, scale):
        gates = LeAP({"a": 1, "b": 1})
        optimizer = GateOptimizer(gates, lr=0.02)
        rng.manual_seed(0)
        for _ in range(50):
            gates.theta.grad = factor * (torch.randn(2, generator=rng) + torch.tensor([-2.0, 0.0]))
            optimizer.step()
        paths.append(gates.theta.detach().clone())
    torch.testing.assert_close(paths[0], paths[1], rtol=1e-3, atol=1e-4)


def test_noise_closes_signal_stays_and_a_constant_closes():
    gates = LeAP({"signal": 1, "noise": 1, "constant": 1})
    optimizer = GateOptimizer(gates, lr=0.01)
    rng = torch.Generator().manual_seed(0)
    for _ in range(600):
        noise = torch.randn(3, generator=rng)
        gates.theta.grad = torch.tensor([noise[0] - 1.0, noise[1], 0.0])
        optimizer.step()
    scores = gates.scores()
    assert scores["signal"] > 0.99
    assert scores["noise"] < 0.01
    assert scores["constant"] < 0.01


def test_protected_gates_and_warm_up_are_left_alone():
    gates = LeAP([Field("a", 1, protected=True), Field("b", 1)], warmup=2)
    optimizer = GateOptimizer(gates, lr=0.1)
    moved = []
    for _ in range(4):
        gates(torch.randn(8, 2))
        gates.theta.grad = torch.zeros(2)
        optimizer.step()
        moved.append(gates.theta.tolist() != [1.0, 1.0])
    assert moved == [False, False, True, True]
    assert gates.theta[0] == 1.0


def test_state_dict_groups_schedulers_and_closures_work_as_with_any_optimizer():
    gates = LeAP({"a": 1, "b": 1})
    optimizer = GateOptimizer(gates, lr=0.1, strength=0.2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    gates.theta.grad = torch.tensor([1.0, -1.0])
    assert optimizer.step(lambda: 3.5) == 3.5
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    optimizer.param_groups[0]["strength"] = 0.7

    twin_gates = LeAP({"a": 1, "b": 1})
    twin_gates.load_state_dict(gates.state_dict())
    twin = GateOptimizer(twin_gates, lr=9.0)
    twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert twin.param_groups[0]["strength"] == 0.7
    for one, step in ((gates, optimizer), (twin_gates, twin)):
        one.theta.grad = torch.tensor([0.5, 0.25])
        step.step()
    assert torch.equal(gates.theta, twin_gates.theta)
    optimizer.zero_grad()
    before = gates.theta.detach().clone()
    optimizer.step()  # no gradient, no pressure
    assert torch.equal(gates.theta, before)


def test_copies_and_pickles_step_alike():
    gates = LeAP([Field("a", 1, protected=True), Field("b", 1)])
    optimizer = GateOptimizer(gates, lr=0.1)
    gates.theta.grad = torch.ones(2)
    optimizer.step()
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        (theta,) = twin.param_groups[0]["params"]
        assert theta is not gates.theta
        theta.grad = torch.ones(2)
        twin.step()
        assert theta[0] == 1.0
        assert theta[1] < gates.theta[1]


def test_other_parameters_are_refused():
    with pytest.raises(TorchleapError, match="moves the gates alone"):
        GateOptimizer(LeAP({"a": 1})).add_param_group(
            {"params": [torch.nn.Parameter(torch.ones(1))]}
        )


def test_theta_stays_within_the_bound():
    gates = LeAP({"a": 1, "b": 1})
    optimizer = GateOptimizer(gates, lr=1.0, bound=1.2)
    for _ in range(5):
        gates.theta.grad = torch.tensor([-1.0, 1.0])
        optimizer.step()
    assert gates.theta.tolist() == pytest.approx([1.2, -1.2])


def test_bad_settings_are_told_at_once():
    with pytest.raises(TorchleapError) as error:
        GateOptimizer(LeAP({"a": 1}), lr=0, strength=-1, betas=(1.0, 0.9), eps=-1, bound=0)
    for name in ("lr", "strength", "betas", "eps", "bound"):
        assert f"{name} must" in str(error.value)


@given(
    st.lists(st.tuples(GRADIENTS, GRADIENTS), min_size=1, max_size=8),
    st.floats(0, 2),
    st.floats(0, 1),
    st.floats(1e-3, 0.5),
)
def test_optimism_equals_its_definition(pairs, optimism, strength, lr):
    gates = LeAP({"a": 1}).double()
    optimizer = GateOptimizer(gates, lr=lr, strength=strength, optimism=optimism)
    theta, m, v = 1.0, 0.0, 0.0
    for step, (held_out, train) in enumerate(pairs, 1):
        gates.theta.grad = torch.tensor([held_out], dtype=torch.float64)
        with gates.context.held_out_step(torch.tensor([train], dtype=torch.float64)):
            optimizer.step()
        m = 0.9 * m + 0.1 * (held_out + optimism * (held_out - train))
        v = 0.99 * v + 0.01 * (held_out**2 + (optimism * train) ** 2)
        spread = math.sqrt(v / (1 - 0.99**step))
        signal = m / (1 - 0.9**step) / spread if spread else 0.0
        theta = min(1.5, max(-1.5, theta - lr * (signal + strength)))
    assert float(gates.theta.detach()) == pytest.approx(theta, rel=1e-6, abs=1e-6)


def test_a_field_that_is_memorised_closes_one_that_generalises_stays():
    gates = LeAP({"memorised": 1, "honest": 1, "gone": 1})
    optimizer = GateOptimizer(gates, lr=0.01, optimism=0.25)
    rng = torch.Generator().manual_seed(0)
    for _ in range(600):
        noise, other = torch.randn(3, generator=rng), torch.randn(3, generator=rng)
        gates.theta.grad = noise - torch.tensor([1.0, 1.0, 0.0])
        gates.theta.grad[2] = 0.0  # the held-out rows do not have this field
        with gates.context.held_out_step(other - torch.tensor([6.0, 1.0, 0.0])):
            optimizer.step()
    memorised, honest, gone = gates.scores().values()
    assert (memorised < 0.05, honest > 0.95, gone < 0.05) == (True, True, True)


def test_optimism_without_held_out_rows_changes_nothing():
    paths = []
    for optimism in (0.0, 1.0):
        gates = LeAP({"a": 1})
        optimizer = GateOptimizer(gates, lr=0.01, optimism=optimism)
        rng = torch.Generator().manual_seed(0)
        for _ in range(20):
            gates.theta.grad = torch.randn(1, generator=rng)
            optimizer.step()
        paths.append(float(gates.theta.detach()))
    assert paths[0] == paths[1]


def test_optimism_below_zero_is_refused():
    with pytest.raises(TorchleapError, match="optimism must be at least 0"):
        GateOptimizer(LeAP({"a": 1}), optimism=-0.1)


def test_the_defaults_are_those_of_the_documentation():
    defaults = GateOptimizer(LeAP({"a": 1})).defaults
    assert defaults == {
        **{"lr": 2e-3, "strength": 0.4, "optimism": 0.0},
        **{"betas": (0.9, 0.99), "eps": 1e-20, "bound": 1.5},
    }


def test_settings_at_their_limits_are_taken():
    GateOptimizer(LeAP({"a": 1}), strength=0.0, optimism=0.0, betas=(0.0, 0.0), eps=0.0)
