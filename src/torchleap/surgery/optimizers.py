"""Optimizers for a pruned model that continue where those of the model before it were."""

import copy
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from .._common.errors import SurgeryError
from ..distributed import ranks
from .rules.written import Origin, made_from

Parameters = dict[str, nn.Parameter]

POWERS = {  # a weight that was scaled by s has gradients that are scaled by 1 / s
    **dict.fromkeys(("exp_avg", "exp_inf", "momentum_buffer", "grad_avg"), 1),
    **dict.fromkeys(("exp_avg_sq", "max_exp_avg_sq", "sum", "square_avg"), 2),
    "acc_delta": -2,
    "ax": -1,
}


@dataclass(frozen=True)
class Kept:
    """The parameters that a pruned model has kept of the model before.

    Attributes:
        names: The names of the old parameters that were kept, by their ids. Of the names of tied
            weights it is the first that is left.
        old: The parameters of the model that was pruned, by name.
        new: The parameters of the pruned model, by name.
        pruned: The pruned model.
        origins: Where its cut parameters come from, by name.
    """

    names: dict[int, str]
    old: Parameters
    new: Parameters
    pruned: nn.Module
    origins: Mapping[str, Origin]

    @classmethod
    def of(cls, model: nn.Module, pruned: nn.Module, origins: Mapping[str, Origin]) -> "Kept":
        """Compare a model with the one that it was pruned to."""
        old = dict(model.named_parameters(remove_duplicate=False))
        new = dict(pruned.named_parameters(remove_duplicate=False))
        names = {id(one): name for name, one in reversed(old.items()) if name in new}
        return cls(names, old, new, pruned, origins)

    @property
    def added(self) -> list[str]:
        """The names of the parameters that surgery made."""
        return [name for name in self.new if name not in self.old]

    def state(self, name: str, old: Tensor, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state of a weight, cut and scaled as the weight was.

        It is empty, so that the weight starts again, where an entry cannot be cut.

        Args:
            name: The name of the weight.
            old: The weight before it was cut.
            state: Its state in the optimizer of the model that was pruned.
        """
        is_cut = name in self.origins or old.shape != self.new[name].shape
        for value in state.values():
            is_whole = isinstance(value, Tensor) and value.shape == old.shape
            is_number = not isinstance(value, Tensor | list) or getattr(value, "ndim", 1) == 0
            if is_cut and not (is_whole and name in self.origins) and not is_number:
                return {}
        return {key: self.entry(key, value, old, name) for key, value in state.items()}

    def entry(self, key: str, value: Any, old: Tensor, name: str) -> Any:
        """Return one entry of a weight's state, cut and scaled as the weight was.

        Args:
            key: The name of the entry, such as "exp_avg".
            value: The entry.
            old: The weight before it was cut.
            name: The name of the weight.
        """
        if not isinstance(value, Tensor):
            return copy.deepcopy(value)
        value = ranks.full(value)
        origin = self.origins.get(name)
        if origin is None or value.shape != old.shape:
            return value.clone()
        part = origin.take(value)
        if origin.factor is None or key not in POWERS:
            return part.clone()
        return (part.double() / origin.factor.to(part.device) ** POWERS[key]).to(part.dtype)


def carried(optimizer: Optimizer, kept: Kept, *, with_state: bool = True) -> Optimizer:
    """Return an optimizer of the pruned model in place of one of the model before.

    It has the same class and settings, and its groups in the same places, so that schedulers fit;
    a group whose weights are all gone is empty. A bias that surgery made joins the group of its
    layer's weight, and so do weights for sums of features. Instead of a wrapper, such as
    Accelerate's, the optimizer in it is returned.

    Args:
        optimizer: The optimizer of the model that was pruned; it is not changed.
        kept: The parameters that are left.
        with_state: Whether the state of the weights that were kept is carried over.
    """
    optimizer = unwrapped(optimizer)
    held = {id(parameter) for parameter in parameters_of(optimizer)}
    if not held & {id(parameter) for parameter in kept.old.values()}:
        raise SurgeryError(
            "Expected the optimizer of the model that was pruned, "
            "but it holds none of its parameters."
        )
    own_way = getattr(optimizer, "for_pruned", None)
    if own_way is not None:
        own: Optimizer = own_way(kept)
        return own
    accepted = inspect.signature(type(optimizer)).parameters
    defaults = {name: value for name, value in optimizer.defaults.items() if name in accepted}
    new = type(optimizer)(_kept_groups(optimizer, kept), **defaults)
    # The state of LBFGS belongs to all weights together, in one line.
    if with_state and not isinstance(optimizer, LBFGS):
        for parameter, state in optimizer.state.items():
            name = kept.names.get(id(parameter))
            found = {} if name is None else kept.state(name, parameter, state)
            if name is not None and found:
                new.state[kept.new[name]] = found
    return new


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer in a wrapper, such as Accelerate's; another one as it is."""
    inner = vars(optimizer).get("optimizer")
    return unwrapped(inner) if isinstance(inner, Optimizer) else optimizer


def parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """Return all parameters of an optimizer."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _kept_groups(optimizer: Optimizer, kept: Kept) -> list[dict[str, Any]]:
    """Return the groups of an optimizer with the parameters of the pruned model."""
    groups = []
    for group in optimizer.param_groups:
        names = [kept.names[id(one)] for one in group["params"] if id(one) in kept.names]
        own = {id(one) for one in group["params"]}
        owned = {name for name, one in kept.old.items() if id(one) in own}
        added = [name for name in kept.added if _weight_beside(name) in owned]
        settings = {**group, "params": [kept.new[name] for name in (*names, *added)]}
        settings.pop("param_names", None)
        groups.append(settings)
    return groups


def _weight_beside(name: str) -> str:
    """Return the weight whose group a parameter that surgery made joins.

    >>> _weight_beside("deep.0.bias"), _weight_beside("deep.0.weight_of_sums")
    ('deep.0.weight', 'deep.0.weight')
    """
    return made_from(name) or name.removesuffix("bias") + "weight"
