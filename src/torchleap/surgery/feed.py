"""The way that always works: the model as it is, with constants fed in place of the dropped columns.

For models whose Python cannot be followed. It is exact, but nothing behind the gates gets smaller. Embedding tables in front of
them go nevertheless, where running an example shows that they fill dropped columns and nothing else.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..gates import LeAP
from ..keyed import blocks_of, is_keyed, waited, with_values
from ..sites import Call, Site, find_module
from .build import memo_of, without_gates
from .examples import fresh, in_eval
from .hooks import move_last_hook, place_of_gates

CHILD = "pruned"  # the constants' name in the layer that holds them


class Feed(nn.Module):
    """Constants for the dropped columns, and what the gates did to the others: scale * x + shift."""

    scale: Tensor
    shift: Tensor

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale.clone())
        self.register_buffer("shift", shift.clone())

    def forward(self, x: Tensor, start: int, stop: int) -> Tensor:
        """Feed the columns `start:stop`."""
        scale, shift = (array[start:stop].reshape(x.shape[1:]) for array in (self.scale, self.shift))
        return torch.where(scale == 0, shift, x * scale + shift).to(x.dtype)


class NoTable(nn.Module):
    """In place of an embedding table that only dropped columns read: zeros, which the constants then replace."""

    zero: Tensor

    def __init__(self, table: Any) -> None:
        super().__init__()
        for name in _SETTINGS:
            if hasattr(table, name):
                setattr(self, name, getattr(table, name))
        self.width = table.embedding_dim
        self.pools = isinstance(table, nn.EmbeddingBag)
        self.without_last = getattr(table, "include_last_offset", False)
        self.register_buffer("zero", table.weight.new_zeros(()), persistent=False)

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:  # noqa: A002
        """Zeros of the shape that the table would return; the arguments are called as the table's."""
        shape: tuple[int, ...] = tuple(input.shape)
        if self.pools:
            shape = shape[:1] if offsets is None else (offsets.shape[0] - self.without_last,)
        return self.zero.repeat(*shape, self.width)


_SETTINGS = (
    *("num_embeddings", "embedding_dim", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse"),
    *("mode", "include_last_offset"),
)


class Fed:
    """A hook like `Site`, that feeds constants."""

    def __init__(self, site: Site, places: dict[str, slice], whole: slice) -> None:
        self.site = copy.copy(site)
        self.site.handles, self.site.siblings = [], ()  # of the model that it was made from
        self.places = places
        self.whole = whole
        self.shapes: dict[str, tuple[int, ...]] = {}  # of one row of each entry of a dict, as seen on the example

    def hold(self, module: nn.Module) -> None:
        """Register the hook."""
        if self.site.side == "input":
            module.register_forward_pre_hook(self.feed_input, with_kwargs=True)
        else:
            module.register_forward_hook(self.feed_output)

    def feed_input(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Feed the first argument of the call."""
        value, name = self.site.first_argument(args, kwargs)
        fed = self.feed(module, value)
        return ((fed, *args[1:]), kwargs) if name is None else (args, {**kwargs, name: fed})

    def feed_output(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Feed what the module returns."""
        return self.feed(module, output)

    def feed(self, module: nn.Module, value: Any) -> Any:
        """Feed a tensor, a keyed tensor or a dict; of the last the dropped entries may be missing."""
        constants = module.get_submodule(".".join((*self.site.home, CHILD)))
        assert isinstance(constants, Feed)
        value = waited(value)
        if is_keyed(value):
            blocks = blocks_of(value, self.site.label)
            places = {name: self.places[name] for name in blocks}
            return with_values(value, torch.cat([constants(blocks[n], p.start, p.stop) for n, p in places.items()], dim=1))
        if not isinstance(value, Mapping):
            return constants(value, self.whole.start, self.whole.stop)
        rows = next(entry for name, entry in value.items() if name in self.places).shape[0]
        fed = {}
        for name, place in self.places.items():
            entry = value.get(name)
            if entry is None:
                entry = constants.scale.new_zeros(rows, *self.shapes[name])
            self.shapes[name] = tuple(entry.shape[1:])
            fed[name] = constants(entry, place.start, place.stop)
        if type(value) is dict:
            return {**value, **fed}
        output: Any = copy.copy(value)
        output.update(fed)
        return output


def feed(
    model: nn.Module, gates: LeAP, sites: tuple[Site, ...], affine: tuple[Tensor, Tensor], *, share: bool = False
) -> nn.Module:
    """A copy of the model that is fed constants.

    Args:
        affine: What the gates do to each column, scale * x + shift.
        share: Don't copy the weights: a look at the new model, to run and to count, that costs no memory.
    """
    fields = gates.arriving_fields()
    small = without_gates(model, memo_of(model, share=share))
    constants = Feed(*affine)
    for site in sites:
        module = find_module(small, site.at)
        module.get_submodule(".".join(site.home)).add_module(CHILD, constants)
        whole = site.columns or slice(0, fields.dims)
        inside = [n for n in fields.names if whole.start <= fields.columns(n).start and fields.columns(n).stop <= whole.stop]
        Fed(site, {name: fields.columns(name) for name in inside}, whole).hold(module)
        move_last_hook(module, site, place_of_gates(find_module(model, site.at), site)[0])
    return small


def remove_tables(small: nn.Module, paths: list[str]) -> None:
    """Take these tables out of a model that is fed constants."""
    for path in paths:
        table, absent = small.get_submodule(path), NoTable(small.get_submodule(path))
        for name, child in table.named_children():  # the constants may sit here
            absent.add_module(name, child)
        for hook in table._forward_hooks.values():
            absent.register_forward_hook(hook)
        small.set_submodule(path, absent)


@contextmanager
def poisoned(small: nn.Module) -> Iterator[None]:
    """Within this context removed tables return no zeros but nan, which shows wherever it is read."""
    absent = [module for module in small.modules() if isinstance(module, NoTable)]
    for module in absent:
        module.zero.fill_(torch.nan)
    try:
        yield
    finally:
        for module in absent:
            module.zero.zero_()


def unread_tables(small: nn.Module, example: Call) -> list[str]:
    """Tables that, on the example, reach dropped columns of the gates and nothing else."""
    tables = {path: m for path, m in small.named_modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    (constants,) = {module for module in small.modules() if isinstance(module, Feed)}
    found: dict[str, list[Tensor]] = {path: [] for path in tables}
    dropped: list[Tensor] = []
    kept: list[Tensor] = []

    def watch(module: nn.Module, args: Any, output: Tensor, found: list[Tensor]) -> Tensor:
        found.append(output.detach().requires_grad_())
        return found[-1] * 1  # no leaf, so that code may change it in place

    def see(module: nn.Module, args: tuple[Tensor, int, int], output: Tensor) -> Tensor:
        goes = (constants.scale[args[1] : args[2]] == 0).reshape(output.shape[1:])
        dropped.append(args[0] * goes)
        kept.append(args[0] * ~goes)
        return output.detach()  # what is left of the way to the output goes past the gates

    handles = [module.register_forward_hook(partial(watch, found=found[path])) for path, module in tables.items()]
    handles.append(constants.register_forward_hook(see))
    try:
        args, kwargs = fresh(example)
        with in_eval(small), torch.enable_grad():
            past = tree_leaves(small(*args, **kwargs))
    finally:
        for handle in handles:
            handle.remove()
    outputs = [tensor for tensors in found.values() for tensor in tensors]
    in_dropped, in_kept = ({i for i, g in _gradients(probes, outputs).items() if g.any()} for probes in (dropped, kept))
    read = in_kept | set(_gradients(past, outputs))  # a gradient of 0 may be another one on another batch
    return [p for p, ts in found.items() if ts and all(id(t) in in_dropped and id(t) not in read for t in ts)]


def _gradients(probes: list[Any], tensors: list[Tensor]) -> dict[int, Tensor]:
    """The gradient of the probes by each tensor that they are connected to, by the tensor's id."""
    dice = torch.Generator().manual_seed(0)
    total = torch.zeros((), dtype=torch.float64)
    for probe in probes:
        if isinstance(probe, Tensor) and probe.requires_grad:
            total = total + (probe.double().cpu() * torch.randn(probe.shape, generator=dice, dtype=torch.float64)).sum()
    if not tensors or not total.requires_grad:
        return {}
    gradients = torch.autograd.grad(total, tensors, allow_unused=True, retain_graph=True)
    return {id(tensor): gradient for tensor, gradient in zip(tensors, gradients, strict=True) if gradient is not None}
