"""Following a model's Python: every operation becomes a node, with its values on the example and its variants."""

import inspect
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.proxy import TraceError

from ..._common.errors import SurgeryError
from ...distributed.torchrec import is_collection, is_keyed, keyed_values, places_of, with_values
from ...gates.leap import LeAP
from ...sites.site import Site
from .entries import Entries
from .hooks import has_hooks
from .inplace import is_in_place, versions
from .inputs import Asked, Path, is_container, part_of, path_of
from .parameters import refuse_trained
from .proxies import KnownProxy, Values
from .sizes import Sizes


def gated(x: Any, start: int, stop: int) -> Any:
    """Marks in a graph where the columns `start:stop` pass the gates."""
    return x


def is_input(node: fx.Node) -> bool:
    """Whether it is a tensor of the batch: an argument, or an entry of an argument that is a dict."""
    if node.op == "placeholder":
        return True
    entry = node.target is operator.getitem and isinstance(node.args[1], str)
    return entry and isinstance(node.args[0], fx.Node) and node.args[0].op == "placeholder"


class SiteTracer(fx.Tracer):
    """Traces a model without its gates, marks the places where they sit, and computes every value on the example.

    Args:
        given: Each argument's value on the example, on its rows twice, on longer ones, on other values.
        scale: What the gates do to each column: scale * x + shift.
        opaque: Modules that could not be followed.
        before: A trace in eval mode that this one, in train mode, should be equal to.
    """

    proxy_buffer_attributes = True

    def __init__(
        self,
        gates: LeAP,
        sites: dict[nn.Module, Site],
        given: tuple[Mapping[str, Any], ...],
        affine: tuple[Tensor, Tensor],
        opaque: set[nn.Module],
        before: "SiteTracer | None" = None,
    ) -> None:
        super().__init__()
        self.gates = gates
        self.sites = sites
        self.given = given
        self.affine = affine
        self.opaque = opaque
        self.before = before
        self.order: list[fx.Node] = []
        self.runs: dict[fx.Node, Values] = {}
        self.sizes = Sizes(self.runs)
        self.changing: set[fx.Node] = set()  # nodes that change an input in place
        self.entries: dict[str, Entries] = {}
        self.asked: list[Asked] = []
        self.nothing: list[Path] = []  # parts of the batch that are None
        self.inside: list[nn.Module] = []
        self.failed: list[
            nn.Module
        ] = []  # the modules, from the model inwards, in which tracing failed
        self.executing = False
        self.writing: set[nn.Module] = set()  # opaque modules that change their attributes
        self.marked: set[Site] = set()  # the sites that the example has passed
        self.autocast = _autocast()

    def proxy(self, node: fx.Node) -> KnownProxy:
        """Stand for a node."""
        return KnownProxy(node, self)

    def create_node(self, kind: str, target: Any, *rest: Any, **named: Any) -> fx.Node:
        """Write a node and compute its values."""
        self._refuse_methods(kind, rest)
        node = super().create_node(kind, target, *rest, **named)
        place = len(self.order)
        self.order.append(node)
        if not torch.is_grad_enabled():
            raise TraceError("it switches gradients off")
        if _autocast() != self.autocast:
            raise TraceError("it switches autocast")
        if self.before is not None:
            known = self.before.order[place] if place < len(self.before.order) else None
            if known is None or (known.op, known.target) != (node.op, node.target):
                raise SurgeryError("forward() takes another way in train() than in eval()")
            self.runs[node] = self.before.runs[known]
            self.sizes.adopt(node, self.before.sizes, known)
        elif kind != "output":
            self._run(node)
        else:
            self.runs[node] = (None,) * len(self.given)
        return node

    def _refuse_methods(self, kind: str, rest: tuple[Any, ...]) -> None:
        """Refuse a method of the batch: it may answer otherwise for each batch, and even with None, which no trace sees."""
        first = rest[0][0] if kind == "call_method" and rest and rest[0] else None
        path = path_of(first, self.given[0]) if isinstance(first, fx.Node) else None
        if path is not None and is_container(part_of(self.given[0], path)):
            raise TraceError("it calls a method of the batch")

    def is_nothing(self, first: fx.Node, how: str, key: Any) -> bool:
        """Say whether a part of the batch is None on the example; forward() is then followed without it."""
        path = path_of(first, self.given[0])
        if path is None or not is_container(part_of(self.given[0], path)):
            return False
        name, steps = path
        try:
            found = part_of(self.given[0], (name, (*steps, (how, key))))
        except (KeyError, IndexError, AttributeError, TypeError):
            return False
        if found is None:
            self.nothing.append((name, (*steps, (how, key))))
        return found is None

    def _run(self, node: fx.Node) -> None:
        self.executing = True
        try:
            reads = path_of(node, self.given[0]) is not None  # which changes nothing
            with torch.no_grad():
                inputs = [] if reads else [self.runs[source][0] for source in node.all_input_nodes]
                before = versions(inputs)
                found = [
                    self._compute(node, lambda source, i=i: self.runs[source][i], given)
                    for i, given in enumerate(self.given)
                ]
            self.runs[node] = tuple(found)
            if not reads:
                self.sizes.learn(node)
            module = self.root.get_submodule(str(node.target)) if node.op == "call_module" else None
            if versions(inputs) != before or is_in_place(node, module):
                self.changing.add(node)
        finally:
            self.executing = False

    def _compute(self, node: fx.Node, values: Any, given: Mapping[str, Any]) -> Any:
        inputs: Any = fx.map_arg((node.args, node.kwargs), values)
        args, kwargs = inputs
        if node.op == "placeholder":
            return given.get(str(node.target))
        if node.op == "get_attr":
            found: Any = self.root
            for name in str(node.target).split("."):
                found = getattr(found, name)
            return found
        if node.op == "call_module":
            module = self.root.get_submodule(str(node.target))
            return module(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        if node.target is gated:
            x, start, stop = args
            scale, shift = (
                array[start:stop].reshape(x.shape[1:]).to(x.device) for array in self.affine
            )
            return torch.where(scale == 0, shift, x * scale + shift).to(x.dtype)
        assert callable(node.target)
        return node.target(*args, **kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Parameters are nodes, but not while a layer computes the example."""
        return (
            attr_val if self.executing else super().getattr(attr, attr_val, parameter_proxy_cache)
        )

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Say whether a module is called as it is: also collections of tables, those with hooks, and opaque ones."""
        as_it_is = is_collection(m) or m in self.opaque or has_hooks(m)
        return as_it_is or super().is_leaf_module(m, module_qualified_name)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> Any:
        """Arguments that the example leaves out keep their default; a dict is a dict, so that the model may walk over it."""
        function, arguments = super().create_args_for_root(root_fn, is_module, concrete_args)
        defaults = inspect.signature(self.root.forward).parameters
        found = [arguments[0]]
        for proxy in arguments[1:]:
            name = str(proxy.node.target)
            if name.startswith("*"):
                raise SurgeryError(f"forward() takes {name}, whose arguments have no names")
            if name not in self.given[0]:
                found.append(defaults[name].default)
            elif self.given[0][name] is None:
                self.nothing.append((name, ()))
                found.append(None)
            else:
                value = self.given[0][name]
                if isinstance(value, Mapping):
                    self.entries[name] = Entries({key: proxy[key] for key in value})
                found.append(self.entries.get(name, self.opened(proxy)))
        site = self.sites.get(self.root)
        if site is not None and site.side == "input":
            found[1] = self.mark(site, found[1])
        return function, found

    def call_module(
        self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Follow the call, with marks in place of the gates."""
        if self.executing or self._is_function(m):
            return forward(*args, **kwargs)
        site = self.sites.get(m)
        if site is not None and site.side == "input":
            value, name = site.first_argument(args, kwargs)
            marked = self.mark(site, value)
            args, kwargs = (
                ((marked, *args[1:]), kwargs) if name is None else (args, {**kwargs, name: marked})
            )
        self.inside.append(m)
        try:
            output = super().call_module(m, forward, args, kwargs)
        except Exception:
            self.failed = self.failed or list(self.inside)
            raise
        self.inside.pop()
        output = self.opened(output)
        return self.mark(site, output) if site is not None and site.side == "output" else output

    def _is_function(self, m: nn.Module) -> bool:
        """Say whether it is a layer without weights that forward() creates, which is just a function."""
        if m in (self.submodule_paths or ()):
            return False
        if any(True for _ in (*m.parameters(), *m.buffers())):
            raise TraceError(f"it calls a {type(m).__name__} with weights that are not the model's")
        return True

    def opened(self, value: Any) -> Any:
        """A keyed tensor with known keys, whose values alone stand for others."""
        known: Any = self.runs[value.node][0] if isinstance(value, KnownProxy) else None
        if not is_keyed(known):
            return value
        return with_values(
            known,
            self.create_proxy("call_function", keyed_values, (value, tuple(known.keys())), {}),
        )

    def create_arg(self, a: Any) -> Any:
        """A keyed tensor that was opened is put together again for code that is not followed."""
        if is_keyed(a) and isinstance(a.values(), fx.Proxy):
            parts = {
                "keys": list(a.keys()),
                "length_per_key": list(a.length_per_key()),
                "values": a.values(),
            }
            a = self.create_proxy("call_function", type(a), (), {**parts, "key_dim": a.key_dim()})
        if isinstance(a, Tensor):
            refuse_trained(a, self)
        return super().create_arg(a)

    def mark(self, site: Site, value: Any) -> Any:
        """What leaves the gates."""
        self.marked.add(site)
        fields = self.gates.arriving_fields()
        if is_keyed(value):
            return with_values(
                value,
                self._mark_keyed([fields.columns(key) for key in value.keys()], value.values()),
            )
        if isinstance(value, Mapping):
            present = set(value.example if isinstance(value, Entries) else value)
            columns = {name: fields.columns(name) for name in fields.names if name in present}
            marked = {
                n: self._mark(value[n], place.start, place.stop) for n, place in columns.items()
            }
            return value.replaced(marked) if isinstance(value, Entries) else {**value, **marked}
        place = site.columns or slice(0, fields.dims)
        return self._mark(value, place.start, place.stop)

    def _mark_keyed(self, places: list[slice], values: Any) -> Any:
        """Mark blocks of columns, which stand at these places among the fields: all at once where they are neighbours there."""
        widths = [place.stop - place.start for place in places]
        first = places[0].start
        if places == [
            slice(first + place.start, first + place.stop) for place in places_of(widths)
        ]:
            return self._mark(values, first, places[-1].stop)
        blocks = values.split(widths, dim=1)
        return torch.cat(
            [self._mark(blocks[i], place.start, place.stop) for i, place in enumerate(places)],
            dim=1,
        )

    def _mark(self, value: Any, start: int, stop: int) -> Any:
        return self.create_proxy("call_function", gated, (value, start, stop), {})


def _autocast() -> tuple[Any, ...]:
    return tuple(
        (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
    )
