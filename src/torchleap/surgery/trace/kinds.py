"""Find what each node of a trace holds: rows of the batch, weights, numbers."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, fx

from .proxies import Values
from .tracer import SiteTracer, is_input

Kind = Literal["rows", "fixed", "batch", "mode", "other"]


def kind_of(
    node: fx.Node, kinds: dict[fx.Node, Kind], tracer: SiteTracer, counts: Sequence[int]
) -> Kind:
    """Return the kind of a node; see `Trace.kinds`.

    Args:
        node: The node.
        kinds: The kinds of all earlier nodes.
        tracer: The tracer that has followed the model.
        counts: The number of rows of each run.
    """
    runs = tracer.runs[node]
    sources = [kinds[source] for source in node.all_input_nodes]
    if all(isinstance(run, Tensor) for run in runs):
        if node.op == "get_attr" or (sources and all(kind == "fixed" for kind in sources)):
            return "fixed"
        has_rows = _has_rows(runs, counts) and not tracer.sizes.is_free(node, 0)
        return "rows" if has_rows else "other"
    counted = node.target == "size" and node.args[1:] == (0,) and sources == ["rows"]
    of_jagged = node.target == "stride" and len(node.args) == 1 and runs[:2] == tuple(counts[:2])
    return "batch" if counted or of_jagged else "other"


def _has_rows(runs: Values, counts: Sequence[int]) -> bool:
    once, twice = runs[:2]
    if not once.dim() or twice.shape[1:] != once.shape[1:]:
        return False
    for run, count in zip(runs, counts, strict=True):
        if run.dim() != once.dim() or run.shape[0] != count:
            return False
    return True


def varying_nodes(graph: fx.Graph, kinds: dict[fx.Node, Kind], tracer: SiteTracer) -> set[fx.Node]:
    """Return the nodes whose rows have lengths that depend on the batch, such as padded histories.

    An input is one only if a node that reads it depends on its length; else its columns are read
    one by one.
    """
    found = set()
    for node in graph.nodes:
        if kinds[node] != "rows" or not _varies_in_shape(node, tracer):
            continue
        if not is_input(node) or any(_varies_in_value(user, tracer) for user in node.users):
            found.add(node)
    return found


def _varies_in_shape(node: fx.Node, tracer: SiteTracer) -> bool:
    shapes = {run.shape[1:] for run in tracer.runs[node]}
    return len(shapes) > 1 or bool(tracer.sizes.free.get(node))


def _varies_in_value(node: fx.Node, tracer: SiteTracer) -> bool:
    """Return whether the longer batch gives a node another value than the example."""
    runs = tracer.runs.get(node, (None, None, None))
    once = runs[0]
    longer = runs[2]
    if isinstance(once, Tensor) and isinstance(longer, Tensor):
        return once.shape != longer.shape or not torch.equal(once, longer)
    return once is not None and once != longer
