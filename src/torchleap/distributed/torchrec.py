"""TorchRec's containers and collections, known by what they can do: torchrec is never imported.

Keyed: a `KeyedTensor`, (B, D) with a name and a width for each block of columns. Jagged: a `KeyedJaggedTensor`, a batch of ids,
any number of them for each key and row. Awaitable: either of them, still under way from other ranks. Collection: an
`EmbeddingBagCollection`, which makes a keyed tensor of a jagged one, sharded over several ranks or not.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from .._common.errors import FieldError


def is_keyed(value: Any) -> bool:
    """Whether it is a KeyedTensor."""
    return _can(value, "keys", "values", "length_per_key", "key_dim")


def is_jagged(value: Any) -> bool:
    """Whether it is a KeyedJaggedTensor with as many rows for each key."""
    varies = _can(value, "variable_stride_per_key") and value.variable_stride_per_key()
    return _can(value, "keys", "values", "lengths", "stride", "weights_or_none") and not varies


def is_awaitable(value: Any) -> bool:
    """Whether it is a promise of a value, such as sharded collections return."""
    return _can(value, "wait") and not isinstance(value, Tensor)


def is_collection(module: Any) -> bool:
    """Whether it is an EmbeddingBagCollection that is not sharded."""
    return (
        isinstance(module, nn.Module)
        and _can(module, "embedding_bag_configs", "is_weighted")
        and not is_sharded(module)
    )


def is_sharded(module: Any) -> bool:
    """Whether its tables lie on several ranks, all of which have to call it."""
    return isinstance(module, nn.Module) and _can(
        module, "input_dist", "output_dist", "create_context"
    )


def _can(value: Any, *names: str) -> bool:
    """Asked of the class, since an awaitable would wait to answer."""
    return all(callable(getattr(type(value), name, None)) for name in names)


def waited(value: Any) -> Any:
    """What an awaitable promises, and any other value as it is; an awaitable that keeps its result is waited for once."""
    if not is_awaitable(value):
        return value
    if vars(value).get("_result") is not None:
        return vars(value)["_result"]
    result = value.wait()
    if "_result" in vars(value):
        value._result = result
    return result


def when_ready(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same awaitable, whose result will be changed: the model waits where it would without us, no earlier."""
    callbacks = getattr(value, "callbacks", None) if hasattr(type(value), "callbacks") else None
    if not isinstance(callbacks, list) or vars(value).get("_result") is not None:
        return change(waited(value))
    callbacks.append(change)
    return value


def blocks_of(value: Any, label: str) -> dict[str, Tensor]:
    """The blocks of a keyed tensor, name -> (B, d), in its order."""
    keys, widths, values = list(value.keys()), list(value.length_per_key()), value.values()
    twice = [key for key, count in Counter(keys).items() if count > 1]
    if twice:
        raise FieldError(
            f"{label}: expected each key once, but {', '.join(map(repr, twice))} appears more than once."
        )
    if value.key_dim() != 1 or values.dim() != 2:
        raise FieldError(
            f"{label}: expected a KeyedTensor of (rows, columns) with key_dim=1, but found the shape {tuple(values.shape)} "
            f"with key_dim={value.key_dim()}."
        )
    return dict(zip(keys, values.split(widths, dim=1), strict=True))


def with_values(value: Any, values: Any) -> Any:
    """A keyed tensor with the same keys and widths, but other values."""
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
    """The blocks of these keys side by side, whatever their order is: a sharded collection has an order of its own."""
    ready = waited(value)
    found: Tensor = ready.values()
    if list(ready.keys()) == list(keys):
        return found
    blocks = blocks_of(ready, "The pruned model")
    return torch.cat([blocks[key] for key in keys], dim=1)


def take_rows(batch: Any, chosen: Tensor) -> Any:
    """A jagged batch of these rows.

    Args:
        chosen: Numbers of rows, (rows,), or others for each key, (keys, rows).
    """
    count = len(batch.keys())
    lengths = batch.lengths().reshape(count, -1)  # (keys, B)
    starts = (batch.lengths().cumsum(0) - batch.lengths()).reshape(count, -1)
    chosen = chosen.to(lengths.device).expand(count, chosen.shape[-1])
    picked, first = lengths.gather(1, chosen).flatten(), starts.gather(1, chosen).flatten()
    shift = first - (picked.cumsum(0) - picked)
    index = shift.repeat_interleave(picked) + torch.arange(int(picked.sum()), device=picked.device)
    weights = batch.weights_or_none()
    return type(batch)(
        keys=list(batch.keys()),
        values=batch.values()[index],
        lengths=picked,
        weights=None if weights is None else weights[index],
    )


def rows_of(leaf: Any) -> int | None:
    """The number of rows of a tensor or of a jagged batch; None if it has none."""
    if isinstance(leaf, Tensor):
        return len(leaf) if leaf.dim() else None
    return int(leaf.stride()) if is_jagged(leaf) else None


@dataclass(frozen=True)
class Bag:
    """One output of a collection: the ids of a feature, looked up in a table and pooled."""

    name: str  # the key of the keyed tensor
    table: str
    feature: str
    width: int


def bags_of(configs: Iterable[Any]) -> list[Bag]:
    """What a collection of these tables returns, in the order of its columns."""
    pairs = [(config, feature) for config in configs for feature in config.feature_names]
    times = Counter(
        feature for _, feature in pairs
    )  # a feature of several tables is named with its table
    return [
        Bag(
            feature if times[feature] == 1 else f"{feature}@{config.name}",
            config.name,
            feature,
            config.embedding_dim,
        )
        for config, feature in pairs
    ]


def places_of(widths: Iterable[int]) -> list[slice]:
    """The columns of blocks that stand side by side."""
    return [slice(start, stop) for start, stop in pairwise(accumulate(widths, initial=0))]


def kept_configs(configs: Sequence[Any], kept: Iterable[str]) -> list[Any]:
    """The tables that these outputs need, each with the features that are left."""
    wanted = {(bag.table, bag.feature) for bag in bags_of(configs) if bag.name in set(kept)}
    narrowed = [
        replace(
            config,
            feature_names=[name for name in config.feature_names if (config.name, name) in wanted],
        )
        for config in configs
    ]
    return [config for config in narrowed if config.feature_names]


def narrowed(collection: Any, configs: list[Any]) -> nn.Module:
    """A collection of these tables alone, with the weights that they have in the old one."""
    small = type(collection)(
        tables=configs, is_weighted=collection.is_weighted(), device=torch.device("meta")
    )
    for config in configs:
        small.embedding_bags[config.name] = collection.embedding_bags[config.name]
    if "_device" in vars(small):
        small._device = collection.device
    small.train(collection.training)
    made: nn.Module = small
    return made
