import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from torchleap import TorchleapError
from torchleap.bench import Runner, Store
from torchleap.bench import run as running
from torchleap.bench.run import THREADS, cores
from torchleap.bench.trials import RetrainTrial, SearchTrial
from torchleap.methods import Random

from .tiny import DONE, MODEL, TINY, TRAINING, Counted, counted, lines_of


@pytest.fixture(autouse=True)
def _nothing_done():
    DONE.clear()


def watched(folder, **settings):
    """Return a runner, and the list that its progress is added to."""
    standings = []
    return Runner(folder, on_progress=standings.append, **settings), standings


def test_results_come_in_the_order_of_the_trials_and_each_is_done_once(tmp_path):
    runner = Runner(tmp_path)
    assert runner.run(counted(3, 1, 3, 2)) == [{"double": n} for n in (6, 2, 6, 4)]
    assert DONE == [3, 1, 2]
    assert runner.run(counted(2, 3)) == [{"double": 4}, {"double": 6}]
    assert Runner(tmp_path).run(counted(1, 5)) == [{"double": 2}, {"double": 10}]
    assert DONE == [3, 1, 2, 5]
    assert len(lines_of(tmp_path)) == 4


def test_the_store_contains_everything_that_determines_a_result(tmp_path):
    runner = Runner(tmp_path, threads=1)
    (trial,) = counted(7)
    runner.run([trial])
    (line,) = lines_of(tmp_path)
    record = json.loads(line)
    assert record.keys() == {"key", "finished", "settings", "result"}
    assert record["key"] == runner.key(trial)
    assert record["settings"] == json.loads(json.dumps(trial.settings(runner.data(TINY), 1)))
    assert (record["settings"]["number"], record["settings"]["threads"]) == (7, 1)


def test_nothing_to_do_leaves_no_file(tmp_path):
    assert Runner(tmp_path / "out").run([]) == []
    assert not (tmp_path / "out").exists()


def test_other_threads_are_other_trials_and_the_process_gets_its_own_back(tmp_path):
    before = torch.get_num_threads()
    Runner(tmp_path, threads=1).run(counted(1))
    Runner(tmp_path, threads=before + 1).run(counted(1))
    assert (DONE, torch.get_num_threads()) == ([1, 1], before)


def test_the_state_of_a_trial_exists_while_it_runs_and_is_removed_after_success(tmp_path):
    Runner(tmp_path).run(counted(1, 2))
    assert DONE == [1, 2]
    assert list((tmp_path / "state").iterdir()) == []


def test_what_a_kill_left_of_the_state_of_a_finished_trial_is_removed(tmp_path):
    runner = Runner(tmp_path)
    runner.run(counted(1))
    left = tmp_path / "state" / runner.key(counted(1)[0])
    left.mkdir()
    (left / "checkpoint").write_text("")
    Runner(tmp_path).run(counted(1))
    assert list((tmp_path / "state").iterdir()) == []


@dataclass(frozen=True)
class Weak(Counted):
    """Fails where told to."""

    kind = "weak"

    def run(self, found, state):
        result = super().run(found, state)
        if self.number in BROKEN:
            raise BROKEN[self.number]
        return result


BROKEN = {}


def weak(*numbers):
    return [Weak(TINY, MODEL, TRAINING, number) for number in numbers]


def test_a_failure_is_reported_does_not_end_the_others_and_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setitem(BROKEN, 2, TorchleapError("There is no field 'x'."))
    runner = Runner(tmp_path)
    assert runner.run(weak(1, 2, 3)) == [{"double": 2}, None, {"double": 6}]
    key = runner.key(weak(2)[0])
    assert runner.failures == {key: "double 2: There is no field 'x'."}
    assert [path.name for path in (tmp_path / "state").iterdir()] == [key]  # to go on from
    monkeypatch.delitem(BROKEN, 2)
    assert runner.run(weak(1, 2, 3)) == [{"double": 2}, {"double": 4}, {"double": 6}]
    assert (DONE, runner.failures) == ([1, 2, 3, 2], {})
    assert list((tmp_path / "state").iterdir()) == []


def test_failures_of_the_same_title_are_all_reported(tmp_path, monkeypatch):
    monkeypatch.setitem(BROKEN, 1, TorchleapError("Broken."))
    runner = Runner(tmp_path)
    runner.run([*weak(1), replace(weak(1)[0], training=replace(TRAINING, lr=0.1))])
    assert list(runner.failures.values()) == ["double 1: Broken."] * 2


def test_a_result_that_is_not_a_number_is_a_failure_and_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(
        Counted,
        "run",
        lambda self, found, state: {"scores": {"a": float("nan") if self.number == 1 else 0.5}},
    )
    runner = Runner(tmp_path)
    assert runner.run(counted(1, 2)) == [None, {"scores": {"a": 0.5}}]
    assert list(runner.failures.values()) == [
        "double 1: Expected finite numbers, text, lists and dicts, "
        "but result.scores.a is nan, of type float."
    ]
    assert len(lines_of(tmp_path)) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("a mistake of ours")])
def test_whatever_ends_a_run_finished_trials_are_kept(tmp_path, monkeypatch, error):
    monkeypatch.setitem(BROKEN, 3, error)
    before = torch.get_num_threads()
    with pytest.raises(type(error)):
        Runner(tmp_path, threads=before + 1).run(weak(1, 2, 3, 4))
    assert torch.get_num_threads() == before
    assert [json.loads(line)["result"]["double"] for line in lines_of(tmp_path)] == [2, 4]
    monkeypatch.delitem(BROKEN, 3)
    runner = Runner(tmp_path, threads=before + 1)
    assert runner.run(weak(1, 2, 3, 4)) == [{"double": 2 * n} for n in (1, 2, 3, 4)]
    assert DONE == [1, 2, 3, 3, 4]


def test_where_it_stands_and_the_time_left(tmp_path, monkeypatch):
    ticks = iter(range(0, 1000, 10))
    monkeypatch.setattr(running.time, "monotonic", lambda: next(ticks))  # 10 seconds a trial
    runner, standings = watched(tmp_path)
    runner.run(counted(1, 2, 3), to_come=4)
    assert [(s.done, s.total, s.running) for s in standings] == [
        (0, 3, ("double 1",)),
        (1, 3, ("double 2",)),
        (2, 3, ("double 3",)),
        (3, 3, ()),
    ]
    assert [s.left for s in standings] == [None, 60, 50, 40]
    standings.clear()
    runner.run(weak(4, 5))  # of a kind that was never timed: as long as the others
    assert [s.left for s in standings] == [20, 10, 0]
    standings.clear()
    runner.run(counted(1, 2, 3))  # all there
    assert standings == []


def test_the_time_left_is_reckoned_by_kind_of_trial(tmp_path, monkeypatch):
    runner, standings = watched(tmp_path)
    monkeypatch.setattr(
        running,
        "attempt",
        lambda trial, *_: running.Outcome({}, "", 100.0 if type(trial) is Weak else 1.0),
    )
    runner.run([*weak(1), *counted(1)], to_come=2)
    runner.run([*counted(2), *weak(2, 3)])
    assert [s.left for s in standings] == [None, 300, 101, 201, 200, 100, 0]


@pytest.mark.parametrize("count", [2, 3])
def test_more_jobs_than_cores_are_refused(tmp_path, monkeypatch, count):
    monkeypatch.setattr(running, "cores", lambda: 2)
    Runner(tmp_path, jobs=2, threads=1)
    Runner(tmp_path, jobs=1, threads=8)  # slow, but nobody else's business
    with pytest.raises(
        TorchleapError,
        match=f"{count} jobs of 2 threads each are more than this machine's 2 cores. Give fewer",
    ):
        Runner(tmp_path, jobs=count, threads=2)


@pytest.mark.parametrize(
    "settings", [{"jobs": 0}, {"jobs": 1.5}, {"jobs": True}, {"threads": 0}, {"threads": "2"}]
)
def test_jobs_and_threads_are_whole_numbers(tmp_path, settings):
    with pytest.raises(TorchleapError, match="must be a whole number of at least 1, but is"):
        Runner(tmp_path, **settings)


def test_another_run_in_the_same_folder_is_refused(tmp_path):
    store = Store(tmp_path / "trials.jsonl")
    with store.writing(), pytest.raises(TorchleapError, match="Another run is writing to"):
        Runner(tmp_path).run(counted(1))
    assert DONE == []


def test_what_another_run_has_done_meanwhile_is_not_done_again(tmp_path):
    late = Runner(tmp_path)
    Runner(tmp_path).run(counted(1))
    assert late.run(counted(1, 2)) == [{"double": 2}, {"double": 4}]
    assert DONE == [1, 2]


def test_a_data_set_is_read_once(tmp_path):
    runner = Runner(tmp_path)
    assert runner.data(TINY) is runner.data(replace(TINY))


@pytest.fixture
def two_cores(monkeypatch):
    """Two processes, also where there is one core."""
    monkeypatch.setattr(running, "cores", lambda: max(2, cores()))


def without_seconds(results):
    return [
        {name: value for name, value in (result or {}).items() if name not in ("seconds", "memory")}
        for result in results
    ]


def test_two_processes_find_the_same_as_one_and_report_failures(tmp_path, two_cores):
    names = TINY.load().task.fields.names
    trials = [
        SearchTrial(TINY, MODEL, TRAINING, Random()),
        RetrainTrial(TINY, MODEL, TRAINING, names[:3]),
        RetrainTrial(TINY, MODEL, TRAINING, ("no such field",)),
        RetrainTrial(TINY, MODEL, replace(TRAINING, seed=1), None),
    ]
    before = {name: os.environ.get(name) for name in THREADS}
    (alone, _), (both, standings) = watched(tmp_path / "alone"), watched(tmp_path / "both", jobs=2)
    found = both.run(trials)
    assert without_seconds(found) == without_seconds(alone.run(trials))
    assert [result is None for result in found] == [False, False, True, False]
    assert both.failures == alone.failures
    assert "There is no field 'no such field'" in next(iter(both.failures.values()))
    assert {record["key"] for record in both.store} == {record["key"] for record in alone.store}
    assert {name: os.environ.get(name) for name in THREADS} == before
    assert len(standings[0].running) == 2
    assert [s.done for s in standings] == [0, 1, 2, 3, 4]


SLOW = """
import os, sys, time
from dataclasses import dataclass
from torchleap.bench import Runner
from torchleap.bench import run as running
from tests.bench.tiny import MODEL, TINY, TRAINING, Counted

@dataclass(frozen=True)
class Slow(Counted):
    def run(self, found, state):
        state.mkdir(parents=True)
        (state / "pid").write_text(str(os.getpid()))
        time.sleep(60)

if __name__ == "__main__":
    running.cores = lambda: 2
    Runner(sys.argv[1], jobs=2).run([Slow(TINY, MODEL, TRAINING, 1)])
"""


def test_workers_end_when_the_run_is_killed(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    path = {
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
    }
    first = subprocess.Popen(
        [sys.executable, str(tmp_path / "slow.py"), str(tmp_path / "out")], env=os.environ | path
    )
    try:
        worker = until(
            lambda: next((int(p.read_text() or 0) for p in tmp_path.glob("out/state/*/pid")), 0)
        )
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait(10)
    assert worker
    assert until(lambda: not alive(worker))


def until(found, seconds=60):
    end = time.monotonic() + seconds
    while not found() and time.monotonic() < end:
        time.sleep(0.05)
    return found()


def alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False
