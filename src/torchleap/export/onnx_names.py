"""Name the inputs, outputs and dimensions of an ONNX model as its user knows them."""

import inspect
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten_with_path

from ..sites.calls import Call

BATCH = "batch"  # the name of the dimension of rows
LENGTH = "length"


def names_of_inputs(model: nn.Module, call: Call) -> list[str]:
    """Return a name for each tensor of a batch: its key in a dict, or the name of its argument.

    Keys that several arguments have are preceded by the name of the argument.

    Args:
        model: The model.
        call: The batch.
    """
    given: dict[str, Any] = {}
    signature = inspect.signature(model.forward)
    args, named = call
    for name, value in signature.bind(*args, **named).arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            given |= {f"{name}_{place}": part for place, part in enumerate(value)}
        elif kind is inspect.Parameter.VAR_KEYWORD:
            given |= value
        else:
            given[name] = value
    paths = _paths_of_tensors(given)
    short = [".".join(path[1:] if _has_key(path) else path) for path in paths]
    counts = Counter(short)
    found = []
    for path, name in zip(paths, short, strict=True):
        found.append(name if counts[name] == 1 else ".".join(path))
    return found


def _has_key(path: Sequence[str]) -> bool:
    """Return whether a tensor has a name of its own in its argument."""
    return len(path) > 1 and not path[1].isdigit()


def names_of_outputs(output: Any, inputs: Sequence[str]) -> list[str]:
    """Return a name for each tensor of an output: its key, its field, or "output".

    Args:
        output: What the model returns.
        inputs: The names of the inputs, which no output may have.
    """
    found = []
    for path in _paths_of_tensors(output):
        has_key = bool(path) and not path[0].isdigit()
        name = ".".join(path) if has_key else "_".join(["output", *path])
        while name in inputs:
            name += "_output"
        found.append(name)
    return found


def _paths_of_tensors(value: Any) -> list[list[str]]:
    """Return the keys, indices and fields that lead to each tensor."""
    leaves, _ = tree_flatten_with_path(value)
    found = []
    for path, leaf in leaves:
        if isinstance(leaf, Tensor):
            found.append([str(_step(key)) for key in path])
    return found


def _step(key: Any) -> Any:
    for name in ("key", "idx", "name"):  # of a dict, a list, a named tuple
        if hasattr(key, name):
            return getattr(key, name)
    return key


def tidy(graph: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Name inputs, outputs and dimensions of an ONNX graph, and remove inputs that nothing reads.

    Args:
        graph: The graph, of onnx_ir.
        inputs: The names of the inputs.
        outputs: The names of the outputs.
    """
    named = [*zip(graph.inputs, inputs, strict=True), *zip(graph.outputs, outputs, strict=True)]
    own = {id(value) for value, _ in named}
    values = [value for node in graph.all_nodes() for value in node.outputs]
    for value in (*values, *graph.initializers.values()):
        if value.name in {*inputs, *outputs} and id(value) not in own:
            value.name = f"{value.name}__inner"
    for value, name in named:
        value.name = name
    _name_dimensions(graph, values)
    unread = [value for value in graph.inputs if not value.uses() and not value.is_graph_output()]
    for value in unread:
        graph.inputs.remove(value)


def _name_dimensions(graph: Any, values: Iterable[Any]) -> None:
    """Call the first dimensions of inputs batch, and the others by the input that has them."""
    names: dict[str, str] = {}
    for value in graph.inputs:
        for dim, symbol in enumerate(_symbols(value)):
            if symbol is not None and symbol not in names:
                own = f"{value.name}_{LENGTH}" if dim < 2 else f"{value.name}_{LENGTH}_{dim}"
                names[symbol] = BATCH if dim == 0 and BATCH not in names.values() else own
    for value in (*graph.inputs, *graph.outputs, *values):
        if value.shape is not None:
            sizes = [_renamed(size, names) for size in value.shape]
            value.shape = type(value.shape)(sizes)


def _renamed(size: Any, names: dict[str, str]) -> Any:
    """Return a dimension with the new names of the symbols in it."""
    symbol = getattr(size, "value", size)
    if not isinstance(symbol, str):
        return symbol
    if symbol.isdigit():  # a size that turned out to be fixed
        return int(symbol)
    return re.sub(r"\w+", lambda found: names.get(found[0], found[0]), symbol)


def _symbols(value: Any) -> list[str | None]:
    """Return the name of each dimension of a value; None for one of a fixed size."""
    if value.shape is None:
        return []
    found: list[str | None] = []
    for dim in value.shape:
        symbol = None if isinstance(dim, int) else getattr(dim, "value", None)
        found.append(symbol if isinstance(symbol, str) and not symbol.isdigit() else None)
    return found
