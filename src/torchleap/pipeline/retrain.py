"""retrain: a fresh model on the kept fields, measured on the test rows."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from ..data.task import Task
from ..models import Backbone, build
from ..selection import Selection
from ..training.fit import Hook, Run, Training, evaluate, fit

FEWEST_ROWS = 32  # of a batch: the statistics of fewer are noise
MOST_ROWS = 4096
STEPS_PER_EPOCH = 200  # about: gates need steps


@dataclass(frozen=True)
class RetrainResult:
    """A model that was trained on the kept fields alone.

    Attributes:
        model: The model with its best weights, in eval mode.
        metrics: Each metric on validation and test rows, such as "test_auc".
        seconds: The time of the training.
        run: The course of the training.
    """

    model: nn.Module = field(repr=False)
    metrics: dict[str, float]
    seconds: float
    run: Run = field(repr=False)


def retrain(
    task: Task,
    selection: Selection | None = None,
    *,
    model: str | Backbone = "wide_deep",
    training: Training | None = None,
    seed: int = 0,
    callbacks: Sequence[Hook] = (),
    checkpoint: str | os.PathLike[str] | None = None,
    keep_checkpoint: bool = False,
) -> RetrainResult:
    """Train a fresh plain model on the kept fields and measure it on the test rows.

    Args:
        task: The data.
        selection: The fields to keep; None keeps all.
        model: The backbone, or its name.
        training: The settings of the training; None is the default with a suitable batch.
        seed: The seed of the weights and of the order of the rows.
        callbacks: Hooks that watch the training, as in `torchleap.callbacks`.
        checkpoint: A file to save the training to and, if it exists, to resume from; it is
            removed at the end. None saves nothing.
        keep_checkpoint: Keep that file: the same call then loads the finished training.
    """
    kept = task if selection is None else task.only(selection)
    run = trained(
        kept,
        model=model,
        training=seeded(training, task, seed),
        seed=seed,
        callbacks=callbacks,
        checkpoint=checkpoint,
        keep_checkpoint=keep_checkpoint,
    )
    metrics = {}
    for rows in (kept.valid, kept.test):
        for name, value in evaluate(run.model, rows).items():
            metrics[f"{rows.part}_{name}"] = value
    return RetrainResult(run.model, metrics, run.seconds, run)


def trained(
    task: Task,
    *,
    model: str | Backbone = "wide_deep",
    training: Training | None = None,
    seed: int = 0,
    callbacks: Sequence[Hook] = (),
    checkpoint: str | os.PathLike[str] | None = None,
    keep_checkpoint: bool = False,
) -> Run:
    """Train a fresh plain model on all fields of a task; its test rows are not read.

    The arguments are those of `retrain`.
    """
    torch.manual_seed(seed)
    return fit(
        build(model, task),
        task,
        seeded(training, task, seed),
        hooks=callbacks,
        checkpoint=checkpoint,
        keep_checkpoint=keep_checkpoint,
    )


def seeded(training: Training | None, task: Task, seed: int) -> Training:
    """Return the settings with a seed; without settings, the default with a suitable batch."""
    if training is None:
        training = Training(batch=suited_batch(task))
    return replace(training, seed=seed)


def suited_batch(task: Task) -> int:
    """Return the rows per step that suit the number of train rows."""
    rows = len(task.train)
    suited = min(MOST_ROWS, rows // STEPS_PER_EPOCH)
    return min(rows, max(FEWEST_ROWS, suited))
