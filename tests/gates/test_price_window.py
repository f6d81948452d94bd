"""The price of a stream: its window, fields that close and return, noise, resuming."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import torchleap as tl
from torchleap._common.states import StateError
from torchleap.gates import price_window
from torchleap.gates.price_window import WindowOptimizer

FIELDS = {"steady": 1, "fades": 1, "grows": 1, "faint": 1, "noise": 1, "wide_noise": 6}
WINDOW = tl.PriceWindow(worth=2e-2, rise=240, hold=120, fall=240)
SWITCH = 330  # in the first hold: from then on "grows" carries what "fades" did


class Loop:
    """The loop of a user on a stream, every batch of which is new.

    "steady", "fades" and "grows" are worth 0.08 nats while they are useful, "faint" 0.001.
    """

    def __init__(self, seed=0, window=WINDOW, **settings):
        torch.manual_seed(seed)
        size = sum(FIELDS.values())
        self.model = nn.Sequential(nn.Linear(size, 16), nn.ReLU(), nn.Linear(16, 1))
        self.plugin = tl.attach(self.model, FIELDS, at="0", seed=seed, **settings)
        self.trainer = self.plugin.trainer(price=window)
        self.optimizer = torch.optim.Adam(self.plugin.model_parameters(), lr=5e-3)
        self.seed = seed
        self.number = 0

    def step(self):
        rng = torch.Generator().manual_seed(1000 * self.seed + self.number)
        x = torch.randn(256, sum(FIELDS.values()), generator=rng)
        place = 1 if self.number < SWITCH else 2
        chance = torch.sigmoid(x[:, 0] + x[:, place] + 0.1 * x[:, 3])
        y = (torch.rand(256, generator=rng) < chance).float()
        binary_cross_entropy_with_logits(self.model(x)[:, 0], y).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.trainer.step()
        self.number += 1

    def run(self, until):
        while self.number < until:
            self.step()
        return self

    def open(self):
        return {name for name, gate in self.trainer.scores().items() if gate >= 0.5}


@pytest.mark.parametrize("seed", range(4))
def test_a_field_that_becomes_useful_returns_and_one_that_becomes_useless_closes(seed):
    loop = Loop(seed).run(SWITCH)
    assert not loop.trainer.has_settled
    assert loop.open() == {"steady", "fades"}
    loop.run(2 * WINDOW.steps)
    assert loop.trainer.has_settled
    assert loop.open() == {"steady", "grows"}
    loop.run(3 * WINDOW.steps)
    assert loop.open() == {"steady", "grows"}


def test_a_closed_gate_stays_at_the_floor_where_its_field_is_seen():
    loop = Loop().run(WINDOW.rise + WINDOW.hold)
    floor = 1 / (1 + math.exp(-price_window.FLOOR))
    scores = loop.trainer.scores()
    for name in ("faint", "noise", "wide_noise"):
        assert scores[name] == pytest.approx(floor, rel=1e-4)
    assert scores == loop.plugin.scores()


def test_scores_are_the_gates_at_the_end_of_the_latest_hold():
    loop = Loop().run(WINDOW.rise + WINDOW.hold)
    decided = loop.plugin.scores()
    loop.run(WINDOW.steps)
    assert loop.plugin.scores() != decided
    assert loop.trainer.scores() == decided


def test_the_price_rises_and_falls_by_equal_factors_and_repeats():
    window = tl.PriceWindow(worth=3e-4, rise=4, hold=2, fall=8)
    prices = [window.price_at(step) for step in range(2 * window.steps)]
    assert prices[4:7] == pytest.approx([6e-4] * 3)
    assert prices[0] == pytest.approx(6e-4 * price_window.LOWEST)
    assert prices[2] ** 2 == pytest.approx(prices[0] * prices[4])
    assert prices[10] ** 2 == pytest.approx(prices[0] * prices[4])
    assert prices[14:] == prices[:14]
    phases = [window.phase_at(step) for step in range(window.steps)]
    assert phases == ["rising"] * 4 + ["holding"] * 2 + ["falling"] * 8


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("gradient", [-0.03, -0.002, 0.0, 0.01])
def test_a_step_is_that_of_the_equations(gradient, is_open):
    plugin = Loop().plugin
    logit = 1.0 if is_open else -1.0
    with torch.no_grad():
        plugin.gates.theta.fill_(0.2 * logit)
    optimizer = WindowOptimizer(plugin.gates, lr=0.3, optimism=0.0)
    optimizer.price = 1e-3
    plugin.gates.theta.grad = torch.full((6,), gradient)
    optimizer.step()
    g = 1 / (1 + math.exp(-logit))
    push = 1e-3 * g * (1 - g) / 0.2
    error = 0.16 * abs(gradient)
    doubt = 0.0 if is_open else error
    speed = min(1.0, max(-1.0, (gradient + doubt + push) / (error + push)))
    assert optimizer.logits().tolist() == pytest.approx([logit - 0.3 * speed] * 6, rel=1e-4)


def test_gates_that_a_path_has_closed_for_good_start_at_the_floor():
    loop = Loop()
    with torch.no_grad():
        loop.plugin.gates.theta[4] = -20.0
    loop.run(4)
    assert loop.trainer.optimizer.logits()[4] == pytest.approx(price_window.FLOOR)


def test_a_stream_that_is_resumed_in_any_phase_gives_the_same_bits():
    whole = Loop().run(WINDOW.steps + 10)
    for middle in (101, 301, 502):  # between two steps of the gates
        part = Loop().run(middle)
        other = Loop()
        other.model.load_state_dict(part.model.state_dict())
        other.optimizer.load_state_dict(part.optimizer.state_dict())
        other.trainer.load_state_dict(copy.deepcopy(part.trainer.state_dict()))
        other.number = part.number
        other.run(WINDOW.steps + 10)
        assert other.trainer.scores() == whole.trainer.scores()
        assert torch.equal(other.plugin.gates.theta, whole.plugin.gates.theta)
        assert torch.equal(other.model[0].weight, whole.model[0].weight)


def test_a_state_of_other_gates_is_refused():
    trainer = Loop().run(3).trainer
    state = trainer.state_dict()
    with pytest.raises(StateError, match="the steps of the price are -1"):
        trainer.load_state_dict({**state, "steps": -1})
    with pytest.raises(StateError, match="sum in the price window has another shape"):
        trainer.load_state_dict({**state, "sum": torch.zeros(4)})


def test_the_price_rises_only_after_the_warm_up_and_protected_fields_stay_open():
    loop = Loop(warmup=10).run(10)
    assert loop.trainer.done == 0
    loop.run(15)
    assert loop.trainer.done == 5
    fields = [tl.Field(name, width, protected=name == "noise") for name, width in FIELDS.items()]
    plugin = tl.attach(nn.Linear(11, 1), fields, seed=0)
    trainer = plugin.trainer(price=WINDOW)
    for _ in range(8):
        plugin.gates.theta.grad = torch.ones(6)
        trainer.step()
    gates = plugin.scores()
    assert gates["noise"] == 1.0 > gates["steady"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"worth": 0.0}, "worth must be a number above 0, but is 0.0"),
        ({"worth": math.nan}, "worth must be"),
        ({"worth": 1e-4, "rise": 0}, "rise must be a whole number of at least 1, but is 0"),
        ({"worth": 1e-4, "hold": 2.5}, "hold must be a whole number"),
        ({"worth": 1e-4, "fall": -1, "rise": 0}, "rise must be .*; fall must be"),
    ],
)
def test_windows_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(tl.TorchleapError, match=message):
        tl.PriceWindow(**settings)


def test_a_misspelt_setting_is_refused_by_its_name():
    with pytest.raises(TypeError, match="raise_steps"):
        tl.PriceWindow(worth=1e-4, raise_steps=3)


def test_a_window_is_for_a_stream_alone():
    plugin = Loop().plugin
    with pytest.raises(tl.TorchleapError, match="price must be a PriceWindow, but is 0.0001"):
        plugin.trainer(price=1e-4)
    for settings in ({"steps": 100}, {"path": True}):
        with pytest.raises(tl.TorchleapError, match="leave out steps and path"):
            plugin.trainer(price=WINDOW, **settings)
    trainer = plugin.trainer(price=WINDOW)
    with pytest.raises(tl.TorchleapError, match="found a loss of held-out rows. Call"):
        trainer.step(lambda: torch.zeros(()))
    with pytest.raises(tl.TorchleapError, match="call loss.backward"):
        trainer.step()


def test_the_trainer_prints_its_price_and_what_is_open():
    loop = Loop().run(WINDOW.rise)
    text = repr(loop.trainer)
    assert text.startswith("WindowTrainer: step 240, price 0.04 of 0.04, holding; ")
    assert text.endswith(" of 6 open")
