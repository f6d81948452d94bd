"""Follow a model's Python: every operation becomes a node, with its values on the examples."""

import inspect
import operator
from collections.abc import Mapping
from enum import Enum
from functools import partial
from typing import Any

import numpy
import torch
from torch import Tensor, fx, nn
from torch.fx.proxy import TraceError

from ..._common.errors import SurgeryError
from ...distributed.torchrec import is_collection, is_keyed, keyed_values, places_of, with_values
from ...gates.leap import LeAP
from ...sites.elements import like
from ...sites.site import Site
from ..runtime import parts_of
from ..trial.deadline import check_time, interruptible
from ..trial.state import versions
from .arguments import Arguments
from .autocast import Precision
from .entries import Entries
from .forwards import (
    STARS,
    call_own_forward,
    call_with,
    is_closure_with_stars,
    is_replaced,
    values_of,
)
from .hooks import has_hooks
from .inplace import is_in_place
from .inputs import Path, Query, argument_of, is_container, part_of, path_of
from .parameters import refuse_trained
from .proxies import TENSORS, KnownProxy, Values
from .sizes import Sizes

Affine = tuple[Tensor, Tensor]  # (D,), (D,): what the gates do to each column, scale * x + shift


def gated(x: Any, start: int, stop: int) -> Any:
    """Mark in a graph where the columns `start:stop` pass the gates."""
    return x


def is_input(node: fx.Node) -> bool:
    """Return whether a node is a tensor of the batch: an argument, or an entry of a dict in it."""
    if node.op == "placeholder":
        return True
    if node.target not in (operator.getitem, getattr):
        return False
    if is_of_star(node):
        return True
    if not isinstance(node.args[1], str | Enum) or node.args[1] in TENSORS:
        return False
    while node.op != "placeholder":
        first = node.args[0] if node.args else None
        if node.target not in (operator.getitem, getattr, parts_of) or not isinstance(
            first, fx.Node
        ):
            return False
        node = first
    return True


def is_of_star(node: fx.Node) -> bool:
    """Return whether a node is one of the values of `*args`."""
    if node.target is not operator.getitem or not isinstance(node.args[1], int):
        return False
    first = node.args[0]
    if not isinstance(first, fx.Node) or first.op != "placeholder":
        return False
    return str(first.target).count("*") == 1


class SiteTracer(fx.Tracer):
    """Trace a model without its gates, mark where they sit, and compute every value.

    Args:
        gates: The gates.
        sites: Where they sit, by module.
        given: Each argument's value on the examples.
        affine: Scale and shift of each column by the gates; the scale is 0 where it is dropped.
        opaque: Modules that could not be followed.
        before: A trace in eval mode that this one, in train mode, must equal.
        counts: The number of rows of each example.

    Attributes:
        order: All nodes in the order in which they were written.
        runs: The values of each node on the examples.
        sizes: The dimensions that depend on values.
        changing: Nodes that change an input in place.
        arguments: The arguments of forward(), opened.
        queries: Questions that were answered with the value of the example.
        nothing: Parts of the batch that are None.
        folded: Arguments of which an earlier pruning has folded elements of a row: the node, the
            places of the elements in a flattened row, and their values.
        inside: The modules whose forward() is being followed, from the model inwards.
        failed: The same, when tracing failed.
        executing: Whether a node is being computed, so that calls are not recorded.
        writing: Opaque modules that change their attributes.
        marked: The sites that the example has passed.
        precision: The settings of autocast around the operations.
    """

    proxy_buffer_attributes = True

    def __init__(
        self,
        gates: LeAP,
        sites: dict[nn.Module, list[Site]],
        given: tuple[Mapping[str, Any], ...],
        affine: Affine,
        opaque: set[nn.Module],
        before: "SiteTracer | None" = None,
        counts: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self.gates = gates
        self.sites = sites
        self.given = given
        self.affine = affine
        self.opaque = opaque
        self.before = before
        self.counts = counts
        self.order: list[fx.Node] = []
        self.runs: dict[fx.Node, Values] = {}
        self.sizes = Sizes(self.runs)
        self.changing: set[fx.Node] = set()
        self.arguments = Arguments(self)
        self.queries: list[Query] = []
        self.nothing: list[Path] = []
        self.folded: list[tuple[fx.Node, Tensor, Tensor]] = []
        self.inside: list[nn.Module] = []
        self.failed: list[nn.Module] = []
        self.executing = False
        self.writing: set[nn.Module] = set()
        self.marked: set[Site] = set()
        self.calls: dict[nn.Module, int] = {}  # how often the module of a site was called
        self.precision = Precision({gated})

    # Nodes and their values

    def proxy(self, node: fx.Node) -> KnownProxy:
        """Return the stand-in for a node."""
        return KnownProxy(node, self)

    def create_node(self, kind: str, target: Any, *rest: Any, **named: Any) -> fx.Node:
        """Write a node and compute its values."""
        check_time()
        self._refuse_methods(kind, rest)
        node = super().create_node(kind, target, *rest, **named)
        self.order.append(node)
        if not torch.is_grad_enabled():
            raise TraceError("it switches gradients off")
        self.precision.see(node)
        if self.before is not None:
            self._adopt(node, self.before)
        elif kind == "output":
            self.runs[node] = (None,) * len(self.given)
        else:
            self._run(node)
        return node

    def _refuse_methods(self, kind: str, rest: tuple[Any, ...]) -> None:
        """Refuse a method of the batch: its answer may depend on the batch, or be None."""
        if kind != "call_method" or not rest or not rest[0]:
            return
        first = rest[0][0]
        path = path_of(first, self.given[0]) if isinstance(first, fx.Node) else None
        if path is not None and is_container(part_of(self.given[0], path)):
            raise TraceError("it calls a method of the batch")

    def _adopt(self, node: fx.Node, before: "SiteTracer") -> None:
        """Take the values of a node from the trace in eval mode."""
        place = len(self.order) - 1
        known = before.order[place] if place < len(before.order) else None
        if known is None or (known.op, known.target) != (node.op, node.target):
            raise SurgeryError("forward() takes another path in train() than in eval()")
        self.runs[node] = before.runs[known]
        self.sizes.adopt(node, before.sizes, known)

    def is_nothing(self, first: fx.Node, how: str, key: Any) -> bool:
        """Return whether a part of the batch is None; forward() is then followed without it."""
        path = path_of(first, self.given[0])
        if path is None or not is_container(part_of(self.given[0], path)):
            return False
        name, steps = path
        part = (name, (*steps, (how, key)))
        try:
            found = part_of(self.given[0], part)
        except (KeyError, IndexError, AttributeError, TypeError):
            return False
        if found is None:
            self.nothing.append(part)
        return found is None

    def _run(self, node: fx.Node) -> None:
        """Compute a node on every example, and record whether it changes its inputs."""
        self.executing = True
        try:
            reads = path_of(node, self.given[0]) is not None  # which changes nothing
            inputs = [] if reads else [self.runs[source][0] for source in node.all_input_nodes]
            before = versions(inputs)
            with torch.no_grad():
                self.runs[node] = tuple(
                    self._compute(node, place) for place in range(len(self.given))
                )
            if not reads:
                self.sizes.learn(node)
            module = self.root.get_submodule(str(node.target)) if node.op == "call_module" else None
            if versions(inputs) != before or is_in_place(node, module):
                self.changing.add(node)
        finally:
            self.executing = False

    def _compute(self, node: fx.Node, place: int) -> Any:
        """Compute a node on one of the examples."""
        if node.op == "placeholder":
            return self.given[place].get(argument_of(node))
        return self.compute(node, {each: self.runs[each][place] for each in node.all_input_nodes})

    def compute(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
        """Compute an operation from the values of its inputs."""
        inputs: Any = (node.args, node.kwargs)
        args, kwargs = fx.map_arg(inputs, values.__getitem__)
        if node.op == "get_attr":
            found: Any = self.root
            for name in str(node.target).split("."):
                found = getattr(found, name)
            return found
        if node.op == "call_module":
            return self.root.get_submodule(str(node.target))(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        if node.target is gated:
            return self._compute_gates(*args)
        assert callable(node.target)
        return node.target(*args, **kwargs)

    def _compute_gates(self, x: Tensor, start: int, stop: int) -> Tensor:
        shape = x.shape[1:]
        scale, shift = (array[start:stop].reshape(shape).to(x.device) for array in self.affine)
        return torch.where(scale == 0, shift, x * scale + shift).to(x.dtype)

    # Modules

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Return a node for a parameter, except while a layer computes the example."""
        if self.executing:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module becomes one node: layers, collections, hooked and opaque ones."""
        if is_collection(m) or m in self.opaque or has_hooks(m):
            return True
        if is_replaced(m):
            return False
        return super().is_leaf_module(m, module_qualified_name)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> Any:
        """Return stand-ins for the arguments; those that the example leaves out keep their default.

        A dict stays a dict, so that the model may iterate over it.
        """
        if is_replaced(self.root) or is_closure_with_stars(root_fn):
            function: Any = call_own_forward
            arguments = [self.root, *self._placeholders()]
        else:
            function, arguments = super().create_args_for_root(root_fn, is_module, concrete_args)
        values = [self._argument(proxy) for proxy in arguments[1:]]
        return interruptible(function), [arguments[0], *self._marked(values)]

    def _marked(self, values: list[Any]) -> list[Any]:
        """Return a value for each parameter of forward() as it leaves gates on the input."""
        if not any(site.side == "input" for site in self.sites.get(self.root, ())):
            return values
        signature = inspect.signature(self.root.forward)
        call = self.mark_input(self.root, *call_with(signature, values), 0)
        found = values_of(signature, call)
        for place, value in enumerate(values):
            is_named = isinstance(value, Entries) and not isinstance(found[place], Entries)
            if is_named:  # **named, of which forward() may ask what there is
                found[place] = value.replaced(found[place])
        return found

    def _placeholders(self) -> list[Any]:
        """Return stand-ins for the arguments of a forward() that was replaced on the instance."""
        found = []
        for name, parameter in inspect.signature(self.root.forward).parameters.items():
            default = () if parameter.default is parameter.empty else (parameter.default,)
            target = STARS.get(parameter.kind, "") + name
            found.append(self.create_proxy("placeholder", target, default, {}))
        return found

    def _argument(self, proxy: KnownProxy) -> Any:
        name = argument_of(proxy.node)
        if name not in self.given[0]:
            return inspect.signature(self.root.forward).parameters[name].default
        return self.arguments.open(proxy, self.given[0][name], (name, ()))

    def call_module(
        self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Follow the call of a module, with marks in place of the gates."""
        check_time()
        if self.executing or self._is_function(m):
            return forward(*args, **kwargs)
        number = self.calls.get(m, 0)
        if m in self.sites:
            self.calls[m] = number + 1
            args, kwargs = self.mark_input(m, args, kwargs, number)
        self.inside.append(m)
        try:
            output = super().call_module(m, forward, args, kwargs)
        except Exception:
            self.failed = self.failed or list(self.inside)
            raise
        self.inside.pop()
        return self.mark_output(m, self.opened(output), number)

    def _is_function(self, m: nn.Module) -> bool:
        """Return whether a module is a layer without weights that forward() creates: a function."""
        if m in (self.submodule_paths or ()):
            return False
        if any(True for _ in (*m.parameters(), *m.buffers())):
            raise TraceError(f"it calls a {type(m).__name__} with weights that are not the model's")
        return True

    # Keyed tensors and gates

    def opened(self, value: Any) -> Any:
        """Return a keyed tensor with known keys around a stand-in for its values."""
        known: Any = self.runs[value.node][0] if isinstance(value, KnownProxy) else None
        if not is_keyed(known):
            return value
        arguments = (value, tuple(known.keys()))
        return with_values(known, self.create_proxy("call_function", keyed_values, arguments, {}))

    def create_arg(self, a: Any) -> Any:
        """Return an argument of a node; a keyed tensor that was opened is put together again."""
        if is_keyed(a) and isinstance(a.values(), fx.Proxy):
            parts = {
                "keys": list(a.keys()),
                "length_per_key": list(a.length_per_key()),
                "values": a.values(),
                "key_dim": a.key_dim(),
            }
            a = self.create_proxy("call_function", type(a), (), parts)
        whole = self.arguments.node_of(a)
        if whole is not None:
            return whole
        if isinstance(a, numpy.generic):
            a = a.item()
        elif isinstance(a, numpy.ndarray):
            a = torch.as_tensor(a)
        if isinstance(a, Tensor):
            refuse_trained(a, self)
        return super().create_arg(a)

    def mark_input(
        self, m: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], number: int
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a module's call as they leave the gates on its input.

        Args:
            m: The module.
            args: The arguments by position.
            kwargs: The arguments by name.
            number: How many calls of the module came before.
        """
        for site in self.sites.get(m, ()):
            if site.side == "input" and site.place.call in (None, number):
                args, kwargs = site.with_argument(args, kwargs, partial(self.mark, site))
        return args, kwargs

    def mark_output(self, m: nn.Module, output: Any, number: int) -> Any:
        """Return what a module returns as it leaves the gates on its output."""
        for site in self.sites.get(m, ()):
            if site.side == "output" and site.place.call in (None, number):
                if site.place.part is not None:
                    output = self._unpacked(output)
                output = site.with_part(output, partial(self.mark, site))
        return output

    def _unpacked(self, value: Any) -> Any:
        """Return a tuple, list or dict with a stand-in for each element, or another value as is."""
        known = self.runs[value.node][0] if isinstance(value, KnownProxy) else None
        if isinstance(known, Mapping):
            return {name: value[name] for name in known}
        if isinstance(known, tuple | list):
            return like(known, [value[place] for place in range(len(known))])
        return value

    def mark(self, site: Site, value: Any) -> Any:
        """Return what leaves the gates of a site: a tensor, a keyed tensor, a dict or a list."""
        self.marked.add(site)
        layout = self.gates.known_layout()
        blocks = layout.blocks_in(site.columns)
        value = self._unpacked(value)
        if is_keyed(value):
            places = [blocks[key] for key in list(value.keys())]
            return with_values(value, self._mark_keyed(places, value.values()))
        if isinstance(value, tuple | list):
            pairs = zip(value, blocks.values(), strict=True)
            return like(value, [self._mark(entry, place) for entry, place in pairs])
        if not isinstance(value, Mapping):
            return self._mark(value, site.columns or slice(0, layout.fields.dims))
        present = set(value.example if isinstance(value, Entries) else value)
        marked = {name: self._mark(value[name], blocks[name]) for name in blocks if name in present}
        return value.replaced(marked) if isinstance(value, Entries) else {**value, **marked}

    def _mark_keyed(self, places: list[slice], values: Any) -> Any:
        """Mark blocks of columns; all at once where they are neighbours among the fields too."""
        widths = [place.stop - place.start for place in places]
        first = places[0].start
        neighbours = [slice(first + place.start, first + place.stop) for place in places_of(widths)]
        if places == neighbours:
            return self._mark(values, slice(first, places[-1].stop))
        blocks = values.split(widths, dim=1)
        return torch.cat([self._mark(blocks[i], place) for i, place in enumerate(places)], dim=1)

    def _mark(self, value: Any, place: slice) -> Any:
        return self.create_proxy("call_function", gated, (value, place.start, place.stop), {})
