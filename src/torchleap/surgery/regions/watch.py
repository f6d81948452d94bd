"""Observe what each module of a model receives on a batch, and which of it are constants."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...sites.calls import Call
from ..rules.facts import Facts
from ..trace.autocast import autocast
from ..trial.run import fresh, run, untouched


@dataclass
class Pass:
    """The calls of modules in one forward pass, by the names of the modules.

    Attributes:
        calls: The arguments of each call, before all hooks; the names are in the order of the
            first calls.
        around: The modules in whose calls the calls of each module were made.
        outputs: What each call has returned, behind all hooks.
        autocast: The settings of autocast in the calls of each module.
    """

    calls: dict[str, list[Call]] = field(default_factory=dict)
    around: dict[str, list[frozenset[str]]] = field(default_factory=dict)
    outputs: dict[str, list[Any]] = field(default_factory=dict)
    autocast: dict[str, set[Any]] = field(default_factory=dict)

    def only_call(self, path: str) -> Call | None:
        """Return the arguments of a module that is called once."""
        calls = self.calls.get(path, [])
        return calls[0] if len(calls) == 1 else None


def watch(model: nn.Module, batch: Call, *, training: bool = False) -> Pass:
    """Run a model on a batch and record the calls of all its modules.

    Args:
        model: The model; it is left as it was.
        batch: The batch. If the model does not take it, the calls before that are returned.
        training: Whether to run it in train mode.
    """
    found = Pass()
    inside: list[str] = []
    handles = []
    for path, module in model.named_modules():
        enter = partial(_enter, found, inside, path)
        leave = partial(_leave, found, inside, path)
        handles += [
            module.register_forward_pre_hook(enter, with_kwargs=True, prepend=True),
            module.register_forward_hook(leave, always_call=True),
        ]
    try:
        if training:
            _train(model, batch)
        else:
            run(model, batch)
    except Exception:  # anything: the model's own code, on a batch that it may not take
        pass
    finally:
        for handle in handles:
            handle.remove()
    return found


def _enter(found: Pass, inside: list[str], path: str, _: Any, args: Any, kwargs: Any) -> None:
    found.autocast.setdefault(path, set()).add(autocast())
    found.calls.setdefault(path, []).append(fresh((args, kwargs)))
    found.around.setdefault(path, []).append(frozenset(inside))
    inside.append(path)


def _leave(found: Pass, inside: list[str], path: str, _: Any, args: Any, output: Any) -> None:
    inside.pop()
    found.outputs.setdefault(path, []).append(output)


def _train(model: nn.Module, batch: Call) -> None:
    """Run a model in train mode, and leave it as it was."""
    modes = {module: module.training for module in model.modules()}
    # not by their versions, which running statistics do not count
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    args, kwargs = fresh(batch)
    try:
        with untouched(model), torch.random.fork_rng(), torch.no_grad():
            model.train()(*args, **kwargs)
    finally:
        for buffer, value in buffers:
            buffer.copy_(value)
        for module, mode in modes.items():
            module.training = mode


@dataclass
class Dyes:
    """Numbers that stand for the constants in a model, to see where each of them arrives.

    Attributes:
        dyed: The numbers; each is used for one element only.
        values: The constants that they stand for.
    """

    dyed: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    values: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))

    def stand_for(self, values: Tensor) -> Tensor:
        """Return new numbers that stand for these constants, in the same shape."""
        rng = torch.Generator().manual_seed(len(self.dyed))
        dyes = 1 + torch.rand(values.shape, generator=rng, dtype=torch.float64)
        self.dyed = torch.cat([self.dyed, dyes.flatten()])
        self.values = torch.cat([self.values, values.detach().cpu().double().flatten()])
        return dyes

    def constants_in(self, row: Tensor) -> Facts:
        """Return which elements of a row are dyes, and the constants that they stand for."""
        dyed, order = self.dyed.to(row.dtype).sort()
        row = row.cpu()
        place = torch.searchsorted(dyed, row.contiguous()).clamp_max(len(dyed) - 1)
        values = self.values[order][place].to(row.dtype)
        return Facts(dyed[place] == row, values.double())


def constants(
    module: nn.Module, path: str, passes: Sequence[Pass], dyed: Sequence[Pass], dyes: Dyes
) -> dict[str, Facts]:
    """Return the constants of dropped columns in the arguments of a module, by argument.

    Args:
        module: The module.
        path: Its name.
        passes: Passes on several batches.
        dyed: Passes in which dyes stand for the constants.
        dyes: The dyes.
    """
    given = [_arguments(module, each.only_call(path)) for each in passes]
    other = [_arguments(module, each.only_call(path)) for each in dyed]
    found = {}
    for name in given[0]:
        values = [each.get(name) for each in given]
        facts = _constants_of(values, [each.get(name) for each in other], dyes)
        if facts is not None:
            found[name] = facts
    return found


def _arguments(module: nn.Module, call: Call | None) -> Mapping[str, Any]:
    if call is None:
        return {}
    args, kwargs = call
    try:
        return inspect.signature(module.forward).bind(*args, **kwargs).arguments
    except TypeError:
        return {}


def _constants_of(values: Sequence[Any], dyed: Sequence[Any], dyes: Dyes) -> Facts | None:
    """Return the constants of one argument; None if it has none."""
    if not all(_has_columns(value, values[0]) for value in (*values, *dyed)):
        return None
    facts = dyes.constants_in(dyed[0][0])
    const = facts.const
    for value in dyed:
        const = const & (value == dyed[0][0]).all(0).cpu()
    for value in values:
        const = const & (value.cpu() == facts.value.to(value.dtype)).all(0)
    return Facts(const, facts.value) if const.any() else None


def _has_columns(value: Any, first: Any) -> bool:
    """Return whether a value has rows of numbers, of the same shape as the first one."""
    if type(value) is not Tensor or type(first) is not Tensor:  # such as one of a removed table
        return False
    rows = value.dim() > 1 and len(value) > 0 and value.is_floating_point()
    return rows and value.shape[1:] == first.shape[1:]
