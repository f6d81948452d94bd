"""Copy a model as it is and feed it constants in place of the dropped columns.

This works for models whose Python cannot be followed. It is exact, but nothing behind the gates
gets smaller. `tables` removes embedding tables in front of them.
"""

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..._common.copies import memo_of
from ...distributed.torchrec import blocks_of, is_keyed, waited, with_values
from ...gates.leap import LeAP
from ...sites.elements import like, with_entries
from ...sites.notation import Place
from ...sites.places import find_module
from ...sites.site import Site
from ...sites.values import by_position
from ..trace.hooks import move_last_hook, place_of_gates
from ..trace.tracer import Affine
from .absent import Absent, present
from .build import without_gates

CHILD = "pruned"  # the constants' name in the layer that holds them


class Feed(nn.Module):
    """Constants for the dropped columns, and scale * x + shift of the gates for the others.

    Args:
        scale: The factor of each column, (D,); 0 where it is dropped.
        shift: The summand of each column, (D,); the constant where it is dropped.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale.clone())
        self.register_buffer("shift", shift.clone())
        self.calls: dict[Place, int] = {}  # of the modules of the sites, in one pass

    def forward(self, x: Tensor, start: int, stop: int) -> Tensor:
        """Return the columns `start:stop`, given as x, with constants in place of dropped ones."""
        scale = self.scale[start:stop].reshape(x.shape[1:])
        shift = self.shift[start:stop].reshape(x.shape[1:])
        if isinstance(x, Absent):
            x = present(x, scale != 0)
        return torch.where(scale == 0, shift, x * scale + shift).to(x.dtype)


class Fed:
    """A hook like `Site` that feeds constants.

    Args:
        site: The site of the gates.
        child: The name of the `Feed` in the layer that holds it.
        places: The columns of each field that passes the site.
        columns: All columns that pass the site.
    """

    def __init__(self, site: Site, child: str, places: dict[str, slice], columns: slice) -> None:
        self.site = copy.copy(site)
        self.site.handles = []  # of the model that it was made from
        self.site.siblings = self.site.rivals = ()
        self.child = child
        self.places = places
        self.columns = columns
        self.shapes: dict[str, tuple[int, ...]] = {}  # of one row of each entry of a dict

    def hold(self, module: nn.Module) -> None:
        """Register the hook on a module."""
        if self.site.side == "input":
            module.register_forward_pre_hook(self.feed_input, with_kwargs=True)
        else:
            module.register_forward_hook(self.feed_output)

    def feed_input(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Feed an argument of the call."""
        if not self._is_due(module):
            return args, kwargs
        return self.site.with_argument(args, kwargs, partial(self.feed, module))

    def feed_output(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Feed the value that the module returns."""
        if not self._is_due(module):
            return output
        return self.site.with_part(output, partial(self.feed, module))

    def _constants(self, module: nn.Module) -> Feed:
        constants = module.get_submodule(".".join((*self.site.home, self.child)))
        assert isinstance(constants, Feed)
        return constants

    def _is_due(self, module: nn.Module) -> bool:
        """Return whether this call of the module is fed, and count it."""
        place = self.site.place
        if place.call is None:
            return True
        calls = self._constants(module).calls
        calls[place] = calls.get(place, 0) + 1
        return calls[place] == place.call + 1

    def feed(self, module: nn.Module, value: Any) -> Any:
        """Feed a tensor, a keyed tensor, a list or a dict; dropped entries of it may be missing."""
        constants = self._constants(module)
        value = waited(value)
        if is_keyed(value):
            blocks = []
            for name, block in blocks_of(value, self.site.label).items():
                place = self.places[name]
                blocks.append(constants(block, place.start, place.stop))
            return with_values(value, torch.cat(blocks, dim=1))
        if isinstance(value, tuple | list):
            entries = by_position(value, list(self.places), self.site.label)
            return like(value, list(self._fed_entries(constants, entries).values()))
        if not isinstance(value, Mapping):
            return constants(value, self.columns.start, self.columns.stop)
        return with_entries(value, self._fed_entries(constants, value), self.site.label)

    def _fed_entries(self, constants: Feed, value: Mapping[str, Any]) -> dict[str, Tensor]:
        rows = next(entry for name, entry in value.items() if name in self.places).shape[0]
        fed = {}
        for name, place in self.places.items():
            entry = value.get(name)
            if entry is None:
                entry = constants.scale.new_zeros(rows, *self.shapes[name])
            self.shapes[name] = tuple(entry.shape[1:])
            fed[name] = constants(entry, place.start, place.stop)
        return fed


class Restart:
    """A hook on a model that begins to count the calls of its modules again.

    Args:
        constants: The constants, which keep the counts.
    """

    def __init__(self, constants: Feed) -> None:
        self.constants = constants

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Forget the calls of the pass before."""
        self.constants.calls.clear()


def feed(
    model: nn.Module,
    gates: LeAP,
    sites: tuple[Site, ...],
    affine: Affine,
    *,
    shared: bool = False,
) -> nn.Module:
    """Return a copy of a model that is fed constants in place of the gates.

    Args:
        model: The attached model.
        gates: Its gates.
        sites: Where they sit.
        affine: Scale and shift of each column by the gates; the scale is 0 where it is dropped.
        shared: Whether the weights are those of the model itself instead of copies: for a model
            that is only run and counted.
    """
    small = without_gates(model, memo_of(model, share=shared))
    feed_at(small, model, gates, sites, affine)
    return small


def feed_at(
    small: nn.Module, model: nn.Module, gates: LeAP, sites: tuple[Site, ...], affine: Affine
) -> None:
    """Feed constants at these sites to a copy of a model without gates, in place.

    Args:
        small: The copy.
        model: The attached model.
        gates: Its gates.
        sites: The sites.
        affine: Scale and shift of each column by the gates.
    """
    layout = gates.known_layout()
    constants = Feed(*affine)
    for site in sites:
        module = find_module(small, site.at)
        home = module.get_submodule(".".join(site.home))
        child = _free_name(home, constants)
        home.add_module(child, constants)
        columns = site.columns or slice(0, layout.fields.dims)
        Fed(site, child, layout.blocks_in(columns), columns).hold(module)
        before, _ = place_of_gates(find_module(model, site.at), site)
        move_last_hook(module, site, before)
    if any(site.place.call is not None for site in sites):
        small.register_forward_pre_hook(Restart(constants), prepend=True)


def _free_name(home: nn.Module, constants: Feed) -> str:
    """Return a name for the constants that no earlier pruning has taken in this layer."""
    name = CHILD
    while getattr(home, name, constants) is not constants:
        name += "_again"
    return name
