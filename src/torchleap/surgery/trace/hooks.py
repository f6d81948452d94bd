"""Hooks that users hang on the modules of a model, and where the gates' hooks stand among them.

A hook is Python that cannot be proven harmless, so a module with hooks is never followed: the pruned model calls it as it is.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from ..._common.errors import SurgeryError
from ...sites.calls import Call
from ...sites.model import ModelHooks
from ...sites.site import Site


def is_ours(hook: Any) -> bool:
    """Say whether a hook puts gates into the model."""
    return hook is _nothing or isinstance(getattr(hook, "__self__", None), Site | ModelHooks)


def has_hooks(module: nn.Module) -> bool:
    """Say whether users have hung hooks on a module, for the way forwards or backwards."""
    backward = (*module._backward_hooks, *module._backward_pre_hooks)
    forward = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    return bool(backward) or any(not is_ours(hook) for hook in forward)


@contextmanager
def muted(model: nn.Module) -> Iterator[None]:
    """Let the gates' hooks do nothing within this context; all hooks keep their order."""
    held = []
    for module in model.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            held += [(hooks, key, hook) for key, hook in hooks.items() if is_ours(hook)]
    for hooks, key, _ in held:
        hooks[key] = _nothing
    try:
        yield
    finally:
        for hooks, key, hook in held:
            hooks[key] = hook


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


def place_of_gates(module: nn.Module, site: Site) -> tuple[int, int]:
    """Count a site's hooks of users that come before the gates, and those that come behind them."""
    hooks = module._forward_pre_hooks if site.side == "input" else module._forward_hooks
    held = list(hooks.values())
    place = next(
        (i for i, hook in enumerate(held) if getattr(hook, "__self__", None) is site), len(held)
    )
    before = sum(not is_ours(hook) for hook in held[:place])
    behind = sum(not is_ours(hook) for hook in held[place + 1 :])
    return before, behind


def move_last_hook(module: nn.Module, site: Site, place: int) -> None:
    """Put the hook that was hung last behind so many others."""
    hooks: Any = module._forward_pre_hooks if site.side == "input" else module._forward_hooks
    for key in list(hooks)[place:-1]:
        hooks.move_to_end(key)


def refuse_hooks_between(module: nn.Module, site: Site, *, is_root: bool) -> None:
    """Refuse to cut where a hook stands between the gates and what the pruned model calls.

    The pruned model folds the gates into what is before or behind a site's module; the hooks of the model itself run around
    all that it computes.
    """
    before, behind = place_of_gates(module, site)
    outside = before if site.side == "input" else behind
    inside = behind if site.side == "input" else before
    if inside if is_root else outside:
        raise SurgeryError(f"a hook stands between the gates and {site.at or 'the model'}")


def through_hooks(model: nn.Module, call: Call) -> Call:
    """Return what forward() is called with, after the model's own pre-hooks, but for those of the gates."""
    args, kwargs = call
    for key, hook in model._forward_pre_hooks.items():
        if is_ours(hook):
            continue
        changed: Any
        if key in model._forward_pre_hooks_with_kwargs:
            changed = hook(model, args, kwargs)
            args, kwargs = (args, kwargs) if changed is None else changed
        else:
            changed = hook(model, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
    return args, kwargs
