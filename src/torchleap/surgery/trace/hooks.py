"""Handle the hooks that users register on modules, and the place of the gates' hooks among them.

A hook is Python that cannot be proven harmless, so a module with hooks is never followed: the
pruned model calls it as it is.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from ..._common.errors import SurgeryError
from ...sites.calls import Call
from ...sites.model import ModelHooks
from ...sites.site import Site
from ..trial.run import fresh


def is_ours(hook: Any) -> bool:
    """Return whether a hook puts gates into the model."""
    return hook is _nothing or isinstance(getattr(hook, "__self__", None), Site | ModelHooks)


def has_hooks(module: nn.Module) -> bool:
    """Return whether a module has hooks of users, for the forward or the backward pass."""
    if module._backward_hooks or module._backward_pre_hooks:
        return True
    forward = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    return any(not is_ours(hook) for hook in forward)


@contextmanager
def muted(model: nn.Module) -> Iterator[None]:
    """Disable the gates' hooks within this context; all hooks keep their order."""
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
    """Return the number of a site's hooks of users before the gates, and of those behind them."""
    held = list(_hooks_at(module, site).values())
    gates = [place for place, hook in enumerate(held) if getattr(hook, "__self__", None) is site]
    place = gates[0] if gates else len(held)
    before = sum(not is_ours(hook) for hook in held[:place])
    behind = sum(not is_ours(hook) for hook in held[place + 1 :])
    return before, behind


def _hooks_at(module: nn.Module, site: Site) -> Any:
    return module._forward_pre_hooks if site.side == "input" else module._forward_hooks


def move_last_hook(module: nn.Module, site: Site, place: int) -> None:
    """Move the hook that was registered last to this place among a site's hooks."""
    hooks = _hooks_at(module, site)
    for key in list(hooks)[place:-1]:
        hooks.move_to_end(key)


def refuse_hooks_between(module: nn.Module, site: Site, *, is_root: bool) -> None:
    """Refuse to cut where a hook stands between the gates and the code that the pruned model calls.

    The pruned model folds the gates into the layers before or behind a site's module; the hooks of
    the model itself run around everything that it computes.
    """
    before, behind = place_of_gates(module, site)
    between = before
    if (site.side == "input") == is_root:
        between = behind
    if between:
        raise SurgeryError(f"a hook stands between the gates and {site.at or 'the model'}")


def bind(model: nn.Module, example: Call) -> dict[str, Any]:
    """Return the example's value of each argument of forward(), after the model's own pre-hooks."""
    args, kwargs = _through_hooks(model, fresh(example))
    signature = inspect.signature(model.forward)
    none: dict[str, Any] = {
        "VAR_POSITIONAL": (),
        "VAR_KEYWORD": {},
    }  # unlike others, these have no default
    found: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind.name in none:
            found[name] = none[parameter.kind.name]
    try:
        return found | signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise SurgeryError(
            f"The example does not fit forward(): {error}. Give a batch as the model takes it."
        ) from error


def _through_hooks(model: nn.Module, call: Call) -> Call:
    """Return the arguments of forward() after the model's own pre-hooks, except the gates'."""
    args, kwargs = call
    for key, hook in model._forward_pre_hooks.items():
        if is_ours(hook):
            continue
        changed: Any
        if key in model._forward_pre_hooks_with_kwargs:
            changed = hook(model, args, kwargs)
            if changed is not None:
                args, kwargs = changed
        else:
            changed = hook(model, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
    return args, kwargs
