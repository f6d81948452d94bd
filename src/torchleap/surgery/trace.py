"""A model as a graph: every operation between the inputs, the gates and the output, with its values on an example batch."""

import inspect
import operator
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map

from ..errors import SurgeryError
from ..gates import LeAP
from ..sites import Call, Site, find_module

Kind = Literal["rows", "fixed", "static", "batch", "other"]


def gated(x: Any, start: int, stop: int) -> Any:
    """Marks in a graph where the columns `start:stop` pass the gates."""
    return x


@dataclass
class Trace:
    """The graph of a model, and what each of its nodes holds on the example.

    Attributes:
        values: Each node's value in eval mode, with the dropped columns at their constants.
        kinds: "rows" has the batch as its first dimension; "fixed" depends on parameters alone; "static" is a number or the like
            that is the same for every batch; "batch" is the number of rows; "other" is the rest.
        constants: Tensors that the code makes itself, by the name under which the graph reads them.
        rows: Of the example.
    """

    model: nn.Module
    graph: fx.Graph
    values: dict[fx.Node, Any]
    kinds: dict[fx.Node, Kind]
    constants: dict[str, Tensor]
    rows: int
    output: Any

    def shape(self, node: fx.Node) -> tuple[int, ...]:
        """The shape of one row of a node."""
        return tuple(self.values[node].shape[1:])

    def module(self, node: fx.Node) -> nn.Module | None:
        """The layer that a node calls."""
        return self.model.get_submodule(str(node.target)) if node.op == "call_module" else None


class KnownProxy(fx.Proxy):
    """A value in the trace that knows its own kind: code that asks for dimensions, sizes or lengths gets an answer."""

    @property
    def _known(self) -> Any:
        return self.tracer.once[self.node]  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        if isinstance(self._known, Tensor):
            if name == "shape":
                return self.size()
            if name in ("ndim", "dtype", "device", "is_sparse", "is_cuda"):
                return getattr(self._known, name)
        return super().__getattr__(name)

    def size(self, dim: int | None = None) -> Any:
        """Numbers, but for the number of rows."""
        once, twice = self._known, self.tracer.twice[self.node]  # type: ignore[attr-defined]
        if not isinstance(once, Tensor):
            return super().__getattr__("size")(*[] if dim is None else [dim])
        places = range(once.dim()) if dim is None else [dim]
        sizes = tuple(
            once.shape[i] if once.shape[i] == twice.shape[i] else self.tracer.create_proxy("call_method", "size", (self, i), {})
            for i in places
        )
        return sizes if dim is None else sizes[0]

    def dim(self) -> int:
        """The number of dimensions."""
        dims: int = self._known.dim()
        return dims

    def is_floating_point(self) -> bool:
        """Whether it holds real numbers."""
        return bool(self._known.is_floating_point())

    def __iter__(self) -> Any:
        if isinstance(self._known, tuple | list):
            return (self.tracer.create_proxy("call_function", operator.getitem, (self, i), {}) for i in range(len(self._known)))
        return super().__iter__()

    def __len__(self) -> int:
        if isinstance(self._known, tuple | list | dict):
            return len(self._known)
        return super().__len__()

    def __bool__(self) -> bool:
        if isinstance(self._known, Tensor):
            return super().__bool__()
        return bool(self._known)


class SiteTracer(fx.Tracer):
    """Traces a model without its gates, marks the places where they sit, and computes every value on the example.

    Args:
        given: The example's value of each argument.
        scale: What the gates do to each column: scale * x + shift.
        opaque: Modules that could not be followed.
        before: A trace in eval mode that this one, in train mode, should be equal to.
    """

    proxy_buffer_attributes = True

    def __init__(
        self,
        gates: LeAP,
        sites: dict[nn.Module, Site],
        given: Mapping[str, Any],
        affine: tuple[Tensor, Tensor],
        opaque: set[nn.Module],
        before: "SiteTracer | None" = None,
    ) -> None:
        super().__init__()
        self.gates = gates
        self.sites = sites
        self.given = given
        self.given_twice = doubled(given)
        self.affine = affine
        self.opaque = opaque
        self.before = before
        self.order: list[fx.Node] = []
        self.once: dict[fx.Node, Any] = {}
        self.twice: dict[fx.Node, Any] = {}
        self.inside: list[nn.Module] = []
        self.failed: list[nn.Module] = []  # the modules, from the model inwards, in which tracing failed
        self.executing = False

    def proxy(self, node: fx.Node) -> KnownProxy:
        """Stand for a node."""
        return KnownProxy(node, self)

    def create_node(self, kind: str, target: Any, *rest: Any, **named: Any) -> fx.Node:
        """Write a node and compute its values."""
        node = super().create_node(kind, target, *rest, **named)
        place = len(self.order)
        self.order.append(node)
        if self.before is not None:
            known = self.before.order[place] if place < len(self.before.order) else None
            if known is None or (known.op, known.target) != (node.op, node.target):
                raise SurgeryError("forward() takes another way in train() than in eval()")
            self.once[node], self.twice[node] = self.before.once[known], self.before.twice[known]
        elif kind != "output":
            self.executing = True
            try:
                self.once[node] = self._compute(node, self.once, self.given)
                self.twice[node] = self._compute(node, self.twice, self.given_twice)
            finally:
                self.executing = False
        else:
            self.once[node] = self.twice[node] = None
        return node

    def _compute(self, node: fx.Node, values: dict[fx.Node, Any], given: Mapping[str, Any]) -> Any:
        inputs: Any = fx.map_arg((node.args, node.kwargs), values.__getitem__)
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
            return module.forward(*args, **kwargs) if module in self.sites else module(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        if node.target is gated:
            x, start, stop = args
            scale, shift = (array[start:stop].reshape(x.shape[1:]).to(x.device) for array in self.affine)
            return torch.where(scale == 0, shift, x * scale + shift).to(x.dtype)
        assert callable(node.target)
        return node.target(*args, **kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Parameters are nodes, but not while a layer computes the example."""
        return attr_val if self.executing else super().getattr(attr, attr_val, parameter_proxy_cache)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """PyTorch's own layers, and modules that could not be followed."""
        return m in self.opaque or super().is_leaf_module(m, module_qualified_name)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> Any:
        """Arguments that the example leaves out keep their default; a dict is a dict, so that the model may walk over it."""
        function, arguments = super().create_args_for_root(root_fn, is_module, concrete_args)
        defaults = inspect.signature(self.root.forward).parameters
        found = [arguments[0]]
        for proxy in arguments[1:]:
            name = str(proxy.node.target)
            if name.startswith("*"):
                raise SurgeryError(f"forward() takes {name}, whose arguments have no names")
            if name in self.given:
                value = self.given[name]
                found.append({key: proxy[key] for key in value} if isinstance(value, Mapping) else proxy)
            else:
                found.append(defaults[name].default)
                self.graph.erase_node(proxy.node)
        site = self.sites.get(self.root)
        if site is not None and site.side == "input":
            found[1] = self.mark(site, found[1])
        return function, found

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Follow the call, with marks in place of the gates."""
        if self.executing:
            return forward(*args, **kwargs)
        site = self.sites.get(m)
        if site is not None and site.side == "input":
            value, name = site.first_argument(args, kwargs)
            marked = self.mark(site, value)
            args, kwargs = ((marked, *args[1:]), kwargs) if name is None else (args, {**kwargs, name: marked})
        self.inside.append(m)
        try:
            output = super().call_module(m, forward if site is None else m.forward, args, kwargs)
        except Exception:
            self.failed = self.failed or list(self.inside)
            raise
        self.inside.pop()
        return self.mark(site, output) if site is not None and site.side == "output" else output

    def mark(self, site: Site, value: Any) -> Any:
        """What leaves the gates."""
        fields = self.gates.arriving_fields()
        if isinstance(value, Mapping):
            columns = {name: fields.columns(name) for name in fields.names if name in value}
            return {**value, **{n: self._mark(value[n], place.start, place.stop) for n, place in columns.items()}}
        place = site.columns or slice(0, fields.dims)
        return self._mark(value, place.start, place.stop)

    def _mark(self, value: Any, start: int, stop: int) -> Any:
        return self.create_proxy("call_function", gated, (value, start, stop), {})


def affine(gates: LeAP, kept: Tensor) -> tuple[Tensor, Tensor]:
    """What eval() does to each column, scale * x + shift: a kept one is mixed with its mean, a dropped one is its mean, (D,)."""
    with torch.no_grad():
        gate = torch.where(gates.steps > gates.warmup, gates.gate(), torch.ones_like(gates.theta))
        scale = torch.where(kept.to(gate.device), gate[gates.column_gate], 0)
        return scale, (1 - scale) * gates.means()


def trace(model: nn.Module, gates: LeAP, sites: tuple[Site, ...], example: Call, scale: Tensor, shift: Tensor) -> Trace:
    """The graph of an attached model; raises a SurgeryError that says why where its Python cannot be followed.

    Args:
        scale: What the gates do to each column, scale * x + shift, (D,); 0 where a column is dropped.
    """
    given = bind(model, example)
    with in_eval(model):
        tracer, graph, constants = _follow(model, gates, sites, given, (scale, shift))
        for module in model.modules():
            module.training = True
        tracer.once |= _ask_for_the_mode(graph, _follow(model, gates, sites, given, (scale, shift), tracer)[1])
    rows = batch_rows(given)
    kinds: dict[fx.Node, Kind] = {}
    for node in graph.nodes:
        kinds[node] = _kind(node, kinds, tracer.once.get(node), tracer.twice.get(node), rows)
    (end,) = (node for node in graph.nodes if node.op == "output")
    output = fx.map_arg(end.args[0], tracer.once.__getitem__)
    return Trace(model, graph, tracer.once, kinds, constants, rows, output)


def bind(model: nn.Module, example: Call) -> dict[str, Any]:
    """The example's value of each argument of forward()."""
    args, kwargs = example
    try:
        return dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise SurgeryError(f"The example does not fit forward(): {error}. Give a batch as the model takes it.") from error


def batch_rows(given: Any) -> int:
    """The number of rows of a batch."""
    sizes: list[int] = []
    tree_map(lambda leaf: sizes.append(leaf.shape[0]) if isinstance(leaf, Tensor) and leaf.dim() else None, given)
    if not sizes:
        raise SurgeryError("The example holds no tensor with rows. Give a batch as the model takes it.")
    return sizes[0]


def doubled(given: Any) -> Any:
    """The batch with every row twice: dimensions that grow with it are rows."""
    rows = batch_rows(given)
    return tree_map(
        lambda leaf: torch.cat([leaf, leaf]) if isinstance(leaf, Tensor) and leaf.dim() and leaf.shape[0] == rows else leaf, given
    )


@contextmanager
def in_eval(model: nn.Module) -> Iterator[None]:
    """Within this context the model is in eval mode, without gradients; afterwards it is as it was."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def run(model: nn.Module, example: Call) -> Any:
    """The model's output on an example, in eval mode."""
    args, kwargs = example
    with in_eval(model):
        return model(*args, **kwargs)


def _follow(
    model: nn.Module,
    gates: LeAP,
    sites: tuple[Site, ...],
    given: Mapping[str, Any],
    affine: tuple[Tensor, Tensor],
    before: SiteTracer | None = None,
) -> tuple[SiteTracer, fx.Graph, dict[str, Tensor]]:
    """Trace; a submodule whose Python cannot be followed becomes one opaque operation."""
    places = {find_module(model, site.at): site for site in sites}
    opaque: set[nn.Module] = set() if before is None else before.opaque
    members = set(vars(model)) | set(model._buffers)
    while True:
        tracer = SiteTracer(gates, places, given, affine, opaque, before)
        try:
            graph = tracer.trace(model)
            _mark_output(graph, tracer)
            break
        except SurgeryError:
            raise
        except Exception as error:
            fresh = [module for module in tracer.failed if module not in opaque]
            if not fresh or before is not None:
                raise SurgeryError(f"{type(model).__name__}.forward cannot be traced: {_first_line(error)}") from error
            opaque.add(fresh[-1])
        finally:  # the tracer leaves tensors that the code made as attributes of the model
            made = {name: model.__dict__.pop(name) for name in set(vars(model)) - members}
            made |= {name: model._buffers.pop(name) for name in set(model._buffers) - members}
    _without_changes_in_place(graph)
    if not any(node.target is gated for node in graph.nodes):
        inside = next((module for module in opaque), model)
        raise SurgeryError(f"the gates sit inside {type(inside).__name__}, which cannot be traced")
    return tracer, graph, {name: value for name, value in made.items() if isinstance(value, Tensor)}


def _without_changes_in_place(graph: fx.Graph) -> None:
    for node in graph.nodes:
        if node.target in _OUT_OF_PLACE:
            node.target = _OUT_OF_PLACE[node.target]
        elif node.op == "call_method" and node.target.endswith("_") and not node.target.endswith("__"):
            raise SurgeryError(f"forward() changes a tensor in place, by {node.target}()")


_OUT_OF_PLACE = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
}


def _mark_output(graph: fx.Graph, tracer: SiteTracer) -> None:
    """Gates on the output of the whole model."""
    site = tracer.sites.get(tracer.root)
    if site is None or site.side != "output":
        return
    (end,) = (node for node in graph.nodes if node.op == "output")
    with graph.inserting_before(end):
        proxies: Any = tracer.proxy
        value = fx.map_arg(end.args[0], proxies)
        end.args = (tracer.create_arg(tracer.mark(site, value)),)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _ask_for_the_mode(graph: fx.Graph, in_training: fx.Graph) -> dict[fx.Node, bool]:
    """Where train() and eval() differ by a flag, as in F.dropout(x, training=self.training), the graph asks for it.

    Returns the node that asks, with its value in eval mode.
    """
    ours, theirs = list(graph.nodes), list(in_training.nodes)
    same = len(ours) == len(theirs) and all((a.op, a.target) == (b.op, b.target) for a, b in zip(ours, theirs, strict=True))
    if not same:
        raise SurgeryError("forward() takes another way in train() than in eval()")
    flag: fx.Node | None = None
    for node, other in zip(ours, theirs, strict=True):
        kwargs, args = dict(node.kwargs), list(node.args)
        places: list[tuple[Any, Any, Any]] = [(kwargs, key, other.kwargs.get(key)) for key in kwargs]
        places += [(args, place, other.args[place]) for place in range(len(args))]
        for holder, key, in_train in places:
            if holder[key] is False and in_train is True:
                if flag is None:
                    with graph.inserting_before(ours[0]):
                        flag = graph.get_attr("training")
                holder[key] = flag
        node.args, node.kwargs = tuple(args), kwargs
    return {} if flag is None else {flag: False}


def _kind(node: fx.Node, kinds: dict[fx.Node, Kind], once: Any, twice: Any, rows: int) -> Kind:
    if isinstance(once, Tensor) and isinstance(twice, Tensor):
        if node.op == "get_attr":
            return "fixed"
        if once.dim() and once.shape[0] == rows and twice.shape == (2 * rows, *once.shape[1:]):
            return "rows"
        return "fixed" if node.all_input_nodes and all(kinds[source] == "fixed" for source in node.all_input_nodes) else "other"
    if type(once) is int and (once, twice) == (rows, 2 * rows):
        return "batch"
    plain = isinstance(once, int | float | str | torch.Size | torch.dtype | torch.device | None)
    return "static" if plain and once == twice and node.op.startswith("call") else "other"
