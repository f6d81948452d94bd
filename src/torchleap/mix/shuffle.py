"""Random permutations of a batch's rows: pure functions of a seed, so that there is no generator to keep.

The same numbers come out of every backend, on every device, after every resume, inside `torch.compile`, and whatever else draws
random numbers.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Shuffle = Literal["uniform", "cyclic"]
SAMPLE_ROWS = 256  # enough for an average over steps, and no full pass over a wide batch


class Draw(NamedTuple):
    """What determines the permutations of one batch."""

    streams: Tensor  # (1 + G,) int64, see `streams`
    shuffle: Shuffle = "uniform"

    def permutations(self, rows: int) -> Tensor:
        """For each gate the row that comes to each row, (G, rows) int64."""
        return {
            "uniform": lambda: uniform(self.streams[1:], rows),
            "cyclic": lambda: cyclic(self.streams, rows),
        }[self.shuffle]()

    def sample(self, rows: int) -> Tensor:
        """Some rows in random order, the same for all gates, (S,) int64."""
        return uniform(self.streams[:1], rows)[0, :SAMPLE_ROWS]


def streams(seed: Tensor, steps: Tensor, first_gate: int = 0) -> Tensor:
    """A stream of random numbers for each gate, and one before them for what they share: (1 + G,) int64.

    Args:
        seed: () int64
        steps: (G,) int64, how many batches each gate has seen
        first_gate: the number of the first of these gates
    """
    gates = torch.arange(first_gate + 1, first_gate + 1 + steps.shape[0], device=steps.device)
    gates, steps = torch.cat([gates.new_zeros(1), gates]), torch.cat([steps[:1], steps])
    return scramble(scramble(seed + _GOLDEN * (steps + 1)) + _GOLDEN * gates)


def uniform(streams: Tensor, rows: int) -> Tensor:
    """One uniformly random permutation of the rows for each stream: Fisher and Yates' shuffle from the inside out.

    For each row in turn, with `other` drawn from 0 to row, both included:

        order[row] = order[other]
        order[other] = row

    Returns: (G, rows) int64
    """
    # NOTE[PAPER] Uniform as in the paper, but without a generator: nothing to save, and a resume repeats them bit for bit.
    pair = torch.arange((rows + 1) // 2, device=streams.device)
    hashes = scramble(streams[:, None] + _GOLDEN * pair)  # each decides two rows
    rng = torch.stack([hashes & _MASK, _shift(hashes, 32)], dim=2).flatten(1)[
        :, :rows
    ]  # (G, rows), 32 bits each
    return _swap_in_turn((rng * torch.arange(1, rows + 1, device=streams.device)) >> 32)


def _swap_in_turn(other: Tensor) -> Tensor:
    """All swaps of the shuffle at once, without a loop over rows.

    What does a place hold in the end? The last row to draw it, if that comes after the place's own row p. Else what row p
    moved there, which is what place q = other[p] held before: the last row between q and p that drew q; or, if none did, what
    row q moved there, and so on.
    """
    place = torch.arange(other.shape[1], device=other.device).expand_as(other)
    by_draw = other.argsort(
        dim=1, stable=True
    )  # rows that drew the same place side by side, in their order
    drawn = other.gather(1, by_draw)
    earlier = torch.full_like(other, -1)
    same = (drawn[:, 1:] == drawn[:, :-1]) & (by_draw[:, :-1] > drawn[:, 1:])
    earlier[:, 1:] = torch.where(same, by_draw[:, :-1], -1)
    held = torch.empty_like(other).scatter(
        1, by_draw, earlier
    )  # the row before p that drew the same place, or -1
    held = torch.where(other == place, place, held)
    source = torch.where(
        held < 0, other, place
    )  # where to look on; found places lead to themselves
    while not torch.equal(further := source.gather(1, source), source):
        source = further
    last = torch.full_like(other, -1).scatter_reduce(1, other, place, "amax")
    return torch.where(last > place, last, held.gather(1, source))


def cyclic(streams: Tensor, rows: int) -> Tensor:
    """For each gate a random cyclic shift of one random order of the rows, which all gates share.

    One shuffle a batch instead of one a gate. No row stays where it is, and each of the other rows is equally likely.

    Returns: (G, rows) int64
    """
    order = uniform(streams[:1], rows)[0]
    place = torch.empty_like(order).scatter(0, order, torch.arange(rows, device=order.device))
    shift = 1 + ((_shift(streams[1:], 32) * max(rows - 1, 1)) >> 32)  # (G,), 1 to rows - 1
    return order[(place + shift[:, None]) % rows]


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >= 1 << 63 else bits


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MASK = 0xFFFFFFFF


def scramble(value: Tensor) -> Tensor:
    """The finalizer of SplitMix64 on int64 tensors, whose products wrap around."""
    value = (value ^ _shift(value, 30)) * _signed(0xBF58476D1CE4E5B9)
    value = (value ^ _shift(value, 27)) * _signed(0x94D049BB133111EB)
    return value ^ _shift(value, 31)


def _shift(value: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch's own keeps the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
