"""fit: train on a task, epoch by epoch, until its metric no longer rises.

For rows without an end see `stream`.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._common.errors import WriteError
from .._common.files import replace_file
from .._common.sealed import load_sealed, save_sealed
from .._common.text import first_line
from ..data.task import Batch, Task
from ..distributed import ranks
from .evaluate import evaluate, large_batch, predict, predict_together
from .hook import Hook, Run
from .loop import Loop, Signals
from .settings import Training, TrainingError
from .states import check_format, differences, restore_rng, restoring
from .step import optimizers_for
from .trained_on import note_training

__all__ = [
    "Hook",
    "Run",
    "Training",
    "TrainingError",
    "evaluate",
    "fit",
    "large_batch",
    "optimizers_for",
    "predict",
]

AGAIN = "Remove it to start again."
SUSPECTS = 5  # fields that a message names, at most


def fit(
    model: nn.Module,
    task: Task,
    training: Training | None = None,
    *,
    hooks: Sequence[Hook] = (),
    optimizers: Sequence[Optimizer] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    keep_checkpoint: bool = False,
) -> Run:
    """Train until the metric on the validation rows no longer rises, and keep the best weights.

    The same seed on the same machine gives the same weights, also after a resume. On several ranks
    (`torchrun`) each trains on its part of every batch, and all end with the same weights; the
    first one writes the checkpoint, which another number of ranks can resume as well.

    Args:
        model: A model of (ids, numbers), as in `torchleap.models`; it may have gates. It is trained
            in place and left in eval mode.
        task: The task.
        training: The settings; None is `Training()`.
        hooks: The parts that methods and callbacks add, called in this order.
        optimizers: The optimizers of the model; None is Adam, see `optimizers_for`.
        checkpoint: A file that the run is saved to and, if it exists, resumed from; it is removed
            at the end. Ctrl-C saves it first. All ranks have to reach it. None saves nothing.
        keep_checkpoint: Whether the file stays: the same call then only loads the finished run.
    """
    training = training or Training()
    if len(task.train) < training.batch:
        raise TrainingError(
            f"Expected at least one batch of {training.batch:,} train rows, "
            f"but found {len(task.train):,} rows. Lower batch=."
        )
    path = None
    cure = " with checkpoint= to lose less."
    if checkpoint is not None:
        path = Path(checkpoint)
        cure = f": it resumes from {path}."
    with ranks.explained(f"Start the job again{cure}"):
        run = _Loop(model, task, training, hooks, optimizers, path).train()
        model.load_state_dict(run.best)
        model.eval()
        note_training(model, task)
        ranks.barrier()  # a rank may still have to read the checkpoint
    if path is not None and not keep_checkpoint and ranks.is_first():
        path.unlink(missing_ok=True)
    return run


class _Loop(Loop):
    """One run of `fit`."""

    saved = ("step", "history", "best", "best_metric", "evals_since_best", "seconds", "stopped")

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        training: Training,
        hooks: Sequence[Hook],
        optimizers: Sequence[Optimizer] | None,
        path: Path | None,
    ) -> None:
        objective = task.objective
        super().__init__(
            Run(model, task, training),
            hooks,
            loss=objective.loss,
            optimizers=optimizers,
            saves=path is not None,
        )
        self.task = task
        self.path = path
        self.metric = objective.metric(training.metric)
        if self.metric.needs_group and task.valid.group is None:
            raise TrainingError(
                f"metric={self.metric.name!r} needs groups. Read the data with group=."
            )
        self.batches = task.train.batches(
            training.batch, shuffle=True, seed=training.seed, together=True
        )
        if not len(self.batches):
            raise TrainingError(
                f"Expected rows for each of {ranks.count()} ranks, but {len(task.train):,} train "
                "rows leave one without. Start fewer ranks, or hold the rows in memory."
            )
        if path is not None:
            self._resume_if_saved(path)

    def _train(self) -> None:
        run = self.run
        signals = Signals()
        while not run.stopped:
            for batch in self.batches:
                signals = self._train_batch(batch)
                if run.stopped:
                    break
                if signals.checkpoint_due or signals.interrupted:
                    self._save()
                if signals.interrupted:
                    raise KeyboardInterrupt
            if not run.stopped and self.batches.epoch >= run.training.epochs:
                run.stopped = "all epochs are done"
        if not run.best:
            self._evaluate()
        self.stop_clock()
        self._save()
        self.raise_if_interrupted(signals)

    def _train_batch(self, batch: Batch) -> Signals:
        """Train on a batch, evaluate if it is time to, and note whether the run has to stop."""
        run = self.run
        signals = Signals()
        if len(batch) > 1:  # a single row at the end of an epoch can neither be permuted nor normed
            explain = partial(self._suspects, batch)
            signals = self.train_step(batch.inputs, batch.label, explain)
        last = run.training.steps is not None and run.step == run.steps
        reasons = [hook.finished(run) for hook in self.stepper.hooks]
        finished = next(filter(None, reasons), "")
        if last or finished or self._evaluation_is_due():
            self._evaluate()
        if run.stopped:
            return signals
        if finished:
            run.stopped = finished
        elif last:
            run.stopped = "all steps are done"
        elif signals.late:
            run.stopped = self.time_limit_text()
        return signals

    def _evaluation_is_due(self) -> bool:
        every = self.run.training.eval_every
        if every is None:
            return self.batches.position == len(self.batches)
        return self.run.step % every == 0

    def _evaluate(self) -> None:
        """Evaluate the model, keep its weights if they are the best, and stop without patience."""
        with self.stepper.weights_to_evaluate():
            self._evaluate_weights()

    def _evaluate_weights(self) -> None:
        run = self.run
        rows = self.task.valid
        run.outputs = predict_together(run.model, rows)
        metrics = rows.task.objective.evaluate(rows.label, run.outputs, rows.group)
        self.add_record(metrics)
        gain = self.metric.gain(metrics[self.metric.name])
        run.evals_since_best += 1
        if gain > run.best_metric or not run.best:
            run.best_metric = gain
            run.evals_since_best = 0
            weights = run.model.state_dict()
            run.best = {name: tensor.detach().clone() for name, tensor in weights.items()}
            return
        patience = run.training.patience
        hooks = self.stepper.hooks
        if run.evals_since_best >= patience and all(hook.settled(run) for hook in hooks):
            run.stopped = f"{self.metric.name} did not get better in {patience} evaluations"

    def _suspects(self, batch: Batch) -> str:
        """Return a sentence with the fields that may have made a loss that is not finite.

        These are the fields with values that are not finite, or else those with the largest.
        """
        inputs = getattr(self.run.model, "inputs", None)
        if not isinstance(inputs, nn.Module):
            return "Suspicious fields: none."
        fields = self.task.fields
        with torch.no_grad():
            all_fields = inputs(*batch.inputs)
        largest = {}
        for name in fields.names:
            largest[name] = float(all_fields[:, fields.columns(name)].abs().max())
        suspects = [name for name in fields.names if not largest[name] < float("inf")]
        if not suspects:
            suspects = sorted(largest, key=lambda name: -largest[name])[:3]
        return f"Suspicious fields: {', '.join(suspects[:SUSPECTS])}."

    # Checkpoints

    def _save(self) -> None:
        """Write a checkpoint, if there is to be one: the first rank for all."""
        if self.path is None:
            return
        self.stepper.share_buffers()
        rng = ranks.all_gather(torch.get_rng_state())
        with ranks.first_before_others():
            if ranks.is_first():
                self._write(self.path, rng)
        self.pace.begin(self.run.step)

    def _write(self, path: Path, rng: list[Tensor]) -> None:
        """Write a checkpoint with the state of the random generator of each rank."""
        content = {
            **self.state_dict(),
            "training": asdict(self.run.training),
            "fields": list(self.task.fields.names),
            "batches": self.batches.state_dict(),
            "random": rng,
        }
        try:
            with replace_file(path) as temporary:
                save_sealed(content, temporary)
        except (OSError, RuntimeError) as error:  # PyTorch's writer hides a full disk in the latter
            problem = str(error)
            if not isinstance(error, WriteError):
                cure = "make room or give another place"
                problem = f"{path} cannot be written: {first_line(error)}; {cure}."
            before = " The one before is complete." if path.exists() else ""
            raise TrainingError(f"The checkpoint {problem}{before} Then start again.") from error

    def _resume_if_saved(self, path: Path) -> None:
        if not path.parent.is_dir():
            raise TrainingError(
                f"Expected a folder for the checkpoint {path}, but there is no {path.parent}. "
                "Make it first."
            )
        if not ranks.from_first(path.exists()):
            return
        if not path.exists():
            raise TrainingError(
                f"The first rank has the checkpoint {path}, but rank {ranks.rank()} cannot reach "
                "it. Give another path."
            )
        self._resume(path)

    def _resume(self, path: Path) -> None:
        """Restore a checkpoint of this run; any other is refused."""
        try:
            content = load_sealed(path)
        except Exception as error:
            raise TrainingError(
                f"{path} is not a complete checkpoint of this version ({first_line(error)}). "
                f"{AGAIN}"
            ) from error
        check_format(content, path, AGAIN)
        with restoring(path, AGAIN):
            self._check(path, content)
            self.load_state_dict(content)
            self.batches.load_state_dict(content["batches"])
            rng = content["random"]
            own = rng[ranks.rank()] if len(rng) == ranks.count() else None
            restore_rng(own, self.run.training.seed, self.run.step)

    def _check(self, path: Path, content: dict[str, Any]) -> None:
        """Raise a TrainingError if a checkpoint is of other fields, weights, hooks or settings."""
        problems = []
        if content["fields"] != list(self.task.fields.names):
            problems.append("it has other fields")
        problems += differences(content, self.run.model, len(self.stepper.stateful_hooks()))
        settings = asdict(self.run.training)
        for name, value in content["training"].items():
            if value != settings.get(name):
                problems.append(f"its {name} is {value!r}, not {settings.get(name)!r}")
        if problems:
            raise TrainingError(
                f"{path} is a checkpoint of another run: {'; '.join(problems[:3])}. {AGAIN}"
            )
