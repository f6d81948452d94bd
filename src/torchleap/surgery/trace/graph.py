"""The graph of a model: every operation between the batch, the gates and the output."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..._common.errors import SurgeryError
from ...gates.leap import LeAP
from ..trial.examples import Examples
from ..trial.run import in_eval
from .autocast import Settings
from .entries import Entries
from .follow import Constants, Sites, follow, modules_aside, variables_read
from .inplace import put_out_of_place, recompute
from .inputs import Expected, Path, Query
from .kinds import Kind, kind_of, varying_nodes
from .modes import read_mode
from .tracer import Affine, SiteTracer, gated


@dataclass
class Trace:
    """The graph of a model, with the value of each of its nodes on the example.

    Attributes:
        model: The attached model.
        graph: Its graph, without the gates; `gated` marks where they sit.
        values: Each node's value in eval mode, with the dropped columns at their constants.
        kinds: "rows" has the batch as its first dimension; "fixed" is a tensor that depends on
            parameters alone; "batch" is the number of rows; "mode" is whether the model is in
            train(); "other" is the rest, and known for the example only.
        varying: Nodes with rows whose other dimensions depend on the batch, such as padded
            histories.
        constants: Tensors that the code makes itself, by the name under which the graph reads them.
        entries: The dicts of the batch, with the questions of forward() about them.
        fixed: What the trace takes from the batch as it is in the example.
        aside: Modules that are not followed, each with whether it changes its attributes.
        out_of_place: Layers that must not change their input in place any more.
        rows: The number of rows of the example.
        ordered: Whether the output depends on the order of a dict's entries.
        given: Each argument's value on the runs of the trace.
        counts: The number of rows of each run.
        queries: Questions that were answered with the value of the example.
        nothing: Parts of the batch that are None.
        folded: Arguments of which an earlier pruning has folded elements; as in the tracer.
        variables: Global variables that forward() reads: Python module, name and value.
        autocast: The settings of autocast that forward() enters; None if it enters none.
    """

    model: nn.Module
    graph: fx.Graph
    values: dict[fx.Node, Any]
    kinds: dict[fx.Node, Kind]
    varying: set[fx.Node]
    constants: Constants
    entries: dict[Path, Entries]
    fixed: list[Expected]
    aside: dict[str, bool]
    out_of_place: set[str]
    rows: int
    ordered: bool
    given: tuple[Mapping[str, Any], ...]
    counts: tuple[int, ...]
    queries: list[Query]
    nothing: list[Path]
    folded: list[tuple[fx.Node, Tensor, Tensor]]
    variables: tuple[tuple[str, str, Any], ...]
    autocast: Settings | None

    def shape(self, node: fx.Node) -> tuple[int, ...]:
        """Return the shape of one row of a node."""
        return tuple(self.values[node].shape[1:])

    def output(self) -> Any:
        """Return the output of the graph on the example."""
        (end,) = (node for node in self.graph.nodes if node.op == "output")
        return fx.map_arg(end.args[0], self.values.__getitem__)

    def module(self, node: fx.Node) -> nn.Module | None:
        """Return the layer that a node calls."""
        if node.op != "call_module":
            return None
        return self.model.get_submodule(str(node.target))


def affine_of(gates: LeAP, kept: Tensor) -> Affine:
    """Return what eval() does to each column, as scale and shift of scale * x + shift, (D,) each.

    A kept column is mixed with its mean by its gate; a dropped one is its mean, with scale 0.

    Args:
        gates: The gates.
        kept: Which columns are kept, (D,) of bool.
    """
    with torch.no_grad():
        gate = gates.gate_in_eval()
        scale = torch.where(kept.to(gate.device), gate[gates.column_gate], 0)
        return scale, (1 - scale) * gates.means()


def trace(
    model: nn.Module,
    gates: LeAP,
    sites: Sites,
    examples: Examples,
    affine: Affine,
    outside: Sequence[nn.Module] = (),
) -> Trace:
    """Return the graph of an attached model.

    Args:
        model: The attached model.
        gates: Its gates.
        sites: Where they sit, by module.
        examples: The batches to compute every node on.
        affine: Scale and shift of each column by the gates; the scale is 0 where it is dropped.
        outside: Modules around the model, whose Python runs as it is, if it is a part of another.

    Raises:
        SurgeryError: The model's Python cannot be followed; the message gives the reason.
    """
    tracer, graph, constants, flag = _trace_both_modes(
        model, gates, sites, examples, affine, outside
    )
    values = {node: runs[0] for node, runs in tracer.runs.items()}
    if flag is not None:
        values[flag] = False
    out_of_place = put_out_of_place(graph, tracer.changing, values, model)
    kinds = _kinds(graph, flag, tracer, examples)
    with in_eval(model):
        recompute(graph, tracer.changing, values, partial(tracer.compute, values=values))
    return Trace(
        model=model,
        graph=graph,
        values=values,
        kinds=kinds,
        varying=varying_nodes(graph, kinds, tracer),
        constants=constants,
        entries=tracer.arguments.entries,
        fixed=tracer.arguments.fixed,
        aside={path: module in tracer.writing for path, module in modules_aside(model, tracer)},
        out_of_place=out_of_place,
        rows=examples.rows,
        ordered=examples.ordered,
        given=tracer.given,
        counts=examples.counts,
        queries=tracer.queries,
        nothing=tracer.nothing,
        folded=tracer.folded,
        variables=variables_read(model, tracer),
        autocast=tracer.precision.inside,
    )


def _trace_both_modes(
    model: nn.Module,
    gates: LeAP,
    sites: Sites,
    examples: Examples,
    affine: Affine,
    outside: Sequence[nn.Module],
) -> tuple[SiteTracer, fx.Graph, Constants, fx.Node | None]:
    """Trace a model in eval and in train mode; the last result is the node that reads the mode."""
    with in_eval(model), torch.enable_grad():
        tracer, graph, constants = follow(model, gates, sites, examples, affine, None, outside)
        for module in model.modules():
            module.training = True
        again, in_training, others = follow(model, gates, sites, examples, affine, tracer, outside)
    if again.precision.inside != tracer.precision.inside:
        raise SurgeryError("forward() switches autocast in train() only, or in eval() only")
    for name, constant in constants.items():
        if not torch.equal(constant, others.get(name, constant)):
            raise SurgeryError("forward() takes another path in train() than in eval()")
    return tracer, graph, constants, read_mode(graph, in_training)


def _kinds(
    graph: fx.Graph, flag: fx.Node | None, tracer: SiteTracer, examples: Examples
) -> dict[fx.Node, Kind]:
    """Return the kind of each node; raise if the rows of a gated tensor cannot be identified."""
    kinds: dict[fx.Node, Kind] = {}
    for node in graph.nodes:
        if flag is not None and node is flag:
            kinds[flag] = "mode"
            continue
        kinds[node] = kind_of(node, kinds, tracer, examples.counts)
        if node.target is gated and {kinds[node], kinds[node.all_input_nodes[0]]} != {"rows"}:
            raise SurgeryError(
                "the batch does not show which of its dimensions are the "
                f"{examples.rows} rows of the gates"
            )
    return kinds
