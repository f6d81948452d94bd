"""Where the gates are registered in a model: names of submodules, and the way along them."""

import torch
from torch import nn

from .._common.errors import AttachError, nearest

CHILD = "torchleap"  # the gates' name in the layer that holds them
CONTAINERS = nn.Sequential | nn.ModuleList | nn.ModuleDict | torch.jit.ScriptModule


def find_module(model: nn.Module, at: str) -> nn.Module:
    """Return the submodule called `at`, or raise an error with the nearest names."""
    if not isinstance(at, str):
        raise AttachError(
            f"at= must be the name of a submodule, or a list of names, but is {at!r}."
        )
    known = dict(model.named_modules(remove_duplicate=False))
    if at not in known:
        names = [name for name in known if name]
        raise AttachError(f"The model has no submodule at={at!r}. {nearest(at, names)}")
    module: nn.Module = known[at]
    if type(module).forward is nn.Module.forward:
        members = [f"{at}.{name}".lstrip(".") for name, _ in module.named_children()]
        raise AttachError(
            f"at={at!r} is a {type(module).__name__} without a forward of its own, so it is never "
            f"called itself. Choose one of its members: {', '.join(members)}."
        )
    return module


def names_in(path: str) -> tuple[str, ...]:
    """Return the names in a dotted path; "" has none."""
    return tuple(path.split(".")) if path else ()


def walk(module: nn.Module, names: tuple[str, ...]) -> nn.Module:
    """Return the module that the names lead to, or raise an error that the gates were removed."""
    for name in names:
        child = module._modules.get(name)
        if child is None:
            raise AttachError(
                f"The gates are gone: {type(module).__name__} has no {name!r} any more, as if a "
                "layer was replaced. Detach before changing layers, and attach again."
            )
        module = child
    return module


def home_inside(at: str, module: nn.Module) -> tuple[str, ...]:
    """Return the names of the first layer without children in a module, which can hold gates."""
    for path, layer in module.named_modules():
        if not _has_children(layer) and not isinstance(layer, CONTAINERS):
            _refuse_occupied(at, layer)
            return names_in(path)
    raise AttachError(
        f"at={at!r} is an empty {type(module).__name__}, which cannot hold the gates. "
        "Put an nn.Identity() there."
    )


def home_beside(at: str, model: nn.Module) -> tuple[str, ...]:
    """Return the names of the nearest module around `at` that can hold gates, or of a layer."""
    names = names_in(at)
    around = [names[:depth] for depth in reversed(range(len(names)))]
    inside = set(find_module(model, at).modules())
    elsewhere = []
    for path, layer in model.named_modules():
        if layer not in inside and not _has_children(layer):
            elsewhere.append(names_in(path))
    for home in (*around, *elsewhere):
        layer = walk(model, home)
        if not isinstance(layer, CONTAINERS):
            _refuse_occupied(at, layer)
            return home
    raise AttachError(
        f"at={at!r} stands alone in a container, which cannot hold the gates. "
        "Put an nn.Identity() beside it."
    )


def _has_children(layer: nn.Module) -> bool:
    return next(layer.children(), None) is not None


def _refuse_occupied(at: str, layer: nn.Module) -> None:
    if hasattr(layer, CHILD):
        raise AttachError(f"at={at!r}: {type(layer).__name__} has an attribute {CHILD!r} already.")
