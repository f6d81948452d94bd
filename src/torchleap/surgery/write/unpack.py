"""Name the parts of a split that is read as a whole, as in `torch.cat(x.split(1, 1), -1)`."""

import operator

import torch
from torch import fx

from ..trace.graph import Trace
from ..trace.proxies import SPLITS, split_dim

JOINS = (torch.cat, torch.concat, torch.stack)


def unpack_splits(trace: Trace) -> None:
    """Let every concatenation of all parts of a split read these parts one by one."""
    for node in list(trace.graph.nodes):
        split = node.args[0] if node.target in JOINS and node.args else None
        if isinstance(split, fx.Node) and _is_of_rows(split, trace):
            with trace.graph.inserting_before(node):
                parts = [_part(split, place, trace) for place in range(len(trace.values[split]))]
            node.args = (parts, *node.args[1:])


def _is_of_rows(split: fx.Node, trace: Trace) -> bool:
    """Return whether a node is a split of rows along another dimension."""
    if split.target not in SPLITS or len(split.all_input_nodes) != 1:
        return False
    (source,) = split.all_input_nodes
    dim = split_dim(split)
    known = trace.kinds[source] == "rows" and source not in trace.varying and isinstance(dim, int)
    return known and bool(dim % trace.values[source].dim())


def _part(split: fx.Node, place: int, trace: Trace) -> fx.Node:
    part = trace.graph.call_function(operator.getitem, (split, place))
    trace.values[part] = trace.values[split][place]
    trace.kinds[part] = "rows"
    return part
