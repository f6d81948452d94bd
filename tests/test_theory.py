"""The corrected theory of docs/theory.md, checked numerically for one Gaussian feature."""

import pytest
import torch

SIGNAL = 0.8  # y = SIGNAL * x + noise


def frozen_loss(g, rows=400_000):
    """Return the squared loss at gate g when the weight stays optimal for the clean input."""
    rng = torch.Generator().manual_seed(0)
    x, other, noise = torch.randn(3, rows, generator=rng, dtype=torch.float64)
    y = SIGNAL * x + noise
    return float((y - SIGNAL * (g * x + (1 - g) * other)).square().mean())


def adapted_loss(g, rows=400_000):
    """Return the squared loss at gate g when the weight is refitted to the mixed input."""
    rng = torch.Generator().manual_seed(0)
    x, other, noise = torch.randn(3, rows, generator=rng, dtype=torch.float64)
    y = SIGNAL * x + noise
    mixed = g * x + (1 - g) * other
    weight = (mixed @ y) / (mixed @ mixed)
    return float((y - weight * mixed).square().mean())


def shape(g):
    return (1 - g) ** 2 / (g**2 + (1 - g) ** 2)


@pytest.mark.parametrize("g", [0.0, 0.2, 0.5, 0.8, 1.0])
def test_loss_against_the_gate(g):
    permuted = 2 * SIGNAL**2  # the loss that permuting costs a frozen model
    removed = SIGNAL**2  # the loss that a refitted model without the field pays
    assert frozen_loss(g) - frozen_loss(1.0) == pytest.approx(permuted * (1 - g) ** 2, abs=0.01)
    assert adapted_loss(g) - adapted_loss(1.0) == pytest.approx(removed * shape(g), abs=0.01)


def settled(price, start=0.99, steps=20_000, lr=1e-3):
    """Return the gate at which gradient descent on J(g) + price * g ends, for a field worth 1."""
    g = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    for _ in range(steps):
        (gradient,) = torch.autograd.grad(shape(g) + price * g, g)
        with torch.no_grad():
            g.sub_(lr * gradient).clamp_(0, 1)
    return g.item()


@pytest.mark.parametrize("price", [0.1, 0.5, 1.0, 1.8, 1.95])
def test_below_twice_its_worth_a_field_settles_above_one_half_and_its_gate_reveals_the_worth(price):
    g = settled(price)
    assert 0.5 < g < 1
    assert price * (g**2 + (1 - g) ** 2) ** 2 / (2 * g * (1 - g)) == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("price", [2.1, 3.0])
def test_above_twice_its_worth_a_field_collapses(price):
    assert settled(price) == 0.0


def test_a_closed_gate_stays_closed_because_the_refitted_model_sends_it_no_gradient():
    assert settled(0.5, start=0.0) == 0.0  # J'(0) = 0: absorbing
    assert settled(0.05, start=0.05) > 0.9  # with a floor under it, it comes back


def test_the_theorem_s_bound_holds_at_the_closed_end_only():
    """For convex J, J'(0) <= -dJ is the paper's bound; at the open end nothing pushes to 1."""
    permuted = 2 * SIGNAL**2
    slope_at_0 = (frozen_loss(1e-3) - frozen_loss(0.0)) / 1e-3
    slope_at_1 = (frozen_loss(1.0) - frozen_loss(1 - 1e-3)) / 1e-3
    assert slope_at_0 < -permuted < slope_at_1
    assert slope_at_1 == pytest.approx(0.0, abs=0.01)
