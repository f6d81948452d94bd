"""The schedule of a price path: how fast the price rises, and what it waits for."""

import pytest
import torch

from torchleap.gates import price_schedule
from torchleap.gates.price_schedule import PATIENCE, PriceSchedule

STILL = torch.full((6,), 5.0)  # logits of gates of which none is on its way
MOVING = torch.tensor([5.0, 5.0, 5.0, 5.0, 5.0, 1.0])
ROWS = 1000


def begun(steps=100):
    schedule = PriceSchedule(steps)
    schedule.begin(0.5)
    return schedule


def test_the_price_rises_four_decades_in_its_steps():
    schedule = begun()
    first = schedule.price
    assert first == pytest.approx(price_schedule.FIRST_PRICE * 0.5)
    for _ in range(100):
        schedule.step(MOVING)
    assert schedule.price == pytest.approx(1e4 * first)


def test_only_the_first_loss_is_the_scale():
    schedule = begun()
    before = schedule.price
    schedule.begin(5.0)
    assert schedule.price == before
    assert not schedule.is_over
    schedule.risen = 9.0
    assert schedule.is_over


def test_it_hurries_where_nothing_happens_and_slows_down_where_many_collapse():
    rises = {}
    for name, logits in {
        "usual": MOVING,
        "still": STILL,
        "many": torch.tensor([5.0, 5.0, 5.0, -0.5, -0.5, -0.5]),
        "few": torch.tensor([5.0, -0.5, -0.5]),
    }.items():
        schedule = begun()
        schedule.step(logits)
        rises[name] = schedule.risen
    assert rises["still"] == pytest.approx(price_schedule.HURRY * rises["usual"])
    assert rises["many"] == pytest.approx(price_schedule.SLOWLY * rises["usual"])
    assert rises["few"] == rises["usual"]


def losses(mean, noise=0.0):
    generator = torch.Generator().manual_seed(round(1e4 * mean))
    return mean + noise * torch.randn(ROWS, generator=generator)


def test_it_waits_until_the_best_loss_is_some_evaluations_old():
    schedule = begun()
    schedule.evaluated(losses(0.5))
    assert not schedule.is_waiting, "a first loss has not fallen"
    schedule.evaluated(losses(0.4))
    assert schedule.is_waiting
    for _ in range(PATIENCE - 1):
        schedule.evaluated(losses(0.41))
        assert schedule.is_waiting
    schedule.evaluated(losses(0.41))
    assert not schedule.is_waiting


def test_a_fall_within_the_noise_of_rows_or_below_a_part_of_the_price_is_none():
    schedule = begun()
    schedule.evaluated(losses(0.5, noise=0.1))
    schedule.evaluated(losses(0.499, noise=0.1))
    assert not schedule.is_waiting
    schedule = begun()
    schedule.risen = 3.0  # a price of 0.05
    schedule.evaluated(losses(0.5))
    schedule.evaluated(losses(0.49))
    assert not schedule.is_waiting
    schedule.evaluated(losses(0.48))
    assert schedule.is_waiting


def test_it_does_not_wait_for_ever():
    schedule = begun()
    schedule.evaluated(losses(0.5))
    schedule.evaluated(losses(0.4))
    steps = 0
    while schedule.is_waiting:
        schedule.step(MOVING)
        steps += 1
    assert steps == price_schedule.WAITS * 100 == schedule.waited
    schedule.evaluated(losses(0.3))
    assert not schedule.is_waiting


def test_the_price_rises_to_twice_the_worth_of_the_least_valuable_tenth():
    schedule = begun()
    worth = torch.linspace(0.01, 0.3, 30)[torch.randperm(30)]
    schedule.let_close(worth)
    assert schedule.price == pytest.approx(2 * 0.03, rel=2e-3)
    assert int((schedule.price > 2 * worth).sum()) == 3
    schedule.let_close(worth[:5] / 100)
    assert schedule.price == pytest.approx(2 * 0.03, rel=2e-3), "it never falls"
    schedule.let_close(torch.tensor([-0.1, 0.2]))
    schedule.let_close(torch.zeros(0))
    assert schedule.price == pytest.approx(2 * 0.03, rel=2e-3)


def test_a_state_is_restored():
    schedule = begun()
    schedule.evaluated(losses(0.5))
    schedule.evaluated(losses(0.4))
    schedule.step(MOVING)
    other = PriceSchedule(100)
    other.load_state_dict(schedule.state_dict())
    assert other.price == schedule.price
    for one in (schedule, other):
        one.evaluated(losses(0.39))
        one.step(MOVING)
    mine = schedule.state_dict()
    theirs = other.state_dict()
    assert torch.equal(mine.pop("best_losses"), theirs.pop("best_losses"))
    assert mine == theirs


def test_the_losses_of_many_rows_are_sampled(monkeypatch):
    monkeypatch.setattr(price_schedule, "MOST_ROWS", 300)
    schedule = begun()
    schedule.evaluated(torch.arange(1000.0))
    assert schedule.best_losses.tolist() == list(range(0, 1000, 4))


def test_the_price_waits_first_until_the_loss_no_longer_falls():
    schedule = PriceSchedule(10_000)
    schedule.begin(0.7)
    schedule.wait_for_model(torch.full((100,), 0.7))
    assert schedule.is_waiting
    for loss in (0.6, 0.5):
        schedule.evaluated(torch.full((100,), loss))
        assert schedule.is_waiting
    for _ in range(PATIENCE - 1):
        schedule.evaluated(torch.full((100,), 0.5))
        assert schedule.is_waiting
    schedule.evaluated(torch.full((100,), 0.5))
    assert not schedule.is_waiting


def test_a_loss_that_never_falls_ends_the_first_wait_after_a_few_evaluations():
    schedule = PriceSchedule(10_000)
    schedule.begin(0.7)
    losses = torch.full((100,), 0.7)
    schedule.wait_for_model(losses)
    waited = 0
    while schedule.is_waiting:
        schedule.evaluated(losses)
        waited += 1
    assert waited == PATIENCE
