"""Streams of rows that never end, on one rank and on two; their checkpoints; and their failures."""

import io
import json
import math
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter

import torchleap as tl
from torchleap.callbacks import HistoryFile, Progress
from torchleap.training.checkpoints import CheckpointError, Checkpoints
from torchleap.training.fit import Hook, Run, Training, TrainingError

from ..training.test_fit import KINDS, clicks
from .ranks_of import finish, keep, run, start
from .test_fit import wait_for

FIELDS = {"useful": 2, "useless": 2}


class Endless:
    """A stream whose place is a number of batches, the same on all ranks.

    Each rank takes its part of every batch.
    """

    def __init__(self, rows: int = 64, last: int | None = None) -> None:
        self.rows, self.place, self.last = rows, 0, last

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        rank = int(os.environ.get("RANK", "0"))
        ranks = int(os.environ.get("WORLD_SIZE", "1"))
        while self.last is None or self.place < self.last:
            rng = torch.Generator().manual_seed(self.place)
            x = torch.randn(self.rows, 4, generator=rng)
            chance = torch.sigmoid(3 * x[:, 0] - 2 * x[:, 1])
            y = (torch.rand(self.rows, generator=rng) < chance).float()
            self.place += 1
            yield x.chunk(ranks)[rank], y.chunk(ranks)[rank]

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.deep = nn.Sequential(
            nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.deep(x)[:, 0]
        return found


def gated() -> tuple[nn.Module, tl.Plugin]:
    torch.manual_seed(0)
    model = Net()
    return model, tl.attach(model, FIELDS, at="deep", seed=0)


def streamed(steps: int, hooks: tuple[Hook, ...] = (), batches: Any = None, **settings: Any) -> Run:
    model, plugin = gated()
    training = Training(
        epochs=1,
        steps=steps,
        eval_every=50,
        lr=1e-2,
        checkpoint_steps=settings.pop("every", 20),
        seed=3,
    )
    hooks = (tl.LearnGates(plugin, lr=1e-2), *hooks)
    return tl.stream(
        model, Endless() if batches is None else batches, training, hooks=hooks, **settings
    )


def outcome(run: Run) -> dict[str, Any]:
    weights = {
        name: tensor for name, tensor in run.model.state_dict().items() if "extra" not in name
    }
    records = [{**record, "seconds": 0} for record in run.history]
    return {"weights": weights, "records": records, "step": run.step, "stopped": run.stopped}


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["records"] == other["records"]
    for name, tensor in one["weights"].items():
        assert torch.equal(tensor, other["weights"][name]), name


def test_gates_learn_from_fresh_batches_and_windows_are_reported() -> None:
    found = outcome(streamed(500))
    assert [record["step"] for record in found["records"]] == list(range(50, 501, 50))
    last = found["records"][-1]
    assert last["valid_auc"] > 0.85
    assert last["gate_useful"] > 0.8 > 0.2 > last["gate_useless"]
    assert found["stopped"] == "all steps are done"


def test_it_ends_with_its_batches() -> None:
    found = outcome(streamed(500, batches=Endless(last=70)))
    assert (found["step"], found["stopped"]) == (70, "the batches have ended")


@pytest.mark.parametrize("background", [False, True])
def test_a_resume_is_exact(tmp_path: Path, background: bool) -> None:
    undisturbed = outcome(streamed(150))
    streamed(90, checkpoint=tmp_path, background=background)
    before, last = sorted(path.name for path in tmp_path.iterdir())
    assert last == "step-000000000090"
    if background:
        assert before >= "step-000000000070"
    else:
        assert before == "step-000000000080"
    assert_same(outcome(streamed(150, checkpoint=tmp_path, background=background)), undisturbed)


class Stop(Hook):
    def __init__(self, step: int, problem: type[BaseException]) -> None:
        self.step, self.problem = step, problem

    def after_step(self, run: Run) -> None:
        if run.step == self.step:
            raise self.problem


def test_a_crash_loses_only_the_steps_since_the_last_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        streamed(150, (Stop(75, ZeroDivisionError),), checkpoint=tmp_path)
    assert max(path.name for path in tmp_path.iterdir()) == "step-000000000060"
    assert_same(outcome(streamed(150, checkpoint=tmp_path)), outcome(streamed(150)))


class Press(Hook):
    def after_step(self, run: Run) -> None:
        if run.step == 33:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("steps", [150, 33])  # in the middle, and in the last step
def test_ctrl_c_saves_first(tmp_path: Path, steps: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        streamed(steps, (Press(),), checkpoint=tmp_path)
    assert max(path.name for path in tmp_path.iterdir()) == "step-000000000033"


def test_nothing_is_removed_under_its_final_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []
    remove = shutil.rmtree
    monkeypatch.setattr(
        shutil,
        "rmtree",
        lambda path, **rest: (removed.append(Path(path).name), remove(path, **rest)),
    )
    streamed(90, checkpoint=tmp_path)
    streamed(90, checkpoint=tmp_path)  # writes its last step again
    assert len(removed) > 3
    assert not [name for name in removed if name.startswith("step-")]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-000000000080",
        "step-000000000090",
    ]
    with pytest.raises(tl.TorchleapError, match="keep must be a whole number"):
        Checkpoints(tmp_path, keep=0)


def test_bad_batches_and_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"Expected batches of \(inputs, label\)"):
        streamed(5, batches=[torch.zeros(3)])
    streamed(20, checkpoint=tmp_path)
    with pytest.raises(TrainingError, match="another model"):
        tl.stream(nn.Linear(4, 1), Endless(), checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="found builtin_function"):
        Checkpoints(tmp_path).save(1, {"a": os.system}, {})


@pytest.mark.parametrize("state", [{"model": {}}, {"format": 3}])
def test_a_checkpoint_of_another_format_is_refused_in_one_sentence(
    tmp_path: Path, state: dict[str, Any]
) -> None:
    Checkpoints(tmp_path).save(4, state, {})
    with pytest.raises(TrainingError) as problem:
        streamed(8, checkpoint=tmp_path)
    assert str(problem.value) == (
        f"{tmp_path / 'step-000000000004'} is a checkpoint of format {state.get('format')}, but "
        "this version of torchleap reads format 4. Give another folder."
    )


def test_with_a_loss_of_its_own_a_stream_has_no_metrics() -> None:
    model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    training = Training(steps=4, eval_every=2)
    run = tl.stream(model, Endless(), training, loss=nn.functional.mse_loss)
    assert [set(record) for record in run.history] == [{"step", "seconds", "train_loss", "lr"}] * 2


class Gradients(Hook):
    def __init__(self, plugin: tl.Plugin) -> None:
        self.plugin = plugin

    def after_step(self, run: Run) -> None:
        of_gates = self.plugin.gates.theta.grad
        of_model = self.plugin.model_parameters()[0].grad
        assert of_gates is not None
        assert of_model is not None
        self.seen = [of_gates.clone(), of_model.clone()]


def test_clipping_leaves_the_gradient_of_the_gates_as_it_is() -> None:
    found = []
    for clip in (None, 1e-3):
        model, plugin = gated()
        seen = Gradients(plugin)
        training = Training(epochs=1, steps=1, clip=clip)
        tl.stream(model, Endless(), training, hooks=[seen, tl.LearnGates(plugin)])
        found.append(seen.seen)
    (gates, weights), (with_clipping, clipped) = found
    assert torch.equal(gates, with_clipping)
    assert clipped.norm() < 1e-3 < weights.norm()


def test_metrics_of_rows_with_a_single_label_are_nan() -> None:
    class Positives(Endless):
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            for x, y in super().__iter__():
                yield x, torch.ones_like(y)

    (record,) = streamed(50, batches=Positives()).history
    assert math.isnan(record["valid_auc"])
    assert math.isnan(record["valid_log_loss"])


def two_halves(folder: Path) -> None:
    keep(folder, outcome(streamed(110)))


def stopped_at_70(folder: Path) -> None:
    streamed(70, checkpoint=folder / "state", background=True)


def on_to_110(folder: Path) -> None:
    keep(folder, outcome(streamed(110, checkpoint=folder / "state", background=True)))


def test_two_ranks_resume_exactly_and_one_continues_correctly(tmp_path: Path) -> None:
    first, second = run(two_halves, tmp_path)
    assert first["records"] == second["records"]
    for code, text in finish(start(stopped_at_70, tmp_path)):
        assert code == 0, text
    alone = outcome(streamed(110, checkpoint=tmp_path / "state", keep=9))
    assert [record["step"] for record in alone["records"]] == [50, 100]
    assert alone["records"][0] == first["records"][0]
    assert alone["records"][1]["valid_auc"] == pytest.approx(
        first["records"][1]["valid_auc"], abs=0.02
    )
    assert alone["records"][1]["gate_useful"] == pytest.approx(
        first["records"][1]["gate_useful"], abs=0.05
    )
    for path in (tmp_path / "state").iterdir():
        if path.name > "step-000000000070":
            path.rename(tmp_path / path.name)
    for one, undisturbed in zip(run(on_to_110, tmp_path), (first, second), strict=True):
        assert_same(one, undisturbed)


class Slow(Hook):
    def after_step(self, run: Run) -> None:
        time.sleep(0.02)


def often(folder: Path) -> None:
    streamed(
        100_000,
        (Slow(),),
        checkpoint=folder / "state",
        every=2,
        background=folder.name == "background",
    )


@pytest.mark.parametrize("how", ["background", "waiting"])
def test_a_kill_while_checkpoints_are_written_leaves_complete_ones(
    tmp_path: Path, how: str
) -> None:
    folder = tmp_path / how
    folder.mkdir()
    processes = start(often, folder)
    wait_for(folder / "state" / "step-000000000006")
    while not list((folder / "state").glob(".writing-*")) and processes[1].poll() is None:
        pass
    processes[1].send_signal(signal.SIGKILL)
    (code, text), _ = finish(processes, within=40)
    assert code == 1
    assert "lost another one" in text
    checkpoints = Checkpoints(folder / "state")
    complete = [path for path in (folder / "state").iterdir() if path.name.startswith("step-")]
    assert complete
    for path in complete:  # all that have their final names can be read
        assert checkpoints.load(path, {})[0]["run"]["step"] == int(path.name[5:])


def before_writing(act: Callable[[], None]) -> None:
    """Call a function before each writing of a checkpoint's data, from now on in this process."""
    write = FileSystemWriter.write_data

    def act_then_write(self: Any, *rest: Any) -> Any:
        act()
        return write(self, *rest)

    FileSystemWriter.write_data = act_then_write  # type: ignore[method-assign]


def slow_disk(folder: Path) -> None:
    before_writing(lambda: time.sleep(0.5))  # longer than ten steps
    killed_at = int(folder.name)

    class Kill(Hook):
        def after_step(self, run: Run) -> None:
            if run.step == killed_at and os.environ["RANK"] == "1":
                os.kill(os.getpid(), signal.SIGKILL)

    streamed(
        100, (Kill(),), checkpoint=folder / "state", every=int(folder.parent.name), background=True
    )


@pytest.mark.parametrize(("every", "killed_at"), [(10, 19), (10, 31), (1, 3), (2, 8)])
def test_a_kill_while_a_checkpoint_is_slowly_written_loses_at_most_the_interval(
    tmp_path: Path, every: int, killed_at: int
) -> None:
    folder = tmp_path / str(every) / str(killed_at)
    folder.mkdir(parents=True)
    (code, text), _ = finish(start(slow_disk, folder), within=60)
    assert code == 1
    assert "lost another one" in text
    latest = Checkpoints(folder / "state").latest()
    assert latest is not None
    assert 0 <= killed_at - int(latest.name[5:]) <= every


def runs_dry(folder: Path) -> None:
    batches = Endless(last=30 if os.environ["RANK"] == "1" else None)
    keep(folder, outcome(streamed(100, batches=batches, checkpoint=folder / "state")))


def test_a_rank_whose_batches_end_ends_all(tmp_path: Path) -> None:
    for one in run(runs_dry, tmp_path):
        assert (one["step"], one["stopped"]) == (30, "the batches have ended")
    assert (tmp_path / "state" / "step-000000000030").exists()


class Fill(Hook):
    def after_step(self, run: Run) -> None:
        if run.step == 25:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))


def fills_the_disk(folder: Path) -> None:
    streamed(100, (Fill(),), checkpoint=folder / "state", background=folder.name == "background")


@pytest.mark.parametrize("how", ["background", "waiting"])
def test_a_full_disk_leaves_the_checkpoints_before(tmp_path: Path, how: str) -> None:
    folder = tmp_path / how
    folder.mkdir()
    for code, text in finish(start(fills_the_disk, folder)):
        assert code == 1
        assert "cannot be written" in text
        assert "Those before it are complete" in text
    left = sorted(path.name for path in (folder / "state").iterdir())
    if how == "background":
        assert "step-000000000005" <= left[-1] <= "step-000000000025"
    else:
        assert left == ["step-000000000020"]


class Reads(Hook):
    """A hook of the first rank with a state; it reads rows that its rank is not trained on."""

    first_rank_only = True

    def after_step(self, run: Run) -> None:
        if run.step % 7 == 0:
            with torch.no_grad():
                run.model(torch.arange(150))

    def state_dict(self) -> dict[str, Any]:
        return {"id": "run 1"}


class Ids(Endless):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in super().__iter__():
            yield (x[:, 0] * 40 + 75).clamp(0, 149).long(), y


def table(steps: int, folder: Path | None) -> Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(150, 1, sparse=True), nn.Flatten(0))
    training = Training(epochs=1, steps=steps, lr=1e-2, checkpoint_steps=50)
    tl.stream(model, Ids(), training, hooks=[Reads()], checkpoint=folder)
    return model[0].weight.detach()


def read_between(folder: Path) -> None:
    undisturbed = table(100, None)
    table(50, folder / "state")
    keep(folder, [undisturbed, table(100, folder / "state")])


def test_rows_that_one_rank_has_read_are_saved_with_the_steps_that_they_have_reached(
    tmp_path: Path,
) -> None:
    for undisturbed, resumed in run(read_between, tmp_path):
        torch.testing.assert_close(undisturbed, resumed, atol=1e-5, rtol=0)


def silent_writer(folder: Path) -> None:
    """The second rank stops answering while a checkpoint is written in the background."""
    if os.environ["RANK"] == "1":
        before_writing(lambda: os.kill(os.getpid(), signal.SIGSTOP))
    streamed(100, checkpoint=folder / "state", background=True)


def test_no_rank_waits_longer_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    processes = start(silent_writer, tmp_path, wait=6.0)
    code, text = finish(processes[:1], within=60)[0]
    processes[1].kill()
    assert code == 1
    assert "lost another one" in text


def silent(folder: Path) -> None:
    class Silent(Hook):
        def after_step(self, run: Run) -> None:
            if run.step == 3 and os.environ["RANK"] == "1":
                os.kill(os.getpid(), signal.SIGSTOP)

    streamed(100, (Silent(),))


def test_no_rank_waits_longer_than_the_time_out(tmp_path: Path) -> None:
    processes = start(silent, tmp_path, wait=6.0)
    code, text = finish(processes[:1], within=60)[0]
    processes[1].kill()
    assert code == 1
    assert "lost another one" in text


def test_tables_with_sparse_gradients_and_callbacks_are_resumed(tmp_path: Path) -> None:
    task = tl.data.read(clicks(4_000), label="click", split="order", columns=KINDS)

    def trained(steps: int, folder: Path) -> Run:
        torch.manual_seed(0)
        model = tl.models.build(tl.models.WideDeep(hidden=(8,)), task)
        batches = task.train.batches(64, shuffle=True, seed=1, together=True)
        training = Training(epochs=1, steps=steps, eval_every=10, checkpoint_steps=10)
        text = io.StringIO()
        hooks = [HistoryFile(folder / "history.jsonl"), Progress(Console(file=text))]
        found = tl.stream(model, batches, training, hooks=hooks, checkpoint=folder)
        assert "stream step 10" in text.getvalue() or steps > 30
        return found

    (tmp_path / "undisturbed").mkdir()
    (tmp_path / "parts").mkdir()
    undisturbed = trained(40, tmp_path / "undisturbed")
    trained(25, tmp_path / "parts")
    assert_same(outcome(trained(40, tmp_path / "parts")), outcome(undisturbed))
    lines = (tmp_path / "parts" / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [10, 20, 30, 40]
