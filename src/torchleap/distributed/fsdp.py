"""FSDP2 (`fully_shard`): find sharded modules, and copy a sharded model into a plain one.

Nothing of FSDP is imported here: a model can only be sharded where that has happened already.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .._common.copies import copied, memo_of
from .._common.errors import SurgeryError
from . import ranks

FSDP = "torch.distributed.fsdp"
HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
# the beginnings of the names of FSDP's attributes
MARKS = ("__composable_api_state_key", "_is_fsdp_managed_module", "_fsdp_use_orig_params")


def units(model: nn.Module) -> list[Any]:
    """Return the modules that `fully_shard` was called on."""
    kind = getattr(sys.modules.get(FSDP), "FSDPModule", None)
    if kind is None:
        return []
    return [module for module in model.modules() if isinstance(module, kind)]


def at_rest(model: nn.Module) -> None:
    """Put the sharded parameters, which optimizers know, back into the model.

    A forward pass may have left complete ones in their place.
    """
    for unit in units(model):
        unit.reshard()


@torch.no_grad()
def unsharded(model: nn.Module) -> nn.Module:
    """Return a copy with complete weights, in its original classes and without FSDP's hooks.

    All ranks have to call this, and all get the same copy: buffers that FSDP leaves to each rank,
    such as those of batch norm, are those of the first rank.
    """
    at_rest(model)
    memo = memo_of(model, share=False)
    for parameter in model.parameters():
        if ranks.is_sharded(parameter):
            complete = ranks.full(parameter.detach()).clone()
            memo[id(parameter)] = nn.Parameter(complete, parameter.requires_grad)
    for module in model.modules():
        for part in _parts_of_fsdp(module):
            memo[id(part)] = part  # not copied
    try:
        with _plain_classes(model):
            plain = copied(model, memo)
    except Exception as error:
        raise SurgeryError(
            "pruning a sharded model needs a plain copy of it, but "
            f"{type(model).__name__} cannot be copied: {error}. Load get_model_state_dict(model, "
            "options=StateDictOptions(full_state_dict=True)) into an attached model that is not "
            "sharded, and prune that"
        ) from error
    for module in plain.modules():
        _strip(module)
    for buffer in plain.buffers():
        ranks.broadcast(buffer)
    return plain


@contextmanager
def _plain_classes(model: nn.Module) -> Iterator[None]:
    """Give modules their original classes within this context; those of FSDP cannot be copied."""
    kinds = {module: type(module) for module in units(model)}
    try:
        for module, kind in kinds.items():
            bases = kind.__mro__  # (FSDPNet, FSDPModule, Net, ...)
            module.__class__ = bases[bases.index(sys.modules[FSDP].FSDPModule) + 1]
        yield
    finally:
        for module, kind in kinds.items():
            module.__class__ = kind


def _parts_of_fsdp(module: nn.Module) -> Iterator[Any]:
    """Yield the hooks and attributes that FSDP has put into a module, without the parameters."""
    for name in HOOKS:
        for hook in getattr(module, name).values():
            if _is_of_fsdp(hook):
                yield hook
    for name, value in vars(module).items():
        if name.startswith(MARKS):
            yield value


def _strip(module: nn.Module) -> None:
    """Remove the hooks and attributes of FSDP from a module."""
    for name in HOOKS:
        hooks = getattr(module, name)
        for key, hook in list(hooks.items()):
            if _is_of_fsdp(hook):
                del hooks[key]
                module._forward_pre_hooks_with_kwargs.pop(key, None)
                module._forward_hooks_always_called.pop(key, None)
    for name in list(vars(module)):
        if name.startswith(MARKS):
            del vars(module)[name]


def _is_of_fsdp(hook: Any) -> bool:
    return (getattr(hook, "__module__", None) or "").startswith(FSDP)
