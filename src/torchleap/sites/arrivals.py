"""The values that arrive at named places in the example, and the columns of their fields."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from .._common.errors import AttachError, FieldError, TorchleapError
from .._common.text import plural
from ..fields import Fields
from .calls import as_call
from .notation import Entry, Place, refuse_overlaps
from .places import find_module
from .site import Site
from .values import (
    by_name,
    by_position,
    is_sequence,
    not_fields,
    refuse,
    same_tensor,
    width_of,
)

Seen = dict[tuple[str, str], list[Any]]  # what passes each side of a module, call by call


class Arrival(NamedTuple):
    """A value that arrives at a place in the example.

    Attributes:
        place: The place, with the number of the call if there are several.
        widths: The width of each field in the value.
        value: The value.
    """

    place: Place
    widths: dict[str, int]
    value: Any


def watch(model: nn.Module, sites: Sequence[Site], example: Any) -> Seen:
    """Run the example once, without gates; the model is left as it was."""
    seen: Seen = {}
    handles = []
    for key in dict.fromkeys((site.at, site.side) for site in sites):
        calls = seen.setdefault(key, [])
        module = find_module(model, key[0])
        if key[1] == "input":

            def see_input(_: Any, args: Any, kwargs: Any, calls: list[Any] = calls) -> None:
                calls.append((args, kwargs))

            handles.append(module.register_forward_pre_hook(see_input, with_kwargs=True))
        else:

            def see_output(_: Any, args: Any, output: Any, calls: list[Any] = calls) -> None:
                calls.append(output)

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
    unseen = [repr(at) for (at, _), calls in seen.items() if not calls]
    if unseen:
        raise AttachError(
            f"The model never calls {' and '.join(unseen)} on the example. Choose another at=."
        )
    return seen


def values_at(site: Site, seen: Seen) -> list[Any]:
    """Return the value at a site in each call of its module."""
    return [site.value_in(call) for call in seen[site.at, site.side]]


def arrivals_of(entries: Sequence[Entry], sites: Sequence[Site], seen: Seen) -> list[Arrival]:
    """Return the value of each call that has the fields of a place; all problems in one error.

    Args:
        entries: The fields at each place.
        sites: The site of each place.
        seen: What has passed in the example.
    """
    found: list[Arrival] = []
    errors: list[TorchleapError] = []
    for entry, site in zip(entries, sites, strict=True):
        try:
            found += _arrivals(entry, entries, site, seen[site.at, site.side])
        except TorchleapError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise type(errors[0])(" ".join(dict.fromkeys(map(str, errors))))
    refuse_overlaps([replace(one.place, call=one.place.call or 0) for one in found])
    _refuse_other_rows(found)
    _warn_of_calls_beside(found, sites, seen)
    return found


def first_with(arrivals: Sequence[Arrival], arrival: Arrival) -> int:
    """Return the number of the first arrival of this very tensor; it must have the same fields."""
    for number, earlier in enumerate(arrivals):
        if not same_tensor(earlier.value, arrival.value):
            continue
        if earlier.widths != arrival.widths:
            raise FieldError(
                f"{list(earlier.widths)} and {list(arrival.widths)} have the same columns: "
                f"{earlier.place.label} and {arrival.place.label} receive the same tensor. Leave "
                "out one of them, or give both the same fields."
            )
        return number
    raise AssertionError("the arrival itself is one of them")


def _arrivals(
    entry: Entry, entries: Sequence[Entry], site: Site, calls: list[Any]
) -> list[Arrival]:
    """Return the calls with the fields of one place."""
    place = entry.place
    found = []
    errors = []
    for number in _calls_of(place, entries, len(calls)):
        named = place if len(calls) == 1 else replace(place, call=number)
        try:
            value = site.value_in(calls[number])
            widths = widths_in(value, entry.widths or {}, named.label)
        except TorchleapError as error:
            errors.append(error)
        else:
            found.append(Arrival(named, widths, value))
    if found:
        return found
    if len(errors) == 1:
        raise errors[0]
    raise FieldError(_choose_a_call(site, calls))


def _calls_of(place: Place, entries: Sequence[Entry], count: int) -> list[int]:
    """Return the calls that a place may mean: its own, or all that no other entry names."""
    if place.call is None:
        named = {other.place.call for other in entries if replace(other.place, call=None) == place}
        return [number for number in range(count) if number not in named]
    if place.call >= count:
        raise AttachError(
            f"{place.label}: expected a call {place.call}, counted from 0, but found "
            f"{plural(count, 'call')} on the example. Choose another call=."
        )
    return [place.call]


def _choose_a_call(site: Site, calls: list[Any]) -> str:
    found = [f"call={number} {_described(site, call)}" for number, call in enumerate(calls)]
    return (
        f"{site.label}: none of the {plural(len(calls), 'call')} on the example has the fields "
        f"that are named here. Found: {', '.join(found)}. Name each call with its fields: "
        f"at={{tl.Place({site.at!r}, call=0): {{...}}}}."
    )


def _described(site: Site, call: Any) -> str:
    """Return how wide the value of a call is, for a message."""
    try:
        value = site.value_in(call)
    except AttachError:
        return "has no such part"
    width = width_of(value)
    return f"is a {type(value).__name__}" if width is None else f"is {width} wide"


def widths_in(value: Any, widths: Mapping[str, int | None], label: str) -> dict[str, int]:
    """Return the width of each field in a value; raise if it does not have them.

    Args:
        value: A tensor, dict, keyed tensor, or a tuple or list of one tensor per field.
        widths: The width that each field should have; None is that of the value.
        label: How messages call the place.
    """
    value = by_name(value, label)
    names = list(widths)
    if is_sequence(value):
        value = by_position(value, names, label)
    if isinstance(value, Mapping):
        return _widths_of_entries(value, widths, label)
    width = width_of(value)
    if width is None:
        raise not_fields(value, label)
    expected = {name: width if known is None else known for name, known in widths.items()}
    if sum(expected.values()) != width:
        raise FieldError(
            f"{label} receives {width} columns, but its fields sum to {sum(expected.values())}. "
            f"{Fields(expected).describe()} Give the missing field, correct a width, or choose "
            "another place."
        )
    return expected


def _widths_of_entries(
    value: Mapping[str, Any], widths: Mapping[str, int | None], label: str
) -> dict[str, int]:
    """Return the width of each field that is an entry of a dict."""
    found = {}
    missing = [name for name in widths if not isinstance(value.get(name), Tensor)]
    if missing:
        names = ", ".join(map(repr, list(value)[:8]))
        raise FieldError(
            f"{label} receives a dict with {names}, but no tensor for {missing}. Name the entry, "
            "as in tl.Place(at, part='name'), or choose another place."
        )
    for name, width in widths.items():
        found[name] = math.prod(value[name].shape[1:]) if width is None else width
    refuse(value, Fields(found), list(found), label)
    return found


def _refuse_other_rows(arrivals: Sequence[Arrival]) -> None:
    """Refuse parts of a field that differ in their rows: one permutation cannot serve them."""
    rows: dict[str, dict[int, str]] = {}
    for arrival in arrivals:
        leaves = tree_leaves(by_name(arrival.value, arrival.place.label))
        (count, *_) = [leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()]
        for name in arrival.widths:
            rows.setdefault(name, {}).setdefault(count, arrival.place.label)
    problems = []
    for name, places in rows.items():
        if len(places) > 1:
            found = " and ".join(f"{count} ({label})" for count, label in places.items())
            problems.append(f"{name!r} has {found}")
    if problems:
        raise FieldError(
            "Expected the same number of rows at every place of a field, but "
            f"{'; '.join(problems)}. Choose places that all have one row per row of the batch, or "
            "give each place a field of its own."
        )


def _warn_of_calls_beside(arrivals: Sequence[Arrival], sites: Sequence[Site], seen: Seen) -> None:
    """Warn of calls of a module that pass beside the gates."""
    for at, side in dict.fromkeys((site.at, site.side) for site in sites):
        gated = {one.place.call for one in arrivals if (one.place.at, one.place.side) == (at, side)}
        beside = set(range(len(seen[at, side]))) - gated
        if None in gated or not beside:
            continue
        listed = " and ".join(f"call={number}" for number in sorted(beside))
        warnings.warn(
            f"at={at!r} ({side}) is called {plural(len(seen[at, side]), 'time')} on the example, "
            f"but {listed} has other fields than those that are named, and passes beside the "
            "gates: closed fields may still reach the model there. Give it a place: "
            f"tl.Place({at!r}, call={min(beside)}).",
            stacklevel=6,
        )
