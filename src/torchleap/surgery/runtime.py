"""Functions that pruned models call: they read the batch and check the assumptions of the plan.

The graph of a pruned model contains calls of these functions, and saved models name them (see
`torchleap.export.names`), so their arguments are a part of the file format.
"""

import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from .._common.errors import FieldError, shown
from .._common.text import plural
from ..sites.batches import registered_adapter
from .trial.state import DEPTH, containers, unchanged, versions

Steps = tuple[tuple[str, Any], ...]  # ("item", key) or ("attribute", name): from value to part
Properties = tuple[tuple[str, str], ...]  # names and values, such as ("dtype", "torch.float32")
PROPERTIES = ("dtype", "layout")  # of a tensor, besides its device


def kept_columns(
    x: Tensor, axis: int, index: Tensor, width: int, runs: tuple[tuple[int, int], ...]
) -> Tensor:
    """Return the columns that the pruned model reads.

    Args:
        x: A tensor with all columns as before, or with the columns alone that are still read.
        axis: The dimension of the columns.
        index: The columns that are still read.
        width: The number of columns before.
        runs: The same columns as start and length of neighbours, where these are long, since
            copying neighbours is then faster; else empty.
    """
    kept = index.shape[0]  # not len(), which a pruned model that is pruned again cannot answer
    if x.shape[axis] == kept:
        return x
    if x.shape[axis] != width:
        raise FieldError(
            f"Expected {width} columns, or the {kept} that are still read, "
            f"but found {x.shape[axis]}."
        )
    if runs:
        return torch.cat([x.narrow(axis, *run) for run in runs], axis)
    return x.index_select(axis, index)


def with_item(x: Tensor, key: Any, value: Any) -> Tensor:
    """Return what `x[key] = value` would leave in x, which stays as it is."""
    changed = x.clone()
    changed[key] = value
    return changed


def part_of_layer_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    absent: int,
    mean: float,
    squares: float,
) -> Tensor:
    """Return some columns of a layer norm over more columns, of which the others are constants.

    Args:
        x: The columns, (B, k).
        weight: Their weights, (k,).
        bias: Their biases, (k,).
        eps: What is added to the variance.
        absent: The number of constants.
        mean: Their mean.
        squares: The sum of their squared differences from it.
    """
    moments = moments_of_layer_norm(x, eps, absent, mean, squares)
    normalized = (x - mean) * moments[:, :1] - moments[:, 1:]
    if weight is not None:
        normalized = normalized * weight
    return normalized if bias is None else normalized + bias


def moments_of_layer_norm(
    x: Tensor, eps: float, absent: int, mean: float, squares: float
) -> Tensor:
    """Return 1 / deviation and (mean of all - mean of the constants) / deviation, (B, 2).

    The arguments are those of `part_of_layer_norm`.
    """
    count = x.shape[1] + absent
    own = x.mean(1, keepdim=True)
    apart = own - mean
    total = (x - own).square().sum(1, keepdim=True) + squares
    total = total + apart.square() * (x.shape[1] * absent / count)
    inverse = torch.rsqrt(total / count + eps)
    return torch.cat([inverse, apart * (x.shape[1] / count) * inverse], 1)


def expect_entries(
    batch: Mapping[Any, Any],
    known: tuple[Any, ...],
    absent: tuple[Any, ...],
    needed: tuple[Any, ...],
    walked: bool,
    ordered: bool,
) -> None:
    """Refuse a dict on which forward() may take another path than on the example.

    Args:
        batch: The dict.
        known: The example's entries.
        absent: Entries that forward() looked for in the example and did not find.
        needed: Entries that forward() looked for, found, and still reads.
        walked: Whether forward() iterates over the entries, so that there may be no others.
        ordered: Whether they must be in the order of the example.
    """
    found = list(batch)
    extra = [key for key in found if key in absent or (walked and key not in known)]
    missing = [key for key in needed if key not in batch]
    order = [key for key in known if key in batch]
    if extra:
        problem = f"{', '.join(map(repr, extra))} was not in the example"
    elif missing:
        problem = f"{', '.join(map(repr, missing))} is missing"
    elif ordered and [key for key in found if key in known] != order:
        problem = f"the entries are in another order than {', '.join(map(repr, order))}"
    else:
        return
    raise FieldError(
        "Expected a batch with entries like those of the example that the model was pruned with, "
        f"but {problem}, and forward() depends on that. Give such batches, or prune with example= "
        "such a batch."
    )


def expect_inputs(values: list[Any], expected: tuple[tuple[Any, ...], ...]) -> None:
    """Refuse a batch on which forward() may take another path than on the example.

    Args:
        values: Arguments of forward().
        expected: One tuple per part of the arguments that is checked: its name in messages, the
            place of its argument among the values, the steps that lead to it, its kind, the sizes
            and properties of a tensor, the value that it must have, and whether it must be given.
    """
    for label, place, steps, kind, sizes, properties, value, read in expected:
        try:
            found = walk(values[place], steps) if steps else values[place]
        except (KeyError, IndexError, AttributeError):
            if not read:
                continue
            raise _refused(label, _wanted(kind, sizes, properties, value), "nothing") from None
        if found is None and not read:
            continue
        if isinstance(found, fx.Proxy):  # a pruned model is pruned again
            found = found.repeat_check(properties)
        if not _is_expected(found, kind, sizes, properties, value):
            wanted = _wanted(kind, sizes, properties, value)
            raise _refused(label, wanted, _described(found, properties))


def _is_expected(
    found: Any, kind: str, sizes: tuple[int, ...], properties: Properties, value: Any
) -> bool:
    """Return whether a part of a batch is the tensor, object or value that it should be."""
    if kind == "tensor":
        is_tensor = isinstance(found, Tensor) and found.dim() == len(sizes)
        return is_tensor and _fits(found, sizes, properties)
    if kind == "other":
        return found is not None and not isinstance(found, Tensor)
    if kind == "class":
        return class_of(found) == value or isinstance(found, Mapping)
    if kind == "count":
        return isinstance(found, list | tuple) and len(found) == sizes[0]
    if kind == "like":
        return bool(repr(found) == value)
    if found is value:
        return True
    return value is not None and not isinstance(found, Tensor) and bool(found == value)


def _fits(found: Tensor, sizes: tuple[int, ...], properties: Properties) -> bool:
    for dim, size in enumerate(sizes):
        if size >= 0 and found.shape[dim] != size:
            return False
    if not properties:  # the usual case, at each call of a pruned model
        return True
    return all(property_of(found, name) == wanted for name, wanted in properties)


def expect_constants(x: Tensor, index: Tensor, values: Tensor, where: str) -> None:
    """Refuse an input in which the dropped columns are not the constants that were folded.

    Args:
        x: An argument of a module that is cut inside a model whose Python runs as it is.
        index: The constant elements of a row, among those of a flattened row.
        values: Their values.
        where: The name of the module in messages.
    """
    if isinstance(x, fx.Proxy):  # a pruned model is pruned again
        x.repeat_constants(index, values)
        return
    if torch.compiler.is_exporting():  # a program has no Python that could take another path
        return
    tolerance = 4 * torch.finfo(_precision(x)).eps
    found = x.flatten(1).index_select(1, index)
    same = torch.isclose(found, values.to(x.dtype), rtol=tolerance, atol=0.0, equal_nan=True).all()
    message = (
        f"Expected the columns of dropped fields to reach {where} as the constants that were "
        "folded into its weights, as on the example that the model was pruned with, but found "
        "other values, since forward() takes another path on this batch. Prune with example= such "
        "a batch."
    )
    if torch.compiler.is_compiling():
        torch._assert_async(same, message)
    elif not bool(same):
        raise FieldError(message)


def own_rows(ids: Tensor, start: Tensor, last: Tensor, first: int, where: str) -> Tensor:
    """Return ids as they are, and refuse those that do not lie within the rows of their own field.

    Rows of dropped fields are cut out of a table for all fields, so that such an id would find
    another row than before.

    Args:
        ids: Rows of a table, (B, fields, ...) or (B,).
        start: The first row of each field, as ids without the batch.
        last: The last row of each field.
        first: The number of rows in front of all fields, which any field may use.
        where: The name of the table in messages.
    """
    if isinstance(ids, fx.Proxy):  # a pruned model is pruned again
        arguments = (ids, start, last, first, where)
        proxy: Tensor = ids.tracer.create_proxy("call_function", own_rows, arguments, {})
        return proxy
    if torch.compiler.is_exporting():  # a program has no Python that could raise
        return ids
    within = ids.clamp(start, last) == ids
    if first:
        within = within | ((ids >= 0) & (ids < first))
    if torch.compiler.is_compiling():
        torch._assert_async(within.all(), f"{where}: an id lies outside the rows of its own field.")
    elif not bool(within.all()):
        raise FieldError(_outside(ids, within, start, last, where))
    return ids


def _outside(ids: Tensor, within: Tensor, start: Tensor, last: Tensor, where: str) -> str:
    """Return what is wrong with the first id that lies outside of the rows of its own field."""
    place = (~within).nonzero()[0]
    found = int(ids[tuple(place)])
    low, high = (int(array.expand(ids.shape)[tuple(place)]) for array in (start, last))
    return (
        f"Expected each id in {where} to lie within the rows of its own field, as on the example "
        f"that the model was pruned with, but found row {found} instead of one from {low} to "
        f"{high}, in row {int(place[0])} of the batch. The rows of dropped fields were removed. "
        "Correct the ids, or prune with example= such a batch."
    )


def _precision(x: Tensor) -> torch.dtype:
    """Return the type in which the numbers of a tensor may have been computed."""
    device = x.device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype


def walk(value: Any, steps: Steps) -> Any:
    """Follow steps from an argument to one of its parts, but never to Python's own attributes."""
    for how, key in steps:
        if how == "item":
            value = value[key]
        elif how == "parts":
            value = parts_of(value)
        elif key.startswith("__") or isinstance(value, Tensor):
            raise AttributeError(key)
        else:
            value = getattr(value, key)
            if callable(value) and not isinstance(value, fx.Proxy):  # a batch holds data
                raise AttributeError(key)
    return value


def parts_of(batch: Any) -> Mapping[str, Any]:
    """Return the parts of an object of a registered class; a dict of its parts may replace it."""
    adapter = registered_adapter(batch)
    if adapter is not None:
        return adapter.to_parts(batch)
    if isinstance(batch, Mapping):
        return batch
    raise FieldError(
        "Expected a batch of a class that torchleap.register_batch was called with, or a dict of "
        f"its parts, but found {type(batch).__name__}. Register its class, or give a dict."
    )


def class_of(value: Any) -> str:
    """Return the full name of the class of a value."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def property_of(tensor: Tensor, name: str) -> str:
    """Return a property of a tensor as a string."""
    if name == "device":
        return tensor.device.type
    return str(getattr(tensor, name)) if name in PROPERTIES else ""


def _wanted(kind: str, sizes: tuple[int, ...], properties: Properties, value: Any) -> str:
    if kind == "same":
        return repr(value)
    if kind == "other":
        return "a value that is not a tensor"
    if kind == "count":
        return plural(sizes[0], "value")
    if kind in ("class", "like"):
        return str(value)
    shape = _shape("any" if size < 0 else str(size) for size in sizes)
    return shape + "".join(f", {found}" for _, found in properties)


def _described(found: Any, properties: Properties) -> str:
    if found is None:
        return "None"
    if isinstance(found, list | tuple):
        return plural(len(found), "value")
    if isinstance(found, bool | str):
        return shown(found)
    if not isinstance(found, Tensor):
        return f"a {type(found).__name__}"
    parts = [_shape(map(str, found.shape))]
    parts += [property_of(found, name) for name, _ in properties]
    return ", ".join(parts)


def _shape(sizes: Iterable[str]) -> str:
    return f"a tensor of shape ({', '.join(sizes)})"


def _refused(label: str, wanted: str, found: str) -> FieldError:
    return FieldError(
        f"Expected {label} to be {wanted}, as in the example that the model was pruned with, "
        f"but found {found}, and forward() may depend on that. Give such batches, or prune with "
        "example= such a batch."
    )


def expect_rows(values: list[Any], expected: tuple[tuple[str, int, Steps], ...]) -> None:
    """Refuse a batch whose tensors have different numbers of rows, where forward() compares them.

    Args:
        values: Arguments of forward().
        expected: One tuple per tensor: its name in messages, the place of its argument among the
            values, and the steps that lead to it. A tensor may be missing.
    """
    found: dict[str, Any] = {}
    for label, place, steps in expected:
        with suppress(KeyError, IndexError, AttributeError):
            part = walk(values[place], steps)
            if part is not None:
                found[label] = part.size(0)
    first = next(iter(found.values()), None)
    for rows in found.values():
        if rows != first:
            raise FieldError(
                f"Expected the same number of rows in {', '.join(found)}, as in the example that "
                f"the model was pruned with, but found {list(found.values())}, and forward() may "
                "depend on that. Give such batches."
            )


def expect_globals(expected: tuple[tuple[str, str, Any], ...]) -> None:
    """Refuse a call where global variables of the model's code have changed since the pruning.

    Args:
        expected: The module, name and value of each variable. A module that is not imported is not
            imported for this check either.
    """
    if torch.compiler.is_compiling():
        return
    for where, name, value in expected:
        found = getattr(sys.modules.get(where), name, value)
        if found is not value and found != value:
            raise FieldError(
                f"Expected the global variable {where}.{name} to be {value!r}, as when the model "
                f"was pruned, but found {found!r}, and forward() may depend on that. Set it back, "
                "or prune again."
            )


def call_unchanged(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a module that was not followed, and refuse a batch on which it changes its arguments.

    Others read these arguments too, and on the example the module did not change them.
    """
    inputs = (args, kwargs)
    traced = any(isinstance(leaf, fx.Proxy) for leaf in tree_leaves(inputs))
    if traced or torch.compiler.is_compiling():
        return module(*args, **kwargs)
    parts: list[tuple[Any, Any]] = []
    for value in (*args, *kwargs.values()):
        parts += containers(value, DEPTH, set())
    before = versions(inputs)
    output = module(*args, **kwargs)
    if versions(inputs) != before or not all(unchanged(*part) for part in parts):
        raise FieldError(
            f"Expected {type(module).__name__} to leave its input unchanged, as on the example "
            "that the model was pruned with, but found that it changes it on this batch. Prune "
            "with example= such a batch."
        )
    return output
