"""Give a batch other lengths: the model decides which dimensions may change, alone or together."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import torch
from torch import Tensor

from ...distributed.torchrec import is_jagged, take_rows
from ...sites.batches import flatten, unflatten
from ...sites.calls import Call
from .deadline import OutOfTimeError
from .run import leaves_of_batch

Place = tuple[int, int]  # a tensor of the batch, and one of its dimensions
Sizes = dict[Place, int]
MOST_TRIALS = 150


def lengths_of(call: Call, with_rows: Iterable[int]) -> Sizes:
    """Return the size of every dimension of a batch that is not its rows.

    Args:
        call: The batch.
        with_rows: The places of the tensors whose first dimension is the rows.
    """
    rows = set(with_rows)
    found: Sizes = {}
    for place, leaf in enumerate(leaves_of_batch(call)):
        if isinstance(leaf, Tensor):
            first = 1 if place in rows else 0
            found |= {(place, dim): leaf.shape[dim] for dim in range(first, leaf.dim())}
    return found


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
        others: Returns the sizes to try in place of one.
        accepts: Returns whether the model takes a batch.
    """
    done: set[Place] = set()
    for sizes in islice(_trials(lengths, others, done), MOST_TRIALS):
        candidate = resized(call, sizes)
        try:
            accepted = accepts(candidate)
        except OutOfTimeError:  # lengths that were not tried may not differ from the example's
            break
        if accepted:
            call = candidate
            done |= set(sizes)
    return call


def near(length: int) -> Iterator[int]:
    """Yield sizes close to a length.

    A table of positions may have no longer ones, and blocks of four accept no odd ones.
    """
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
    """Yield new sizes for groups of dimensions, as long as none of a group is done."""
    for group in _groups(lengths):
        base = min(group.values())
        several = len(set(group.values())) > 1
        blocks = several and all(size % base == 0 for size in group.values())
        for other in others(base):
            if done & set(group):
                break
            yield {place: size + other - base for place, size in group.items()}  # L and L - 1
            if blocks and not done & set(group):
                yield {place: size // base * other for place, size in group.items()}  # L and 4 L


def _groups(lengths: Sizes) -> list[Sizes]:
    """Return the groups of dimensions to change together, those of one length first.

    A group has all dimensions of one length, of lengths that may depend on each other (neighbours
    and multiples), of all lengths, or a single dimension.
    """
    by_size = sorted(lengths.items(), key=lambda item: item[1])
    lengths = {place: size for place, size in by_size if size}
    known: list[Sizes] = []
    for base in sorted(set(lengths.values())):
        known.append({place: size for place, size in lengths.items() if size == base})
        if base > 1:
            known.append(
                {place: size for place, size in lengths.items() if base <= size <= base + 2}
            )
            known.append({place: size for place, size in lengths.items() if size % base == 0})
    known.append(lengths)
    known += [{place: size} for place, size in lengths.items() if size > 1]
    known.sort(key=lambda group: len(set(group.values())) > 1)
    found: list[Sizes] = []
    for group in known:
        if group and group not in found:
            found.append(group)
    return found


def resized(call: Call, sizes: Sizes) -> Call:
    """Return the batch with other sizes of some dimensions; new elements repeat the first."""
    leaves, form = flatten(call)
    for (place, dim), size in sizes.items():
        leaf = leaves[place]
        if is_jagged(leaf):
            leaves[place] = take_rows(leaf, torch.arange(size) % leaf.stride())
        elif leaf.numel():
            index = torch.arange(size, device=leaf.device)
            leaves[place] = leaf.index_select(dim, index % leaf.shape[dim])
        else:  # such as a batch without ids
            leaves[place] = leaf.new_zeros((*leaf.shape[:dim], size, *leaf.shape[dim + 1 :]))
    changed: Call = unflatten(leaves, form)
    return changed
