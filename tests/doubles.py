"""Stand-ins for TorchRec's classes; tests/torchrec has the same tests with the real ones."""

from dataclasses import dataclass, field

import torch
from torch import nn


class KeyedTensor:
    def __init__(self, keys, length_per_key, values, key_dim=1):
        self._keys = keys
        self._lengths = length_per_key
        self._values = values
        self._key_dim = key_dim

    def keys(self):
        return self._keys

    def length_per_key(self):
        return self._lengths

    def values(self):
        return self._values

    def key_dim(self):
        return self._key_dim

    def to_dict(self):
        return dict(zip(self._keys, self._values.split(self._lengths, dim=1), strict=True))


class Jagged:
    def __init__(self, keys, values, lengths, weights=None):
        self._keys = keys
        self._values = values
        self._lengths = lengths
        self._weights = weights

    def keys(self):
        return self._keys

    def values(self):
        return self._values

    def lengths(self):
        return self._lengths

    def weights_or_none(self):
        return self._weights

    def stride(self):
        return len(self._lengths) // len(self._keys)

    def bags(self):
        """Return each key's list of ids and weights, row by row."""
        sizes = self._lengths.tolist()
        weights = [None] * len(sizes)
        if self._weights is not None:
            weights = self._weights.split(sizes)
        rows = list(zip(self._values.split(sizes), weights, strict=True))
        count = self.stride()
        return {
            key: rows[place * count : (place + 1) * count] for place, key in enumerate(self._keys)
        }


class Lazy:
    """A LazyAwaitable: waiting applies its callbacks to its result, which it keeps."""

    def __init__(self, value):
        self._value = value
        self._result = None
        self._callbacks = []
        self.waits = 0

    @property
    def callbacks(self):
        return self._callbacks

    def wait(self):
        self.waits += 1
        value = self._value
        for callback in self._callbacks:
            value = callback(value)
        return value

    def __getattr__(self, name):
        if self._result is None:
            self._result = self.wait()
        return getattr(self._result, name)


class Promise:
    """An awaitable that can only be waited for."""

    def __init__(self, value):
        self.value = value

    def wait(self):
        return self.value


@dataclass
class Config:
    name: str
    embedding_dim: int
    num_embeddings: int
    feature_names: list = field(default_factory=list)


class Collection(nn.Module):
    def __init__(self, tables, is_weighted=False, device=None):
        super().__init__()
        self._tables = tables
        self._weighted = is_weighted
        self._device = device or torch.device("cpu")
        self.embedding_bags = nn.ModuleDict()
        settings = {"mode": "sum", "include_last_offset": True, "device": device}
        for table in tables:
            bag = nn.EmbeddingBag(table.num_embeddings, table.embedding_dim, **settings)
            self.embedding_bags[table.name] = bag

    def embedding_bag_configs(self):
        return self._tables

    def is_weighted(self):
        return self._weighted

    @property
    def device(self):
        return self._device

    def forward(self, features):
        bags = features.bags()
        keys = []
        blocks = []
        shared = [name for table in self._tables for name in table.feature_names]
        for table in self._tables:
            for name in table.feature_names:
                ids = [row for row, _ in bags[name]]
                offsets = torch.tensor([0, *(len(row) for row in ids)]).cumsum(0)
                bag = self.embedding_bags[table.name]
                blocks.append(bag(input=torch.cat(ids), offsets=offsets))
                keys.append(f"{name}@{table.name}" if shared.count(name) > 1 else name)
        lengths = [block.shape[1] for block in blocks]
        return self.result(KeyedTensor(keys, lengths, torch.cat(blocks, dim=1)))

    def result(self, value):
        return value


class Sharded(nn.Module):
    """A collection after sharding: its keys are in another order, its result is a promise."""

    def __init__(self, collection, promise=Lazy):
        super().__init__()
        self.inner = collection
        self.promise = promise

    def input_dist(self):
        raise NotImplementedError

    def output_dist(self):
        raise NotImplementedError

    def create_context(self):
        raise NotImplementedError

    def forward(self, features):
        value = self.inner(features)
        return self.promise(reordered(value, list(reversed(value.keys()))))


def reordered(value, keys):
    blocks = value.to_dict()
    return KeyedTensor(
        keys,
        [blocks[key].shape[1] for key in keys],
        torch.cat([blocks[key] for key in keys], dim=1),
    )


def jagged(keys, rows, ids=20, weighted=False):
    lengths = torch.randint(0, 4, (len(keys) * rows,))
    total = int(lengths.sum())
    return Jagged(
        list(keys),
        torch.randint(0, ids, (total,)),
        lengths,
        torch.rand(total) if weighted else None,
    )
