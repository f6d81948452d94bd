"""From a trace to the new graph: spread the constants, see what is still needed, write that."""

import operator
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, fx, nn

from ..._common.errors import SurgeryError
from ...distributed.torchrec import is_collection
from ...gates.leap import LeAP
from ..rules.base import Opaque
from ..rules.facts import Facts, View
from ..rules.registry import OPAQUE, rule_for
from ..rules.writer import Writer, kept_columns
from ..trace.channels import call_unchanged, expect_globals
from ..trace.entries import assumed_entries, expect_entries
from ..trace.examples import in_eval
from ..trace.inputs import ANY, Expected, expect_inputs, expected_of, path_of
from ..trace.trace import Trace
from ..trace.tracer import gated, is_input
from .build import find


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
    view = View(
        trace, scale.cpu().double(), shift.cpu().double(), uses=_uses(trace.graph, trace.model)
    )
    with in_eval(trace.model):
        rules = _spread(view)
        _ask(view, rules)
        writer = _write(view, rules)
    model, still = trace.model, _uses(writer.graph, trace.model)
    called = {str(node.target) for node in trace.graph.nodes if node.op == "call_module"}
    read = {
        str(node.target)
        for node in trace.graph.nodes
        if node.op == "get_attr" and find(model, str(node.target)) is not None
    }
    layers = [
        path
        for path in called
        if not any(still[key] for key in _contents(model.get_submodule(path)))
    ]
    tensors = [path for path in read if not still[id(find(model, path))]]
    for path in sorted(trace.out_of_place & {str(node.target) for node in writer.graph.nodes}):
        writer.attributes.setdefault(path, {})["inplace"] = False
    _keep_aside(trace, writer.graph)
    return Rewrite(view, rules, writer, tuple(sorted(layers)), tuple(sorted(tensors)))


def _keep_aside(trace: Trace, graph: fx.Graph) -> None:
    """Check at each call that modules which are not followed leave their arguments alone."""
    calls = [
        node for node in graph.nodes if node.op == "call_module" and node.target in trace.aside
    ]
    called = {str(node.target) for node in calls}
    before = {str(node.target) for node in trace.graph.nodes if node.op == "call_module"}
    lost = [path for path, writes in trace.aside.items() if writes and path in before - called]
    if lost:
        raise SurgeryError(f"{lost[0]} sets attributes, but nothing reads what it returns")
    for node in calls:
        with graph.inserting_before(node):
            module = graph.get_attr(str(node.target))
            new = graph.call_function(call_unchanged, (module, node.args, dict(node.kwargs)))
        node.replace_all_uses_with(new)
        graph.erase_node(node)


def _uses(graph: fx.Graph, model: nn.Module) -> Counter[int]:
    """How often a graph uses each layer, parameter and buffer of a model, by id, whatever its name."""
    used: Counter[int] = Counter()
    for node in graph.nodes:
        if node.op == "call_module":
            used.update(_contents(model.get_submodule(str(node.target))))
        elif node.op == "get_attr" and (tensor := find(model, str(node.target))) is not None:
            used[id(tensor)] += len(node.users)
    return used


def _contents(module: nn.Module) -> list[int]:
    """A layer with everything in it, but for gates, which several sites share."""
    parts = [part for part in module.modules() if not isinstance(part, LeAP)]
    held = [
        tensor
        for part in parts
        for tensor in (*part._parameters.values(), *part._buffers.values())
        if tensor is not None
    ]
    return [id(part) for part in (*parts, *held)]


def _spread(view: View) -> dict[fx.Node, Opaque]:
    """What is constant, from the gates on."""
    rules: dict[fx.Node, Opaque] = {}
    for node in view.trace.graph.nodes:
        if not view.is_rows(node):
            continue
        rules[node] = rule_for(node, view)
        try:
            view.facts[node] = rules[node].known(node, view)
        except (
            RuntimeError,
            TypeError,
            ValueError,
            IndexError,
        ):  # an operation that cannot be tried on arrays
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
        elif view.is_live(node) and view.trace.kinds[node] != "batch":
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


def features_unread(rewritten: Rewrite) -> list[str]:
    """Features of jagged inputs that collections of tables read before, and nothing does now."""
    model, tables = rewritten.view.trace.model, rewritten.writer.collections
    before = _features(rewritten.view.trace.graph, model, {})
    after = _features(rewritten.writer.graph, model, tables)
    return [
        f"{name}[{feature!r}]"
        for name, features in before.items()
        for feature in features
        if feature not in after[name]
    ]


def _features(
    graph: fx.Graph, model: nn.Module, tables: dict[str, list[Any]]
) -> dict[str, list[str]]:
    """Each input that only collections read, with its features that they read."""
    found: dict[str, list[str]] = {}
    for node in graph.nodes:
        calls = [str(user.target) for user in node.users if user.op == "call_module"]
        modules: dict[str, Any] = {path: model.get_submodule(path) for path in calls}
        if (
            node.op != "placeholder"
            or len(calls) < len(node.users)
            or not all(map(is_collection, modules.values()))
        ):
            continue
        configs = [
            config
            for path, module in modules.items()
            for config in tables.get(path, module.embedding_bag_configs())
        ]
        found[str(node.target)] = list(
            dict.fromkeys(feature for config in configs for feature in config.feature_names)
        )
    return found


def _inputs(view: View, rules: dict[fx.Node, Opaque]) -> dict[fx.Node, Tensor]:
    for node in reversed(view.trace.graph.nodes):
        if view.is_rows(node) and node.target is not gated and view.is_live(node):
            rules[node].ask(node, view)
    return {
        node: view.live(node)
        for node in view.trace.graph.nodes
        if view.is_rows(node) and is_input(node)
    }


def _write(view: View, rules: dict[fx.Node, Opaque]) -> Writer:
    writer = Writer(view)
    for node in view.trace.graph.nodes:
        if node.op == "placeholder":
            writer.placeholders[node] = writer.graph.create_node(
                "placeholder", node.target, node.args, name=node.name
            )
            writer.others[node] = writer.placeholders[node]
    for node in view.trace.graph.nodes:
        writer.reader = node
        if node.op == "output":
            writer.graph.output(
                fx.map_arg(
                    node.args[0], lambda s: writer.whole(s) if view.is_rows(s) else writer.other(s)
                )
            )
        elif view.is_rows(node):
            if view.is_live(node):
                writer.written[node] = rules[node].write(node, writer)
        elif node.op != "placeholder" and view.is_live(node) and view.trace.kinds[node] != "batch":
            writer.others[node] = writer.copy(node, writer.whole)
    _remove_unread(writer.graph)
    _expect_inputs(writer)
    _expect_entries(writer)
    return writer


def _expect_inputs(writer: Writer) -> None:
    """Check at each call what the trace assumes about the batch."""
    trace, graph = writer.view.trace, writer.graph
    expected = expected_of(
        trace.graph, graph, trace.model, trace.given, trace.asked, trace.counts, trace.nothing
    )
    expected = [_without_columns_kept(each, graph, trace.given[0]) for each in expected]
    writer.assumptions += [sentence for each in expected for sentence in each.sentences()]
    arguments = {str(node.target): node for node in graph.nodes if node.op == "placeholder"}
    names = list(dict.fromkeys(each.path[0] for each in expected))
    last = list(arguments.values())[-1]
    if trace.variables:
        writer.assumptions += [
            f"the global variable {name} stays {value!r}" for _, name, value in trace.variables
        ]
        with graph.inserting_after(last):
            graph.call_function(expect_globals, (trace.variables,))
    if not names:
        return
    checks = tuple(
        (
            each.label,
            names.index(each.path[0]),
            each.path[1],
            each.kind,
            each.sizes,
            each.about,
            each.value,
            each.read,
        )
        for each in expected
    )
    with graph.inserting_after(last):
        graph.call_function(expect_inputs, ([arguments[name] for name in names], checks))


def _without_columns_kept(
    expected: Expected, graph: fx.Graph, given: Mapping[str, Any]
) -> Expected:
    """Leave the columns of a tensor alone that `kept_columns` checks, since the batch may hold those alone that are read."""
    checks = [node for node in graph.nodes if node.target is kept_columns]
    axes = [node.args[1] for node in checks if path_of(node.args[0], given) == expected.path]
    sizes = tuple(ANY if dim in axes else size for dim, size in enumerate(expected.sizes))
    return replace(expected, sizes=sizes, own_columns=bool(axes))


def _expect_entries(writer: Writer) -> None:
    """Where forward() asks which entries a batch has, check that they are those of the example."""
    for node, new in writer.placeholders.items():
        entries = writer.view.trace.entries.get(str(node.target))
        if entries is None or not (entries.asked or entries.walked):
            continue
        read = {user.args[1] for user in new.users if user.target is operator.getitem}
        known = entries.example
        needed = tuple(
            key for key in known if key in read and (entries.walked or key in entries.asked)
        )
        absent = tuple(key for key in entries.asked if key not in known)
        with writer.graph.inserting_after(new):
            ordered = entries.walked and writer.view.trace.ordered
            writer.graph.call_function(
                expect_entries, (new, known, absent, needed, entries.walked, ordered)
            )
        writer.assumptions += assumed_entries(str(node.target), absent, entries.walked, ordered)


def _remove_unread(graph: fx.Graph) -> None:
    """Drop what turned out not to be read, such as the number of rows; inputs stay, so that old batches are accepted."""
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output"):
            graph.erase_node(node)
