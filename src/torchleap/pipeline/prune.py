"""The smaller model: gates that know the means of all fields, pruning, and fine-tuning."""

import os
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from ..data.task import Task
from ..plugin import Plugin, attach
from ..selection import Selection
from ..training.finetune import fit_pruned
from ..training.fit import Hook, Run, Training

BATCHES_OF_MEANS = 50
EXAMPLE_ROWS = 64
EPOCHS = 4  # of fine-tuning, at most


def with_means(model: nn.Module, task: Task, seed: int) -> Plugin:
    """Attach open gates to a trained model and let them see rows, so that they know all means.

    The plugin is then ready to mask and to prune fields.

    Args:
        model: A model as `torchleap.models.build` returns it; it is changed in place.
        task: The task whose train rows the means are taken from.
        seed: The seed of the order of these rows.
    """
    plugin = attach(model, task.fields, at="net", init=100.0, seed=seed)
    batches = task.train.batches(min(4096, len(task.train)), shuffle=True, seed=seed)
    with torch.no_grad(), plugin.held_out():
        for _, batch in zip(range(BATCHES_OF_MEANS), batches, strict=False):
            model(*batch.inputs)
    return plugin


def prune_and_finetune(
    plugin: Plugin,
    selection: Selection,
    task: Task,
    training: Training,
    *,
    trained: Run | None = None,
    callbacks: Sequence[Hook] = (),
    checkpoint: str | os.PathLike[str] | None = None,
) -> nn.Module:
    """Return the model without the dropped fields, fine-tuned unless that makes it worse.

    Args:
        plugin: The gates of the trained model, which is left as it is.
        selection: The fields to keep.
        task: The data to fine-tune on.
        training: The settings of the training before; fine-tuning takes 0.3 times its learning
            rate, for four epochs at most.
        trained: The run that trained the model, whose optimizers continue; None uses new ones.
        callbacks: Hooks that watch the fine-tuning.
        checkpoint: A file to resume the fine-tuning from, which is kept; None saves nothing.
    """
    example = next(iter(task.valid.batches(min(EXAMPLE_ROWS, len(task.valid))))).inputs
    small = plugin.prune(selection, example=example, time_limit=None)
    gentle = replace(
        training,
        epochs=EPOCHS,
        eval_every=max(1, training.steps_per_epoch(len(task.train)) // 4),
        patience=3,
        lr=0.3 * training.lr,
    )
    fit_pruned(
        small,
        task,
        gentle,
        trained=trained,
        hooks=callbacks,
        checkpoint=checkpoint,
        keep_checkpoint=True,
    )
    return small.eval()
