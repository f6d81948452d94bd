"""Other lengths for a batch: which of its dimensions may change, alone or together, is tried out on the model."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from ...distributed.torchrec import is_jagged, take_rows
from ...sites.calls import Call

Place = tuple[int, int]  # a tensor of the batch, and one of its dimensions
Sizes = dict[Place, int]
MOST_TRIALS = 150


def lengths_of(call: Call, with_rows: Iterable[int]) -> Sizes:
    """Return the size of every dimension of a batch that is not its rows."""
    rows = set(with_rows)
    return {
        (place, dim): leaf.shape[dim]
        for place, leaf in enumerate(tree_leaves(call, is_leaf=is_jagged))
        if isinstance(leaf, Tensor)
        for dim in range(1 if place in rows else 0, leaf.dim())
    }


def stretched(
    call: Call,
    lengths: Sizes,
    others: Callable[[int], Iterable[int]],
    accepts: Callable[[Call], bool],
) -> Call:
    """Return the batch with other lengths, as far as the model accepts them.

    Args:
        call: The batch.
        lengths: The dimensions that may change, with their sizes.
        others: Sizes to try in place of one.
        accepts: Says whether the model takes a batch.
    """
    done: set[Place] = set()
    for sizes in islice(_trials(lengths, others, done), MOST_TRIALS):
        candidate = resized(call, sizes)
        if accepts(candidate):
            call = candidate
            done |= set(sizes)
    return call


def near(length: int) -> Iterator[int]:
    """Yield sizes close to a length: a table of positions may know no longer ones, blocks of four no odd ones."""
    for other in (length - 1, length + 1, 2 * length, length - 4, length + 4, length // 2):
        if other > 1 and other != length:  # a single column would be broadcast
            yield other


def far(length: int) -> Iterator[int]:
    """Yield sizes far from a length."""
    for other in (1, 2 * length + 1, 3 * length, 2 * length, length + 3, length - 2):
        if other > 0 and other != length:
            yield other


def _trials(
    lengths: Sizes, others: Callable[[int], Iterable[int]], done: set[Place]
) -> Iterator[Sizes]:
    """Yield new sizes: of all dimensions of one length, of lengths bound to each other, and of each dimension for itself."""
    for group in _groups(lengths):
        base = min(group.values())
        blocks = len(set(group.values())) > 1 and all(size % base == 0 for size in group.values())
        for other in others(base):
            if done & set(group):
                break
            yield {place: size + other - base for place, size in group.items()}  # L and L - 1
            if blocks and not done & set(group):
                yield {place: size // base * other for place, size in group.items()}  # L and 4 L


def _groups(lengths: Sizes) -> Iterator[Sizes]:
    lengths = {
        place: size for place, size in sorted(lengths.items(), key=lambda item: item[1]) if size
    }
    known: list[Sizes] = []
    for base in sorted(set(lengths.values())):
        equal = {place: size for place, size in lengths.items() if size == base}
        close = {place: size for place, size in lengths.items() if base <= size <= base + 2}
        multiples = {place: size for place, size in lengths.items() if size % base == 0}
        known += [equal] if base == 1 else [equal, close, multiples]
    known.append(lengths)
    known += [{place: size} for place, size in lengths.items() if size > 1]
    found: list[Sizes] = []
    for group in sorted(
        known, key=lambda group: len(set(group.values())) > 1
    ):  # equal lengths first
        if group and group not in found:
            found.append(group)
    yield from found


def resized(call: Call, sizes: Sizes) -> Call:
    """Return the batch with other sizes of some dimensions of its tensors; what is added repeats what is there."""
    leaves, form = tree_flatten(call, is_leaf=is_jagged)
    for (place, dim), size in sizes.items():
        leaf = leaves[place]
        if is_jagged(leaf):
            leaves[place] = take_rows(leaf, torch.arange(size) % leaf.stride())
            continue
        index = torch.arange(size, device=leaf.device)
        if not leaf.numel():  # a batch without ids, say
            leaves[place] = leaf.new_zeros((*leaf.shape[:dim], size, *leaf.shape[dim + 1 :]))
            continue
        leaves[place] = leaf.index_select(dim, index % leaf.shape[dim])
    changed: Call = tree_unflatten(leaves, form)
    return changed
