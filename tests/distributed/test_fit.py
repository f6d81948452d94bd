"""fit and search on several ranks, and failures of one of them, with real processes and gloo."""

import resource
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import get_rank
from torch.utils.data import DataLoader

import torchleap as tl
from torchleap import models
from torchleap.data import batches as task_module
from torchleap.data.batches import Batches
from torchleap.methods.base import without_end
from torchleap.training.fit import Hook, Run, Training, TrainingError, evaluate, fit

from ..training.test_fit import KINDS, clicks
from .ranks_of import finish, keep, run, start

TRAINING = Training(batch=200, epochs=3, lr=1e-2, patience=5, checkpoint_steps=4)


def task_in(folder: Path) -> Any:
    """The same small task on every rank."""
    return tl.data.read(
        clicks(2_000), label="click", split="order", columns=KINDS, cache=folder / "cache"
    )


def trained(task: Any, *, noisy: bool = False, **settings: Any) -> Run:
    """Train; without dropout and batch norm, several ranks compute the same as one."""
    torch.manual_seed(1)
    model = models.build(
        models.WideDeep(hidden=(8,), dropout=0.2 if noisy else 0.0, batch_norm=noisy), task
    )
    return fit(model, task, TRAINING, **settings)


def outcome(run: Run) -> dict[str, Any]:
    return {
        "losses": [record["train_loss"] for record in run.history],
        "auc": run.best_metric,
        "weights": run.best,
    }


def plainly(folder: Path) -> None:
    found = outcome(trained(task_in(folder)))
    result = tl.search(
        task_in(folder), model=models.WideDeep(hidden=(8,)), training=TRAINING, seed=0
    )
    other = tl.search(
        task_in(folder),
        model=models.WideDeep(hidden=(8,)),
        method="autofield",
        training=TRAINING,
        seed=0,
    )
    keep(folder, found | {"scores": result.scores, "other": other.scores})


def test_two_ranks_train_as_one(tmp_path: Path) -> None:
    first, second = run(plainly, tmp_path)
    for name, tensor in first["weights"].items():
        assert torch.equal(tensor, second["weights"][name]), name
    assert (first["losses"], first["auc"]) == (second["losses"], second["auc"])
    assert first["scores"] == second["scores"]
    assert first["other"] == second["other"]
    assert first["scores"]["user"] < max(first["scores"]["item"], first["scores"]["price"])
    alone = outcome(trained(task_in(tmp_path)))
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-4)
    assert first["auc"] == pytest.approx(alone["auc"], abs=1e-3)


class Slow(Hook):
    """Give the test the time to kill a rank."""

    def after_step(self, run: Run) -> None:
        time.sleep(0.05)


def saved_often(folder: Path) -> None:
    found = trained(
        task_in(folder),
        noisy=True,
        hooks=[Slow()],
        checkpoint=folder / "run.ckpt",
        keep_checkpoint=True,
    )
    keep(folder, outcome(found))


def wait_for(path: Path, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not come"
        time.sleep(0.01)


def test_a_killed_rank_ends_the_others_and_the_job_resumes(tmp_path: Path) -> None:
    undisturbed, broken = tmp_path / "undisturbed", tmp_path / "broken"
    undisturbed.mkdir()
    broken.mkdir()
    expected = run(saved_often, undisturbed)
    processes = start(saved_often, broken)
    wait_for(broken / "run.ckpt")
    processes[1].send_signal(signal.SIGKILL)
    (code, text), (killed, _) = finish(processes, within=40)
    assert (code, killed) == (1, -signal.SIGKILL)
    assert "RankError: Rank 0 of 2 has lost another one" in text
    assert "it resumes from" in text
    before = torch.load(broken / "run.ckpt", weights_only=True)["run"]["step"]
    assert before % 4 == 0
    for one, other in zip(expected, run(saved_often, broken), strict=True):
        assert one["losses"] == other["losses"]
        assert all(
            torch.equal(one["weights"][name], other["weights"][name]) for name in one["weights"]
        )


def interrupted(folder: Path) -> None:
    class Stop(Hook):
        def after_step(self, run: Run) -> None:
            if run.step == 9:
                raise InterruptedError

    with pytest.raises(InterruptedError):
        trained(task_in(folder), hooks=[Stop()], checkpoint=folder / "run.ckpt")


def test_another_number_of_ranks_resumes(tmp_path: Path) -> None:
    for code, text in finish(start(interrupted, tmp_path)):
        assert code == 0, text
    assert torch.load(tmp_path / "run.ckpt", weights_only=True)["run"]["step"] == 8
    alone = trained(task_in(tmp_path), checkpoint=tmp_path / "run.ckpt")
    undisturbed = trained(task_in(tmp_path))
    assert alone.step == undisturbed.step
    assert alone.history[-1]["train_loss"] == pytest.approx(
        undisturbed.history[-1]["train_loss"], rel=5e-3
    )


class NotANumber(Hook):
    def penalty(self, loss: torch.Tensor) -> torch.Tensor | None:
        return loss * torch.nan if get_rank() == 1 else None


def nan_on_one(folder: Path) -> None:
    trained(task_in(folder), hooks=[NotANumber()])


def test_a_loss_that_is_not_finite_on_one_rank(tmp_path: Path) -> None:
    (code, text), (other_code, other) = finish(start(nan_on_one, tmp_path))
    assert (code, other_code) == (1, 1)
    assert "The loss of another rank is not finite at step 1" in text
    assert "The loss is nan at step 1" in other


def shard_gone(folder: Path) -> None:
    task_module.IN_MEMORY = 0  # from disk, in small blocks
    task_module.BLOCK = 64
    task_module.WINDOW = 2
    task = task_in(folder)

    class Remove(Hook):
        def after_step(self, run: Run) -> None:
            if run.step == 2 and get_rank() == 1:
                for path in task.folder.glob("*.bin"):
                    path.unlink()

    trained(task, hooks=[Remove()])


def test_rows_that_disappear(tmp_path: Path) -> None:
    ended = finish(start(shard_gone, tmp_path))
    assert all(code == 1 for code, _ in ended)
    assert all("is damaged or gone" in text or "has lost another one" in text for _, text in ended)
    assert any("is damaged or gone" in text for _, text in ended)


def full_disk(folder: Path) -> None:
    class Fill(Hook):
        def after_step(self, run: Run) -> None:
            if run.step == 5:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))

    trained(task_in(folder), hooks=[Fill()], checkpoint=folder / "run.ckpt")


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    (code, text), (other_code, other) = finish(start(full_disk, tmp_path))
    assert (code, other_code) == (1, 1)
    assert "cannot be written" in text
    assert "The one before is complete. Then start again." in text
    assert "Rank 0 could not continue" in other
    assert torch.load(tmp_path / "run.ckpt", weights_only=True)["run"]["step"] == 4
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith((".run", "run"))] == [
        "run.ckpt"
    ]


def too_many_ranks(folder: Path) -> None:
    task_module.IN_MEMORY = 0  # one block of rows, so the second rank has none
    trained(task_in(folder))


def test_a_rank_without_rows_is_refused(tmp_path: Path) -> None:
    for code, text in finish(start(too_many_ranks, tmp_path)):
        assert code == 1
        assert "Expected rows for each of 2 ranks" in text


def test_a_shard_that_another_number_of_ranks_has_passed_ends_its_epoch(tmp_path: Path) -> None:
    rows = task_in(tmp_path).train
    place = Batches(rows, 139, shuffle=True, seed=0, shard=(0, 1), together=True)
    assert (len(rows), len(place)) == (1_600, 12)
    half = Batches(rows, 139, shuffle=True, seed=0, shard=(0, 2), together=True)
    assert len(half) == 12
    half.load_state_dict({**place.state_dict(), "position": 13})
    assert list(half) == []
    assert half.epoch == 1


def test_workers_of_a_loader_end_together_on_all_ranks(tmp_path: Path) -> None:
    rows = task_in(tmp_path).train
    shards = [
        Batches(rows, 1_599, shuffle=True, seed=0, shard=(number, 3), together=True)
        for number in range(3)
    ]
    counts = [len(list(DataLoader(shard, batch_size=None, num_workers=1))) for shard in shards]
    assert counts == [1, 1, 1]


def test_too_few_validation_rows_for_the_ranks_are_refused(tmp_path: Path) -> None:
    rows = task_in(tmp_path).valid
    few = Batches(rows, len(rows), shuffle=True, seed=0, shard=(0, len(rows) - 1), together=True)
    with pytest.raises(
        TrainingError, match="validation rows for the gates to learn from on each of"
    ):
        next(without_end(few))


def test_a_missing_folder_is_reported_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="Expected a folder for the checkpoint"):
        trained(task_in(tmp_path), checkpoint=tmp_path / "none" / "run.ckpt")


def evaluated(folder: Path) -> None:
    task = task_in(folder)
    torch.manual_seed(0)
    model = models.build(models.WideDeep(), task)
    keep(folder, [evaluate(model, task.valid, together=True), evaluate(model, task.valid)])


def test_ranks_divide_an_evaluation(tmp_path: Path) -> None:
    for together, alone in run(evaluated, tmp_path):
        assert together == pytest.approx(alone)
