"""A plan is ready within its time limit, or there is one clear error."""

import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import torchleap as tl
from tests.architectures import FIELDS, ids_by_name
from tests.surgery.helpers import FED, Ranker, assert_same, pruned
from torchleap.surgery.trial.deadline import OutOfTimeError, check_time, time_left, time_limit


class Endless(Ranker):
    """It ends for tensors, but never for stand-ins."""

    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def forward(self, batch):
        x = self.embed(batch)
        while type(x) is not torch.Tensor:
            x = nn.Tanh()(x) if self.calls else torch.tanh(x)
        return self.deep(x)


@pytest.mark.parametrize("calls", [True, False])
def test_a_forward_that_never_ends_for_stand_ins_keeps_its_python(calls, monkeypatch):
    # time of the processor, which other processes do not use up
    clock = SimpleNamespace(monotonic=time.process_time)
    monkeypatch.setattr("torchleap.surgery.trial.deadline.time", clock)
    torch.manual_seed(0)
    plugin, selection, small = pruned(Endless(calls), time_limit=6.0)
    plan = str(tl.plan_of(small))
    assert FED in plan
    assert "it takes too long, plan(..., time_limit=...) allows more time" in plan
    for rows in (7, 1, 50):
        assert_same(plugin, selection, small, ids_by_name(rows, 9))


class Waiting(Ranker):
    """It waits for tensors without using what it has."""

    def __init__(self, is_tensor):
        super().__init__()
        self.is_tensor = is_tensor

    def forward(self, batch):
        x = self.embed(batch)
        while not self.is_tensor(x):
            pass
        return self.deep(x)


WAITS = {
    "by class": lambda x: type(x) is torch.Tensor,
    "by isinstance": lambda x: isinstance(x, torch.Tensor) and type(x) is torch.Tensor,
    "by identity": lambda x: id(type(x)) == id(torch.Tensor),
}


@pytest.mark.skipif(sys.gettrace() is not None, reason="a debugger is interrupted by nothing")
@pytest.mark.parametrize("name", WAITS)
@pytest.mark.parametrize("in_thread", [True, False])
def test_a_loop_that_waits_for_a_tensor_is_interrupted(name, in_thread):
    before = sys.gettrace(), isinstance, len
    found = []

    def run():
        found.append(str(tl.plan_of(pruned(Waiting(WAITS[name]), time_limit=3.0)[2])))

    started = time.monotonic()
    if in_thread:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(10)
    else:
        run()
    assert time.monotonic() - started < 6
    assert FED in found[0]
    assert (sys.gettrace(), isinstance, len) == before


class Slow(Ranker):
    def forward(self, batch):
        time.sleep(0.02)
        return super().forward(batch)


def test_a_model_that_is_too_slow_is_one_clear_error():
    with pytest.raises(tl.SurgeryError, match=r"Expected a plan within 0\.1 s, .* time_limit="):
        pruned(Slow(), time_limit=0.1)


def test_finding_out_which_input_moves_which_columns_takes_its_part_of_the_time():
    class Slower(Ranker):
        def forward(self, batch):
            time.sleep(0.3)
            return super().forward(batch)

    started = time.monotonic()
    refused = pytest.raises(tl.SurgeryError, match="Expected a plan within")
    with pytest.warns(UserWarning, match="too slow to find out"), refused:
        pruned(Slower(), time_limit=1.0)
    assert time.monotonic() - started < 4  # of which three batches train the gates


def test_attaching_to_a_slow_model_does_not_run_it_many_times(monkeypatch):
    monkeypatch.setattr("torchleap.surgery.labels.PROBE_SECONDS", 0.1)
    model = Slow()
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    with pytest.warns(UserWarning, match="Check that fields= names them in the order"):
        tl.attach(model, FIELDS, at="join", side="output", example=ids_by_name())
    assert len(calls) == 2


def test_no_limit_lets_a_slow_model_finish():
    plugin, selection, small = pruned(Slow(), time_limit=None)
    assert FED not in str(tl.plan_of(small))
    assert_same(plugin, selection, small, ids_by_name(7, 9))


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), "x", True])
def test_a_limit_is_a_number_of_seconds(seconds):
    with pytest.raises(tl.SurgeryError, match="time_limit must be a number of seconds above 0"):
        pruned(Ranker(), time_limit=seconds)


class Padded(nn.Module):
    """Histories, whose lengths are tried one after the other."""

    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(12, 4)
        self.join = nn.Identity()
        self.head = nn.Linear(8, 1)

    def forward(self, batch):
        time.sleep(0.05)
        history = self.item(batch["history"]).mean(1)
        return self.head(self.join(torch.cat([self.item(batch["item"]), history], 1)))


def test_lengths_that_there_is_no_time_to_try_may_not_differ(monkeypatch):
    monkeypatch.setattr("torchleap.surgery.trial.examples.SEARCH_TIME", 0.0)
    torch.manual_seed(0)

    def make(rows=32, seed=0, length=5):
        rng = torch.Generator().manual_seed(seed)
        item = torch.randint(12, (rows,), generator=rng)
        return {"item": item, "history": torch.randint(12, (rows, length), generator=rng)}

    fields = tl.Fields({"item": 4, "history": 4})
    selection = tl.Selection(fields, (0.5, 0.5), (False, True))
    plugin, selection, small = pruned(
        Padded(), make, fields=fields, selection=selection, time_limit=30
    )
    assert_same(plugin, selection, small, make(7, 9))
    with pytest.raises(tl.FieldError, match=r"batch\['history'\]"):
        small(make(7, 9, length=3))


def test_an_inner_limit_never_exceeds_an_outer_one():
    with time_limit(0.0), time_limit(10.0):
        assert time_left() == 0
        with pytest.raises(OutOfTimeError, match="takes too long"):
            check_time()
    check_time()
