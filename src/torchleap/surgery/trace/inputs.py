"""Collect what a trace assumes about the batch: plans list it, and pruned models check it."""

import inspect
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from enum import Enum
from typing import Any

from torch import Tensor, fx, nn

from ..._common.text import plural
from ...distributed.torchrec import is_jagged, is_keyed
from ..runtime import Properties, Steps, parts_of, property_of, walk

Path = tuple[str, Steps]  # an argument of forward(), and the steps to one of its parts
PLAIN = (bool, int, float, str)
ANY = -1


@dataclass(frozen=True)
class Query:
    """A question of forward() about a node that was answered with the value of the example.

    Attributes:
        node: The node.
        about: Its "size", "dtype", "device" or "layout"; or its "rows", of which other tensors have
            as many.
    """

    node: fx.Node
    about: str


@dataclass(frozen=True)
class Expected:
    """One part of a batch, as the pruned model expects it.

    Attributes:
        path: Where the part is found in the arguments.
        kind: A "tensor", the "same" value as in the example, any "other" object, an object of a
            "class", a list or tuple with a "count" of values, or a value that looks "like" one.
        sizes: The size of each dimension of a tensor; ANY may differ.
        about: Other properties of a tensor, such as its dtype, by name.
        value: The value that it must have, of kind "same".
        optional: Whether forward() has a default for it.
        read: Whether the pruned model reads it; else it may be missing.
        own_columns: Whether its columns are checked where they are read.
    """

    path: Path
    kind: str
    sizes: tuple[int, ...] = ()
    about: Properties = ()
    value: Any = None
    optional: bool = False
    read: bool = True
    own_columns: bool = False

    @property
    def label(self) -> str:
        """Return its name in messages."""
        return label_of(self.path)

    def sentences(self) -> Iterator[str]:
        """Yield the assumptions about it."""
        if self.kind in ("same", "like", "class"):
            yield f"`{self.label}` is {'left out' if self.optional else self.value}"
            return
        if self.kind == "count":
            yield f"`{self.label}` has {plural(self.sizes[0], 'value')}"
            return
        if self.optional:
            yield f"`{self.label}` is given"
        if not self.read and not self.about:
            return
        if self.read and not self.own_columns:
            if ANY in self.sizes[1:]:
                yield f"lengths of `{self.label}` may differ"
            elif len(self.sizes) > 1:
                yield f"`{self.label}` has {plural(self.sizes[1], 'column')} (others are refused)"
        if self.sizes[:1] not in ((), (ANY,)):
            yield f"`{self.label}` has {plural(self.sizes[0], 'element')} (others are refused)"
        for _, found in self.about:
            yield f"`{self.label}` is {found.removeprefix('torch.')}"


def path_of(node: fx.Node, given: Mapping[str, Any]) -> Path | None:
    """Return the path to the part of the batch that a node reads; None if it reads none."""
    if node.op == "placeholder":
        return argument_of(node), ()
    step = _step_of(node)
    if step is None or not isinstance(node.args[0], fx.Node):
        return None
    first = path_of(node.args[0], given)
    if first is None or not is_container(part_of(given, first)):
        return None
    name, steps = first
    return name, (*steps, step)


def _step_of(node: fx.Node) -> tuple[str, Any] | None:
    """Return the step from a container to one of its parts that a node may be."""
    if node.target is parts_of:
        return "parts", ""
    if node.target not in (operator.getitem, getattr) or len(node.args) != 2:
        return None
    if not isinstance(node.args[1], str | int | Enum):
        return None
    return ("item" if node.target is operator.getitem else "attribute"), node.args[1]


def argument_of(node: fx.Node) -> str:
    """Return the name of the argument that a node stands for; `*args` is called "args"."""
    return str(node.target).lstrip("*")


def part_of(given: Mapping[str, Any], path: Path) -> Any:
    """Return the part of the arguments at a path."""
    name, steps = path
    return walk(given.get(name), steps)


def is_container(value: Any) -> bool:
    """Return whether a part of a batch has parts itself."""
    if value is None or isinstance(value, (Tensor, *PLAIN)) or is_jagged(value) or is_keyed(value):
        return False
    if isinstance(value, Mapping | tuple | list) or is_dataclass(value):
        return True
    return hasattr(value, "__dict__")


def expected_of(
    old: fx.Graph,
    new: fx.Graph,
    model: nn.Module,
    given: Sequence[Mapping[str, Any]],
    queries: Iterable[Query],
    rows: Sequence[int],
    nothing: Iterable[Path],
    fixed: Iterable[Expected],
) -> list[Expected]:
    """Return the assumptions about the parts of the batch that matter to a new graph.

    Args:
        old: The graph of the trace.
        new: The graph of the pruned model.
        model: The model that was traced.
        given: Each argument's value on the runs of the trace.
        queries: Questions that were answered with the value of the example.
        rows: The number of rows of each run.
        nothing: Parts that were None, so that forward() took the path without them.
        fixed: What the trace has taken from the batch as it is in the example.
    """
    optional = _arguments_with_default(model)
    about = _decisive(old, model, given[0], queries)
    read = _read(new, given[0])
    found = []
    for path in dict.fromkeys((*read, *about, *_numbers(given[0]))):
        is_read = path in read
        default = is_read and not path[1] and path[0] in optional
        runs = [part_of(each, path) for each in given]
        if isinstance(runs[0], Tensor):
            names = about.get(path, set())
            sizes = _sizes(runs, rows, queried="size" in names, read=is_read)
            properties = [
                (name, property_of(runs[0], name)) for name in sorted(names - {"size", "rows"})
            ]
            found.append(
                Expected(path, "tensor", sizes, tuple(properties), optional=default, read=is_read)
            )
        elif not is_container(runs[0]) and not is_jagged(runs[0]) and not is_keyed(runs[0]):
            found.append(Expected(path, "other", optional=default, read=is_read))
    found += [Expected(path, "same") for path in dict.fromkeys(nothing)]
    return [*dict.fromkeys(fixed), *found, *_left_out(old, given[0])]


def with_equal_rows(
    graph: fx.Graph, model: nn.Module, given: Sequence[Mapping[str, Any]], queries: Iterable[Query]
) -> list[Path]:
    """Return the paths to the tensors that forward() expects to have equally many rows."""
    compared = [query for query in queries if query.about == "rows"]
    paths = _decisive(graph, model, given[0], compared)
    return [path for path in paths if isinstance(part_of(given[0], path), Tensor)]


def label_of(path: Path) -> str:
    """Return the name of a part of the batch in messages."""
    name, steps = path
    for how, key in steps:
        if how != "parts":
            name += f"[{key!r}]" if how == "item" else f".{key}"
    return name


def _arguments_with_default(model: nn.Module) -> set[str]:
    parameters = inspect.signature(model.forward).parameters
    empty = inspect.Parameter.empty
    return {name for name, parameter in parameters.items() if parameter.default is not empty}


def _left_out(graph: fx.Graph, given: Mapping[str, Any]) -> list[Expected]:
    """Return the arguments that the example leaves out: they keep their defaults."""
    found = []
    for node in graph.nodes:
        if node.op == "placeholder" and argument_of(node) not in given:
            value = node.args[0] if node.args else None
            found.append(Expected((argument_of(node), ()), "same", value=value, optional=True))
    return found


def _read(graph: fx.Graph, given: Mapping[str, Any]) -> list[Path]:
    """Return the paths to the parts of the batch that a graph reads."""
    found = dict.fromkeys(path_of(node, given) for node in graph.nodes if node.users)
    return [path for path in found if path is not None and path[0] in given]


def _numbers(given: Mapping[str, Any]) -> list[Path]:
    """Return the paths to the parts of the batch that are numbers or strings."""
    found: list[Path] = []
    for name, value in given.items():
        if isinstance(value, PLAIN):
            found.append((name, ()))
        elif isinstance(value, Mapping):
            keys = [key for key, part in value.items() if isinstance(part, PLAIN)]
            found += [(name, (("item", key),)) for key in keys]
    return found


def _sizes(
    runs: list[Tensor], rows: Sequence[int], *, queried: bool, read: bool
) -> tuple[int, ...]:
    """Return the size of each dimension that is the same on every run, and ANY for the others.

    The sizes of a tensor without rows count only where forward() asks for them.
    """
    has_rows = True
    for run, count in zip(runs, rows, strict=True):
        has_rows = has_rows and run.dim() > 0 and len(run) == count
    matters = read if has_rows else queried
    sizes = []
    for each in zip(*(run.shape for run in runs), strict=True):
        fixed = matters and len(set(each)) == 1
        sizes.append(each[0] if fixed else ANY)
    return tuple(sizes)


def _decisive(
    graph: fx.Graph, model: nn.Module, given: Mapping[str, Any], queries: Iterable[Query]
) -> dict[Path, set[str]]:
    """Return which properties of which parts of the batch decide on the answers to the queries.

    They are those of all inputs that a node is made of.
    """
    found: dict[Path, set[str]] = {}
    present = set(graph.nodes)
    for query in queries:
        pending = [query.node]
        seen: set[fx.Node] = set()
        while pending:
            node = pending.pop()
            if node in seen or node not in present or _decides_itself(node, model, query.about):
                continue
            seen.add(node)
            path = path_of(node, given)
            if path is not None:
                found.setdefault(path, set()).add(query.about)
            pending += node.all_input_nodes
    return found


def _decides_itself(node: fx.Node, model: nn.Module, about: str) -> bool:
    """Return whether a layer's weights, not its input, decide on a property of its output."""
    if node.op != "call_module" or about == "size":
        return False
    return any(True for _ in model.get_submodule(str(node.target)).parameters())
