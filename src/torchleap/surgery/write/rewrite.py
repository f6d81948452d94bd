"""Rewrite a trace: spread the constants, request what is still needed, write that."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import fx, nn

from ..._common.strict import raise_mistake
from ...gates.leap import LeAP
from ..rules.base import OPAQUE, CutRule
from ..rules.facts import Facts, UnsupportedError, View, form_of
from ..rules.registry import rule_for
from ..rules.writer import Writer
from ..trace.autocast import AutocastCode
from ..trace.graph import Trace
from ..trace.tracer import Affine
from ..trial.run import in_eval
from .build import Edits, find, removed_tensors
from .checks import add_checks, check_modules_aside
from .unpack import unpack_splits

REACHES = (None, 1.0, math.inf)  # ways to write products with constants that are tried


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


@dataclass(frozen=True)
class Surroundings:
    """What is around a module that is cut inside a larger model.

    Attributes:
        known: The constants in its arguments, by name.
        uses: How often modules outside of it hold its layers, parameters and buffers, by id.
        label: The name of the module in messages.
    """

    known: Mapping[str, Facts] = field(default_factory=dict)
    uses: Counter[int] = field(default_factory=Counter)
    label: str = ""


def rewrite(trace: Trace, affine: Affine, around: Surroundings | None = None) -> Rewrite:
    """Write the graph of the pruned model.

    Args:
        trace: The trace of the model.
        affine: Scale and shift of each column by the gates; the scale is 0 where it is dropped.
        around: What is around the model, if it is a module of another one.
    """
    around = around or Surroundings()
    unpack_splits(trace)
    ways = [_rewrite(trace, affine, around, reach) for reach in REACHES]
    found = min((way for way in ways if way is not None), key=_size)
    check_modules_aside(trace, found.writer.graph)
    if trace.autocast is not None:
        found.writer.graph.set_codegen(AutocastCode(trace.autocast))
    return found


def _rewrite(
    trace: Trace, affine: Affine, around: Surroundings, reach: float | None
) -> Rewrite | None:
    """Write the graph with products with constants as sums that reach so far; see `View.reach`.

    None if there are no such products.
    """
    scale, shift = (array.cpu().double() for array in affine)
    uses = _uses(trace.graph, trace.model) + around.uses + around.uses  # nothing shared is cut
    known = _known(trace, around.known)
    plain: set[fx.Node] = set()
    with in_eval(trace.model):
        while True:
            view = View(trace, scale, shift, uses=uses, reach=reach)
            view = replace(view, known=known, label=around.label)
            rules = _spread(view, plain)
            refused = _refused_sums(view, rules)
            if not refused:
                break
            plain |= refused
        if reach is not None and not any(facts.sums for facts in view.facts.values()):
            return None
        _request(view, rules)
        writer = _write(view, rules)
    return Rewrite(view, rules, writer, _edits(trace, writer, around.uses))


def _size(rewritten: Rewrite) -> int:
    """Return the number of parameters and other numbers that the new model will have."""
    model = rewritten.view.trace.model
    edits = rewritten.edits
    held = {id(tensor): tensor.numel() for tensor in (*model.parameters(), *model.buffers())}
    for tensor in removed_tensors(model, edits):
        held.pop(id(tensor), None)
    for path, origin in edits.origins.items():
        old = find(model, path)
        if old is not None and id(old) in held:
            held[id(old)] = origin.numel(old)
    for path, tensor in edits.parameters.items():
        if path not in edits.origins and find(model, path) is None:
            held[id(tensor)] = tensor.numel()
    added = (*edits.weights.values(), *edits.buffers.values())
    return sum(held.values()) + sum(tensor.numel() for tensor in added)


def _refused_sums(view: View, rules: dict[fx.Node, CutRule]) -> set[fx.Node]:
    """Return the nodes with sums of features that some reader needs as they are."""
    refused = set()
    for node in view.trace.graph.nodes:
        for source in node.all_input_nodes:
            has_sums = view.is_rows(source) and view.facts[source].sums is not None
            if has_sums and not _takes_sums(node, view, rules, source):
                refused.add(source)
    return refused


def _takes_sums(node: fx.Node, view: View, rules: dict[fx.Node, CutRule], source: fx.Node) -> bool:
    if node in rules:
        return rules[node].takes_sums(node, view, source)
    parts = [part for part in node.users if view.split_of(part) is node]
    if not parts or len(parts) < len(node.users):
        return OPAQUE.takes_sums(node, view, source)
    return all(rules[part].takes_sums(part, view, source) for part in parts)


def _known(trace: Trace, known: Mapping[str, Facts]) -> dict[str, Facts]:
    """Return the constants in the arguments, with those that an earlier pruning has folded."""
    found = dict(known)
    for node, index, values in trace.folded:
        before = found.get(str(node.target), Facts.none(trace.shape(node)))
        const = before.const.flatten().index_fill(0, index.cpu(), True)
        value = before.value.flatten().index_copy(0, index.cpu(), values.cpu().double())
        shape = before.const.shape
        found[str(node.target)] = Facts(const.reshape(shape), value.reshape(shape))
    return found


def _spread(view: View, plain: set[fx.Node]) -> dict[fx.Node, CutRule]:
    """Choose the rule of each node, and find its constants, from the gates to the output.

    Args:
        view: The view.
        plain: Nodes that are computed element by element, and not as sums of features.
    """
    rules = view.rules
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
        if node in plain:
            view.facts[node] = replace(view.facts[node], sums=None)
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
                _leave_out_sums(node, writer)
            elif node.op != "placeholder" and view.trace.kinds[node] != "batch":
                writer.others[node] = writer.copy(node, writer.complete)
    writer.cut_parts()
    _remove_unread(writer.graph)
    add_checks(writer)
    return writer


def _leave_out_sums(node: fx.Node, writer: Writer) -> None:
    """Leave the sums of features out of a new node that holds more than the live elements."""
    view = writer.view
    sums = view.facts[node].sums
    live = view.live(node)
    form = form_of(live)
    if sums is None or form is None or bool((live & sums.mask).any()):
        return
    held = writer.written[node].form
    if held is None or bool((held.mask(view.trace.shape(node)) & sums.mask).any()):
        writer.written[node] = writer.as_form(node, form)


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


def _edits(trace: Trace, writer: Writer, outside: Counter[int]) -> Edits:
    """Collect what has to change with the graph."""
    model = trace.model
    still = _uses(writer.graph, model) + outside
    layers = set()
    tensors = set()
    for node in trace.graph.nodes:
        path = str(node.target)
        if node.op == "call_module":
            if not any(still[key] for key in contents(model.get_submodule(path))):
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
        weights={name: tensor for name, tensor in writer.weights.items() if name in read},
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
            used.update(contents(model.get_submodule(str(node.target))))
        elif node.op == "get_attr":
            tensor = find(model, str(node.target))
            if tensor is not None:
                used[id(tensor)] += len(node.users)
    return used


def contents(module: nn.Module) -> list[int]:
    """Return the ids of a layer and everything in it, but for gates, which several sites share."""
    found = []
    for part in module.modules():
        if not isinstance(part, LeAP):
            held = (*part._parameters.values(), *part._buffers.values())
            found += [id(part), *(id(tensor) for tensor in held if tensor is not None)]
    return found
