"""The training loop: it learns, stops, resumes exactly, and reports what went wrong."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import polars as pl
import pytest
import torch

import torchleap as tl
from torchleap import models
from torchleap._common.sealed import save_sealed
from torchleap.objectives import OBJECTIVES
from torchleap.training.fit import Hook, Run, Training, TrainingError, evaluate, fit, predict
from torchleap.training.step import Stepper

KINDS = {"item": {"kind": "categorical", "width": 4}, "user": {"kind": "categorical", "width": 4}}


def clicks(rows=4000, seed=0):
    """The click depends on the item and the price; the user is noise."""
    rng = np.random.default_rng(seed)
    item, price = rng.integers(0, 30, rows), rng.normal(size=rows)
    chance = 1 / (1 + np.exp(-(2 * np.sin(item) + price)))
    columns = {
        "click": (rng.random(rows) < chance).astype(int),
        "item": item,
        "price": price,
        "user": rng.integers(0, 50, rows),
    }
    return pl.DataFrame(columns)


@pytest.fixture(scope="module")
def task():
    return tl.data.read(clicks(), label="click", split="order", group="user", columns=KINDS)


def model_for(task, seed=0, name="wide_deep", **settings):
    torch.manual_seed(seed)
    return models.build(models.benchmark(name), task, **settings)


FAST = Training(batch=256, lr=1e-2, epochs=12, patience=2)


def test_it_learns_and_leaves_the_best_weights(task):
    model = model_for(task)
    run = fit(model, task, FAST)
    best = max(record["valid_auc"] for record in run.history)
    assert best == run.best_metric > 0.8
    assert evaluate(model, task.valid)["auc"] == pytest.approx(best)
    assert not model.training
    assert run.stopped == "auc did not get better in 2 evaluations"
    assert run.step < run.steps
    assert {
        "step",
        "seconds",
        "train_loss",
        "lr",
        "valid_auc",
        "valid_log_loss",
        "valid_gauc",
    } == set(run.history[0])


def test_predictions_come_in_the_order_of_the_rows(task):
    model = model_for(task).eval()
    with torch.no_grad():
        assert torch.allclose(
            predict(model.train(), task.test), model.eval()(*task.test.all().inputs), atol=1e-6
        )


def test_one_seed_gives_one_result_and_another_another(task):
    first, second, other = (model_for(task) for _ in range(3))
    for model, seed in ((first, 1), (second, 1), (other, 2)):
        fit(model, task, Training(batch=256, epochs=2, seed=seed))
    states = [model.state_dict() for model in (first, second, other)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not all(torch.equal(states[0][name], states[2][name]) for name in states[0])


def test_large_tables_learn_with_sparse_gradients(task):
    model = model_for(task, sparse=True)
    run = fit(model, task, FAST)
    assert run.best_metric > 0.8


@pytest.mark.parametrize(
    "settings",
    [{"metric": "gauc"}, {"metric": "log_loss"}, {"precision": "bfloat16"}, {"clip": 0.1}],
)
def test_other_settings_learn_too(task, settings):
    run = fit(model_for(task), task, Training(batch=256, lr=1e-2, epochs=6, **settings))
    assert max(record["valid_auc"] for record in run.history) > 0.78


def test_evaluations_may_come_more_often_than_once_per_epoch(task):
    run = fit(model_for(task), task, Training(batch=256, epochs=2, eval_every=5, patience=100))
    assert [record["step"] for record in run.history] == list(range(5, 27, 5))
    assert run.stopped == "all epochs are done"


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_every_schedule_trains_all_steps(task, schedule):
    run = fit(model_for(task), task, Training(batch=800, epochs=2, schedule=schedule, warmup=3))
    assert run.step == 8


def test_the_learning_rate_follows_its_schedule(task):
    training = Training(batch=800, epochs=25, schedule="cosine", warmup=10)
    stepper = Stepper(Run(model_for(task), task, training), [], loss=OBJECTIVES["binary"].loss)
    assert [stepper._rate_factor(step) for step in (0, 4, 9)] == [0.1, 0.5, 1.0]
    assert stepper._rate_factor(55) == pytest.approx(0.5)
    assert stepper._rate_factor(100) == pytest.approx(0)


def test_a_time_limit_ends_with_the_best_so_far(task):
    run = fit(model_for(task), task, Training(batch=64, epochs=1000, patience=1000, time_limit=0.5))
    assert run.stopped == "the time limit of 0.5 seconds"
    assert run.best
    assert run.seconds < 10


def test_hooks_add_to_the_loss_and_see_every_step_and_evaluation(task):
    class Shrink(Hook):
        def __init__(self, model):
            self.model = model
            self.steps = 0
            self.evaluations = []

        def penalty(self, loss):
            return 10 * self.model.inputs.tables["4"].weight.square().sum()

        def after_step(self, run):
            self.steps += 1

        def after_eval(self, run, record):
            record["own"] = 7.0
            self.evaluations.append(record["step"])

    model = model_for(task)
    hook = Shrink(model)
    run = fit(model, task, Training(batch=800, epochs=5, patience=10, lr=1e-2), hooks=[hook])
    assert hook.steps == run.step == 20
    assert hook.evaluations == [4, 8, 12, 16, 20]
    assert run.history[-1]["own"] == 7.0
    assert model.inputs.tables["4"].weight.abs().max() < 0.02


def test_gates_train_with_the_model(task):
    model = model_for(task)
    plugin = tl.attach(model, task.fields, at="net", alpha=0.1, seed=0)

    class Gates(Hook):
        def penalty(self, loss):
            return plugin.penalty()

        def after_eval(self, run, record):
            self.scores = plugin.scores()  # at the end, not at the best evaluation

    hook = Gates()
    fit(model, task, Training(batch=64, epochs=20, patience=20, lr=1e-2), hooks=[hook])
    assert hook.scores["user"] < 0.5 < min(hook.scores["item"], hook.scores["price"])


def test_a_killed_run_resumes_to_the_same_weights(task, tmp_path):
    clicks().write_parquet(tmp_path / "clicks.parquet")
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch, torchleap as tl\n"
        "from torchleap import models\n"
        "from torchleap.training.fit import Training, fit\n"
        "torch.set_num_threads(1)\n"
        "categorical = {'kind': 'categorical', 'width': 4}\n"
        "kinds = {'item': categorical, 'user': categorical}\n"
        "task = tl.data.read('clicks.parquet', label='click', split='order', columns=kinds)\n"
        "torch.manual_seed(0)\n"
        "model = models.build(models.benchmark('wide_deep'), task, sparse=True)\n"
        "plugin = tl.attach(model, task.fields, at='net', seed=0)\n"
        "print('ready', flush=True)\n"
        "settings = Training(\n"
        "    batch=64, epochs=30, patience=100, checkpoint_steps=7, schedule='cosine', average=24\n"
        ")\n"
        "run = fit(model, task, settings, checkpoint=sys.argv[1])\n"
        "torch.save({'weights': model.state_dict(), 'steps': run.step}, sys.argv[2])\n"
    )

    def start(name):
        command = [
            sys.executable,
            str(script),
            str(tmp_path / f"{name}.ckpt"),
            str(tmp_path / f"{name}.pt"),
        ]
        return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE)

    complete = start("complete")
    assert complete.wait(120) == 0
    for delay in (0.05, 0.11):  # after the first checkpoint, at any moment
        killed = start("killed")
        killed.stdout.readline()
        while not (tmp_path / "killed.ckpt").exists():
            time.sleep(0.001)
        time.sleep(delay)
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
    assert (tmp_path / "killed.ckpt").exists()
    assert not (tmp_path / "killed.pt").exists()
    resumed = start("killed")
    assert resumed.wait(120) == 0
    expected, found = (
        torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("complete", "killed")
    )
    assert expected["steps"] == found["steps"]
    assert all(
        torch.equal(expected["weights"][name], found["weights"][name])
        for name in expected["weights"]
    )
    assert not (tmp_path / "killed.ckpt").exists()


def test_a_checkpoint_of_another_run_is_refused(task, tmp_path):
    class Stop(Hook):
        def after_step(self, run):
            if run.step == 5:
                raise KeyboardInterrupt

    path = tmp_path / "run.ckpt"
    settings = Training(batch=256, epochs=2, checkpoint_steps=2)
    with pytest.raises(KeyboardInterrupt):
        fit(model_for(task), task, settings, hooks=[Stop()], checkpoint=path)
    assert path.exists()
    with pytest.raises(
        TrainingError, match="a checkpoint of another run: its model has other weights"
    ):
        fit(model_for(task, name="dcn"), task, settings, hooks=[Hook()], checkpoint=path)
    with pytest.raises(TrainingError, match="its lr is 0.001, not 0.1"):
        fit(
            model_for(task),
            task,
            Training(batch=256, epochs=2, checkpoint_steps=2, lr=0.1),
            hooks=[Hook()],
            checkpoint=path,
        )
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(TrainingError, match="is not a complete checkpoint"):
        fit(model_for(task), task, settings, checkpoint=path)


@pytest.mark.parametrize("older", [{"format": 3}, {"format": 99}, {}, [1, 2]])
def test_a_checkpoint_of_another_format_is_refused_in_one_sentence(task, tmp_path, older):
    path = tmp_path / "run.ckpt"
    save_sealed(older, path)
    found = older.get("format") if isinstance(older, dict) else None
    expected = (
        f"{path} is a checkpoint of format {found}, but this version of torchleap reads format 4. "
        "Remove it to start again."
    )
    with pytest.raises(TrainingError) as problem:
        fit(model_for(task), task, FAST, checkpoint=path)
    assert str(problem.value) == expected


def test_a_loss_that_is_not_finite_is_reported_with_step_rate_and_fields(task):
    model = model_for(task)
    with torch.no_grad():
        model.inputs.tables["4"].weight[: task.columns[0].categories] = float("nan")
    with pytest.raises(
        TrainingError,
        match="The loss is nan at step 1, with a learning rate of 0.001. Suspicious fields: item",
    ):
        fit(model, task, Training(batch=256))


def test_bad_settings_are_refused(task):
    with pytest.raises(
        tl.TorchleapError,
        match="batch must be a whole number.*lr must be a number above 0.*metric must be one of",
    ):
        Training(batch=0, lr=-1, metric="accuracy")
    with pytest.raises(tl.TorchleapError, match="warmup must be.*seed must be"):
        Training(warmup=-1, seed="x")
    with pytest.raises(
        TrainingError,
        match="at least one batch of 4,096 train rows, but found 3,200 rows. Lower batch=",
    ):
        fit(model_for(task), task)
    with pytest.raises(TrainingError, match="metric='gauc' needs groups"):
        fit(
            model_for(task),
            tl.data.read(clicks(), label="click", columns=KINDS),
            Training(batch=256, metric="gauc"),
        )
    frozen = model_for(task).requires_grad_(False)
    with pytest.raises(TrainingError, match="nothing to train"):
        fit(frozen, task, FAST)


def test_a_history_is_plain_json(task):
    run = fit(model_for(task), task, Training(batch=800, epochs=1))
    assert json.loads(json.dumps(run.history)) == run.history


def test_a_last_batch_of_one_row_is_left_out(task):
    run = fit(model_for(task), task, Training(batch=3199, epochs=2))
    assert run.step == 2
    assert len(run.history) == 2


def test_ctrl_c_saves_before_it_stops(task, tmp_path):
    class Interrupt(Hook):
        def after_step(self, run):
            if run.step == 10:
                os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    undisturbed = model_for(task)
    fit(undisturbed, task, FAST)
    with pytest.raises(KeyboardInterrupt):
        fit(model_for(task), task, FAST, hooks=[Interrupt()], checkpoint=tmp_path / "run.pt")
    assert signal.getsignal(signal.SIGINT) is before
    assert torch.load(tmp_path / "run.pt", weights_only=True)["run"]["step"] == 10
    again = model_for(task, seed=9)
    fit(again, task, FAST, checkpoint=tmp_path / "run.pt")
    assert all(
        torch.equal(a, b) for a, b in zip(undisturbed.parameters(), again.parameters(), strict=True)
    )
