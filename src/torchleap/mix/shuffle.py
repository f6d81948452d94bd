"""Random permutations of a batch's rows as pure functions of a seed, without a generator to save.

Every backend returns the same numbers, on every device, after every resume, inside
`torch.compile`, and whatever else draws random numbers.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Shuffle = Literal["uniform", "cyclic"]
SAMPLE_ROWS = 256  # enough for an average over steps, without a full pass over a wide batch


class Draw(NamedTuple):
    """The random permutations of one batch, as the numbers that determine them."""

    streams: Tensor  # (1 + G,) int64, see `streams`
    shuffle: Shuffle = "uniform"

    def permutations(self, rows: int) -> Tensor:
        """Return for each gate the row that moves to each row, (G, rows) int64."""
        if self.shuffle == "cyclic":
            return cyclic(self.streams, rows)
        return uniform(self.streams[1:], rows)

    def sample(self, rows: int) -> Tensor:
        """Return some rows in random order, the same for all gates, (S,) int64."""
        return uniform(self.streams[:1], rows)[0, :SAMPLE_ROWS]


def streams(seed: Tensor, steps: Tensor, first_gate: int = 0) -> Tensor:
    """Return a stream of random numbers for each gate, after one that all gates have in common.

    Args:
        seed: The seed of all streams, () int64.
        steps: How many batches each gate has seen, (G,) int64.
        first_gate: The number of the first of these gates.

    Returns:
        The streams, (1 + G,) int64.
    """
    gates = torch.arange(first_gate + 1, first_gate + 1 + steps.shape[0], device=steps.device)
    gates = torch.cat([gates.new_zeros(1), gates])
    steps = torch.cat([steps[:1], steps])
    return scramble(scramble(seed + _GOLDEN * (steps + 1)) + _GOLDEN * gates)


def uniform(streams: Tensor, rows: int) -> Tensor:
    """Return one uniformly random permutation of the rows for each stream, (G, rows) int64.

    It is the shuffle of Fisher and Yates from the inside out. For each row in turn, with `other`
    drawn from 0 to row, both included:

        order[row] = order[other]
        order[other] = row

    Args:
        streams: The stream of each permutation, (G,) int64.
        rows: The number of rows.
    """
    # NOTE[PAPER] Uniform as in the paper, but without a generator: there is nothing to save, and a
    # resume repeats the permutations bit for bit.
    pair = torch.arange((rows + 1) // 2, device=streams.device)
    hashes = scramble(streams[:, None] + _GOLDEN * pair)  # each one decides two rows
    halves = torch.stack([hashes & _MASK, _shift(hashes, 32)], dim=2)
    rng = halves.flatten(1)[:, :rows]  # (G, rows), 32 random bits each
    other = (rng * torch.arange(1, rows + 1, device=streams.device)) >> 32
    return _swap_in_turn(other)


def _swap_in_turn(other: Tensor) -> Tensor:
    """Do all swaps of the shuffle at once, without a loop over rows.

    In the end a place holds the last row that drew it, if that comes after the place's own row p.
    Else it holds the row that p moved there, which is the one that place q = other[p] held before:
    the last row between q and p that drew q; or, if none did, the row that q moved there, and so
    on.

    Args:
        other: The place that each row draws, (G, rows) int64.
    """
    place = torch.arange(other.shape[1], device=other.device).expand_as(other)
    by_draw = other.argsort(dim=1, stable=True)  # rows that drew the same place, in their order
    drawn = other.gather(1, by_draw)
    same = (drawn[:, 1:] == drawn[:, :-1]) & (by_draw[:, :-1] > drawn[:, 1:])
    earlier = torch.full_like(other, -1)
    earlier[:, 1:] = torch.where(same, by_draw[:, :-1], -1)
    # the row before p that drew the same place, or -1
    held = torch.empty_like(other).scatter(1, by_draw, earlier)
    held = torch.where(other == place, place, held)
    source = torch.where(held < 0, other, place)  # where to search on; found places keep their own
    while True:
        further = source.gather(1, source)
        if torch.equal(further, source):
            break
        source = further
    last = torch.full_like(other, -1).scatter_reduce(1, other, place, "amax")
    return torch.where(last > place, last, held.gather(1, source))


def cyclic(streams: Tensor, rows: int) -> Tensor:
    """Return for each gate a random cyclic shift of one common random order, (G, rows) int64.

    That is one shuffle per batch instead of one per gate. No row stays where it is, and each of
    the other rows is equally likely.

    Args:
        streams: The common stream and that of each gate, (1 + G,) int64.
        rows: The number of rows.
    """
    order = uniform(streams[:1], rows)[0]
    place = torch.empty_like(order).scatter(0, order, torch.arange(rows, device=order.device))
    shift = 1 + ((_shift(streams[1:], 32) * max(rows - 1, 1)) >> 32)  # (G,), 1 to rows - 1
    return order[(place + shift[:, None]) % rows]


def scramble(value: Tensor) -> Tensor:
    """Return the finalizer of SplitMix64 of int64 values, whose products wrap around."""
    value = (value ^ _shift(value, 30)) * _signed(0xBF58476D1CE4E5B9)
    value = (value ^ _shift(value, 27)) * _signed(0x94D049BB133111EB)
    return value ^ _shift(value, 31)


def _shift(value: Tensor, bits: int) -> Tensor:
    """Shift logically to the right; torch's own shift keeps the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _signed(bits: int) -> int:
    """Return the int64 with the bits of this uint64."""
    if bits >= 1 << 63:
        return bits - (1 << 64)
    return bits


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MASK = 0xFFFFFFFF
