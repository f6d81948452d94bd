"""Fine-tune a pruned model: its optimizer continues, and the better weights are kept."""

import copy
import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._common.checks import check_arguments, is_number, whole
from .._common.errors import SurgeryError
from ..data.task import Task
from ..distributed import ranks
from ..surgery import Plan, plan_of
from .evaluate import evaluate
from .fit import fit
from .hook import Hook, Run
from .lazy_adam import LazyAdam
from .settings import Training
from .step import is_sparse_table, optimizers_for

Batch = TypeVar("Batch")
Parameters = dict[str, nn.Parameter]

POWERS = {  # a weight that was scaled by s has gradients that are scaled by 1 / s
    **dict.fromkeys(("exp_avg", "momentum_buffer", "grad_avg"), 1),
    **dict.fromkeys(("exp_avg_sq", "max_exp_avg_sq", "sum", "square_avg"), 2),
}


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
    names = _kept_names(dict(trained.model.named_parameters(remove_duplicate=False)), kept)
    optimizers = []
    for optimizer in trained.optimizers:
        if any(id(parameter) in names for parameter in _parameters_of(optimizer)):
            optimizers.append(carry_over(optimizer, trained.model, pruned))
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        group["lr"] = training.lr
        group.pop("initial_lr", None)  # of a schedule that has ended
    held = [parameter for optimizer in optimizers for parameter in _parameters_of(optimizer)]
    known = {id(parameter) for parameter in held}
    if any(parameter.requires_grad and id(parameter) not in known for parameter in kept.values()):
        optimizers += optimizers_for(pruned, training, except_for=held)
    return optimizers


def carry_over(optimizer: Optimizer, model: nn.Module, pruned: nn.Module) -> Optimizer:
    """Return an optimizer for a pruned model that continues where the old one was.

    It has the same class and settings, and the state of the weights that were kept. A bias that
    surgery made joins the group of its layer's weight.

    Args:
        optimizer: The optimizer of `model`; it is not changed.
        model: The model that `pruned` was pruned from.
        pruned: The model that `plugin.prune` returned.
    """
    plan = plan_of(pruned)
    old = dict(model.named_parameters(remove_duplicate=False))
    new = dict(pruned.named_parameters(remove_duplicate=False))
    held = {id(parameter) for parameter in _parameters_of(optimizer)}
    if not held & {id(parameter) for parameter in old.values()}:
        raise SurgeryError(
            "Expected the optimizer of the model that was pruned, "
            "but it holds none of its parameters."
        )
    names = _kept_names(old, new)
    if isinstance(optimizer, LazyAdam):
        return _carry_over_tables(optimizer, names, pruned, plan)
    added = [name for name in new if name not in old]
    accepted = inspect.signature(type(optimizer)).parameters
    defaults = {name: value for name, value in optimizer.defaults.items() if name in accepted}
    carried = type(optimizer)(_kept_groups(optimizer, names, new, added), **defaults)
    for parameter, state in optimizer.state.items():
        if id(parameter) in names:
            name = names[id(parameter)]
            carried.state[new[name]] = {
                key: _carried(key, value, parameter, plan, name) for key, value in state.items()
            }
    return carried


def _parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _kept_names(old: Parameters, new: Parameters) -> dict[int, str]:
    """Return the names of the old parameters that the pruned model still has, by their ids.

    Of the names of tied weights it is the first that is left.
    """
    return {id(parameter): name for name, parameter in reversed(old.items()) if name in new}


def _kept_groups(
    optimizer: Optimizer, names: Mapping[int, str], new: Parameters, added: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the groups of an optimizer with the parameters of the pruned model.

    Args:
        optimizer: The optimizer of the model that was pruned.
        names: The names of its parameters that were kept, by their ids.
        new: The parameters of the pruned model.
        added: The names of those that surgery made.
    """
    groups = []
    for group in optimizer.param_groups:
        kept = [names[id(one)] for one in group["params"] if id(one) in names]
        biases = [name for name in added if name.removesuffix("bias") + "weight" in kept]
        if kept:
            settings = {**group, "params": [new[name] for name in (*kept, *biases)]}
            settings.pop("param_names", None)
            groups.append(settings)
    return groups


def _carried(key: str, value: Any, old: Tensor, plan: Plan, name: str) -> Any:
    """Return one entry of a weight's state, cut and scaled as the weight was.

    Args:
        key: The name of the entry, such as "exp_avg".
        value: The entry.
        old: The weight before it was cut.
        plan: The plan that it was cut by.
        name: The name of the weight.
    """
    if not isinstance(value, Tensor):
        return copy.deepcopy(value)
    value = ranks.full(value)
    origin = plan.origins.get(name)
    if origin is None or value.shape != old.shape:
        return value.clone()
    part = origin.take(value)
    if origin.factor is None or key not in POWERS:
        return part.clone()
    return (part.double() / origin.factor.to(part.device) ** POWERS[key]).to(part.dtype)


def _carry_over_tables(
    optimizer: LazyAdam, names: Mapping[int, str], pruned: nn.Module, plan: Plan
) -> LazyAdam:
    """Return a LazyAdam for the tables of a pruned model, with the state of the rows kept."""
    new = {pruned.get_parameter(name): name for name in names.values()}
    tables = [
        module
        for module in pruned.modules()
        if is_sparse_table(module) and module.get_parameter("weight") in new
    ]
    group = optimizer.param_groups[0]
    carried = LazyAdam(tables, lr=group["lr"], betas=group["betas"], eps=group["eps"])
    old = {names[id(one)]: one for one in _parameters_of(optimizer) if id(one) in names}
    states = {}
    for place, weight in enumerate(_parameters_of(carried)):
        name = new[weight]
        states[place] = _carried_rows(optimizer.state[old[name]], old[name], plan, name)
    carried.load_state_dict({**carried.state_dict(), "state": states})
    return carried


def _carried_rows(state: dict[str, Any], old: Tensor, plan: Plan, name: str) -> dict[str, Any]:
    """Return the state of LazyAdam for the rows and columns of a table that were kept."""
    first, second = state["moments"].unbind(1)  # (rows, width) each
    averages = (
        _carried("exp_avg", first, old, plan, name),
        _carried("exp_avg_sq", second, old, plan, name),
    )
    last = state["last"]
    origin = plan.origins.get(name)
    if origin is not None and origin.index[0] is not None:
        last = last.index_select(0, origin.index[0].to(last.device))
    moved = {"moments": torch.stack(averages, dim=1), "last": last.clone()}
    return {**copy.deepcopy({**state, "moments": None, "last": None}), **moved}


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
