"""What a trace assumes about the batch: the plan lists it, and the pruned model checks it at each call."""

import inspect
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any

from torch import Tensor, fx, nn

from ..._common.errors import FieldError
from ..._common.text import plural
from ...distributed.torchrec import is_jagged, is_keyed

Steps = tuple[
    tuple[str, Any], ...
]  # ("item", key) or ("attribute", name): the way from an argument to one of its parts
Path = tuple[str, Steps]
PLAIN = (bool, int, float, str)
ANY = -1
PROPERTIES = ("dtype", "layout")  # of a tensor, besides its device


@dataclass(frozen=True)
class Asked:
    """A question of forward() about a node that was answered as on the example: its "size", "dtype", "device" or "layout"."""

    node: fx.Node
    about: str


@dataclass(frozen=True)
class Expected:
    """One part of a batch.

    Attributes:
        path: Where it is.
        kind: A "tensor", the "same" value as in the example, or any "other" object.
        sizes: Of the dimensions of a tensor; ANY may differ.
        about: Other properties of a tensor, such as its dtype, by name.
        value: What it must be, of kind "same".
        optional: Whether forward() has a default for it.
        read: Whether the pruned model reads it; else it may be missing.
        own_columns: Whether its columns are checked where they are read.
    """

    path: Path
    kind: str
    sizes: tuple[int, ...] = ()
    about: tuple[tuple[str, str], ...] = ()
    value: Any = None
    optional: bool = False
    read: bool = True
    own_columns: bool = False

    @property
    def label(self) -> str:
        """Return how messages call it."""
        name, steps = self.path
        return name + "".join(f"[{key!r}]" if how == "item" else f".{key}" for how, key in steps)

    def sentences(self) -> Iterator[str]:
        """Yield what is assumed about it."""
        if self.kind == "same":
            yield f"`{self.label}` is {'left out' if self.optional else self.value}"
            return
        if self.optional:
            yield f"`{self.label}` is given"
        if not self.read and not self.about:
            return
        if ANY in self.sizes[1:] and not self.own_columns and self.read:
            yield f"lengths of `{self.label}` may differ"
        elif len(self.sizes) > 1 and not self.own_columns and self.read:
            yield f"`{self.label}` has {plural(self.sizes[1], 'column')} (others are refused)"
        if self.sizes[:1] not in ((), (ANY,)):
            yield f"`{self.label}` has {plural(self.sizes[0], 'element')} (others are refused)"
        for _, found in self.about:
            yield f"`{self.label}` is {found.removeprefix('torch.')}"


def path_of(node: fx.Node, given: Mapping[str, Any]) -> Path | None:
    """Return the way to a part of the batch, if that is what a node reads."""
    if node.op == "placeholder":
        return str(node.target), ()
    if node.op != "call_function" or len(node.args) != 2 or not isinstance(node.args[0], fx.Node):
        return None
    if node.target not in (operator.getitem, getattr) or not isinstance(node.args[1], str | int):
        return None
    first = path_of(node.args[0], given)
    if first is None or not is_container(part_of(given, first)):
        return None
    how = "item" if node.target is operator.getitem else "attribute"
    return first[0], (*first[1], (how, node.args[1]))


def part_of(given: Mapping[str, Any], path: Path) -> Any:
    """Return a part of the batch."""
    name, steps = path
    return walk(given.get(name), steps)


def walk(value: Any, steps: Steps) -> Any:
    """Follow steps from an argument to one of its parts, but not to what Python keeps of an object."""
    for how, key in steps:
        if how == "item":
            value = value[key]
        elif key.startswith("__"):
            raise AttributeError(key)
        else:
            value = getattr(value, key)
    return value


def is_container(value: Any) -> bool:
    """Say whether a part of a batch has parts itself."""
    if value is None or isinstance(value, (Tensor, *PLAIN)) or is_jagged(value) or is_keyed(value):
        return False
    return (
        isinstance(value, Mapping | tuple | list)
        or is_dataclass(value)
        or hasattr(value, "__dict__")
    )


def expected_of(
    old: fx.Graph, new: fx.Graph, model: nn.Module, given: tuple[Mapping[str, Any], ...], asked: Iterable[Asked],
    rows: tuple[int, ...], nothing: Iterable[Path],
) -> list[Expected]:  # fmt: skip
    """Return what is assumed about the parts of the batch that a new graph reads.

    Args:
        old: The trace.
        new: What is left of it.
        model: The model that was traced.
        given: Each argument's value on the runs of the trace.
        asked: Questions that were answered as on the example.
        rows: The number of rows of each run.
        nothing: Parts that were None, so that forward() went the way without them.
    """
    parameters = inspect.signature(model.forward).parameters
    optional = {name for name, p in parameters.items() if p.default is not inspect.Parameter.empty}
    about = _about(old, model, given[0], asked)
    found = []
    read = _read(new, given[0])
    for path in dict.fromkeys((*read, *about, *_numbers(given[0]))):
        runs = [part_of(each, path) for each in given]
        is_read = path in read
        default = is_read and not path[1] and path[0] in optional
        if isinstance(runs[0], Tensor):
            names = about.get(path, set())
            properties = tuple(
                (name, property_of(runs[0], name)) for name in sorted(names - {"size"})
            )
            sizes = _sizes(runs, rows, asked="size" in names, read=is_read)
            found.append(
                Expected(path, "tensor", sizes, properties, optional=default, read=is_read)
            )
        elif not is_container(runs[0]) and not is_jagged(runs[0]) and not is_keyed(runs[0]):
            found.append(Expected(path, "other", optional=default, read=is_read))
    found += [Expected(path, "same") for path in dict.fromkeys(nothing)]
    for node in old.nodes:
        if node.op == "placeholder" and node.target not in given[0]:
            value = node.args[0] if node.args else None
            found.append(Expected((str(node.target), ()), "same", value=value, optional=True))
    return found


def _read(graph: fx.Graph, given: Mapping[str, Any]) -> list[Path]:
    """Return the parts of the batch that a graph reads."""
    found = (path_of(node, given) for node in graph.nodes if node.users)
    return [path for path in dict.fromkeys(found) if path is not None and path[0] in given]


def _numbers(given: Mapping[str, Any]) -> list[Path]:
    """Return the parts of the batch that are numbers or strings."""
    found: list[Path] = []
    for name, value in given.items():
        if isinstance(value, PLAIN):
            found.append((name, ()))
        if isinstance(value, Mapping):
            found += [
                (name, (("item", key),)) for key, part in value.items() if isinstance(part, PLAIN)
            ]
    return found


def _sizes(
    runs: list[Tensor], rows: tuple[int, ...], *, asked: bool, read: bool
) -> tuple[int, ...]:
    """Return the size of each dimension that no run has changed; those of no row count only where forward() asks for them."""
    pairs = zip(runs, rows, strict=True)
    has_rows = all(run.dim() > 0 and len(run) == count for run, count in pairs)
    sizes = []
    for each in zip(*(run.shape for run in runs), strict=True):
        fixed = len(set(each)) == 1 and (read if has_rows else asked)
        sizes.append(each[0] if fixed else ANY)
    return tuple(sizes)


def property_of(tensor: Tensor, name: str) -> str:
    """Return a property of a tensor as a string."""
    if name == "device":
        return tensor.device.type
    return str(getattr(tensor, name)) if name in PROPERTIES else ""


def _about(
    graph: fx.Graph, model: nn.Module, given: Mapping[str, Any], asked: Iterable[Asked]
) -> dict[Path, set[str]]:
    """Return which properties of the batch decide on the answers: those of all inputs that a node is made of."""
    found: dict[Path, set[str]] = {}
    present = set(graph.nodes)
    for question in asked:
        pending = [question.node]
        seen: set[fx.Node] = set()
        while pending:
            node = pending.pop()
            if node in seen or node not in present or _decides_itself(node, model, question.about):
                continue
            seen.add(node)
            path = path_of(node, given)
            if path is not None:
                found.setdefault(path, set()).add(question.about)
            pending += node.all_input_nodes
    return found


def _decides_itself(node: fx.Node, model: nn.Module, about: str) -> bool:
    """Say whether a layer's weights, and not its input, decide on the dtype of what it returns."""
    if node.op != "call_module" or about == "size":
        return False
    return any(True for _ in model.get_submodule(str(node.target)).parameters())


def expect_inputs(values: list[Any], expected: tuple[tuple[Any, ...], ...]) -> None:
    """Refuse a batch on which forward() would have gone another way than on the example that surgery was tried on.

    Args:
        values: Arguments of forward().
        expected: Of each part of them that is checked: how messages call it, the place of its argument among the values, the
            steps that lead to it, its kind, the sizes and properties of a tensor, the value that it must have, and whether
            it must be there.
    """
    for label, place, steps, kind, sizes, about, value, read in expected:
        try:
            found = walk(values[place], steps) if steps else values[place]
        except (KeyError, IndexError, AttributeError):
            if not read:
                continue
            raise _refused(label, _wanted(kind, sizes, about, value), "nothing") from None
        if found is None and not read:
            continue
        if isinstance(found, fx.Proxy):  # a pruned model is pruned again
            found = found.repeat_check(about)
        if kind == "tensor":
            if (
                isinstance(found, Tensor)
                and found.dim() == len(sizes)
                and _fits(found, sizes, about)
            ):
                continue
        elif kind == "other":
            if found is not None and not isinstance(found, Tensor):
                continue
        elif found is value or (
            value is not None and not isinstance(found, Tensor) and found == value
        ):
            continue
        raise _refused(label, _wanted(kind, sizes, about, value), _seen(found, about))


def _fits(found: Tensor, sizes: tuple[int, ...], about: tuple[tuple[str, str], ...]) -> bool:
    for dim, size in enumerate(sizes):
        if size >= 0 and found.shape[dim] != size:
            return False
    return not about or all(property_of(found, name) == wanted for name, wanted in about)


def _wanted(
    kind: str, sizes: tuple[int, ...], about: tuple[tuple[str, str], ...], value: Any
) -> str:
    if kind == "same":
        return repr(value)
    if kind == "other":
        return "a value that is not a tensor"
    shape = _shape("any" if size < 0 else str(size) for size in sizes)
    return shape + "".join(f", {found}" for _, found in about)


def _seen(found: Any, about: tuple[tuple[str, str], ...]) -> str:
    if not isinstance(found, Tensor):
        return "None" if found is None else f"a {type(found).__name__}"
    return _shape(map(str, found.shape)) + "".join(
        f", {property_of(found, name)}" for name, _ in about
    )


def _shape(sizes: Iterable[str]) -> str:
    return f"a tensor of shape ({', '.join(sizes)})"


def _refused(label: str, wanted: str, found: str) -> FieldError:
    return FieldError(
        f"Expected {label} to be {wanted}, as in the example that the model was pruned with, but found {found}, and "
        "forward() may depend on that. Give such batches, or prune with example= such a batch."
    )
