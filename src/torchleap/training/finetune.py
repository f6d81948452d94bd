"""Fine-tune a pruned model: its optimizer continues, and the better weights are kept."""

import copy
import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._common.checks import check_arguments, is_number, whole
from .._common.errors import SurgeryError
from ..data.task import Task
from ..surgery import plan_of
from ..surgery.optimizers import Kept, carried, parameters_of
from .evaluate import evaluate
from .fit import fit
from .hook import Hook, Run
from .settings import Training
from .step import optimizers_for

Batch = TypeVar("Batch")


def fit_pruned(
    pruned: nn.Module,
    task: Task,
    training: Training,
    *,
    trained: Run | None = None,
    hooks: Sequence[Hook] = (),
    checkpoint: str | os.PathLike[str] | None = None,
    keep_checkpoint: bool = False,
) -> Run:
    """Fine-tune a pruned model with `fit`, and keep its weights from before if these were better.

    Fine-tuning never leaves the model with a worse `training.metric` on the validation rows.

    Args:
        pruned: The model that `plugin.prune` returned; it is trained in place.
        task: The task that the model was trained on.
        training: How to train; its learning rate also replaces that of carried optimizers.
        trained: The run that trained the model before it was pruned. Its optimizers continue, as
            `carry_over` describes. By default the pruned model gets new optimizers.
        hooks: Hooks of the training, as in `fit`.
        checkpoint: A file to save the run to and to resume it from, as in `fit`.
        keep_checkpoint: Whether that file stays at the end, as in `fit`.
    """
    metric = task.objective.metric(training.metric)
    before = metric.gain(evaluate(pruned, task.valid, together=True)[metric.name])
    weights = copy.deepcopy(pruned.state_dict())
    optimizers = None
    if trained is not None:
        optimizers = _carry_over_all(trained, pruned, training)
    run = fit(
        pruned,
        task,
        training,
        hooks=hooks,
        optimizers=optimizers,
        checkpoint=checkpoint,
        keep_checkpoint=keep_checkpoint,
    )
    if run.best_metric < before:
        pruned.load_state_dict(weights)
    return run


def _carry_over_all(trained: Run, pruned: nn.Module, training: Training) -> list[Optimizer]:
    """Return optimizers for all parameters of a pruned model, most of them carried over."""
    kept = dict(pruned.named_parameters(remove_duplicate=False))
    names = Kept.of(trained.model, pruned, plan_of(pruned).origins).names
    optimizers = []
    for optimizer in trained.optimizers:
        if any(id(parameter) in names for parameter in parameters_of(optimizer)):
            optimizers.append(carry_over(optimizer, trained.model, pruned))
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        group["lr"] = training.lr
        group.pop("initial_lr", None)  # of a schedule that has ended
    held = [parameter for optimizer in optimizers for parameter in parameters_of(optimizer)]
    known = {id(parameter) for parameter in held}
    if any(parameter.requires_grad and id(parameter) not in known for parameter in kept.values()):
        optimizers += optimizers_for(pruned, training, except_for=held)
    return optimizers


def carry_over(optimizer: Optimizer, model: nn.Module, pruned: nn.Module) -> Optimizer:
    """Return an optimizer for a pruned model that continues where the old one was.

    It has the same class and settings, and the state of the weights that were kept. A bias that
    surgery made joins the group of its layer's weight. An optimizer that is an attribute of the
    model, or of an object that it holds, is carried over by `plugin.prune` already.

    Args:
        optimizer: The optimizer of `model`; it is not changed. For a wrapper, such as Accelerate's
            AcceleratedOptimizer, a plain optimizer is returned, to be prepared again.
        model: The model that `pruned` was pruned from.
        pruned: The model that `plugin.prune` returned.
    """
    return carried(optimizer, Kept.of(model, pruned, plan_of(pruned).origins))


def finetune(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    loss: Callable[[nn.Module, Batch], Tensor],
    optimizer: Optimizer,
    validate: Callable[[nn.Module], float],
    every: int = 100,
    patience: int = 3,
) -> list[float]:
    """Train until the metric no longer rises, and keep the best weights.

    The model is left in eval mode. The metric at the start counts as well: fine-tuning never
    leaves a model worse than it was.

    Args:
        model: The model, usually a pruned one; it is trained in place.
        batches: The batches; each is seen once, so chain them for several epochs.
        loss: Returns the loss of the model on a batch, such as
            `lambda model, batch: criterion(model(batch[0]), batch[1])`.
        optimizer: The optimizer of the model; `carry_over` returns that of a pruned one.
        validate: Returns the metric on held-out rows, the higher the better; called in eval mode
            and without gradients.
        every: Batches between two evaluations of the metric.
        patience: Evaluations without a new best after which training stops.

    Returns:
        The metric at the start and at each evaluation.
    """
    check_arguments(
        every=whole(every, at_least=1, of="batches"),
        patience=whole(patience, at_least=1),
    )
    history = [_evaluate(model, validate)]
    best = copy.deepcopy(model.state_dict())
    since_evaluation = 0  # steps
    for step, batch in enumerate(batches, start=1):
        value = _train_step(model, batch, loss, optimizer)
        if not math.isfinite(value):
            model.load_state_dict(best)
            raise SurgeryError(
                f"The loss is {value} at fine-tuning step {step}. Lower the learning rate."
            )
        since_evaluation = step % every
        if since_evaluation == 0:
            history.append(_evaluate(model, validate))
            best = _better(model, history, best)
            if len(history) - 1 - history.index(max(history)) >= patience:
                break
    if since_evaluation:
        history.append(_evaluate(model, validate))
        best = _better(model, history, best)
    model.load_state_dict(best)
    model.eval()
    return history


def _train_step(
    model: nn.Module,
    batch: Batch,
    loss: Callable[[nn.Module, Batch], Tensor],
    optimizer: Optimizer,
) -> float:
    """Return the loss on a batch, and train on it if the loss is finite."""
    model.train()
    optimizer.zero_grad()
    value = loss(model, batch)
    if bool(torch.isfinite(value)):
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return value.item()


def _better(model: nn.Module, history: list[float], best: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the weights if the last metric is a new best, otherwise those before."""
    if history[-1] > max(history[:-1]):
        return copy.deepcopy(model.state_dict())
    return best


def _evaluate(model: nn.Module, validate: Callable[[nn.Module], float]) -> float:
    """Return the metric of the model in eval mode; anything but a number is a SurgeryError."""
    model.eval()
    with torch.no_grad():
        metric = validate(model)
    if not is_number(metric):
        raise SurgeryError(f"validate must return a number, but returned {metric!r}.")
    return float(metric)
