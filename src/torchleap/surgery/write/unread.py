"""Find the inputs that the dropped fields were made of, and which of them are still read."""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, fx, nn

from ...distributed.torchrec import is_collection
from ..rules.base import OPAQUE, CutRule
from ..rules.facts import View
from ..rules.written import runs_of
from ..trace.inputs import argument_of
from ..trace.tracer import gated, is_input, is_of_star

MOST_RANGES = 8  # that are printed


@dataclass(frozen=True)
class Unread:
    """An input that the pruned model does not read: an entry of the batch, or columns of a tensor.

    Attributes:
        name: The name of the argument or entry.
        columns: The columns; None is all of them.
    """

    name: str
    columns: tuple[int, ...] | None = None

    def __str__(self) -> str:
        if self.columns is None:
            return self.name
        return f"{self.name} columns {_ranges(self.columns)}"


def _ranges(columns: tuple[int, ...]) -> str:
    """Return columns as ranges: (0, 1, 2, 5) is "0-2, 5"."""
    shown = []
    for first, length in runs_of(columns):
        shown.append(str(first) if length == 1 else f"{first}-{first + length - 1}")
    text = ", ".join(shown[:MOST_RANGES])
    if len(shown) > MOST_RANGES:
        text += f" and {len(shown) - MOST_RANGES} more ranges"
    return text


def inputs_of_dropped(
    view: View, rules: dict[fx.Node, CutRule]
) -> tuple[list[Unread], list[Unread]]:
    """Return the inputs of dropped fields that nothing reads any more, and those still read.

    The latter reach the output not through the gates, but past them.
    """
    unread: list[Unread] = []
    still: list[Unread] = []
    past_the_gates = _past_the_gates(view, rules)
    for node, mask in _of_dropped(view, rules).items():
        name = _name_of(node)
        live = view.live(node)
        _append(unread, name, mask & ~live, everything=not live.any())
        _append(still, name, mask & past_the_gates[node], everything=False)
    return unread, still


def _name_of(node: fx.Node) -> str:
    """Return the name of an argument, or of an entry of one."""
    if node.op == "placeholder":
        return argument_of(node)
    if is_of_star(node):
        first = node.args[0]
        assert isinstance(first, fx.Node)
        return f"{argument_of(first)}[{node.args[1]}]"
    return str(node.args[1])


def _append(found: list[Unread], name: str, part: Tensor, *, everything: bool) -> None:
    """Append the columns in which a part of a row has any element."""
    columns = part if part.dim() < 2 else part.flatten(1).any(1)
    if not bool(columns.any()):
        return
    if everything or part.dim() == 0:
        found.append(Unread(name))
    else:
        found.append(Unread(name, tuple(columns.nonzero().flatten().tolist())))


def _of_dropped(view: View, rules: dict[fx.Node, CutRule]) -> dict[fx.Node, Tensor]:
    """Return the elements of the batch that the dropped columns were made of."""
    view = replace(view, requested={})
    for node in view.trace.graph.nodes:
        if node.target is gated:
            view.request(node.all_input_nodes[0], view.facts[node].const)
    return _inputs(view, rules)


def _past_the_gates(view: View, rules: dict[fx.Node, CutRule]) -> dict[fx.Node, Tensor]:
    """Return the elements of the batch that reach the output without passing the gates."""
    view = replace(view, requested={})
    (end,) = (node for node in view.trace.graph.nodes if node.op == "output")
    OPAQUE.request(end, view)
    return _inputs(view, rules)


def _inputs(view: View, rules: dict[fx.Node, CutRule]) -> dict[fx.Node, Tensor]:
    """Pass requests on from the output to the batch, but not through the gates."""
    for node in reversed(view.trace.graph.nodes):
        if view.is_rows(node) and node.target is not gated and view.is_live(node):
            rules[node].request(node, view)
    inputs = [node for node in view.trace.graph.nodes if view.is_rows(node) and is_input(node)]
    return {node: view.live(node) for node in inputs}


def features_unread(
    old: fx.Graph, new: fx.Graph, model: nn.Module, tables: dict[str, list[Any]]
) -> list[Unread]:
    """Return the features of jagged inputs that collections of tables do not read any more.

    Args:
        old: The graph of the model.
        new: The graph of the pruned model.
        model: The model.
        tables: The tables that are left in each collection that is cut.
    """
    before = _features(old, model, {})
    after = _features(new, model, tables)
    found = []
    for name, features in before.items():
        found += [Unread(f"{name}[{each!r}]") for each in features if each not in after[name]]
    return found


def _features(
    graph: fx.Graph, model: nn.Module, tables: dict[str, list[Any]]
) -> dict[str, list[str]]:
    """Return each argument that only collections read, with the features that they read."""
    found: dict[str, list[str]] = {}
    for node in graph.nodes:
        calls = [str(user.target) for user in node.users if user.op == "call_module"]
        if node.op != "placeholder" or len(calls) < len(node.users):
            continue
        modules: dict[str, Any] = {path: model.get_submodule(path) for path in calls}
        if not all(map(is_collection, modules.values())):
            continue
        features: dict[str, None] = {}
        for path, module in modules.items():
            for config in tables.get(path, module.embedding_bag_configs()):
                features |= dict.fromkeys(config.feature_names)
        found[str(node.target)] = list(features)
    return found
