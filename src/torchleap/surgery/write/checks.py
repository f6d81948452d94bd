"""Add checks of the assumptions about the batch to a new graph."""

import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, fx

from ..._common.errors import SurgeryError
from ..rules.writer import Writer
from ..runtime import (
    call_unchanged,
    expect_constants,
    expect_entries,
    expect_globals,
    expect_inputs,
    expect_rows,
    kept_columns,
    walk,
)
from ..trace.entries import assumed_entries
from ..trace.graph import Trace
from ..trace.inputs import (
    ANY,
    Expected,
    Path,
    argument_of,
    expected_of,
    label_of,
    path_of,
    with_equal_rows,
)


def add_checks(writer: Writer) -> None:
    """Check at each call what the trace assumes, and record the assumptions for the plan."""
    _check_constants(writer)
    _check_inputs(writer)
    _check_entries(writer)


def _check_constants(writer: Writer) -> None:
    """Check the constants in arguments of a module that is cut inside a larger model."""
    view = writer.view
    last = list(writer.placeholders.values())[-1]
    for node in writer.placeholders:
        known = view.known.get(str(node.target))
        if known is None:
            continue
        index = known.const.flatten().nonzero().flatten()
        value: Tensor = view.trace.values[node]
        values = known.value.flatten()[index].to(value.device, value.dtype)
        with writer.graph.inserting_before(last.next):
            places = writer.register("columns", index.to(value.device))
            constants = writer.register("constant", values)
            arguments = (writer.placeholders[node], places, constants, view.label)
            writer.graph.call_function(expect_constants, arguments)


def _check_inputs(writer: Writer) -> None:
    """Check the arguments, their parts, and global variables."""
    trace = writer.view.trace
    graph = writer.graph
    expected = expected_of(
        trace.graph,
        graph,
        trace.model,
        trace.given,
        trace.queries,
        trace.counts,
        trace.nothing,
        trace.fixed,
    )
    expected = [_without_columns_kept(each, graph, trace.given[0]) for each in expected]
    for each in expected:
        writer.assumptions += each.sentences()
    arguments = {argument_of(node): node for node in graph.nodes if node.op == "placeholder"}
    last = list(arguments.values())[-1]
    if trace.variables:
        for _, name, value in trace.variables:
            writer.assumptions.append(f"the global variable {name} stays {value!r}")
        with graph.inserting_after(last):
            graph.call_function(expect_globals, (trace.variables,))
    if expected:
        names = list(dict.fromkeys(each.path[0] for each in expected))
        checks = tuple(_check(each, names) for each in expected)
        with graph.inserting_after(last):
            graph.call_function(expect_inputs, ([arguments[name] for name in names], checks))
    _check_rows(writer, arguments)


def _check_rows(writer: Writer, arguments: dict[str, fx.Node]) -> None:
    """Check that tensors have equally many rows, where forward() compares them."""
    trace = writer.view.trace
    paths = with_equal_rows(trace.graph, trace.model, trace.given, trace.queries)
    if len(paths) < 2:
        return
    names = list(dict.fromkeys(name for name, _ in paths))
    values = [arguments[name] for name in names]
    checks = tuple((label_of(path), names.index(path[0]), path[1]) for path in paths)
    with writer.graph.inserting_after(list(arguments.values())[-1]):
        writer.graph.call_function(expect_rows, (values, checks))
    labels = ", ".join(f"`{label_of(path)}`" for path in paths)
    writer.assumptions.append(f"{labels} have the same number of rows")


def _check(each: Expected, names: list[str]) -> tuple[Any, ...]:
    """Return the arguments of `expect_inputs` for one part of the batch."""
    name, steps = each.path
    place = names.index(name)
    return (each.label, place, steps, each.kind, each.sizes, each.about, each.value, each.read)


def _without_columns_kept(
    expected: Expected, graph: fx.Graph, given: Mapping[str, Any]
) -> Expected:
    """Leave the columns to `kept_columns`, since a batch may hold those alone that are read."""
    axes = set()
    for node in graph.nodes:
        if node.target is kept_columns and path_of(node.args[0], given) == expected.path:
            axes.add(node.args[1])
    sizes = tuple(ANY if dim in axes else size for dim, size in enumerate(expected.sizes))
    return replace(expected, sizes=sizes, own_columns=bool(axes))


def _check_entries(writer: Writer) -> None:
    """Check the entries of dicts, where forward() asks which there are."""
    trace = writer.view.trace
    arguments = {argument_of(node): new for node, new in writer.placeholders.items()}
    for path, entries in trace.entries.items():
        if not (entries.queried or entries.walked):
            continue
        known = entries.example
        walked = entries.walked
        ordered = walked and trace.ordered
        read = _entries_read(writer.graph, path, trace.given[0])
        matters = read if walked else read & entries.queried
        needed = tuple(key for key in known if key in matters)
        absent = tuple(key for key in entries.queried if key not in known)
        name, steps = path
        with writer.graph.inserting_after(list(arguments.values())[-1]):
            batch = arguments[name]
            if steps:
                batch = writer.graph.call_function(walk, (batch, steps))
            with writer.graph.inserting_after(batch):
                given = (batch, known, absent, needed, walked, ordered)
                writer.graph.call_function(expect_entries, given)
        writer.assumptions += assumed_entries(label_of(path), absent, walked, ordered)


def _entries_read(graph: fx.Graph, path: Path, given: Mapping[str, Any]) -> set[Any]:
    """Return the entries of a dict of the batch that a graph reads."""
    found = set()
    for node in graph.nodes:
        first = node.args[0] if node.target is operator.getitem else None
        if isinstance(first, fx.Node) and path_of(first, given) == path:
            found.add(node.args[1])
    return found


def check_modules_aside(trace: Trace, graph: fx.Graph) -> None:
    """Check at each call that modules which are not followed leave their arguments unchanged."""
    calls = [
        node for node in graph.nodes if node.op == "call_module" and node.target in trace.aside
    ]
    called = {str(node.target) for node in calls}
    before = {str(node.target) for node in trace.graph.nodes if node.op == "call_module"}
    for path, writes in trace.aside.items():
        if writes and path in before - called:
            raise SurgeryError(f"{path} sets attributes, but nothing reads what it returns")
    for node in calls:
        with graph.inserting_before(node):
            module = graph.get_attr(str(node.target))
            new = graph.call_function(call_unchanged, (module, node.args, dict(node.kwargs)))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
