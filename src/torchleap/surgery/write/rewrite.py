"""Rewrite a trace: spread the constants, request what is still needed, write that."""

from collections import Counter
from dataclasses import dataclass

from torch import fx, nn

from ..._common.strict import raise_mistake
from ...gates.leap import LeAP
from ..rules.base import OPAQUE, CutRule
from ..rules.facts import Facts, UnsupportedError, View
from ..rules.registry import rule_for
from ..rules.writer import Writer
from ..trace.graph import Trace
from ..trace.tracer import Affine
from ..trial.run import in_eval
from .build import Edits, find
from .checks import add_checks, check_modules_aside


@dataclass(frozen=True)
class Rewrite:
    """The new graph of a model and everything that has to change with it; nothing is changed yet.

    Attributes:
        view: The trace with all facts and requests.
        rules: The rule of each node with rows.
        writer: The writer, with notes and assumptions for the plan.
        edits: What to change in a copy of the model.
    """

    view: View
    rules: dict[fx.Node, CutRule]
    writer: Writer
    edits: Edits


def rewrite(trace: Trace, affine: Affine) -> Rewrite:
    """Write the graph of the pruned model.

    Args:
        trace: The trace of the model.
        affine: Scale and shift of each column by the gates; the scale is 0 where it is dropped.
    """
    scale, shift = (array.cpu().double() for array in affine)
    view = View(trace, scale, shift, uses=_uses(trace.graph, trace.model))
    with in_eval(trace.model):
        rules = _spread(view)
        _request(view, rules)
        writer = _write(view, rules)
    edits = _edits(trace, writer)
    check_modules_aside(trace, writer.graph)
    return Rewrite(view, rules, writer, edits)


def _spread(view: View) -> dict[fx.Node, CutRule]:
    """Choose the rule of each node, and find its constants, from the gates to the output."""
    rules: dict[fx.Node, CutRule] = {}
    for node in view.trace.graph.nodes:
        if not view.is_rows(node):
            continue
        rules[node] = rule_for(node, view)
        try:
            view.facts[node] = rules[node].facts(node, view)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            if not isinstance(error, UnsupportedError):
                raise_mistake(error)
            rules[node] = OPAQUE
            view.facts[node] = Facts.none(view.trace.shape(node))
    return rules


def _request(view: View, rules: dict[fx.Node, CutRule]) -> None:
    """Request the elements that must be computed, from the output to the batch."""
    for node in reversed(view.trace.graph.nodes):
        if node.op == "output":
            OPAQUE.request(node, view)
        elif view.is_live(node):
            if view.is_rows(node):
                rules[node].request(node, view)
            elif view.trace.kinds[node] != "batch":
                OPAQUE.request(node, view)


def _write(view: View, rules: dict[fx.Node, CutRule]) -> Writer:
    """Write every node that has live elements, from the batch to the output, and the checks."""
    writer = Writer(view)
    for node in view.trace.graph.nodes:
        if node.op == "placeholder":
            new = writer.graph.create_node("placeholder", node.target, node.args, name=node.name)
            writer.placeholders[node] = new
            writer.others[node] = new
    for node in view.trace.graph.nodes:
        writer.reader = node
        if node.op == "output":
            _write_output(node, writer)
        elif view.is_live(node):
            if view.is_rows(node):
                writer.written[node] = rules[node].write(node, writer)
            elif node.op != "placeholder" and view.trace.kinds[node] != "batch":
                writer.others[node] = writer.copy(node, writer.complete)
    _remove_unread(writer.graph)
    add_checks(writer)
    return writer


def _write_output(node: fx.Node, writer: Writer) -> None:
    def translate(source: fx.Node) -> fx.Node:
        if writer.view.is_rows(source):
            return writer.complete(source)
        other: fx.Node = writer.other(source)
        return other

    writer.graph.output(fx.map_arg(node.args[0], translate))


def _remove_unread(graph: fx.Graph) -> None:
    """Remove nodes that turned out not to be read, such as the number of rows.

    Arguments stay, so that the pruned model takes the same batches as before.
    """
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output"):
            graph.erase_node(node)


def _edits(trace: Trace, writer: Writer) -> Edits:
    """Collect what has to change with the graph."""
    model = trace.model
    still = _uses(writer.graph, model)
    layers = set()
    tensors = set()
    for node in trace.graph.nodes:
        path = str(node.target)
        if node.op == "call_module":
            if not any(still[key] for key in _contents(model.get_submodule(path))):
                layers.add(path)
        elif node.op == "get_attr" and not _is_of_gates(model, path):
            tensor = find(model, path)
            if tensor is not None and not still[id(tensor)]:
                tensors.add(path)
    called = {str(node.target) for node in writer.graph.nodes}
    for path in sorted(trace.out_of_place & called):
        writer.attributes.setdefault(path, {})["inplace"] = False
    read = {node.target for node in writer.graph.nodes if node.op == "get_attr"}
    buffers = {**writer.buffers, **trace.constants}
    return Edits(
        graph=writer.graph,
        origins=writer.origins,
        parameters=writer.parameters,
        buffers={name: tensor for name, tensor in buffers.items() if name in read},
        attributes=writer.attributes,
        collections=writer.collections,
        layers=tuple(sorted(layers)),
        tensors=tuple(sorted(tensors)),
    )


def _is_of_gates(model: nn.Module, path: str) -> bool:
    """Return whether a tensor belongs to the gates, which leave the pruned model anyway."""
    parent, _, _ = path.rpartition(".")
    return isinstance(model.get_submodule(parent), LeAP)


def _uses(graph: fx.Graph, model: nn.Module) -> Counter[int]:
    """Return how often a graph uses each layer, parameter and buffer of a model, by id."""
    used: Counter[int] = Counter()
    for node in graph.nodes:
        if node.op == "call_module":
            used.update(_contents(model.get_submodule(str(node.target))))
        elif node.op == "get_attr":
            tensor = find(model, str(node.target))
            if tensor is not None:
                used[id(tensor)] += len(node.users)
    return used


def _contents(module: nn.Module) -> list[int]:
    """Return the ids of a layer and everything in it, but for gates, which several sites share."""
    found = []
    for part in module.modules():
        if not isinstance(part, LeAP):
            held = (*part._parameters.values(), *part._buffers.values())
            found += [id(part), *(id(tensor) for tensor in held if tensor is not None)]
    return found
