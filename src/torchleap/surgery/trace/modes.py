"""Merge the traces in eval and in train mode into one graph that reads the mode at each call."""

from typing import Any

from torch import fx

from ..._common.errors import SurgeryError


def read_mode(graph: fx.Graph, in_training: fx.Graph) -> fx.Node | None:
    """Let a graph read `self.training` where train() and eval() differ by a flag.

    `F.dropout(x, training=self.training)` is such a place.

    Args:
        graph: The trace in eval mode, which is changed.
        in_training: The trace in train mode.

    Returns:
        The node that reads the mode; None if the graphs do not differ.

    Raises:
        SurgeryError: The graphs differ by more than flags.
    """
    ours = list(graph.nodes)
    theirs = list(in_training.nodes)
    if [(node.op, node.target) for node in ours] != [(node.op, node.target) for node in theirs]:
        raise SurgeryError("forward() takes another path in train() than in eval()")
    partner = dict(zip(theirs, ours, strict=True))
    flag: fx.Node | None = None
    for node, other in zip(ours, theirs, strict=True):
        arguments = _arguments(node.args, node.kwargs)
        in_train = _arguments(
            fx.map_arg(other.args, partner.__getitem__),
            fx.map_arg(other.kwargs, partner.__getitem__),
        )
        for key, value in arguments.items():
            if value is False and in_train.get(key) is True:
                if flag is None:
                    with graph.inserting_before(ours[0]):
                        flag = graph.get_attr("training")
                arguments[key] = flag
                in_train[key] = flag
        if arguments != in_train:
            raise SurgeryError("forward() computes with other numbers in train() than in eval()")
        node.args = tuple(arguments[place] for place in range(len(node.args)))
        node.kwargs = {name: arguments[name] for name in node.kwargs}
    return flag


def _arguments(args: Any, kwargs: Any) -> dict[Any, Any]:
    """Return arguments by their place or name."""
    return {**dict(enumerate(args)), **kwargs}
