"""A site: one named submodule whose input or output passes the gates, by a hook.

The gates are registered as a child of a layer without children inside the site, never of a
container: a `Sequential` that is itself a site must not run them as one more layer. A hook finds
them from the module that it is called with, so that copies, replicas and unpickled models use
their own gates.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from .._common.errors import AttachError, FieldError
from ..distributed.torchrec import (
    blocks_of,
    is_awaitable,
    is_keyed,
    waited,
    when_ready,
    with_values,
)
from ..fields import Fields
from ..gates.context import PassContext, Passed
from ..gates.leap import LeAP
from ..mix import join as side_by_side
from .columns import find_columns
from .elements import like, put, take, with_entries
from .frames import keep_missing_example
from .notation import Place
from .places import CHILD, find_module, home_inside, names_in, walk
from .some_columns import SomeColumns
from .values import (
    by_position,
    fields_of,
    is_sequence,
    join,
    not_fields,
    refuse,
    same_tensor,
    state_of,
)


class Site:
    """Gate the value that enters or leaves one named submodule.

    Args:
        place: The place in the model, with its side.
        module: The submodule.
        is_named: Whether the notation names the fields that pass here. Then their columns are
            known before the first batch.

    Attributes:
        siblings: All sites whose columns are gated together.
        rivals: The other sites that may receive the same tensor.
        columns: The block of columns that arrives here, once it is known; None is all of them.
    """

    def __init__(self, place: Place, module: nn.Module, *, is_named: bool = False) -> None:
        self.place = place
        self.is_named = is_named
        self.home = home_inside(place.at, module)  # from the module to the layer with the gates
        self.held = (*self.home, CHILD)  # from the module with the hook to the gates
        self.handles: list[RemovableHandle] = []
        self.siblings: tuple[Site, ...] = (self,)
        self.rivals: tuple[Site, ...] = ()
        self.columns: slice | None = None
        self.some: SomeColumns | None = None
        if place.columns is not None:
            self.some = SomeColumns(place.columns, place.label)
        self.parameters = tuple(inspect.signature(module.forward).parameters)

    @property
    def at(self) -> str:
        """The name of the submodule in the model; "" is the model itself."""
        return self.place.at

    @property
    def side(self) -> str:
        """Whether the "input" or the "output" of the submodule is gated."""
        return str(self.place.side)

    @property
    def path(self) -> tuple[str, ...]:
        """The names that lead from the model to the gates."""
        return (*names_in(self.at), *self.held)

    @property
    def label(self) -> str:
        """How messages call this site."""
        return self.place.label

    def gate_together_with(self, sites: "list[Site]") -> None:
        """Be one of several sites whose columns are gated together, in this order."""
        self.siblings = tuple(sites)
        self.rivals = tuple(site for site in sites if site is not self)

    def know_sharers(self) -> None:
        """Compare tensors with those of sites with the same columns alone: an example knows them.

        Comparing each of many sites with all others would take longer than the gates.
        """
        self.rivals = tuple(site for site in self.rivals if site.columns == self.columns)

    def take_columns(self, columns: slice | None) -> None:
        """Set which columns of the fields arrive here."""
        self.columns = columns

    # Hooks

    def hold(self, model: nn.Module, gates: LeAP) -> None:
        """Register the gates and the hook."""
        module = find_module(model, self.at)
        walk(module, self.home).add_module(CHILD, gates)
        if self.side == "input":
            handle = module.register_forward_pre_hook(self.gate_input, with_kwargs=True)
        else:
            handle = module.register_forward_hook(self.gate_output)
        self.handles = [handle]

    def release(self, module: nn.Module) -> None:
        """Undo `hold`."""
        for handle in self.handles:
            handle.remove()
        with suppress(AttachError):  # a layer that was replaced has taken the gates along
            layer = walk(module, self.held[:-1])
            layer._modules.pop(CHILD, None)  # two sites may share the layer

    def gates(self, module: nn.Module) -> LeAP:
        """Return the gates that belong to this very module."""
        held = walk(module, self.held)
        if not isinstance(held, LeAP):
            raise AttachError(
                f"{self.label}: expected the gates at {CHILD!r}, but found {type(held).__name__}."
            )
        return held

    def gate_input(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Gate an argument of the call."""
        gates = self.gates(module)
        keep_missing_example(gates)
        if not self.is_due(gates.context):
            return args, kwargs
        return self.with_argument(args, kwargs, lambda value: self.gate(gates, waited(value)))

    def gate_output(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Gate the value that the module returns, or a part of it."""
        gates = self.gates(module)
        keep_missing_example(gates)
        if not self.is_due(gates.context):
            return output
        return self.with_part(output, partial(self.gate_when_ready, gates))

    def is_due(self, context: PassContext) -> bool:
        """Return whether this call of the module is gated, and count it."""
        call = self.place.call
        if call is None and not self.is_named:
            return True
        if not context.running and not torch.compiler.is_compiling():
            if call is None:
                return True
            raise AttachError(
                f"{self.label}: calls are counted in a pass of the complete model, but only a part "
                "of it was called. Call the model itself."
            )
        number = context.count_call(self.place)
        if call is None and number:
            raise AttachError(
                f"{self.label}: the module is called again in one forward pass. Give example= to "
                f"attach(), or name each call: tl.Place({self.at!r}, call=0)."
            )
        return call is None or number == call

    def argument(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, int | str]:
        """Return an argument of a call, with its position or, if given by keyword, its name."""
        part = self.place.part
        if part is None:
            return self._first_argument(args, kwargs)
        named = dict(enumerate(self.parameters))
        if isinstance(part, str) and part not in kwargs and part in self.parameters:
            part = self.parameters.index(part)
        if isinstance(part, int) and part >= len(args):
            part = named.get(part, part)
        if isinstance(part, int) and part >= 0:
            if part < len(args):
                return args[part], part
        elif part in kwargs:
            return kwargs[str(part)], str(part)
        raise AttachError(
            f"{self.label}: there is no such argument, but the module is called with {len(args)} "
            f"by position and {list(kwargs)} by name."
        )

    def _first_argument(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, int | str]:
        if args:
            return args[0], 0
        if not kwargs:
            raise AttachError(
                f"{self.label}: expected an input to gate, but the module is called without one. "
                "Use side='output'."
            )
        first = self.parameters[0] if self.parameters else ""
        name = first if first in kwargs else next(iter(kwargs))
        return kwargs[name], name

    def value_in(self, call: Any) -> Any:
        """Return the value at this place in one call of the module.

        Args:
            call: The arguments by position and by name, or on the side of the output the value
                that the module has returned.
        """
        value = call
        if self.side == "input":
            value = self.argument(*call)[0]
        elif self.place.part is not None:
            value = take(call, self.place.part, self.label)
        return value if self.some is None else self.some.take(value)

    def _change(self, value: Any, change: Callable[[Any], Any]) -> Any:
        """Return a value that is changed, in the columns that this place names if it does so."""
        if self.some is None:
            return change(value)
        return self.some.put(value, change(self.some.take(value)))

    def with_argument(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], change: Callable[[Any], Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call with a changed value at this place."""
        value, where = self.argument(args, kwargs)
        changed = self._change(value, change)
        if isinstance(where, str):
            return args, {**kwargs, where: changed}
        return (*args[:where], changed, *args[where + 1 :]), kwargs

    def with_part(self, output: Any, change: Callable[[Any], Any]) -> Any:
        """Return what a module returns with a changed value at this place."""
        part = self.place.part
        if part is None:
            return self._change(output, change)
        changed = self._change(take(output, part, self.label), change)
        return put(output, part, changed, self.label)

    def gate_when_ready(self, gates: LeAP, value: Any) -> Any:
        """Gate a value, or the result of an awaitable when it arrives."""
        if is_awaitable(value):
            return when_ready(value, partial(self.gate, gates))
        return self.gate(gates, value)

    # One of several sites

    def gate(self, gates: LeAP, value: Any) -> Any:
        """Gate a value, unless another site has gated it in this pass."""
        if not self.rivals:
            return self.gate_value(gates, value)
        context = gates.context
        state = state_of(gates, value)
        context.restart_at(self.place)
        passed = context.passed()
        for site in self.rivals:
            earlier = passed.get(site.place)
            if earlier is None:
                continue
            if same_tensor(earlier.value, value) and earlier.state == state:
                self._share_columns(site)
                if earlier.value is value:
                    return earlier.output
                return earlier.output.reshape(value.shape)
        self._refuse_changed_tensor(gates)
        if self.columns is None:
            self.take_columns(find_columns(self, gates.arriving_fields(), value))
        output = self.gate_value(gates, value)
        context.remember(self.place, Passed(value, state, output))
        return output

    def _share_columns(self, other: "Site") -> None:
        """Take the columns of the site that receives the same tensor."""
        if self.is_named and self.columns != other.columns:
            raise FieldError(
                f"{self.label} and {other.label} have the same columns: both receive the same "
                "tensor. Give example= to attach(), or leave out one of them."
            )
        self.take_columns(other.columns)

    def _refuse_changed_tensor(self, gates: LeAP) -> None:
        """Refuse a tensor that was another site's before, but is not the one that it has gated."""
        if self.columns is None:
            return
        for site in self.rivals:
            if site.columns == self.columns and gates.context.reached(site.place):
                raise AttachError(
                    f"{self.label} received the same tensor as {site.label} before, but now "
                    "another one. Dropout, a copy or a change in place between them? Choose the "
                    "output of the submodule that produces the tensor (side='output')."
                )

    # Values

    def gate_value(self, gates: LeAP, value: Any) -> Any:
        """Gate a tensor, a dict or list of tensors, or a keyed tensor."""
        value = waited(value)  # attach(example=...) keeps awaitables as they pass
        if is_keyed(value):
            return self.gate_keyed(gates, value)
        if isinstance(value, Mapping):
            return self.gate_dict(gates, value)
        if gates.fields is not None and is_sequence(value):
            return self.gate_sequence(gates, value)
        return self.gate_tensor(gates, value)

    def gate_tensor(self, gates: LeAP, value: Any) -> Tensor:
        """Gate the columns of (B, D), (B, F, E) or, of one column, (B,)."""
        if gates.fields is None or not isinstance(value, Tensor):
            raise not_fields(value, self.label)
        self._check_width(gates, value)
        if value.dim() == 1 and self.is_named:
            column: Tensor = gates(value[:, None], self.columns)
            return column[:, 0]
        output: Tensor = gates(value, self.columns)
        return output

    def _check_width(self, gates: LeAP, value: Tensor) -> None:
        """Refuse a tensor with other columns than those that the notation names here."""
        if not self.is_named or value.dim() == 0:
            return
        fields = gates.known_layout().fields_in(self.columns)
        width = math.prod(value.shape[1:])
        if width != fields.dims:
            raise FieldError(
                f"{self.label} receives {width} columns, but its fields sum to {fields.dims}. "
                f"{fields.describe()} A field must be as wide in every batch: correct a width, or "
                "choose another place."
            )

    def gate_sequence(self, gates: LeAP, value: Any) -> Any:
        """Gate a tuple or list of one tensor per field, in the order of the fields."""
        entries = by_position(value, self._fields_here(gates).names, self.label)
        return like(value, list(self._gated_entries(gates, entries).values()))

    def gate_dict(self, gates: LeAP, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """Gate the entries of a dict that are fields; the others pass unchanged."""
        gated: Mapping[str, Any] = with_entries(
            value, self._gated_entries(gates, value), self.label
        )
        return gated

    def _gated_entries(self, gates: LeAP, value: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the gated entries of a dict, in the shapes and dtypes that they had."""
        blocks = self._gated_blocks(gates, value)
        return {
            name: block.reshape(value[name].shape).to(value[name].dtype)
            for name, block in blocks.items()
        }

    def gate_keyed(self, gates: LeAP, value: Any) -> Any:
        """Gate the blocks of a keyed tensor by name: each batch may order its keys differently."""
        self._learn_fields(gates, value)
        fields = self._fields_here(gates)
        values = value.values()
        if gates.context.held_out:  # tables that are optimized in the backward pass would learn
            values = values.detach()
        if (*value.keys(), *value.length_per_key()) == (*fields.names, *fields.widths):
            return with_values(value, gates(values, self.columns).to(values.dtype))
        blocks = blocks_of(with_values(value, values), self.label)
        unknown = [f"{name!r} is not a field" for name in blocks if name not in fields]
        refuse(blocks, fields, self._names_in(fields, blocks), self.label, unknown)
        gated = self._gated_blocks(gates, blocks)
        in_its_order = [gated[name] for name in blocks]
        return with_values(value, side_by_side(in_its_order).to(values.dtype))

    def _gated_blocks(self, gates: LeAP, value: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the gated columns of each field, name -> (B, d)."""
        self._learn_fields(gates, value)
        fields = self._fields_here(gates)
        names = self._names_in(fields, value)
        joined = join(value, fields, names, self.label)
        widths = [fields[name].width for name in names]
        blocks = gates(joined, self.columns).split(widths, dim=1)
        return dict(zip(names, blocks, strict=True))

    def _fields_here(self, gates: LeAP) -> Fields:
        """Return the fields that may arrive here, as wide as they are here."""
        if not self.is_named:
            return gates.arriving_fields()
        return gates.known_layout().fields_in(self.columns)

    def _names_in(self, fields: Fields, value: Mapping[str, Any]) -> list[str]:
        """Return the fields that this site expects: a single or named site expects all of them."""
        if len(self.siblings) == 1 or self.is_named:
            return list(fields.names)
        return [name for name in fields.names if name in value]

    def _learn_fields(self, gates: LeAP, value: Any) -> None:
        """Lay out the gates by the first batch, if their fields are not known yet."""
        if gates.fields is not None:
            return
        if DistributedDataParallel._get_active_ddp_module() is not None:  # type: ignore[no-untyped-call]
            raise FieldError(
                f"{self.label} learns its fields from the first batch, but DistributedDataParallel "
                "had to know the gates before. Give fields=, or example=, to attach()."
            )
        gates.lay_out(fields_of(value, self.label))
