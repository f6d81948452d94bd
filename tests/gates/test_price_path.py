"""The price path: its step, the worth that it measures, waiting, protected fields, resuming."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import torchleap as tl
from torchleap._common.states import StateError
from torchleap.gates import closings, price_path
from torchleap.gates.relative_costs import relative_costs

WEIGHTS = (1.0, 0.5, 0.0)  # of three fields: dropping one costs the square of its weight
NOISE = 0.3


def rows(step, count=256):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(count, 3, generator=generator)
    noise = NOISE * torch.randn(count, 1, generator=generator)
    return x, x @ torch.tensor([WEIGHTS]).T + noise


def attached(fields=None, **settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 1))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([WEIGHTS]))
        model[0].bias.zero_()
    fields = fields or {"strong": 1, "weak": 1, "noise": 1}
    return model, tl.attach(model, fields, at="0", seed=0, **settings)


class Loop:
    """The loop of a user, whose every batch is new."""

    def __init__(self, fields=None, warmup=0, **settings):
        self.model, self.plugin = attached(fields, warmup=warmup)
        self.trainer = self.plugin.trainer(path=True, **settings)
        self.optimizer = torch.optim.Adam(self.plugin.model_parameters(), lr=2e-2)
        self.number = 0

    def loss(self, number):
        x, y = rows(number)
        return mse_loss(self.model(x), y)

    def step(self):
        self.number += 1
        self.optimizer.zero_grad()
        self.loss(self.number).backward()
        self.optimizer.step()
        number = 1_000_000 + self.number
        self.trainer.step(lambda: self.loss(number))

    def run(self, most=6000):
        while not self.trainer.is_finished and self.number < most:
            self.step()
        return self.trainer


def test_fields_close_in_the_order_of_their_worth_which_is_measured_in_units_of_the_loss():
    trainer = Loop(steps=1600).run()
    assert trainer.is_finished
    assert [one.gate for one in trainer.closings] == [2, 1]  # the last field stays open
    worth = trainer.worth()
    assert worth["strong"].nats == pytest.approx(1.0, rel=0.25)
    assert worth["weak"].nats == pytest.approx(0.25, rel=0.25)
    assert abs(worth["noise"].nats) < 1e-3
    for one in worth.values():
        assert one.low < one.nats < one.high
    scores = trainer.scores()
    assert scores["strong"] > scores["weak"] > scores["noise"]


def slow_step(path, gradient, on_train):
    """Return the logits after a step and the new worth, gate by gate, in plain Python."""
    first, second = price_path.BETAS
    count = path.count + 1
    logits, worths = [], []
    before = path.logits().tolist()
    for gate, logit in enumerate(before):
        signal = gradient[gate] + 0.25 * (gradient[gate] - on_train[gate])
        mean = first * path.tensors["slope"][gate].item() + (1 - first) * signal
        square = second * path.tensors["square"][gate].item() + (1 - second) * signal**2
        mean /= 1 - first**count
        square /= 1 - second**count
        g = 1 / (1 + math.exp(-logit))
        slope = g * (1 - g) / 0.2
        price = path.price * path.costs[gate].item()
        error = price_path.NOISE * math.sqrt(square)
        if path.is_waiting:
            clear = max(0.0, abs(mean) / error - price_path.CLEARLY)
            speed = math.copysign(clear, mean)
        else:
            push = price * slope
            beyond = max(0.0, abs(mean + push) - price_path.UNCLEAR * error)
            speed = math.copysign(beyond, mean + push) / (error + push)
        speed = min(price_path.HARMFUL, max(-1.0, speed))
        moved = logit - path.param_groups[0]["lr"] * speed
        logits.append(min(price_path.OPEN, max(price_path.LOWEST, moved)))
        last_move = path.tensors["moved"][gate].item()
        worths.append(path.tensors["worth"][gate].item() + signal / slope * last_move)
    return logits, worths


def test_a_step_is_that_of_the_equations():
    torch.set_default_dtype(torch.float64)
    try:
        _, plugin = attached()
        plugin.gates.double()
        costs = torch.tensor([0.5, 1.0, 1.5])
        path = price_path.PathOptimizer(plugin.gates, lr=0.7, optimism=0.25, costs=costs)
        generator = torch.Generator().manual_seed(1)
        for number in range(12):
            path.price = 1e-3 * 2**number
            path.is_waiting = number == 5
            gradient = 0.02 * torch.randn(3, generator=generator)
            on_train = 0.02 * torch.randn(3, generator=generator)
            logits, worths = slow_step(path, gradient.tolist(), on_train.tolist())
            plugin.gates.theta.grad = gradient
            with plugin.gates.context.held_out_step(on_train):
                path.step()
            assert path.logits().tolist() == pytest.approx(logits, rel=1e-9)
            assert path.tensors["worth"].tolist() == pytest.approx(worths, rel=1e-9, abs=1e-15)
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_variance_of_the_worth_is_that_of_single_gradients_and_repeated_rows_add_to_it():
    _, plugin = attached()
    path = price_path.PathOptimizer(plugin.gates, lr=0.5, optimism=0.0)
    path.price = 1.0
    for sign in (1.0, -1.0) * 4:
        plugin.gates.theta.grad = torch.full((3,), sign * 1e-3)
        path.step()
    alone = path.deviations(None)
    assert (alone > 0).all()
    assert (path.deviations(2) > path.deviations(50)).all()
    assert (path.deviations(50) > alone).all()


def test_the_rest_of_the_way_is_added_to_the_worth_of_a_gate_that_closes():
    _, plugin = attached()
    path = price_path.PathOptimizer(plugin.gates, lr=0.5, optimism=0.0)
    path.price = 1.0
    for _ in range(12):
        plugin.gates.theta.grad = torch.full((3,), -1e-3)
        path.step()
    expected = path.current_worth()[1].item()
    before = path.tensors["worth"][1].item()
    path.measure_rest(1)
    assert path.tensors["worth"][1].item() == pytest.approx(expected)
    assert expected > before


def test_protected_fields_stay_open_and_those_of_a_group_close_together():
    fields = [
        tl.Field("strong", 1, group="pair"),
        tl.Field("weak", 1, group="pair"),
        tl.Field("noise", 1, protected=True),
    ]
    trainer = Loop(fields, steps=800).run()
    assert trainer.is_finished
    assert trainer.open_fields() == ("noise",)
    assert [one.gate for one in trainer.closings] == [0]
    assert trainer.worth()["strong"] == trainer.worth()["weak"]
    assert trainer.gates.scores()["noise"] == 1.0


def test_a_closed_gate_is_exactly_zero_and_never_opens_again():
    loop = Loop(steps=800)
    while not loop.trainer.closings:
        loop.step()
    closed = loop.trainer.closings[0].gate
    name = loop.plugin.fields.names[closed]
    for _ in range(50):
        loop.step()
    assert loop.plugin.scores()[name] < 1e-30


def test_the_same_price_for_more_cost_closes_a_dear_field_first():
    costs = {"strong": 40.0, "weak": 1.0, "noise": 1.0}
    fields = [tl.Field(name, 1, cost=cost) for name, cost in costs.items()]
    trainer = Loop(fields, steps=1600, price_by="cost").run()
    order = [trainer.gates.fields.names[one.gate] for one in trainer.closings]
    assert order.index("strong") < len(order)
    assert "weak" not in order[: order.index("strong")]
    scores = trainer.scores()
    worth = trainer.worth()
    assert scores["strong"] == pytest.approx(worth["strong"].nats / (40 / 14))
    assert worth["strong"].nats > worth["weak"].nats
    assert scores["strong"] < scores["weak"]


def test_costs_are_relative_to_the_mean_and_must_be_above_zero():
    fields = tl.Fields([tl.Field("a", 2, cost=1.0), tl.Field("b", 6, cost=3.0)])
    assert relative_costs(fields, "field").tolist() == [1.0, 1.0]
    assert relative_costs(fields, "dims").tolist() == [0.5, 1.5]
    assert relative_costs(fields, "cost").tolist() == [0.5, 1.5]
    free = tl.Fields([tl.Field("a", 2, cost=0.0), tl.Field("b", 6)])
    with pytest.raises(
        tl.TorchleapError, match="costs above 0 .* 'a' is 0.0. Give it a small cost"
    ):
        relative_costs(free, "cost")


def test_a_path_that_is_resumed_gives_the_same_bits():
    whole = Loop(steps=400)
    whole.run()
    part = Loop(steps=400)
    for _ in range(101):  # between two steps of the gates
        part.step()
    other = Loop(steps=400)
    other.model.load_state_dict(part.model.state_dict())
    other.optimizer.load_state_dict(part.optimizer.state_dict())
    other.trainer.load_state_dict(copy.deepcopy(part.trainer.state_dict()))
    other.number = part.number
    other.run()
    assert other.trainer.closings == whole.trainer.closings
    assert other.trainer.worth() == whole.trainer.worth()
    assert torch.equal(other.model[0].weight, whole.model[0].weight)


def test_a_state_of_other_gates_is_refused():
    loop = Loop(steps=400)
    state = loop.trainer.state_dict()
    state["optimizer"]["tensors"]["worth"] = torch.zeros(4)
    with pytest.raises(StateError, match="the price path has another shape"):
        loop.trainer.load_state_dict(state)
    state = loop.trainer.state_dict()
    with pytest.raises(StateError, match="the steps of the path are -1"):
        loop.trainer.load_state_dict({**state, "steps": -1})


def test_the_price_waits_while_the_loss_falls_and_a_state_keeps_it():
    loop = Loop(steps=200)
    loop.step()
    trainer = loop.trainer
    trainer.evaluated(torch.full((100,), 0.5))
    trainer.evaluated(torch.full((100,), 0.4))
    assert trainer.schedule.is_waiting
    price = trainer.price
    loop.step()
    assert trainer.price == price
    other = Loop(steps=200)
    other.trainer.load_state_dict(copy.deepcopy(trainer.state_dict()))
    assert other.trainer.schedule.is_waiting
    assert "waiting" in repr(other.trainer)


def test_copies_close_at_once():
    loop = Loop(steps=200)
    loop.trainer.close_copies({"weak": "strong"})
    assert loop.trainer.open_fields() == ("strong", "noise")
    loop.run()
    assert [one.gate for one in loop.trainer.closings] == [1, 2]
    assert loop.trainer.worth()["weak"].nats == pytest.approx(0.0, abs=1e-9)


def test_the_price_rises_only_after_the_warm_up_of_the_gates():
    loop = Loop(steps=400, warmup=10)
    for _ in range(10):
        loop.step()
    assert loop.trainer.done == 0
    assert loop.trainer.schedule.risen == 0.0
    assert [one.gate for one in loop.run().closings] == [2, 1]


def test_of_points_with_the_same_fields_the_best_stays():
    loop = Loop(steps=400)
    loop.step()
    trainer = loop.trainer
    assert trainer.add_point(0.7, 0.5)
    assert trainer.add_point(0.8, 0.4, behind=0.0)
    assert not trainer.add_point(0.75, 0.45, behind=0.05, error=0.01)
    [point] = loop.plugin.path("auc").points
    assert (point.metric, point.loss, point.kept) == (0.8, 0.4, ("strong", "weak", "noise"))
    trainer.optimizer.close(2)
    trainer.closings.append(closings.Closing(2, 1, 1e-3))
    assert trainer.add_point(0.79, 0.41, interval=(0.7, 0.9), behind=0.01, error=0.02)
    path = loop.plugin.path("auc")
    assert [point.closed for point in path.points] == [(), ("noise",)]
    assert (path.points[1].low, path.points[1].high, path.points[1].dims) == (0.7, 0.9, 2)
    assert path.best is path.points[0]
    assert path.smallest_within() is path.points[1]
    assert path.smallest_within(0.001) is path.points[0]


def test_a_path_needs_a_trainer_of_a_path_and_a_step():
    _, plugin = attached()
    with pytest.raises(tl.TorchleapError, match="gates were not trained on one. Train with"):
        plugin.path()
    plugin.trainer(path=True)
    with pytest.raises(tl.TorchleapError, match="no step has been taken"):
        plugin.path()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps must be"),
        ({"optimism": -1.0}, "optimism must be"),
        ({"price_by": "bytes"}, "price_by"),
        ({"batches": 0}, "batches must be"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, message):
    _, plugin = attached()
    with pytest.raises(tl.TorchleapError, match=message):
        plugin.trainer(path=True, **settings)


def test_an_optimizer_of_a_path_takes_no_closure():
    _, plugin = attached()
    trainer = plugin.trainer(path=True)
    with pytest.raises(tl.TorchleapError, match="takes no closure"):
        trainer.optimizer.step(lambda: 0.0)


def test_a_gate_step_on_the_models_own_batch_needs_no_held_out_rows():
    loop = Loop(steps=400)
    for number in range(600):
        loop.optimizer.zero_grad()
        loop.loss(number).backward()
        loop.optimizer.step()
        loop.trainer.step()
    assert loop.trainer.closings[0].gate == 2
    assert "of 3 open" in repr(loop.trainer)


def test_closed_gates_keep_their_worth_whatever_the_size_of_the_loss():
    _, plugin = attached()
    path = price_path.PathOptimizer(plugin.gates, lr=0.5, optimism=0.0)
    path.price = 1e12
    for number in range(30):
        plugin.gates.theta.grad = torch.full((3,), 1e9 * (-1) ** number)
        path.step()
        if number == 10:
            path.measure_rest(1)
            path.close(1)
            before = path.deviations(4)[1].item()
    assert path.deviations(4)[1].item() == before
    assert torch.isfinite(path.deviations(4)).all()
    path.forget(torch.tensor([True, False, False]))
    assert path.tensors["slope"][0] == path.tensors["square"][0] == 0
    assert path.tensors["slope"][2] != 0
