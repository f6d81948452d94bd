"""A site: one named submodule whose input or output passes the gates, by a hook.

The gates are registered as a child of a layer without children inside the site, never of a
container: a `Sequential` that is itself a site must not run them as one more layer. A hook finds
them from the module that it is called with, so that copies, replicas and unpickled models use
their own gates.
"""

import copy
import inspect
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal

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
from ..gates.context import Passed
from ..gates.leap import LeAP
from ..mix import join as side_by_side
from .places import CHILD, find_module, home_inside, names_in, walk
from .values import by_name, fields_of, join, not_fields, refuse, same_tensor, state_of

Side = Literal["input", "output"]


class Site:
    """Gate the value that enters or leaves one named submodule.

    Args:
        at: The name of the submodule in the model; "" is the model itself.
        side: Whether its "input" or its "output" is gated.
        module: The submodule.

    Attributes:
        siblings: All sites whose columns are gated together, in the order of their columns.
        columns: The block of columns that arrives here, once it is known; None is all of them.
    """

    def __init__(self, at: str, side: Side, module: nn.Module) -> None:
        self.at = at
        self.side = side
        self.home = home_inside(at, module)  # from the module to the layer that holds the gates
        self.held = (*self.home, CHILD)  # from the module with the hook to the gates
        self.handles: list[RemovableHandle] = []
        self.siblings: tuple[Site, ...] = (self,)
        self.columns: slice | None = None
        self.first_parameter = next(iter(inspect.signature(module.forward).parameters), "")

    @property
    def path(self) -> tuple[str, ...]:
        """The names that lead from the model to the gates."""
        return (*names_in(self.at), *self.held)

    @property
    def label(self) -> str:
        """How messages call this site."""
        return f"at={self.at!r} ({self.side})"

    def gate_together_with(self, sites: "list[Site]") -> None:
        """Be one of several sites whose columns are gated together, in this order."""
        self.siblings = tuple(sites)

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
        """Gate the first argument of the call."""
        value, name = self.first_argument(args, kwargs)
        gated = self.gate(self.gates(module), waited(value))
        if name is None:
            return (gated, *args[1:]), kwargs
        return args, {**kwargs, name: gated}

    def first_argument(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, str | None]:
        """Return the first argument of a call; with its name, if it is given by keyword."""
        if args:
            return args[0], None
        if not kwargs:
            raise AttachError(
                f"{self.label}: expected an input to gate, but the module is called without one. "
                "Use side='output'."
            )
        name = self.first_parameter if self.first_parameter in kwargs else next(iter(kwargs))
        return kwargs[name], name

    def gate_output(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Gate the value that the module returns."""
        return self.gate_when_ready(self.gates(module), output)

    def gate_when_ready(self, gates: LeAP, value: Any) -> Any:
        """Gate a value, or the result of an awaitable when it arrives."""
        if is_awaitable(value):
            return when_ready(value, partial(self.gate, gates))
        return self.gate(gates, value)

    # One of several sites

    def gate(self, gates: LeAP, value: Any) -> Any:
        """Gate a value, unless another site has gated it in this pass."""
        if len(self.siblings) == 1:
            return self.gate_value(gates, value)
        context = gates.context
        state = state_of(gates, value)
        context.restart_at(self.at)
        for at, earlier in context.passed():
            if same_tensor(earlier.value, value) and earlier.state == state:
                self.take_columns(self._sibling(at).columns)
                if earlier.value is value:
                    return earlier.output
                return earlier.output.reshape(value.shape)
        self._refuse_changed_tensor(gates)
        if self.columns is None:
            self.take_columns(self.find_columns(gates.arriving_fields(), value))
        output = self.gate_value(gates, value)
        context.remember(self.at, Passed(value, state, output))
        return output

    def _sibling(self, at: str) -> "Site":
        return next(site for site in self.siblings if site.at == at)

    def _refuse_changed_tensor(self, gates: LeAP) -> None:
        """Refuse a tensor that was another site's before, but is not the one that it has gated."""
        if self.columns is None:
            return
        for site in self.siblings:
            if site.columns == self.columns and gates.context.reached(site.at):
                raise AttachError(
                    f"{self.label} received the same tensor as at={site.at!r} before, but now "
                    "another one. Dropout, a copy or a change in place between them? Choose the "
                    "output of the submodule that produces the tensor (side='output')."
                )

    def find_columns(self, fields: Fields, value: Any) -> slice:
        """Return the columns of the fields that arrive at this one of several sites."""
        value = by_name(value, self.label)
        if isinstance(value, Mapping):
            columns = self._columns_of_names(fields, value)
        elif isinstance(value, Tensor):
            columns = self._columns_of_tensor(fields, value)
        else:
            raise not_fields(value, self.label)
        is_last = self is self.siblings[-1] and isinstance(value, Tensor)
        is_incomplete = is_last and columns.stop != fields.dims
        width = columns.stop - columns.start
        if width == 0 or columns.stop > fields.dims or is_incomplete:
            raise FieldError(
                f"{self.label} receives {width} columns, {columns.stop} with those of the sites "
                f"before it, but the fields sum to {fields.dims}. {fields.describe()}"
            )
        fields.gates_of(columns)  # raises if they cut through a field or a group
        return columns

    def _columns_of_names(self, fields: Fields, value: Mapping[str, Any]) -> slice:
        names = [name for name in fields.names if name in value]
        if not names:
            return slice(0, 0)
        start = fields.columns(names[0]).start
        stop = fields.columns(names[-1]).stop
        if stop - start != sum(fields[name].width for name in names):
            raise FieldError(
                f"{self.label} receives {names}, which are not neighbours in fields=. "
                "List each site's fields together."
            )
        return slice(start, stop)

    def _columns_of_tensor(self, fields: Fields, value: Tensor) -> slice:
        width = value.flatten(1).shape[1]
        is_first = not any(site.columns for site in self.siblings)
        start = 0 if width == fields.dims and is_first else self._first_column()
        return slice(start, start + width)

    def _first_column(self) -> int:
        start = 0
        for site in self.siblings[: self.siblings.index(self)]:
            if site.columns is None:
                raise AttachError(
                    f"{self.label} is reached before at={site.at!r}, whose width is not known yet. "
                    "List the sites in the order in which the model reaches them, or give "
                    "example= to attach()."
                )
            start = max(start, site.columns.stop)
        return start

    # Values

    def gate_value(self, gates: LeAP, value: Any) -> Any:
        """Gate a tensor, a dict of tensors or a keyed tensor."""
        value = waited(value)  # attach(example=...) keeps awaitables as they pass
        if is_keyed(value):
            return self.gate_keyed(gates, value)
        if isinstance(value, Mapping):
            return self.gate_dict(gates, value)
        return self.gate_tensor(gates, value)

    def gate_tensor(self, gates: LeAP, value: Any) -> Tensor:
        """Gate the columns of (B, D) or (B, F, E)."""
        if gates.fields is None or not isinstance(value, Tensor):
            raise not_fields(value, self.label)
        output: Tensor = gates(value, self.columns)
        return output

    def gate_dict(self, gates: LeAP, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """Gate the entries of a dict that are fields; the others pass unchanged."""
        blocks = self._gated_blocks(gates, value)
        gated = {
            name: block.reshape(value[name].shape).to(value[name].dtype)
            for name, block in blocks.items()
        }
        if type(value) is dict:
            return {**value, **gated}
        if not isinstance(value, MutableMapping):
            raise AttachError(
                f"{self.label}: expected a dict that can be copied and changed, but found "
                f"{type(value).__name__}."
            )
        output = copy.copy(value)
        output.update(gated)
        return output

    def gate_keyed(self, gates: LeAP, value: Any) -> Any:
        """Gate the blocks of a keyed tensor by name: each batch may order its keys differently."""
        self._learn_fields(gates, value)
        fields = gates.arriving_fields()
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
        fields = gates.arriving_fields()
        names = self._names_in(fields, value)
        joined = join(value, fields, names, self.label)
        widths = [fields[name].width for name in names]
        blocks = gates(joined, self.columns).split(widths, dim=1)
        return dict(zip(names, blocks, strict=True))

    def _names_in(self, fields: Fields, value: Mapping[str, Any]) -> list[str]:
        """Return the fields that this site expects: a single site expects all of them."""
        if len(self.siblings) == 1:
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
