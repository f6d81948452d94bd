"""From a trace to the new graph: spread the constants, see what is still needed, write that."""

from collections import Counter
from dataclasses import dataclass, replace

from torch import Tensor, fx, nn

from .facts import Facts, View
from .registry import OPAQUE, is_input, rule_for
from .rules import Opaque
from .trace import Trace, gated, in_eval
from .writer import Writer


@dataclass
class Rewrite:
    """The new graph and everything that has to change with it; nothing is changed yet."""

    view: View
    rules: dict[fx.Node, Opaque]
    writer: Writer
    layers: tuple[str, ...]  # that nothing calls any more
    tensors: tuple[str, ...]  # parameters and buffers that nothing reads any more


def rewrite(trace: Trace, scale: Tensor, shift: Tensor) -> Rewrite:
    """Write the graph anew, in which gated column j is scale[j] * x + shift[j], and constant where scale[j] is 0."""
    view = View(trace, scale.cpu().double(), shift.cpu().double(), calls=_calls(trace), tied=_tied(trace.model))
    with in_eval(trace.model):
        rules = _spread(view)
        _ask(view, rules)
        writer = _write(view, rules)
    called = {str(node.target) for node in trace.graph.nodes if node.op == "call_module"}
    read = {str(node.target) for node in trace.graph.nodes if node.op == "get_attr" and node in view.trace.values}
    still = {str(node.target) for node in writer.graph.nodes}
    tensors = {name for name in read - still if name not in trace.constants and name != "training"}
    return Rewrite(view, rules, writer, tuple(sorted(called - still)), tuple(sorted(tensors)))


def _calls(trace: Trace) -> dict[str, int]:
    used = Counter(str(node.target) for node in trace.graph.nodes if node.op == "call_module")
    for node in trace.graph.nodes:
        if node.op == "get_attr":
            used[str(node.target)] += len(node.users)
    return dict(used)


def _tied(model: nn.Module) -> set[int]:
    holders = Counter(id(p) for module in model.modules() for p in module._parameters.values() if p is not None)
    return {parameter for parameter, count in holders.items() if count > 1}


def _spread(view: View) -> dict[fx.Node, Opaque]:
    """What is constant, from the gates on."""
    rules: dict[fx.Node, Opaque] = {}
    for node in view.trace.graph.nodes:
        if not view.is_rows(node):
            continue
        rules[node] = rule_for(node, view)
        try:
            view.facts[node] = rules[node].known(node, view)
        except (RuntimeError, TypeError, ValueError, IndexError):  # an operation that cannot be tried on arrays
            rules[node] = OPAQUE
            view.facts[node] = Facts.none(view.trace.shape(node))
    return rules


def _ask(view: View, rules: dict[fx.Node, Opaque]) -> None:
    """What is needed, from the output back."""
    for node in reversed(view.trace.graph.nodes):
        if node.op == "output":
            OPAQUE.ask(node, view)
        elif view.is_rows(node):
            if view.is_live(node):
                rules[node].ask(node, view)
        elif view.is_live(node) and view.trace.kinds[node] not in ("static", "batch"):
            OPAQUE.ask(node, view)


def inputs_of_dropped(rewritten: Rewrite) -> dict[fx.Node, Tensor]:
    """Which elements of the batch the dropped columns were made of."""
    view = replace(rewritten.view, wanted={})
    for node in view.trace.graph.nodes:
        if node.target is gated:
            view.want(node.all_input_nodes[0], view.facts[node].const)
    return _inputs(view, rewritten.rules)


def inputs_past_the_gates(rewritten: Rewrite) -> dict[fx.Node, Tensor]:
    """Which elements of the batch the output depends on by another way than through the gates."""
    view = replace(rewritten.view, wanted={})
    (end,) = (node for node in view.trace.graph.nodes if node.op == "output")
    OPAQUE.ask(end, view)
    return _inputs(view, rewritten.rules)


def _inputs(view: View, rules: dict[fx.Node, Opaque]) -> dict[fx.Node, Tensor]:
    for node in reversed(view.trace.graph.nodes):
        if view.is_rows(node) and node.target is not gated and view.is_live(node):
            rules[node].ask(node, view)
    return {node: view.live(node) for node in view.trace.graph.nodes if view.is_rows(node) and is_input(node)}


def _write(view: View, rules: dict[fx.Node, Opaque]) -> Writer:
    writer = Writer(view)
    for node in view.trace.graph.nodes:
        if node.op == "placeholder":
            writer.placeholders[node] = writer.graph.create_node("placeholder", node.target, node.args, name=node.name)
            writer.others[node] = writer.placeholders[node]
    for node in view.trace.graph.nodes:
        writer.reader = node
        if node.op == "output":
            writer.graph.output(fx.map_arg(node.args[0], lambda s: writer.whole(s) if view.is_rows(s) else writer.other(s)))
        elif view.is_rows(node):
            if view.is_live(node):
                writer.written[node] = rules[node].write(node, writer)
        elif node.op != "placeholder" and view.is_live(node) and view.trace.kinds[node] not in ("static", "batch"):
            writer.others[node] = writer.copy(node, writer.whole)
    _remove_unread(writer.graph)
    return writer


def _remove_unread(graph: fx.Graph) -> None:
    """Drop what turned out not to be read, such as the number of rows; inputs stay, so that old batches are accepted."""
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output"):
            graph.erase_node(node)
