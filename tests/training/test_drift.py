"""Drift: on a synthetic stream with a switch, only fields that come to life or die are named."""

import copy
import io
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import torchleap as tl
from torchleap.data import IndustrialLog
from torchleap.training.drift import Alarm, Drift
from torchleap.training.fit import Hook

from ..distributed.ranks_of import keep, run

BATCH, SWITCH, STEPS = 1_024, 480, 980
SETTINGS = {"fraction": 0.3, "settle": 250, "quiet": 100_000}
ROWS_PER_DAY = 50_000
# pairs and copies are left out: they are chosen slowly
SEEN = ("main", "noise", "sparse noise", "constant", "drift")


def log_of(switch):
    return IndustrialLog(fields=40, dims=320, seed=0, switch_days=switch * BATCH / ROWS_PER_DAY)


LOG = log_of(SWITCH)
NAMES = [name for name, role in LOG.role.items() if role in SEEN]
REVIVES = {name for name, way in LOG.drift.items() if way == "grows"}
DIES = set(LOG.drift) - REVIVES


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleDict()
        for name in NAMES:
            if name in LOG.cardinality:
                self.tables[name] = nn.Embedding(LOG.cardinality[name], LOG.widths[name])
        width = sum(LOG.widths[name] for name in NAMES)
        self.net = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, batch):
        blocks = []
        for name in NAMES:
            block = batch[name]
            if name in self.tables:
                block = self.tables[name](block[:, 0])
            blocks.append(block)
        return self.net(torch.cat(blocks, 1))[:, 0]


def batches(log, start):
    """Yield the batches of the stream from a step on."""
    for frame in log.stream(8 * BATCH, start=start * BATCH):
        values = {
            name: torch.from_numpy(np.array(frame[name].to_numpy())).reshape(len(frame), -1)
            for name in NAMES
        }
        label = torch.tensor(frame["label"].to_numpy(), dtype=torch.float32)
        for first in range(0, len(frame), BATCH):
            rows = slice(first, first + BATCH)
            yield {name: column[rows] for name, column in values.items()}, label[rows]


class Job:
    """A training job of model, gates and drift, which can be saved and resumed."""

    def __init__(self, alarm=None, **settings):
        torch.manual_seed(0)
        self.model = Model()
        self.plugin = tl.attach(
            self.model, {name: LOG.widths[name] for name in NAMES}, at="net", seed=0
        )
        self.gate_optimizer = self.plugin.optimizer(strength=0.4, lr=2e-2)
        self.optimizer = torch.optim.Adam(self.plugin.model_parameters(), lr=3e-3)
        self.drift = Drift(
            self.plugin, optimizer=self.gate_optimizer, alarm=alarm, **{**SETTINGS, **settings}
        )
        self.parts = (self.model, self.gate_optimizer, self.optimizer, self.drift)

    def train(self, log, steps):
        for _, (x, y) in zip(range(steps), batches(log, self.drift.steps), strict=False):
            self.optimizer.zero_grad()
            self.gate_optimizer.zero_grad()
            binary_cross_entropy_with_logits(self.model(x), y).backward()
            self.optimizer.step()
            self.gate_optimizer.step()
            self.drift.step()
        return self

    def saved(self):
        file = io.BytesIO()
        torch.save([part.state_dict() for part in self.parts], file)
        return file.getvalue()

    def resumed(self, saved):
        for part, state in zip(
            self.parts, torch.load(io.BytesIO(saved), weights_only=True), strict=True
        ):
            part.load_state_dict(state)
        return self


@pytest.fixture(scope="module")
def before():
    """The job at the switch."""
    return Job().train(LOG, SWITCH).saved()


@pytest.fixture(scope="module")
def after(before):
    """The job soon after the switch and at the end, and the alarms that its callback received."""
    alarms = []
    job = Job(alarms.append).resumed(before).train(LOG, 100)
    middle = job.saved()
    return SimpleNamespace(middle=middle, job=job.train(LOG, STEPS - SWITCH - 100), alarms=alarms)


def test_fields_that_come_to_life_or_die_at_the_switch_are_named_and_no_others(after):
    found = {(alarm.field, alarm.kind) for alarm in after.alarms}
    assert found == {(name, "revived") for name in REVIVES} | {(name, "died") for name in DIES}
    assert len(after.alarms) == len(found)
    assert after.alarms == after.job.drift.alarms
    for alarm in after.alarms:
        assert SWITCH < alarm.step <= STEPS


def test_an_alarm_contains_the_evidence(after):
    for alarm in after.alarms:
        assert str(alarm).startswith(f"{alarm.field} {alarm.kind}, step {alarm.step}: ")
        assert (
            f"in {alarm.probes} probes since step {alarm.since} its signal was {alarm.signal:.2f}"
            in alarm.evidence
        )
        if alarm.kind == "died":
            assert alarm.nats == 0
            assert alarm.gate < 0.5 < alarm.gate_before
            assert alarm.since > SWITCH - 60
            assert alarm.signal < 0.3
            assert (
                f"at {alarm.gate_before:.2f} before, closed to {alarm.gate:.2f}" in alarm.evidence
            )
        elif alarm.nats:
            assert alarm.nats > np.log(len(NAMES) * SETTINGS["fraction"] * SETTINGS["quiet"])
            assert alarm.since > SWITCH - 60
            assert alarm.signal > 0.4
            assert "a useless field shows as much once in" in alarm.evidence


def test_revived_fields_are_open_in_the_end_and_dead_ones_closed(after):
    scores = after.job.plugin.scores()
    assert {name for name in LOG.drift if scores[name] >= 0.5} == REVIVES


def test_a_resumed_run_raises_the_same_alarms_and_has_the_same_gates(after):
    again = Job().resumed(after.middle).train(LOG, STEPS - SWITCH - 100)
    assert again.drift.alarms == after.job.drift.alarms
    assert torch.equal(again.plugin.gates.theta, after.job.plugin.gates.theta)
    alarms_before_the_resume = Job().resumed(after.middle).drift.alarms
    assert len(after.job.drift.alarms) > len(alarms_before_the_resume)


def test_without_the_switch_there_is_no_alarm(before):
    job = Job().resumed(before).train(log_of(10**6), STEPS - SWITCH)
    assert job.drift.alarms == []


def test_without_probes_revived_fields_stay_closed(before):
    job = Job(fraction=1e-9).resumed(before).train(LOG, STEPS - SWITCH)
    assert {name for name in LOG.drift if job.plugin.scores()[name] >= 0.5} == set()


# Without a stream


def closed_gates(fields, theta=-1.0):
    gates = tl.LeAP(fields, seed=0)
    gates.theta.data.fill_(theta)
    return gates


def watch(gates, **settings):
    return Drift(
        SimpleNamespace(gates=gates), **{"fraction": 0.5, "settle": 0, "quiet": 1_000, **settings}
    )


def probe(drift, gain):
    """Let a probe with this gain be evaluated."""
    drift._gates.context.start_probe(drift._gates.theta)
    drift._gates.context.probe.grad = -gain
    drift.step()


def test_a_probe_shows_closed_fields_as_they_are_and_leaves_the_others_alone():
    gates = tl.LeAP({"open": 2, "closed": 3}, seed=0)
    gates.theta.data = torch.tensor([0.1, -1.0])
    x, plain, probed = torch.randn(16, 5), gates, copy.deepcopy(gates)
    probed.context.start_probe(probed.theta)
    outside, inside = plain(x), probed(x)
    assert torch.equal(outside[:, :2], inside[:, :2])
    assert torch.equal(inside[:, 2:], x[:, 2:])
    assert not torch.equal(outside[:, 2:], x[:, 2:])
    assert torch.equal(probed.eval()(x), plain.eval()(x))


def test_the_gain_of_a_probe_is_the_slope_of_the_loss():
    gates = tl.LeAP({"open": 2, "closed": 3}, seed=0).double()
    gates.theta.data = torch.tensor([0.1, -1.0], dtype=torch.float64)
    x, weight = torch.randn(16, 5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)

    def loss(probe):
        gates.context.probe = probe
        gates.steps.zero_()  # the same permutations
        return (gates(x) @ weight).square().sum()

    probe = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    loss(probe).backward()
    small = 1e-6 * torch.eye(2, dtype=torch.float64)
    expected = torch.stack([(loss(d) - loss(-d)).detach() / 2e-6 for d in small])
    assert torch.allclose(probe.grad, expected, rtol=1e-5)


def test_a_copy_of_the_gates_does_not_continue_probing():
    gates = closed_gates({"a": 1})
    gates.context.start_probe(gates.theta)
    assert copy.deepcopy(gates).context.probe is None


def test_probes_depend_on_seed_and_step_alone_and_are_as_many_as_requested():
    def chosen(seed):
        drift = watch(closed_gates({"a": 1}), fraction=0.05, seed=seed)
        found = []
        for _ in range(4_000):
            torch.rand(1)
            found.append(drift._gates.context.probe is not None)
            drift.step()
        return found

    first = chosen(0)
    torch.manual_seed(7)
    assert chosen(0) == first != chosen(1)
    assert 150 < sum(first) < 250


def test_useless_fields_raise_fewer_alarms_than_agreed_and_a_useful_one_does_soon():
    rng = torch.Generator().manual_seed(0)
    gates = closed_gates({f"f{i}": 1 for i in range(300)})
    drift = watch(gates, fraction=0.05, quiet=20_000, reopen=False)
    for _ in range(4_000):  # as many probes as there are in 80,000 steps
        gain = torch.randn(300, generator=rng)
        gain *= torch.rand(300, generator=rng).add(0.01).reciprocal()  # heavy tails
        gain[7] = 10 * (torch.randn((), generator=rng) + 1)
        probe(drift, gain)
    assert "f7" in {alarm.field for alarm in drift.alarms[:2]}
    assert len(drift.alarms) <= 1 + 80_000 / 20_000
    soon = next(alarm for alarm in drift.alarms if alarm.field == "f7")
    assert soon.probes < 100
    assert 0.5 < soon.signal < 0.9


def test_a_revived_gate_is_opened_and_its_optimizer_forgets_it():
    gates = closed_gates({"a": 1, "b": 1})
    optimizer = tl.GateOptimizer(gates)
    gates.theta.grad = torch.ones(2)
    optimizer.step()
    drift = watch(gates, optimizer=optimizer)
    for _ in range(30):
        probe(drift, torch.tensor([1.0, 0.0]))
    assert [(alarm.field, alarm.kind) for alarm in drift.alarms] == [("a", "revived")]
    assert gates.scores()["a"] > 0.99
    assert gates.scores()["b"] < 0.01
    state = optimizer.state[gates.theta]
    assert state["exp_avg"][0] == state["exp_avg_sq"][0] == 0
    assert state["exp_avg"][1] > 0
    assert state["step"] == 1


def test_without_reopen_a_revival_is_reported_once_and_the_gate_stays():
    gates = closed_gates({"a": 1})
    drift = watch(gates, reopen=False)
    for _ in range(100):
        probe(drift, torch.ones(1))
    assert len(drift.alarms) == 1
    assert gates.scores()["a"] < 0.01


def test_a_gate_that_opens_by_itself_is_a_revival():
    gates = closed_gates({"a": 1})
    drift = watch(gates)
    for _ in range(4):
        probe(drift, torch.ones(1))
    gates.theta.data.fill_(0.1)
    probe(drift, torch.ones(1))
    (alarm,) = drift.alarms
    assert (alarm.kind, alarm.nats) == ("revived", 0)
    assert "its gate, at 0.01 before, opened to 0.62" in alarm.evidence


def test_a_gate_that_closes_before_it_has_settled_is_not_a_death():
    gates = closed_gates({"a": 1}, theta=1.0)
    drift = watch(gates, settle=20)
    probe(drift, torch.zeros(1))
    gates.theta.data.fill_(-1.0)
    for _ in range(15):
        probe(drift, torch.zeros(1))
    gates.theta.data.fill_(1.0)
    for _ in range(25):
        probe(drift, torch.zeros(1))
    assert drift.alarms == []
    gates.theta.data.fill_(-1.0)
    probe(drift, torch.zeros(1))
    assert [alarm.kind for alarm in drift.alarms] == ["died"]


def test_every_field_of_a_group_is_named():
    fields = [tl.Field("a", 1, group="g"), tl.Field("b", 2), tl.Field("c", 1, group="g")]
    drift = watch(closed_gates(fields))
    for _ in range(30):
        probe(drift, torch.tensor([1.0, 0.0]))
    assert [alarm.field for alarm in drift.alarms] == ["a", "c"]


def test_a_gain_that_is_not_finite_counts_nothing():
    drift = watch(closed_gates({"a": 1}), reopen=False)
    for _ in range(5):
        probe(drift, torch.tensor([torch.nan]))
        probe(drift, torch.tensor([torch.inf]))
    for _ in range(30):
        probe(drift, torch.ones(1))
    assert len(drift.alarms) == 1


def test_a_batch_without_a_backward_pass_counts_nothing():
    drift = watch(closed_gates({"a": 1}))
    for _ in range(50):
        drift.step()
    assert drift.alarms == []


def test_the_gain_is_averaged_over_the_ranks_in_probes_alone(monkeypatch):
    sent = []
    monkeypatch.setattr(
        "torchleap.distributed.ranks.average",
        lambda tensor, group: sent.append(len(tensor)) or tensor,
    )
    drift = watch(closed_gates({"a": 1, "b": 1}), fraction=0.1)
    probes = 0
    for _ in range(50):
        probes += drift._gates.context.probe is not None
        drift.step()
    assert sent == [2] * probes
    assert 0 < probes < 20


def test_fields_may_come_from_the_first_batch():
    gates = tl.LeAP(None)
    drift = watch(gates, fraction=0.99)
    drift.step()
    assert gates.context.probe is None
    gates.lay_out(tl.Fields({"a": 1}))
    drift.step()
    assert gates.context.probe is not None


def test_as_a_hook_it_follows_the_loop_and_leaves_the_gates_alone_afterwards():
    drift = watch(closed_gates({"a": 1}), fraction=0.99)
    run = SimpleNamespace(step=40)
    drift.at_start(run)
    assert drift._gates.context.probe is not None
    run.step = 41
    drift.after_step(run)
    assert drift.steps == 41
    drift.at_end(run)
    assert drift._gates.context.probe is None


class BreakOff(Hook):
    def after_step(self, run):
        if run.step == 25:
            raise KeyboardInterrupt


def test_fit_takes_it_as_a_hook_and_a_checkpoint_keeps_what_it_knows(tmp_path):
    truth = tl.data.KnownTruth(widths=(1,), pair_widths=())
    task = tl.data.known_truth(truth, rows=1_000)

    def fit(*hooks, checkpoint=None):
        torch.manual_seed(0)
        model = tl.models.build("mlp", task)
        plugin = tl.attach(model, task.fields, at="net", seed=0)
        plugin.gates.theta.data[::2] = -1.0
        drift = Drift(plugin, fraction=0.5, settle=0, quiet=1)
        training = tl.Training(batch=100, epochs=5, patience=100, checkpoint_steps=10)
        return tl.fit(model, task, training, hooks=[drift, *hooks], checkpoint=checkpoint), drift

    run, undisturbed = fit()
    with pytest.raises(KeyboardInterrupt):
        fit(BreakOff(), checkpoint=tmp_path / "run.pt")
    _, resumed = fit(checkpoint=tmp_path / "run.pt")
    assert undisturbed.steps == resumed.steps == run.step
    assert undisturbed._gates.context.probe is None
    assert undisturbed.alarms == resumed.alarms
    for name, value in undisturbed.state_dict()["known"].items():
        assert torch.equal(value, resumed.state_dict()["known"][name]), name
    assert 10 < int(undisturbed.state_dict()["known"]["measured"][0]) < 40


def test_impossible_settings_are_refused():
    for setting, value in (
        ("fraction", 0),
        ("fraction", 1.0),
        ("quiet", 0),
        ("settle", -1),
        ("seed", 0.5),
    ):
        with pytest.raises(tl.TorchleapError, match=f"{setting} must be .*, but is {value}"):
            watch(closed_gates({"a": 1}), **{setting: value})


def test_an_alarm_is_a_sentence():
    alarm = Alarm(
        "ctr_7d",
        12_040,
        "died",
        since=11_020,
        gate_before=0.81,
        gate=0.46,
        probes=52,
        signal=0.04,
        nats=0.0,
    )
    assert str(alarm) == (
        "ctr_7d died, step 12,040: its gate, at 0.81 before, closed to 0.46; "
        "in 52 probes since step 11,020 its signal was 0.04 of its noise."
    )


def probe_on_a_rank(folder):
    reported = []
    drift = watch(closed_gates({"all": 1, "first": 1}), alarm=reported.append)
    mine = 1.0 if torch.distributed.get_rank() == 0 else -1.0
    for _ in range(30):
        # the other rank cancels a gain that only one rank sees
        probe(drift, torch.tensor([1.0, mine]))
    keep(folder, {"alarms": drift.state_dict()["alarms"], "reported": len(reported)})


def test_all_ranks_find_the_same_and_the_first_one_reports(tmp_path):
    first, second = run(probe_on_a_rank, tmp_path)
    assert first["alarms"] == second["alarms"]
    assert [alarm["field"] for alarm in first["alarms"]] == ["all"]
    assert (first["reported"], second["reported"]) == (1, 0)
