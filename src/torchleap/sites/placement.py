"""Put gates into a model: check the sites, try them on an example, register gates and hooks."""

from typing import Any, get_args

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .._common.errors import AttachError
from ..distributed.fsdp import units
from ..distributed.torchrec import is_collection, is_sharded
from ..fields import Field, Fields
from ..gates.leap import LeAP
from ..gates.module import BUFFERS
from .calls import as_call, few_rows
from .collection import CollectionSite
from .model import ModelHooks, hooks_of, sites_of
from .places import find_module
from .site import Side, Site
from .values import fields_of, same_tensor

HIDDEN = "_ddp_params_and_buffers_to_ignore"  # DDP's name for tensors that it is to leave alone


def put_into(
    model: nn.Module, names: list[str], side: Side, gates: LeAP, example: Any = None
) -> tuple[Site, ...]:
    """Put gates into a model, in place; every check comes before the first change.

    Args:
        model: The model.
        names: The names of the submodules whose values are gated.
        side: Whether their "input" or their "output" is gated.
        gates: The gates.
        example: One batch, as the model takes it, to check everything at once; None checks at the
            first batch.
    """
    sites = _checked_sites(model, names, side, gates)
    label = " and ".join(site.label for site in sites)
    if example is not None:
        _try_example(model, sites, gates, example, label)
    elif gates.fields is None and len(sites) > 1:
        raise AttachError(
            "Several sites need fields=, or example= to learn them from: "
            "the first batch comes too late for all."
        )
    _follow(model, sites[0], gates)
    gates.train(find_module(model, sites[0].at).training)
    gates.context.name_place(label)
    for site in sites:
        site.hold(model, gates)
    kept = None if example is None else few_rows(as_call(example))
    hooks = ModelHooks(sites[0].siblings, sites[0].path, kept)
    hooks.hold(model)
    _hide_buffers(model, hooks.path)
    return tuple(sites)


def take_out_of(model: nn.Module, sites: tuple[Site, ...]) -> None:
    """Take the gates of these sites out of a model: it is again exactly what it was."""
    for module, hook in list(hooks_of(model)):
        owners = hook.siblings if isinstance(hook, Site) else hook.sites
        if owners != sites:  # another plug-in may have come after this one
            continue
        hook.release(module)
        if isinstance(hook, ModelHooks):
            _show_buffers(module, hook.path)


def site_at(model: nn.Module, at: str, side: Side) -> Site:
    """Return a site at the submodule called `at`; nothing is changed yet."""
    module = find_module(model, at)
    if not is_collection(module) and not is_sharded(module):
        return Site(at, side, module)
    if side == "input":
        raise AttachError(
            f"at={at!r} is a collection of embedding tables, which receives ids. Use side='output'."
        )
    wrapped = any(isinstance(one, DistributedDataParallel) for one in model.modules())
    if is_sharded(module) and (wrapped or HIDDEN in vars(model)):
        raise AttachError(
            f"at={at!r} is sharded, and the model around it is wrapped in DistributedDataParallel "
            "already, which would leave out the gates' gradient. Attach before "
            "DistributedModelParallel(model), or call it with init_data_parallel=False, attach, "
            "and then init_data_parallel()."
        )
    if module is model:
        return Site(at, side, module)
    return CollectionSite(at, model)


def _checked_sites(model: nn.Module, names: list[str], side: Side, gates: LeAP) -> list[Site]:
    """Return the sites after all checks that need no batch; nothing is changed."""
    if units(model):
        raise AttachError(
            "This model is sharded already, so its ranks would not share the gates. "
            "attach() before fully_shard()."
        )
    if side not in get_args(Side):
        raise AttachError(f"side must be 'input' or 'output', but is {side!r}.")
    if not names or len(set(names)) < len(names):
        raise AttachError(f"at= must name one or more submodules, each once, but is {names}.")
    for _, site in sites_of(model):
        raise AttachError(
            f"This model has gates already, {site.label}. Call detach() on its plugin first."
        )
    if any(module is gates for module in model.modules()):
        raise AttachError(
            "These gates are a part of the model already; attach() needs gates of their own."
        )
    if len({id(find_module(model, name)) for name in names}) < len(names):
        raise AttachError(f"at={names} names one submodule twice, under two names. Name it once.")
    sites = [site_at(model, name, side) for name in names]
    for site in sites:
        site.gate_together_with(sites)
    return sites


def _try_example(
    model: nn.Module, sites: list[Site], gates: LeAP, example: Any, label: str
) -> None:
    """Run the example once, without gates, and check the values that will arrive at each site."""
    seen = _watch(model, sites, example)
    unseen = [repr(site.at) for site in sites if site.at not in seen]
    if unseen:
        raise AttachError(
            f"The model never calls {' and '.join(unseen)} on the example. Choose another at=."
        )
    owners = {site: _first_with(seen[site.at], sites, seen) for site in sites}
    if gates.fields is None:
        found: list[Field] = []
        for site in sites:
            if owners[site] is site:
                found.extend(fields_of(seen[site.at], site.label))
        gates.lay_out(Fields(found))
    trial = LeAP(gates.arriving).eval()
    _follow(model, sites[0], trial)
    trial.context.name_place(label)
    gates.context.name_place(label)
    if len(sites) == 1:
        sites[0].gate_value(trial, seen[sites[0].at])
        return
    for site in sites:
        if owners[site] is site:
            site.take_columns(site.find_columns(trial.known_fields(), seen[site.at]))
        else:
            site.take_columns(owners[site].columns)


def _first_with(value: Any, sites: list[Site], seen: dict[str, Any]) -> Site:
    """Return the first site that receives this very tensor."""
    return next(site for site in sites if same_tensor(seen[site.at], value))


def _watch(model: nn.Module, sites: list[Site], example: Any) -> dict[str, Any]:
    """Return the first value that arrives at each site; the model is left as it was."""
    seen: dict[str, Any] = {}
    handles = []
    for site in sites:
        module = find_module(model, site.at)
        if site.side == "input":

            def see_input(_: Any, args: Any, kwargs: Any, site: Site = site) -> None:
                value = site.first_argument(args, kwargs)[0]
                seen.setdefault(site.at, value)

            handles.append(module.register_forward_pre_hook(see_input, with_kwargs=True))
        else:

            def see_output(_: Any, args: Any, output: Any, site: Site = site) -> None:
                seen.setdefault(site.at, output)

            handles.append(module.register_forward_hook(see_output))
    modes = {module: module.training for module in model.modules()}
    args, kwargs = as_call(example)
    try:
        with torch.no_grad():
            model.eval()(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
        for module, training in modes.items():
            module.training = training
    return seen


def _follow(model: nn.Module, site: Site, gates: LeAP) -> None:
    """Put the gates on the device of their site, or of the model, in its precision or better."""
    module = find_module(model, site.at)
    for tensor in (*module.parameters(), *module.buffers(), *model.parameters(), *model.buffers()):
        if tensor.is_floating_point() and not tensor.is_meta:  # some tables wait for their place
            is_double = tensor.dtype == torch.float64  # promote_types knows no 8-bit floats
            gates.to(device=tensor.device, dtype=torch.float64 if is_double else torch.float32)
            return


def _hide_buffers(model: nn.Module, path: tuple[str, ...]) -> None:
    """Keep DDP from sending the gates' buffers in every step: gates agree by themselves."""
    vars(model)[HIDDEN] = [*vars(model).get(HIDDEN, ()), *_buffer_names(path)]


def _show_buffers(model: nn.Module, path: tuple[str, ...]) -> None:
    """Undo `_hide_buffers`; tensors that a user has hidden from DDP stay hidden."""
    own = set(_buffer_names(path))
    others = [name for name in vars(model).pop(HIDDEN, ()) if name not in own]
    if others:
        vars(model)[HIDDEN] = others


def _buffer_names(path: tuple[str, ...]) -> list[str]:
    return [".".join((*path, name)) for name in BUFFERS]
