"""The moving averages of what gates measure in each batch: on one rank, or over the rows of all.

The averages are buffers of the gates, so that a checkpoint contains them. These objects update
them: `LocalStatistics` from the rows of this process, `SynchronisedStatistics` from those of all
ranks, so that all have the same averages at every step, bit for bit.
"""

import json
import math
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._compile import _disable_dynamo  # torch.compiler.disable imports the compiler
from torch.nn.parallel import DistributedDataParallel

from .._common.errors import AttachError, FieldError
from ..distributed import ranks
from ..mix import Mixed
from .checks import refuse_nonfinite

if TYPE_CHECKING:
    from .module import GateModule

AVERAGES = ("distance", "square", "common", "spread")  # per gate, see GateModule
JOINED = "_torchleap_joined"  # marks a DDP module within Plugin.join()
RANK_STRIDE = 0x9E3779B97F4A7C15  # times a rank: far from any other seed


class Block(NamedTuple):
    """The columns that arrive at one site, and their gates."""

    columns: slice
    gates: slice


class Averages(NamedTuple):
    """Views of the moving averages of one block."""

    per_gate: list[Tensor]  # four of (G,), in the order of AVERAGES
    mean: Tensor  # (D,)
    steps: Tensor  # (G,)

    @classmethod
    def of(cls, gates: "GateModule", block: Block) -> "Averages":
        """Return the averages of these columns and their gates."""
        per_gate = [gates.distance, gates.square, gates.common, gates.spread]
        if block.columns == slice(0, len(gates.mean)):
            return cls(per_gate, gates.mean, gates.steps)
        part = [average[block.gates] for average in per_gate]
        return cls(part, gates.mean[block.columns], gates.steps[block.gates])


class LocalStatistics:
    """The statistics of the rows of this process."""

    def seed(self, gates: "GateModule") -> Tensor:
        """Return the seed of the permutations, ()."""
        return gates.seed

    def add(self, gates: "GateModule", mixed: Mixed, rows: int, block: Block) -> bool:
        """Add a batch to the averages; one that is not finite is refused.

        Returns:
            True: the mixed batch can be used.
        """
        self.check(gates, mixed, block)
        averages = Averages.of(gates, block)
        found = [*mixed.statistics.unbind(), mixed.mean]
        values = [value.to(averages.mean.dtype) for value in found]
        torch._foreach_lerp_(
            [*averages.per_gate, averages.mean], values, 1 - gates.settings.momentum
        )
        averages.steps.add_(1)
        return True

    def check(self, gates: "GateModule", mixed: Mixed, block: Block) -> bool:
        """Return True; refuse a batch that is not finite."""
        if not _is_finite(mixed.statistics):
            refuse_nonfinite(mixed.statistics, block.gates, gates.known_fields())
        return True


class SynchronisedStatistics:
    """The statistics of the rows of all ranks, in one all-reduce of 32 bytes per gate.

    It carries the statistics, the number of rows, and the means of as many columns as fit, so that
    the means of all columns are sent in turns.
    """

    def __init__(self) -> None:
        self._agreed = False  # whether the ranks have compared their fields
        # Each by the first column of a site, or of all sites that share gates.
        self._turns: dict[int, int] = {}  # the steps taken
        self._unsent: dict[int, Tensor] = {}  # statistics that are not finite, of a silent step
        self._pending: dict[int, Callable[[], None]] = {}  # waits for all ranks and adds

    @_disable_dynamo
    def seed(self, gates: "GateModule") -> Tensor:
        """Return the seed of this rank's permutations; the first time, all ranks agree on it."""
        if not self._agreed:
            _agree(gates)
            self._agreed = True
        _refuse_wrong_wrapper(gates)
        return gates.seed + wrapped(ranks.rank(gates.process_group) * RANK_STRIDE)

    def add(self, gates: "GateModule", mixed: Mixed, rows: int, block: Block) -> bool:
        """Send a batch's statistics, to be added to the averages of every rank.

        Returns:
            Whether the mixed batch can be used. One that is not finite is refused by all ranks
            when they receive it; until then this rank continues with finite values.
        """
        self._send(gates, mixed, rows, block)
        return self.check(gates, mixed, block)

    def check(self, gates: "GateModule", mixed: Mixed, block: Block) -> bool:
        """Return whether a mixed batch is finite; if not, all ranks refuse its statistics."""
        return _is_finite(mixed.statistics)

    def add_nothing(self, gates: "GateModule", block: Block) -> None:
        """Take part in the other ranks' step without rows, see `Plugin.join`."""
        self.seed(gates)
        self._send(gates, None, 0, block)

    def settle(self) -> None:
        """Wait for the statistics that ranks have sent in their last step, and add them."""
        if self._pending:  # else a compiler would have to stop here
            self._settle()

    def restart(self) -> None:
        """Forget the position of this process, which follows a checkpoint from now on."""
        self.settle()
        self._agreed = False
        self._turns = {}
        self._unsent = {}

    @torch.no_grad()
    @_disable_dynamo
    def _settle(self) -> None:
        while self._pending:
            _, add = self._pending.popitem()
            add()

    @torch.no_grad()
    @_disable_dynamo
    def _send(self, gates: "GateModule", mixed: Mixed | None, rows: int, block: Block) -> None:
        start = block.columns.start
        if start in self._pending:
            self._pending.pop(start)()
        turn = self._next_turn(gates, block)
        averages = Averages.of(gates, block)
        averages.steps.add_(1)
        momentum = gates.settings.momentum
        seen = 1 - momentum ** (turn + 1)  # as GateModule.weight_seen, for this site
        kept = seen / (1 - momentum ** max(1, turn))  # so that estimates keep their value
        averages.mean.mul_(kept)
        every = gates.settings.sync_every
        if turn % every:
            torch._foreach_mul_(averages.per_gate, kept)
            if mixed is not None and not _is_finite(mixed.statistics):
                self._unsent[start] = mixed.statistics
            return
        part, parts = columns_in_turn(turn // every, len(averages.mean), len(averages.steps))
        sent = self._packed(mixed, rows, averages, part, start)
        with ranks.explained():
            work = dist.all_reduce(sent, group=gates.process_group, async_op=True)
        weight = _weight_of(momentum, every, seen)
        weight_of_means = _weight_of(momentum, every * parts, seen)

        def add() -> None:
            with ranks.explained():
                work.wait()
            found, means = _unpacked(sent, len(averages.steps))
            if not _is_finite(found):
                refuse_nonfinite(found, block.gates, gates.known_fields())
            torch._foreach_mul_(averages.per_gate, kept * (1 - weight))
            torch._foreach_add_(averages.per_gate, found.unbind(), alpha=weight * seen)
            own = averages.mean[part]
            own.mul_(1 - weight_of_means).add_(means, alpha=weight_of_means * seen)

        self._pending[start] = add
        if not gates.context.running:
            self.settle()

    def _packed(
        self, mixed: Mixed | None, rows: int, averages: Averages, part: slice, start: int
    ) -> Tensor:
        """Return this rank's sums over its rows: 4 G statistics, means of columns, the rows."""
        if mixed is None:
            return averages.mean.new_zeros(4 * len(averages.steps) + part.stop - part.start + 1)
        statistics = mixed.statistics
        if start in self._unsent:
            statistics = statistics + self._unsent.pop(start)
        own = [statistics.flatten(), mixed.mean[part], mixed.mean.new_ones(1)]
        return rows * torch.cat([value.to(averages.mean.dtype) for value in own])

    def _next_turn(self, gates: "GateModule", block: Block) -> int:
        """Return how many steps this site has taken before; the device is queried once."""
        turn = self._turns.get(block.columns.start)
        if turn is None:
            turn = int(gates.steps[block.gates].max())
        self._turns[block.columns.start] = turn + 1
        return turn


def columns_in_turn(turn: int, columns: int, gates: int) -> tuple[slice, int]:
    """Return the columns whose means are sent in a turn, and how many turns all of them take.

    Args:
        turn: The number of earlier turns; the first sends the means of all columns.
        columns: The number of columns.
        gates: The number of gates: a message has room for one column less than four per gate.
    """
    room = max(1, 4 * gates - 1)
    parts = -(-columns // room)
    if turn == 0:
        return slice(0, columns), parts
    start = turn % parts * room
    return slice(start, min(columns, start + room)), parts


def wrapped(number: int) -> int:
    """Return an integer modulo 2 ** 64, as an int64."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _unpacked(sent: Tensor, gates: int) -> tuple[Tensor, Tensor]:
    """Return the mean over all ranks' rows: the statistics, (4, G), and some columns' means."""
    mean_row = sent / sent[-1]
    return mean_row[: 4 * gates].view(4, -1), mean_row[4 * gates : -1]


def _is_finite(statistics: Tensor) -> bool:
    """Return False if values are not finite; on a GPU it would stall the step: scores() checks."""
    if statistics.device.type != "cpu" or torch.compiler.is_compiling():
        return True
    return math.isfinite(statistics.sum().item())


def _weight_of(momentum: float, steps: int, seen: float) -> float:
    """Return the weight of the last so many steps in an average."""
    return min(1.0, (1 - momentum**steps) / seen)


def _refuse_wrong_wrapper(gates: "GateModule") -> None:
    wrapper: Any = DistributedDataParallel._get_active_ddp_module()  # type: ignore[no-untyped-call]
    if wrapper is None:
        return
    if gates.context.held_out:
        raise AttachError(
            "Within held_out() call the model itself, ddp.module: "
            "DDP waits for gradients of all its weights."
        )
    if wrapper._join_config.enable and not hasattr(wrapper, JOINED):
        raise AttachError(
            "Ranks that have no rows left take no part in the gates' steps. "
            "Use plugin.join(ddp), not ddp.join()."
        )


def _agree(gates: "GateModule") -> None:
    """Check that all ranks have the same fields, and take the first rank's seed and averages."""
    own = zlib.crc32(json.dumps(gates.known_layout().to_json()).encode())
    first = ranks.broadcast(torch.tensor([own], device=gates.theta.device), gates.process_group)
    if int(ranks.total((first != own).long(), gates.process_group)):
        raise FieldError(
            f"{gates.context.place} has other fields than on another rank: here {gates.fields}. "
            "Attach to the same fields on all."
        )
    for name in ("seed", "steps", *AVERAGES, "mean"):
        ranks.broadcast(getattr(gates, name), gates.process_group)
