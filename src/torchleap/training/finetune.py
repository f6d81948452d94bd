"""Fine-tuning a pruned model: its optimizer goes on where it was, and the best weights are kept."""

import copy
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._common.checks import is_number, is_whole, refuse_settings
from .._common.errors import SurgeryError
from ..distributed import ranks
from ..surgery import Plan, plan_of

Batch = TypeVar("Batch")

_POWER = {  # a weight that was scaled by s has gradients that are scaled by 1 / s
    **dict.fromkeys(("exp_avg", "momentum_buffer", "grad_avg"), 1),
    **dict.fromkeys(("exp_avg_sq", "max_exp_avg_sq", "sum", "square_avg"), 2),
}


def carry_over(optimizer: Optimizer, model: nn.Module, pruned: nn.Module) -> Optimizer:
    """An optimizer for the pruned model that goes on where the old one is: the same settings, the state of the kept weights.

    Args:
        optimizer: Of `model`; it is left alone.
        model: The model that `pruned` was pruned from.
    """
    plan = plan_of(pruned)
    old = dict(model.named_parameters(remove_duplicate=False))
    new = dict(pruned.named_parameters(remove_duplicate=False))
    name_of = {
        id(parameter): name for name, parameter in reversed(old.items()) if name in new
    }  # tied weights: one that is left
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not held & {id(parameter) for parameter in old.values()}:
        raise SurgeryError(
            "Expected the optimizer of the model that was pruned, but it holds none of its parameters."
        )
    groups = []
    for group in optimizer.param_groups:
        names = [name_of[id(p)] for p in group["params"] if id(p) in name_of]
        created = [
            n for n in new if n not in old and n.removesuffix("bias") + "weight" in names
        ]  # biases that surgery made
        if names:
            settings = {
                key: value for key, value in group.items() if key not in ("params", "param_names")
            }
            groups.append({**settings, "params": [new[name] for name in (*names, *created)]})
    accepted = inspect.signature(type(optimizer)).parameters
    defaults = {key: value for key, value in optimizer.defaults.items() if key in accepted}
    fresh = type(optimizer)(groups, **defaults)
    for name in name_of.values():
        parameter = old[name]
        if parameter in optimizer.state:
            state = optimizer.state[parameter]
            fresh.state[new[name]] = {
                key: _carried(key, value, parameter, plan, name) for key, value in state.items()
            }
    return fresh


def _carried(key: str, value: Any, old: Tensor, plan: Plan, name: str) -> Any:
    if not isinstance(value, Tensor):
        return copy.deepcopy(value)
    value = ranks.full(value)
    origin = plan.origins.get(name)
    if origin is None or value.shape != old.shape:
        return value.clone()
    part = origin.take(value)
    if origin.factor is None or key not in _POWER:
        return part.clone()
    return (part.double() / origin.factor.to(part.device) ** _POWER[key]).to(part.dtype)


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
    """Train on the batches until the metric no longer rises, and leave the model, in eval mode, with its best weights.

    The metric at the start counts as well: fine-tuning never leaves a model worse than it was.

    Args:
        batches: Each is seen once; for several epochs chain them.
        loss: Of the model on a batch, such as `lambda model, batch: criterion(model(batch[0]), batch[1])`.
        validate: The metric on held-out rows, the higher the better; called in eval mode and without gradients.
        every: Batches between two looks at the metric.
        patience: Looks without a new best after which it stops.

    Returns:
        The metric at the start and at each look.
    """
    refuse_settings(
        {
            f"every must be a whole number of batches, at least 1, but is {every!r}": is_whole(
                every
            )
            and every >= 1,
            f"patience must be a whole number of at least 1, but is {patience!r}": is_whole(
                patience
            )
            and patience >= 1,
        }
    )
    history = [_look(model, validate)]
    best = copy.deepcopy(model.state_dict())
    unseen = 0  # steps since the last look
    for step, batch in enumerate(batches, start=1):
        model.train()
        optimizer.zero_grad()
        value = loss(model, batch)
        if not bool(torch.isfinite(value)):
            model.load_state_dict(best)
            raise SurgeryError(
                f"The loss is {float(value)} at fine-tuning step {step}. Lower the learning rate."
            )
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        unseen = step % every
        if unseen == 0:
            history.append(_look(model, validate))
            best = _better(model, history, best)
            if len(history) - 1 - history.index(max(history)) >= patience:
                break
    if unseen:
        history.append(_look(model, validate))
        best = _better(model, history, best)
    model.load_state_dict(best)
    model.eval()
    return history


def _better(model: nn.Module, history: list[float], best: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(model.state_dict()) if history[-1] > max(history[:-1]) else best


def _look(model: nn.Module, validate: Callable[[nn.Module], float]) -> float:
    model.eval()
    with torch.no_grad():
        metric = validate(model)
    if not is_number(metric):
        raise SurgeryError(f"validate must return a number, but returned {metric!r}.")
    return float(metric)
