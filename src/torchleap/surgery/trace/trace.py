"""A model as a graph: every operation between the inputs, the gates and the output, with its values on an example batch."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from ..._common.errors import SurgeryError
from ..._common.text import first_line
from ...gates.leap import LeAP
from ...sites.calls import Call
from ...sites.places import find_module
from ...sites.site import Site
from .channels import Attributes, Globals, globals_read, names_changed, reads_environment, watched
from .entries import Entries
from .examples import Examples, bind, in_eval
from .hooks import has_hooks, muted, refuse_hooks_between
from .inplace import put_out_of_place
from .inputs import Asked, Path
from .parameters import OwnTensors
from .proxies import Values
from .tracer import SiteTracer, gated, is_input

Kind = Literal["rows", "fixed", "batch", "mode", "other"]


@dataclass
class Trace:
    """The graph of a model, and what each of its nodes holds on the example.

    Attributes:
        values: Each node's value in eval mode, with the dropped columns at their constants.
        kinds: "rows" has the batch as its first dimension; "fixed" is a tensor that depends on parameters alone; "batch" is the
            number of rows; "mode" says whether the model is in train(); "other" is the rest, and known for the example only.
        varying: Nodes with rows whose other dimensions depend on the batch, such as padded histories.
        constants: Tensors that the code makes itself, by the name under which the graph reads them.
        entries: The arguments that are dicts, with what forward() asks of them.
        aside: Modules that are not followed, each with whether it changes its attributes.
        out_of_place: Layers that must not change their input in place any more.
        rows: Of the example.
        ordered: Whether the model cares for the order of a dict's entries.
        given: Each argument's value on the runs of the trace.
        counts: The number of rows of each run.
        asked: Questions that were answered as on the example.
        nothing: Parts of the batch that are None.
        variables: Global variables that forward() reads: where, name and value.
    """

    model: nn.Module
    graph: fx.Graph
    values: dict[fx.Node, Any]
    kinds: dict[fx.Node, Kind]
    varying: set[fx.Node]
    constants: dict[str, Tensor]
    entries: dict[str, Entries]
    aside: dict[str, bool]
    out_of_place: set[str]
    rows: int
    ordered: bool
    given: tuple[Mapping[str, Any], ...]
    counts: tuple[int, ...]
    asked: list[Asked]
    nothing: list[Path]
    variables: tuple[tuple[str, str, Any], ...]

    def shape(self, node: fx.Node) -> tuple[int, ...]:
        """The shape of one row of a node."""
        return tuple(self.values[node].shape[1:])

    def module(self, node: fx.Node) -> nn.Module | None:
        """The layer that a node calls."""
        return self.model.get_submodule(str(node.target)) if node.op == "call_module" else None


def affine(gates: LeAP, kept: Tensor) -> tuple[Tensor, Tensor]:
    """What eval() does to each column, scale * x + shift: a kept one is mixed with its mean, a dropped one is its mean, (D,)."""
    with torch.no_grad():
        gate = gates.gate_in_eval()
        scale = torch.where(kept.to(gate.device), gate[gates.column_gate], 0)
        return scale, (1 - scale) * gates.means()


def trace(
    model: nn.Module,
    gates: LeAP,
    sites: tuple[Site, ...],
    examples: Examples,
    scale: Tensor,
    shift: Tensor,
) -> Trace:
    """The graph of an attached model; raises a SurgeryError that says why where its Python cannot be followed.

    Args:
        scale: What the gates do to each column, scale * x + shift, (D,); 0 where a column is dropped.
    """
    calls = examples.calls
    with in_eval(model), torch.enable_grad():
        tracer, graph, constants = _follow(model, gates, sites, calls, (scale, shift))
        for module in model.modules():
            module.training = True
        _, in_training, others = _follow(model, gates, sites, calls, (scale, shift), tracer)
    if any(
        not torch.equal(constants[name], others.get(name, constants[name])) for name in constants
    ):
        raise SurgeryError("forward() takes another way in train() than in eval()")
    mode = _ask_for_the_mode(graph, in_training)
    values = {**{node: runs[0] for node, runs in tracer.runs.items()}, **mode}
    out_of_place = put_out_of_place(graph, tracer.changing, values, model)
    kinds: dict[fx.Node, Kind] = {}
    for node in graph.nodes:
        kinds[node] = "mode" if node in mode else _kind(node, kinds, tracer, examples.counts)
        if node.target is gated and {kinds[node], kinds[node.all_input_nodes[0]]} != {"rows"}:
            raise SurgeryError(
                f"of the batch it cannot be told which of its dimensions are the {examples.rows} rows of the gates"
            )
    varying = _varying(graph, kinds, tracer)
    return Trace(
        model=model,
        graph=graph,
        values=values,
        kinds=kinds,
        varying=varying,
        constants=constants,
        entries=tracer.entries,
        aside={path: module in tracer.writing for path, module in _aside(model, tracer)},
        out_of_place=out_of_place,
        rows=examples.rows,
        ordered=examples.ordered,
        given=tracer.given,
        counts=examples.counts,
        asked=tracer.asked,
        nothing=tracer.nothing,
        variables=_variables(model, tracer),
    )


def _follow(
    model: nn.Module,
    gates: LeAP,
    sites: tuple[Site, ...],
    calls: tuple[Call, ...],
    affine: tuple[Tensor, Tensor],
    before: SiteTracer | None = None,
) -> tuple[SiteTracer, fx.Graph, dict[str, Tensor]]:
    """Trace a model; a submodule whose Python cannot be followed becomes one opaque operation.

    It comes to an end: each round but the last makes at least one more submodule of the model opaque.
    """
    places = {find_module(model, site.at): site for site in sites}
    for module, site in places.items():
        refuse_hooks_between(module, site, is_root=module is model)
    tree = set(model.modules())
    opaque: set[nn.Module] = set() if before is None else before.opaque
    while True:
        tracer = SiteTracer(
            gates, places, tuple(bind(model, call) for call in calls), affine, opaque, before
        )
        attributes = Attributes(model)
        try:
            graph, made = _trace_once(model, tracer)
            own = {
                inner for module in opaque for inner in module.modules()
            }  # these run as they are, and may
            changed = attributes.changed()
            writing = [module for module in changed if module not in own]
        except SurgeryError:
            raise
        except Exception as error:
            fresh = [module for module in tracer.failed if module in tree - opaque]
            if not fresh or before is not None:
                raise SurgeryError(
                    f"{type(model).__name__}.forward cannot be traced: {first_line(error)}"
                ) from error
            opaque.add(fresh[-1])
            continue
        finally:
            attributes.restore()
        if not writing:
            tracer.writing = {
                module for module in opaque if not set(changed).isdisjoint(module.modules())
            }
            break
        if model in writing or before is not None:
            raise SurgeryError(
                f"{type(model).__name__}.forward cannot be traced: it sets attributes"
            )
        opaque.update(writing)
    if tracer.marked != set(sites):
        inside = next((module for module in opaque), model)
        raise SurgeryError(f"the gates sit inside {type(inside).__name__}, which cannot be traced")
    return tracer, graph, made


def _trace_once(model: nn.Module, tracer: SiteTracer) -> tuple[fx.Graph, dict[str, Tensor]]:
    """Run forward() with proxies; return its graph, and the tensors that its code makes."""
    variables = Globals(model)
    names = _changeable(model, tracer)
    executing = partial(getattr, tracer, "executing")
    with muted(model), watched(model, names, executing), OwnTensors(tracer, model):
        graph = tracer.trace(model)
    if variables.changed():
        raise SurgeryError("forward() changes a global variable or an attribute of a class")
    _mark_output(graph, tracer)
    return graph, _made(model)


def _aside(model: nn.Module, tracer: SiteTracer) -> list[tuple[str, nn.Module]]:
    """Return the modules that are not followed, by name."""
    modules = model.named_modules(remove_duplicate=False)
    return [
        (path, module)
        for path, module in modules
        if path and (module in tracer.opaque or has_hooks(module))
    ]


def _variables(model: nn.Module, tracer: SiteTracer) -> tuple[tuple[str, str, Any], ...]:
    """Return the global variables that the code of followed modules reads."""
    inside = {inner for _, module in _aside(model, tracer) for inner in module.modules()}
    followed = [module for module in model.modules() if module not in inside]
    if any(reads_environment(module) for module in followed):
        raise SurgeryError(
            "forward() may depend on the environment, on the default dtype or on types of tensors"
        )
    return tuple(
        dict.fromkeys(variable for module in followed for variable in globals_read(module))
    )


def _changeable(model: nn.Module, tracer: SiteTracer) -> set[str]:
    """Return the attributes that modules which are not followed could change; global variables they must leave alone."""
    inside = {inner for _, module in _aside(model, tracer) for inner in module.modules()}
    attributes: set[str] = set()
    variables: set[str] = set()
    for module in inside:
        names, others = names_changed(module)
        attributes |= names
        variables |= others
    if variables:
        raise SurgeryError(
            f"a module that cannot be followed may change the global variable {min(variables)}"
        )
    return attributes


def _made(model: nn.Module) -> dict[str, Tensor]:
    """Take the tensors off the model that the code made itself; the tracer leaves them there."""
    made: dict[str, Tensor] = {}
    for holder in (vars(model), model._buffers):
        for name in [name for name in holder if name.startswith("_tensor_constant")]:
            made[name] = holder.pop(name)  # type: ignore[assignment]
    return made


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


def _ask_for_the_mode(graph: fx.Graph, in_training: fx.Graph) -> dict[fx.Node, bool]:
    """Where train() and eval() differ by a flag, as in F.dropout(x, training=self.training), the graph asks for it.

    Returns the node that asks, with its value in eval mode.
    """
    ours, theirs = list(graph.nodes), list(in_training.nodes)
    if [(node.op, node.target) for node in ours] != [(node.op, node.target) for node in theirs]:
        raise SurgeryError("forward() takes another way in train() than in eval()")
    partner = dict(zip(theirs, ours, strict=True))
    flag: fx.Node | None = None
    for node, other in zip(ours, theirs, strict=True):
        in_train = (
            fx.map_arg(other.args, partner.__getitem__),
            fx.map_arg(other.kwargs, partner.__getitem__),
        )
        arguments = {**dict(enumerate(node.args)), **node.kwargs}
        others: dict[Any, Any] = {**dict(enumerate(in_train[0])), **in_train[1]}
        for key, value in arguments.items():
            if value is False and others.get(key) is True:
                if flag is None:
                    with graph.inserting_before(ours[0]):
                        flag = graph.get_attr("training")
                arguments[key] = others[key] = flag
        if arguments != others:
            raise SurgeryError("forward() computes with other numbers in train() than in eval()")
        node.args = tuple(arguments[place] for place in range(len(node.args)))
        node.kwargs = {name: arguments[name] for name in node.kwargs}
    return {} if flag is None else {flag: False}


def _kind(
    node: fx.Node, kinds: dict[fx.Node, Kind], tracer: SiteTracer, counts: tuple[int, ...]
) -> Kind:
    runs = tracer.runs[node]
    once, twice = runs[:2]
    sources = [kinds[source] for source in node.all_input_nodes]
    if isinstance(once, Tensor) and all(isinstance(run, Tensor) for run in runs):
        if node.op == "get_attr" or (sources and all(kind == "fixed" for kind in sources)):
            return "fixed"
        return "rows" if _has_rows(runs, counts) and not tracer.sizes.is_free(node, 0) else "other"
    counted = node.target == "size" and node.args[1:] == (0,) and sources == ["rows"]
    of_jagged = node.target == "stride" and len(node.args) == 1 and (once, twice) == counts[:2]
    return "batch" if counted or of_jagged else "other"


def _has_rows(runs: Values, counts: tuple[int, ...]) -> bool:
    once, twice = runs[:2]
    if not once.dim() or twice.shape[1:] != once.shape[1:]:
        return False
    return all(
        run.dim() == once.dim() and run.shape[0] == count
        for run, count in zip(runs, counts, strict=True)
    )


def _varying(graph: fx.Graph, kinds: dict[fx.Node, Kind], tracer: SiteTracer) -> set[fx.Node]:
    """Nodes with rows of changing lengths. An input is one only if its length lives on: else its columns are read one by one."""
    runs = tracer.runs

    def in_shape(node: fx.Node) -> bool:
        shapes = {run.shape[1:] for run in runs[node]}
        return len(shapes) > 1 or bool(tracer.sizes.free.get(node))

    def in_value(node: fx.Node) -> bool:
        found = runs.get(node, (None, None, None))
        once, longer = found[0], found[2]
        if isinstance(once, Tensor) and isinstance(longer, Tensor):
            return once.shape != longer.shape or not torch.equal(once, longer)
        return once is not None and once != longer

    found = {node for node in graph.nodes if kinds[node] == "rows" and in_shape(node)}
    return {
        node for node in found if not is_input(node) or any(in_value(user) for user in node.users)
    }
