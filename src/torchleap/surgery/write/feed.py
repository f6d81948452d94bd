"""The way that always works: the model as it is, with constants fed in place of the dropped columns.

For models whose Python cannot be followed. It is exact, but nothing behind the gates gets smaller. Embedding tables in front of
them go nevertheless, where running examples shows that they fill dropped columns and nothing else. What an example does not show
is refused: a removed table that is read after all raises an error.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._compile import _disable_dynamo

from ..._common.copies import memo_of
from ..._common.errors import RemovedTableError, SurgeryError
from ...distributed.torchrec import blocks_of, is_keyed, waited, with_values
from ...gates.leap import LeAP
from ...sites.calls import Call
from ...sites.places import find_module
from ...sites.site import Site
from ..compare import leaves_of
from ..trace.examples import fresh, run
from ..trace.hooks import move_last_hook, place_of_gates
from .absent import Absent, present, refuse_absent, tables_of
from .build import without_gates

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
        scale, shift = (
            array[start:stop].reshape(x.shape[1:]) for array in (self.scale, self.shift)
        )
        if isinstance(x, Absent):
            x = present(x, scale != 0)
        return torch.where(scale == 0, shift, x * scale + shift).to(x.dtype)


class NoTable(nn.Module):
    """In place of an embedding table that only dropped columns read: it returns what must not be read.

    Args:
        table: The table that goes.
        path: Its name in the model.
    """

    zero: Tensor

    def __init__(self, table: nn.Embedding | nn.EmbeddingBag, path: str) -> None:
        super().__init__()
        for name in _SETTINGS:
            if hasattr(table, name):
                setattr(self, name, getattr(table, name))
        self.path = path
        self.width = table.embedding_dim
        self.pools = isinstance(table, nn.EmbeddingBag)
        self.without_last = getattr(table, "include_last_offset", False)
        self.register_buffer("zero", table.weight.new_zeros(()), persistent=False)

    @_disable_dynamo  # what is missing must be followed in Python
    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """Return a tensor of the table's shape that refuses to be read; the arguments are called as the table's."""
        if isinstance(input, fx.Proxy):
            raise SurgeryError(
                f"the table {self.path} is gone, by an earlier pruning that fed constants"
            )
        shape: tuple[int, ...] = tuple(input.shape)
        if self.pools:
            shape = shape[:1] if offsets is None else (offsets.shape[0] - self.without_last,)
        if (
            torch.compiler.is_exporting()
        ):  # a program has no Python left that could take another way
            return self.zero.repeat(*shape, self.width) * torch.nan
        return Absent.of(self.path, self.zero, (*shape, self.width))

    def __getattr__(self, name: str) -> Any:
        if name == "weight":
            raise RemovedTableError([self.path], ".weight")
        return super().__getattr__(name)


_SETTINGS = (
    *(
        "num_embeddings",
        "embedding_dim",
        "padding_idx",
        "max_norm",
        "norm_type",
        "scale_grad_by_freq",
        "sparse",
    ),
    *("mode", "include_last_offset"),
)


class Fed:
    """A hook like `Site`, that feeds constants."""

    def __init__(self, site: Site, child: str, places: dict[str, slice], whole: slice) -> None:
        self.site = copy.copy(site)
        self.child = child
        self.site.handles, self.site.siblings = [], ()  # of the model that it was made from
        self.places = places
        self.whole = whole
        self.shapes: dict[
            str, tuple[int, ...]
        ] = {}  # of one row of each entry of a dict, as seen on the example

    def hold(self, module: nn.Module) -> None:
        """Register the hook."""
        if self.site.side == "input":
            module.register_forward_pre_hook(self.feed_input, with_kwargs=True)
        else:
            module.register_forward_hook(self.feed_output)

    def feed_input(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Feed the first argument of the call."""
        value, name = self.site.first_argument(args, kwargs)
        fed = self.feed(module, value)
        return ((fed, *args[1:]), kwargs) if name is None else (args, {**kwargs, name: fed})

    def feed_output(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Feed what the module returns."""
        return self.feed(module, output)

    def feed(self, module: nn.Module, value: Any) -> Any:
        """Feed a tensor, a keyed tensor or a dict; of the last the dropped entries may be missing."""
        constants = module.get_submodule(".".join((*self.site.home, self.child)))
        assert isinstance(constants, Feed)
        value = waited(value)
        if is_keyed(value):
            blocks = blocks_of(value, self.site.label)
            places = {name: self.places[name] for name in blocks}
            return with_values(
                value,
                torch.cat(
                    [constants(blocks[n], p.start, p.stop) for n, p in places.items()], dim=1
                ),
            )
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
    model: nn.Module,
    gates: LeAP,
    sites: tuple[Site, ...],
    affine: tuple[Tensor, Tensor],
    *,
    share: bool = False,
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
        home = module.get_submodule(".".join(site.home))
        child = _free_name(home, constants)
        home.add_module(child, constants)
        whole = site.columns or slice(0, fields.dims)
        inside = [
            n
            for n in fields.names
            if whole.start <= fields.columns(n).start and fields.columns(n).stop <= whole.stop
        ]
        Fed(site, child, {name: fields.columns(name) for name in inside}, whole).hold(module)
        before, _ = place_of_gates(find_module(model, site.at), site)
        move_last_hook(module, site, before)
    return small


def _free_name(home: nn.Module, constants: Feed) -> str:
    """Find a name for the constants: an earlier pruning may have left its own, and several sites may share a layer."""
    name = CHILD
    while getattr(home, name, constants) is not constants:
        name += "_again"
    return name


def remove_tables(small: nn.Module, paths: Iterable[str]) -> None:
    """Take these tables out of a model that is fed constants."""
    for path in paths:
        table = small.get_submodule(path)
        assert isinstance(table, nn.Embedding | nn.EmbeddingBag)
        absent = NoTable(table, path)
        for name, child in table.named_children():  # the constants may sit here
            absent.add_module(name, child)
        for hook in table._forward_hooks.values():
            absent.register_forward_hook(hook)
        named = list(small.named_modules(remove_duplicate=False))
        for alias in [name for name, module in named if module is table]:
            small.set_submodule(alias, absent)
    small.register_forward_hook(_refuse_output)


@_disable_dynamo
def _refuse_output(model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    """Refuse an output that depends on a removed table."""
    with suppress(
        SurgeryError
    ):  # an output that cannot be looked into refuses to be read where it is read
        refuse_absent(leaves_of(output), "the output")


def unread_tables(make: Callable[[bool], nn.Module], calls: list[Call]) -> list[str]:
    """Find the tables that, on these batches and in training, reach dropped columns of the gates and nothing else.

    Args:
        make: Makes the model that is fed constants; True leaves the weights where they are.
        calls: Batches that the model takes.
    """
    tables = _plain_tables(make(True))
    removed = set(tables)
    while removed:
        try:
            arrived = _arriving_tables(make(True), removed, calls)
            if removed == arrived:
                _train_without(make(False), removed, calls[0])
                break
        except RemovedTableError as error:
            removed -= error.tables
        else:
            removed = arrived
    return [path for path in tables if path in removed]


def _plain_tables(small: nn.Module) -> list[str]:
    """Return the tables whose call does no more than look up rows."""
    tables = {
        path: m for path, m in small.named_modules() if type(m) in (nn.Embedding, nn.EmbeddingBag)
    }
    return [path for path, table in tables.items() if path and _is_hooked_by_us_alone(table)]


def _is_hooked_by_us_alone(table: nn.Module) -> bool:
    others = (table._forward_pre_hooks, table._backward_hooks, table._backward_pre_hooks)
    ours = all(
        isinstance(getattr(hook, "__self__", None), Fed) for hook in table._forward_hooks.values()
    )
    return ours and not any(others)


def _arriving_tables(small: nn.Module, removed: set[str], calls: list[Call]) -> set[str]:
    """Run the model without these tables, and see which of them arrive at the gates."""
    remove_tables(small, removed)
    arrived: set[str] = set()

    def see(_: nn.Module, args: tuple[Any, ...]) -> None:
        if isinstance(args[0], Absent):
            arrived.update(tables_of(args[0].labels))

    for module in small.modules():
        if isinstance(module, Feed):
            module.register_forward_pre_hook(see)
    for call in calls:
        run(small, call)
    return arrived


def _train_without(small: nn.Module, removed: set[str], call: Call) -> None:
    """Run a copy of the model in train() without these tables; raises if it reads one of them."""
    remove_tables(small, removed)
    args, kwargs = fresh(call)
    try:
        with torch.random.fork_rng():
            small.train()(*args, **kwargs)
    except RemovedTableError:
        raise
    except (
        Exception
    ):  # a batch that cannot be trained on, such as a single row, says nothing about tables
        return
