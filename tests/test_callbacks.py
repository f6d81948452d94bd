"""Callbacks report each evaluation once, also after a kill, and do not change the training."""

import csv
import io
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

import torchleap as tl
from torchleap import models
from torchleap.callbacks import HistoryFile, LiveGates, MLflow, Progress, TensorBoard, display
from torchleap.training.fit import Hook, Run, Training, fit

SETTINGS = Training(
    batch=100, epochs=3, eval_every=4, patience=100, checkpoint_steps=10
)  # 24 steps


@pytest.fixture(scope="module")
def task():
    import polars as pl

    rng = torch.Generator().manual_seed(0)
    price, noise = torch.randn(2, 1000, generator=rng)
    click = (torch.rand(1000, generator=rng) < torch.sigmoid(2 * price)).int()
    return tl.data.read(
        pl.DataFrame({"click": click.numpy(), "price": price.numpy(), "a/b": noise.numpy()}),
        label="click",
        split="order",
    )


def train(task, *hooks, settings=SETTINGS, checkpoint=None):
    torch.manual_seed(0)
    return fit(models.build("mlp", task), task, settings, hooks=hooks, checkpoint=checkpoint)


class Gates(Hook):
    """Adds to the records as the methods do."""

    def after_eval(self, run, record):
        record.update({"gate_price": 0.9, "gate_a/b": 0.1})


class Break(Hook):
    """Ends the training at a step, as Ctrl-C does."""

    def __init__(self, at):
        self.at = at

    def after_step(self, run):
        if run.step == self.at:
            raise KeyboardInterrupt


def break_and_resume(task, tmp_path, make, watch=None):
    """Fail at step 19: the checkpoint is of step 10, so evaluations 12 and 16 come again."""
    path = tmp_path / "run.pt"
    with pytest.raises(KeyboardInterrupt):
        train(task, Gates(), make(), watch or Hook(), Break(19), checkpoint=path)
    return train(task, Gates(), make(), watch or Hook(), Break(None), checkpoint=path)


def test_importing_the_callbacks_imports_no_package_of_theirs():
    code = (
        "import sys, torchleap.callbacks; "
        "heavy = {'rich', 'mlflow', 'tensorboard'} & set(sys.modules); assert not heavy, heavy"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("make", "module", "package", "extra"),
    [
        (Progress, "rich.progress", "rich", "cli"),
        (lambda: TensorBoard("runs"), "tensorboard", "tensorboard", "tensorboard"),
        (MLflow, "mlflow", "mlflow", "mlflow"),
    ],
)
def test_a_missing_package_is_reported_with_the_line_that_installs_it(
    monkeypatch, make, module, package, extra
):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        tl.TorchleapError,
        match=rf"needs the package {package}. Install it: pip install 'torchleap\[{extra}\]'",
    ):
        make()


def test_watching_does_not_change_the_training(task, tmp_path):
    plain = train(task)
    hooks = [Progress(Console(file=io.StringIO())), HistoryFile(tmp_path / "history.csv")]
    watched = train(task, *hooks)
    assert all(torch.equal(plain.best[name], watched.best[name]) for name in plain.best)
    assert plain.best_metric == watched.best_metric


# Progress


def test_without_a_terminal_there_is_one_line_per_evaluation_and_one_at_the_end(task):
    text = io.StringIO()
    run = train(task, Progress(Console(file=text, width=40)))
    lines = text.getvalue().splitlines()
    assert len(lines) == len(run.history) + 1 == 7
    assert lines[0].startswith("epoch 1/3 step 4/24 auc 0.")
    assert f"best {run.best_metric:.4f}" in lines[-2]
    assert ("evaluation" in lines[-2]) == (run.evals_since_best > 0)
    assert lines[-1] == f"Ended after 24 steps and {run.seconds:.0f} s: all epochs are done."
    assert "\x1b" not in text.getvalue()


def test_a_log_loss_is_best_where_it_is_lowest(task):
    text = io.StringIO()
    run = train(
        task,
        Progress(Console(file=text)),
        settings=Training(batch=100, epochs=3, metric="log_loss"),
    )
    assert (
        f"best {min(record['valid_log_loss'] for record in run.history):.4f}"
        in text.getvalue().splitlines()[-2]
    )


def terminal():
    return Console(
        file=io.StringIO(),
        force_terminal=True,
        width=100,
        legacy_windows=False,
        _environ={"TERM": "xterm"},
    )


def test_on_a_terminal_there_is_a_bar(task):
    console = terminal()
    run = train(task, Progress(console))
    text = console.file.getvalue()
    assert "epoch 1/3" in text
    assert f"24/24 loss {run.history[-1]['train_loss']:.4f} best {run.best_metric:.4f}" in text
    assert "Ended after 24 steps" in text
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")  # the cursor is shown


def test_the_bar_is_drawn_ten_times_a_second_at_most(task, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(display, "time", SimpleNamespace(monotonic=lambda: now[0]))
    run = Run(torch.nn.Linear(1, 1), task, SETTINGS)
    bar = Progress(terminal())
    drawn = []
    monkeypatch.setattr(
        bar, "_draw", lambda run, draw=bar._draw: (drawn.append(run.step), draw(run))
    )
    with bar:
        bar.at_start(run)
        for _ in range(1000):
            now[0] += 0.001
            run.step += 1
            bar.after_step(run)
    assert 9 <= len(drawn) <= 11


def test_a_training_that_fails_leaves_the_terminal_as_it_was(task):
    console, before = terminal(), (sys.stdout, sys.stderr)
    with pytest.raises(KeyboardInterrupt), Progress(console) as bar:
        train(task, bar, Break(5))
    assert (sys.stdout, sys.stderr) == before
    text = console.file.getvalue()
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")
    train(task, bar)  # it can be used again
    assert "Ended after 24 steps" in console.file.getvalue()
    assert (sys.stdout, sys.stderr) == before


def test_after_a_resume_the_bar_starts_where_the_checkpoint_was(task, tmp_path):
    consoles = [terminal(), terminal()]
    rest = iter(consoles)
    break_and_resume(task, tmp_path, lambda: Progress(next(rest)))
    assert " 10/24 loss" in consoles[1].file.getvalue()
    assert " 0/24" not in consoles[1].file.getvalue()


def test_fewer_steps_than_epochs_are_one_epoch(task):
    text = io.StringIO()
    train(task, Progress(Console(file=text)), settings=Training(batch=100, epochs=50, steps=2))
    assert text.getvalue().startswith("epoch 1/1 step 2/2 auc 0.")


def test_a_limit_of_steps_limits_the_epochs(task):
    text = io.StringIO()
    settings = Training(batch=100, epochs=50, steps=12, eval_every=4)
    train(task, Progress(Console(file=text)), settings=settings)
    epochs = [line.split(" step")[0] for line in text.getvalue().splitlines()[:-1]]
    assert epochs == ["epoch 1/2", "epoch 1/2", "epoch 2/2"]


def test_a_stream_with_a_loss_of_its_own_has_no_metric_to_show():
    def batches():
        while True:
            yield torch.ones(4, 1), torch.zeros(4)

    text = io.StringIO()
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Flatten(0))
    loss = torch.nn.functional.mse_loss
    hooks = [Progress(Console(file=text))]
    tl.stream(model, batches(), Training(steps=4, eval_every=2), loss=loss, hooks=hooks)
    first, second, _ = text.getvalue().splitlines()
    assert first.startswith("stream step 2/4 auc nan loss ")
    assert "best" not in second


def test_a_table_shows_the_most_open_and_the_most_closed_gates(task):
    console = terminal()
    model = models.build("mlp", task)
    tl.attach(model, task.fields, at="net", seed=0)
    table = LiveGates(rows=1, console=console)._table(Run(model, task, SETTINGS))
    console.print(table)
    assert "gates at step 0" in console.file.getvalue()
    assert "price" in console.file.getvalue()


# HistoryFile


def rows_of(path):
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    with path.open(newline="") as file:
        return [
            {name: float(value) for name, value in row.items() if value}
            for row in csv.DictReader(file)
        ]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_history_file_grows_by_a_line_per_evaluation(task, tmp_path, suffix):
    path = tmp_path / "new" / f"history.{suffix}"
    counts = []

    class Watch(Hook):
        def after_eval(self, run, record):
            counts.append((len(rows_of(path)), rows_of(path)[-1] == record))

    run = train(task, Gates(), HistoryFile(path), Watch())
    assert rows_of(path) == run.history
    assert counts == [(count, True) for count in range(1, 7)]
    assert rows_of(path)[-1]["gate_a/b"] == 0.1


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_after_a_resume_each_evaluation_is_in_the_file_once(task, tmp_path, suffix):
    path = tmp_path / f"history.{suffix}"
    seen = []

    class Watch(Hook):
        def after_eval(self, run, record):
            seen.append([row["step"] for row in rows_of(path)])

    run = break_and_resume(task, tmp_path, lambda: HistoryFile(path), Watch())
    assert seen[3:5] == [
        [4, 8, 12, 16],
        [4, 8, 12],
    ]  # the last evaluation before the break, the first after it
    assert [row["step"] for row in rows_of(path)] == [4, 8, 12, 16, 20, 24]
    assert rows_of(path) == run.history


def test_a_new_run_overwrites_the_file(task, tmp_path):
    path = tmp_path / "history.csv"
    for _ in range(2):
        run = train(task, HistoryFile(path))
    assert rows_of(path) == run.history


def test_a_key_that_appears_late_becomes_a_column(task, tmp_path):
    path = tmp_path / "history.csv"

    class Late(Hook):
        def after_eval(self, run, record):
            if run.step > 8:
                record["own, late"] = 7.0
            if run.step == 20:
                del record["lr"]

    run = train(task, Late(), HistoryFile(path))
    assert rows_of(path) == run.history
    assert ["own, late" in row for row in rows_of(path)] == [False, False, True, True, True, True]


def test_what_hooks_behind_it_add_is_in_the_file_at_the_end(task, tmp_path):
    run = train(task, HistoryFile(tmp_path / "history.csv"), Gates())
    assert rows_of(tmp_path / "history.csv") == run.history
    assert "gate_price" in run.history[0]


def test_a_history_file_of_another_kind_is_refused(tmp_path):
    with pytest.raises(
        tl.TorchleapError, match=r"ends in .csv or .jsonl, but path is '.*history.parquet'"
    ):
        HistoryFile(tmp_path / "history.parquet")


# TensorBoard


def curves(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder)).Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_shows_each_evaluation_once_also_after_a_resume(task, tmp_path):
    pytest.importorskip("tensorboard")
    run = break_and_resume(task, tmp_path, lambda: TensorBoard(tmp_path / "runs"))
    found = curves(tmp_path / "runs")
    assert {
        "train/loss",
        "train/lr",
        "valid/auc",
        "valid/log_loss",
        "gates/price",
        "gates/a_b",
    } <= set(found)
    assert "train/step" not in found
    assert found["valid/auc"] == [
        (record["step"], pytest.approx(record["valid_auc"])) for record in run.history
    ]
    assert [step for step, _ in found["gates/a_b"]] == [4, 8, 12, 16, 20, 24]


def test_a_killed_run_has_its_evaluations_in_tensorboard(task, tmp_path):
    pytest.importorskip("tensorboard")
    with pytest.raises(KeyboardInterrupt):
        train(task, TensorBoard(tmp_path), Break(11))
    assert [step for step, _ in curves(tmp_path)["valid/auc"]] == [4, 8]


# MLflow


@pytest.fixture
def uri(tmp_path, monkeypatch):
    for package in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return f"sqlite:///{tmp_path}/mlflow.db"


def test_mlflow_has_the_settings_and_each_evaluation_once_also_after_a_resume(task, tmp_path, uri):
    from mlflow import MlflowClient

    run = break_and_resume(task, tmp_path, lambda: MLflow("clicks", "first", uri))
    client = MlflowClient(tracking_uri=uri)
    [logged] = client.search_runs([client.get_experiment_by_name("clicks").experiment_id])
    assert (logged.info.status, logged.info.run_name) == ("FINISHED", "first")
    assert (
        logged.data.params.items()
        >= {"batch": "100", "lr": "0.001", "fields": "2", "train_rows": "800"}.items()
    )
    assert {"train_loss", "valid_auc", "gate_price", "gate_a_b"} <= set(logged.data.metrics)
    points = [
        (point.step, point.value)
        for point in client.get_metric_history(logged.info.run_id, "valid_auc")
    ]
    assert points == [
        (record["step"], pytest.approx(record["valid_auc"])) for record in run.history
    ]


def test_two_trainings_with_one_callback_are_two_runs_in_mlflow(task, uri):
    from mlflow import MlflowClient

    callback = MLflow(tracking_uri=uri)
    for _ in range(2):
        train(task, callback)
    assert len(MlflowClient(tracking_uri=uri).search_runs(["0"])) == 2


def test_a_place_that_mlflow_cannot_use_is_refused_before_the_training(task, uri):
    with pytest.raises(
        tl.TorchleapError, match="MLflow cannot begin a run: .* Give another tracking_uri="
    ):
        train(task, MLflow(tracking_uri="nowhere://x"))


def test_a_server_that_fails_is_a_warning_and_does_not_end_the_training(task, uri, monkeypatch):
    from mlflow import MlflowClient, MlflowException

    class Away(Hook):
        def after_step(self, run):
            for name in ("log_batch", "set_terminated"):
                monkeypatch.setattr(MlflowClient, name, refuse)

    def refuse(*arguments, **named):
        raise MlflowException("the server is away")

    with pytest.warns(UserWarning, match="MLflow did not take") as caught:
        run = train(task, MLflow(tracking_uri=uri), Away())
    sentences = [str(warning.message) for warning in caught if "MLflow" in str(warning.message)]
    assert sentences[0] == "MLflow did not take the metrics of step 4: the server is away"
    assert sentences[-1] == "MLflow did not take the end of the run: the server is away"
    assert (run.step, len(sentences)) == (24, 7)
