"""Put gates into a model: check the sites, try them on an example, register gates and hooks."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .._common.errors import AttachError, FieldError
from ..distributed.fsdp import units
from ..distributed.torchrec import is_collection, is_sharded
from ..fields import Field, Fields
from ..gates.layout import Layout
from ..gates.leap import LeAP
from ..gates.module import BUFFERS
from .arrivals import Arrival, Seen, arrivals_of, first_with, values_at, watch
from .calls import as_call, few_rows
from .collection import CollectionSite
from .columns import find_columns
from .model import ModelHooks, hooks_of, sites_of
from .notation import Entry, Notation, Place
from .places import find_module
from .site import Site
from .values import fields_of, same_tensor, width_of

HIDDEN = "_ddp_params_and_buffers_to_ignore"  # DDP's name for tensors that it is to leave alone

MOST_LABELS = 3  # sites that a message names


def put_into(
    model: nn.Module, notation: Notation, gates: LeAP, example: Any = None
) -> tuple[Site, ...]:
    """Put gates into a model, in place; every check comes before the first change.

    Args:
        model: The model.
        notation: The places whose values are gated, with their fields.
        gates: The gates.
        example: One batch, as the model takes it, to check everything at once; None checks at the
            first batch.
    """
    sites = _checked_sites(model, notation, gates)
    seen = None if example is None else watch(model, sites, example)
    if seen is not None and len(sites) == 1 and gates.fields is not None:
        notation = _one_of_several_calls(notation, sites[0], gates.fields, seen)
    if notation.is_by_place:
        sites = _named_sites(model, notation, sites, gates, seen)
    elif seen is not None:
        _try_example(model, sites, gates, seen)
    elif gates.fields is None and len(sites) > 1:
        raise AttachError(
            "Several sites need fields=, or example= to learn them from: "
            "the first batch comes too late for all."
        )
    _follow(model, sites[0], gates)
    gates.train(find_module(model, sites[0].at).training)
    gates.context.name_place(_label_of(sites))
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


def site_at(model: nn.Module, place: Place, *, is_named: bool = False) -> Site:
    """Return a site at a place of the model; nothing is changed yet."""
    module = find_module(model, place.at)
    if not is_collection(module) and not is_sharded(module):
        return Site(place, module, is_named=is_named)
    if place.side == "input":
        raise AttachError(
            f"at={place.at!r} is a collection of embedding tables, which receives ids. "
            "Use side='output'."
        )
    wrapped = any(isinstance(one, DistributedDataParallel) for one in model.modules())
    if is_sharded(module) and (wrapped or HIDDEN in vars(model)):
        raise AttachError(
            f"at={place.at!r} is sharded, and the model around it is wrapped in "
            "DistributedDataParallel already, which would leave out the gates' gradient. Attach "
            "before DistributedModelParallel(model), or call it with init_data_parallel=False, "
            "attach, and then init_data_parallel()."
        )
    if module is model:
        return Site(place, module, is_named=is_named)
    return CollectionSite(place, model, is_named=is_named)


def _checked_sites(model: nn.Module, notation: Notation, gates: LeAP) -> list[Site]:
    """Return the sites after all checks that need no batch; nothing is changed."""
    if units(model):
        raise AttachError(
            "This model is sharded already, so its ranks would not share the gates. "
            "attach() before fully_shard()."
        )
    for _, site in sites_of(model):
        raise AttachError(
            f"This model has gates already, {site.label}. Call detach() on its plugin first."
        )
    if any(module is gates for module in model.modules()):
        raise AttachError(
            "These gates are a part of the model already; attach() needs gates of their own."
        )
    places = [entry.place for entry in notation.entries]
    _refuse_unknown(model, places)
    modules = {(find_module(model, place.at), replace(place, at="")) for place in places}
    if len(modules) < len(places):
        names = [place.at for place in places]
        raise AttachError(f"at={names} names one submodule twice, under two names. Name it once.")
    sites = [site_at(model, place, is_named=notation.is_by_place) for place in places]
    for site in sites:
        site.gate_together_with(sites)
    return sites


def _refuse_unknown(model: nn.Module, places: list[Place]) -> None:
    """Refuse all names that are not those of submodules in one error."""
    errors = []
    for place in places:
        try:
            find_module(model, place.at)
        except AttachError as error:
            errors.append(str(error))
    if errors:
        raise AttachError(" ".join(dict.fromkeys(errors)))


def _label_of(sites: list[Site]) -> str:
    """Return how messages call all sites together."""
    labels = [site.label for site in sites[:MOST_LABELS]]
    if len(sites) > MOST_LABELS:
        labels.append(f"{len(sites) - MOST_LABELS} more")
    return " and ".join(labels)


def _one_of_several_calls(notation: Notation, site: Site, fields: Fields, seen: Seen) -> Notation:
    """Return the notation for a module whose calls differ in width: the widths decide."""
    widths = {width_of(value) for value in values_at(site, seen)}
    if len(widths) == 1 or notation.is_by_place:
        return notation
    entry = Entry(site.place, dict(zip(fields.names, fields.widths, strict=True)))
    return Notation([entry], fields)


def _named_sites(
    model: nn.Module, notation: Notation, sites: list[Site], gates: LeAP, seen: Seen | None
) -> list[Site]:
    """Return the sites of places with named fields, and lay out the gates over them."""
    if seen is None:
        found = [_without_example(entry) for entry in notation.entries]
        first = list(range(len(found)))
    else:
        found = arrivals_of(notation.entries, sites, seen)
        first = [first_with(found, arrival) for arrival in found]
    owners = sorted(set(first))
    given = [] if notation.fields is None else list(notation.fields)
    layout, columns = Layout.over([found[owner].widths for owner in owners], given)
    named = [site_at(model, arrival.place, is_named=True) for arrival in found]
    for site, owner in zip(named, first, strict=True):
        site.gate_together_with(named)
        site.take_columns(columns[owners.index(owner)])
    gates.lay_out(layout)
    trial = _trial_of(model, named, gates)
    for site, arrival in zip(named, found, strict=True):
        if seen is not None:
            site.know_sharers()
            site.gate_value(trial, arrival.value)
    return named


def _without_example(entry: Entry) -> Arrival:
    """Return what arrives at a place as the notation says."""
    widths = {name: width for name, width in (entry.widths or {}).items() if width is not None}
    if len(widths) < len(entry.widths or {}):
        raise AttachError(
            f"{entry.place.label}: the width of {list(entry.widths or {})} is not known yet. "
            "Give example= to attach(), or the widths at each place, at={place: {name: width}}."
        )
    return Arrival(entry.place, widths, None)


def _try_example(model: nn.Module, sites: list[Site], gates: LeAP, seen: Seen) -> None:
    """Check the values that arrive at each site in the example."""
    values = {site: values_at(site, seen)[0] for site in sites}
    owners = {site: _first_with(values, site) for site in sites}
    if gates.fields is None:
        found: list[Field] = []
        for site in sites:
            if owners[site] is site:
                found.extend(fields_of(values[site], site.label))
        gates.lay_out(Fields(found))
    trial = _trial_of(model, sites, gates)
    if len(sites) == 1:
        sites[0].gate_value(trial, values[sites[0]])
        return
    for site in sites:
        if owners[site] is site:
            site.take_columns(find_columns(site, trial.known_fields(), values[site]))
        else:
            site.take_columns(owners[site].columns)
    _refuse_unreached(sites, gates.arriving_fields())


def _refuse_unreached(sites: list[Site], fields: Fields) -> None:
    """Refuse fields whose columns no site receives."""
    starts = [site.columns for site in sites if site.columns is not None]
    missing = []
    for name in fields.names:
        own = fields.columns(name)
        if not any(one.start <= own.start and own.stop <= one.stop for one in starts):
            missing.append(name)
    if missing:
        raise FieldError(
            f"The fields {missing} reach no site on the example. Leave them out, or name their "
            "place in at=."
        )


def _trial_of(model: nn.Module, sites: list[Site], gates: LeAP) -> LeAP:
    """Return gates of the same layout, to try the example on."""
    trial = LeAP(None)
    trial.lay_out(gates.known_layout())
    _follow(model, sites[0], trial)
    for one in (trial, gates):
        one.context.name_place(_label_of(sites))
    return trial.eval()


def _first_with(values: dict[Site, Any], site: Site) -> Site:
    """Return the first site that receives this very tensor."""
    return next(one for one in values if same_tensor(values[one], values[site]))


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
