"""TorchRec's containers and collections, recognised by their methods: torchrec is never imported.

- Keyed: a `KeyedTensor`, (B, D) with a name and a width for each block of columns.
- Jagged: a `KeyedJaggedTensor`, a batch of ids, any number of them per key and row.
- Awaitable: either of them, still on its way from other ranks.
- Collection: an `EmbeddingBagCollection`, which turns a jagged batch into a keyed tensor; it may be
  sharded over several ranks.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from .._common.errors import FieldError

# Which is which


def is_keyed(value: Any) -> bool:
    """Return whether a value is a KeyedTensor."""
    return _has_methods(value, "keys", "values", "length_per_key", "key_dim")


def is_jagged(value: Any) -> bool:
    """Return whether a value is a KeyedJaggedTensor with the same number of rows for each key."""
    if not _has_methods(value, "keys", "values", "lengths", "stride", "weights_or_none"):
        return False
    return not (_has_methods(value, "variable_stride_per_key") and value.variable_stride_per_key())


def is_awaitable(value: Any) -> bool:
    """Return whether a value is a promise of another one, as sharded collections return them."""
    return _has_methods(value, "wait") and not isinstance(value, Tensor)


def is_collection(module: Any) -> bool:
    """Return whether a module is an EmbeddingBagCollection that is not sharded."""
    if not isinstance(module, nn.Module) or is_sharded(module):
        return False
    return _has_methods(module, "embedding_bag_configs", "is_weighted")


def is_sharded(module: Any) -> bool:
    """Return whether a module's tables lie on several ranks, which all have to call it."""
    if not isinstance(module, nn.Module):
        return False
    return _has_methods(module, "input_dist", "output_dist", "create_context")


def _has_methods(value: Any, *names: str) -> bool:
    """Return whether the class of a value has these methods; the value itself might wait first."""
    return all(callable(getattr(type(value), name, None)) for name in names)


# Awaitables


def waited(value: Any) -> Any:
    """Return the value that an awaitable promises, and any other value as it is.

    An awaitable that keeps its result is waited for once.
    """
    if not is_awaitable(value):
        return value
    if vars(value).get("_result") is not None:
        return vars(value)["_result"]
    result = value.wait()
    if "_result" in vars(value):
        value._result = result
    return result


def when_ready(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the same awaitable, whose result will be changed.

    The model then waits where it would wait without the change, no earlier. An awaitable that
    takes no callbacks is waited for, and the changed result is returned.
    """
    callbacks = None
    if hasattr(type(value), "callbacks"):
        callbacks = getattr(value, "callbacks", None)
    if not isinstance(callbacks, list) or vars(value).get("_result") is not None:
        return change(waited(value))
    callbacks.append(change)
    return value


# Keyed tensors


def blocks_of(value: Any, label: str) -> dict[str, Tensor]:
    """Return the blocks of a keyed tensor by name, (B, width) each, in its order.

    Args:
        value: A keyed tensor.
        label: The place in the model, with which an error message begins.
    """
    keys = list(value.keys())
    values = value.values()
    repeated = [key for key, count in Counter(keys).items() if count > 1]
    if repeated:
        raise FieldError(
            f"{label}: expected each key once, "
            f"but {', '.join(map(repr, repeated))} appears more than once."
        )
    if value.key_dim() != 1 or values.dim() != 2:
        raise FieldError(
            f"{label}: expected a KeyedTensor of (rows, columns) with key_dim=1, "
            f"but found the shape {tuple(values.shape)} with key_dim={value.key_dim()}."
        )
    return dict(zip(keys, values.split(list(value.length_per_key()), dim=1), strict=True))


def with_values(value: Any, values: Any) -> Any:
    """Return a keyed tensor with the same keys and widths, but other values."""
    kind: Any = type(value)
    made = kind.__new__(kind)  # not kind(...), which torchrec's metaclass would write into a trace
    made.__init__(
        keys=list(value.keys()),
        length_per_key=list(value.length_per_key()),
        values=values,
        key_dim=value.key_dim(),
    )
    return made


def keyed_values(value: Any, keys: Sequence[str]) -> Tensor:
    """Return the blocks of these keys side by side, (B, D), in the order of `keys`.

    The order of the value itself may differ: a sharded collection has one of its own.
    """
    ready = waited(value)
    found: Tensor = ready.values()
    if list(ready.keys()) == list(keys):
        return found
    blocks = blocks_of(ready, "The pruned model")
    return torch.cat([blocks[key] for key in keys], dim=1)


# Jagged batches


def take_rows(batch: Any, chosen: Tensor) -> Any:
    """Return a jagged batch of some rows.

    Args:
        batch: A jagged batch.
        chosen: The numbers of the rows, (rows,); or different ones for each key, (keys, rows).
    """
    count = len(batch.keys())
    lengths = batch.lengths().reshape(count, -1)  # (keys, B)
    starts = (batch.lengths().cumsum(0) - batch.lengths()).reshape(count, -1)
    chosen = chosen.to(lengths.device).expand(count, chosen.shape[-1])
    picked = lengths.gather(1, chosen).flatten()
    first = starts.gather(1, chosen).flatten()
    shift = first - (picked.cumsum(0) - picked)
    index = shift.repeat_interleave(picked) + torch.arange(int(picked.sum()), device=picked.device)
    weights = batch.weights_or_none()
    if weights is not None:
        weights = weights[index]
    return type(batch)(
        keys=list(batch.keys()), values=batch.values()[index], lengths=picked, weights=weights
    )


def rows_of(leaf: Any) -> int | None:
    """Return the number of rows of a tensor or of a jagged batch; None if it has none."""
    if isinstance(leaf, Tensor) and leaf.dim():
        return len(leaf)
    if not isinstance(leaf, Tensor) and is_jagged(leaf):
        return int(leaf.stride())
    return None


# Collections


@dataclass(frozen=True)
class Bag:
    """One output of a collection: the ids of a feature, looked up in a table and pooled."""

    name: str  # the key of the keyed tensor
    table: str
    feature: str
    width: int


def bags_of(configs: Iterable[Any]) -> list[Bag]:
    """Return the outputs of a collection of these tables, in the order of its columns."""
    pairs = [(config, feature) for config in configs for feature in config.feature_names]
    tables = Counter(feature for _, feature in pairs)
    bags = []
    for config, feature in pairs:
        name = feature
        if tables[feature] > 1:  # a feature of several tables is named with its table
            name = f"{feature}@{config.name}"
        bags.append(Bag(name, config.name, feature, config.embedding_dim))
    return bags


def places_of(widths: Iterable[int]) -> list[slice]:
    """Return the columns of blocks that stand side by side.

    >>> places_of([2, 3])
    [slice(0, 2, None), slice(2, 5, None)]
    """
    return [slice(start, stop) for start, stop in pairwise(accumulate(widths, initial=0))]


def kept_configs(configs: Sequence[Any], kept: Iterable[str]) -> list[Any]:
    """Return the tables that these outputs need, each with its remaining features."""
    names = set(kept)
    wanted = {(bag.table, bag.feature) for bag in bags_of(configs) if bag.name in names}
    found = []
    for config in configs:
        features = [name for name in config.feature_names if (config.name, name) in wanted]
        if features:
            found.append(replace(config, feature_names=features))
    return found


def narrowed(collection: Any, configs: list[Any]) -> nn.Module:
    """Return a collection of only these tables, with the weights that they have in the old one."""
    small: Any = type(collection)(
        tables=configs, is_weighted=collection.is_weighted(), device=torch.device("meta")
    )
    for config in configs:
        small.embedding_bags[config.name] = collection.embedding_bags[config.name]
    if "_device" in vars(small):
        small._device = collection.device
    small.train(collection.training)
    made: nn.Module = small
    return made
