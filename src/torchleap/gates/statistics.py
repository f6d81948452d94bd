"""Gates on several ranks: what they tell each other in a training step, so that all have the same statistics at every step."""

import json
import math
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._compile import (
    _disable_dynamo,  # as torch.compiler.disable, without importing the compiler, which takes a second
)
from torch.nn.parallel import DistributedDataParallel

from .._common.errors import AttachError, FieldError
from ..distributed import ranks
from ..fields import Fields
from ..mix import Mixed
from .context import PassContext

AVERAGES = ("distance", "square", "common", "spread")  # by gate, see LeAP
JOINED = "_torchleap_joined"  # marks a DDP module within Plugin.join()
ODD = 0x9E3779B97F4A7C15  # far from any other seed, times a rank


class Together(nn.Module):
    """The part of `LeAP` that several ranks need."""

    theta: nn.Parameter
    steps: Tensor
    mean: Tensor
    seed: Tensor
    column_gate: Tensor
    momentum: float
    sync_every: int
    process_group: Any  # the ranks that train one and the same model; None is all
    context: PassContext
    fields: Fields | None
    _turns: dict[int, int]  # the steps of each site, by its first column
    _to_tell: dict[
        int, Tensor
    ]  # likewise: statistics that are no numbers, of a step in which nothing was sent
    _unheard: dict[
        int, Callable[[], None]
    ]  # by the first column of a site: waits for all ranks' statistics and takes them over

    if TYPE_CHECKING:

        def known_fields(self) -> Fields: ...  # noqa: D102
        def arriving_fields(self) -> Fields: ...  # noqa: D102
        def _refuse_nonfinite(self, statistics: Tensor, gates: slice) -> None: ...

    @torch.no_grad()
    @_disable_dynamo
    def _measure_together(
        self, mixed: Mixed | None, rows: int, columns: slice, gates: slice
    ) -> None:
        """Like `_measure`, by the rows of all ranks: averages move by the same numbers everywhere, so they agree at every step.

        In one collective of 32 bytes a gate: the statistics, the rows, and the means of as many columns as fit, by turns.
        """
        self._unheard.pop(columns.start, _nothing)()
        turn = self._turn(columns, gates)
        averages, mean, steps = [getattr(self, name) for name in AVERAGES], self.mean, self.steps
        if columns != slice(0, len(mean)):  # one of several sites
            averages, mean, steps = (
                [average[gates] for average in averages],
                mean[columns],
                steps[gates],
            )
        steps.add_(1)
        seen = 1 - self.momentum ** (
            turn + 1
        )  # as `_weight_seen`: the gates of a site have done the same steps
        kept = seen / (
            1 - self.momentum ** max(1, turn)
        )  # an estimate stands still while its weights grow
        mean.mul_(kept)
        if turn % self.sync_every:
            torch._foreach_mul_(averages, kept)
            if (
                mixed is not None
                and mixed.statistics.device.type == "cpu"
                and not math.isfinite(mixed.statistics.sum().item())
            ):
                self._to_tell[columns.start] = mixed.statistics
            return
        part, parts = self._columns_of(turn // self.sync_every, len(mean), len(steps))
        if mixed is None:
            sent = mean.new_zeros(4 * len(steps) + part.stop - part.start + 1)
        else:
            bad = self._to_tell.pop(columns.start, None)
            statistics = mixed.statistics if bad is None else mixed.statistics + bad
            own = [statistics.flatten(), mixed.mean[part], mixed.mean.new_ones(1)]
            sent = rows * torch.cat([value.to(mean.dtype) for value in own])
        with ranks.explained():
            asked = dist.all_reduce(sent, group=self.process_group, async_op=True)

        def add() -> None:
            with ranks.explained():
                asked.wait()
            mean_row = sent / sent[-1]
            found, means = mean_row[: 4 * len(steps)].view(4, -1), mean_row[4 * len(steps) : -1]
            # elsewhere it would stall the step: scores() asks
            if sent.device.type == "cpu" and not math.isfinite(found.sum().item()):
                self._refuse_nonfinite(found, gates)
            weight = self._weight_of(self.sync_every, seen)
            torch._foreach_mul_(averages, kept * (1 - weight))
            torch._foreach_add_(averages, found.unbind(), alpha=weight * seen)
            weight = self._weight_of(self.sync_every * parts, seen)
            mean[part].mul_(1 - weight).add_(means, alpha=weight * seen)

        self._unheard[columns.start] = add
        if not self.context.running:
            self._hear()

    def _hear(self) -> None:
        """Take over what all ranks have told of their last step; wait for it if need be."""
        if self._unheard:  # else nothing that a compiler would have to stop at
            self._take_over()

    @torch.no_grad()
    @_disable_dynamo
    def _take_over(self) -> None:
        while self._unheard:
            self._unheard.popitem()[1]()

    def measure_nothing(self, columns: slice | None = None) -> None:
        """Take part in the other ranks' step without rows of one's own, see `Plugin.join`."""
        if self.is_synchronised:
            columns = columns or slice(0, self.known_fields().dims)
            self._own_seed()
            self._measure_together(None, 0, columns, self.known_fields().gates_of(columns))

    def _weight_of(self, steps: int, seen: float) -> float:
        """What the last so many steps weigh in an average."""
        return min(1.0, (1 - self.momentum**steps) / seen)

    @staticmethod
    def _columns_of(turn: int, columns: int, gates: int) -> tuple[slice, int]:
        """Whose means are sent in this turn, all in the first, and how many turns it takes to send all."""
        room = max(1, 4 * gates - 1)
        parts = -(-columns // room)
        start = turn % parts * room
        return (slice(0, columns) if turn == 0 else slice(start, min(columns, start + room))), parts

    @property
    def is_synchronised(self) -> bool:
        """Whether other ranks train the same gates."""
        return self.sync_every > 0 and ranks.count(self.process_group) > 1

    @property
    def is_sharded(self) -> bool:
        """Whether FSDP2 (`fully_shard`) has charge of theta: a DTensor, in place of which a forward pass puts a whole one."""
        return bool(vars(self).get("_is_fsdp_managed_module"))

    @_disable_dynamo
    def _own_seed(self) -> Tensor:
        """The seed of this rank's permutations; before the first, all ranks take over what the first one has."""
        if not self._turns:
            self._meet()
        wrapper = DistributedDataParallel._get_active_ddp_module()  # type: ignore[no-untyped-call]
        if wrapper is not None and self.context.held_out:
            raise AttachError(
                "Within held_out() call the model itself, ddp.module: DDP waits for gradients of all its weights."
            )
        if wrapper is not None and wrapper._join_config.enable and not hasattr(wrapper, JOINED):
            raise AttachError(
                "Ranks that have no rows left take no part in the gates' steps. Use plugin.join(ddp), not ddp.join()."
            )
        return self.seed + wrapped(ranks.rank(self.process_group) * ODD)

    def _meet(self) -> None:
        names = zlib.crc32(json.dumps(self.arriving_fields().to_json()).encode())
        told = ranks.broadcast(torch.tensor([names], device=self.theta.device), self.process_group)
        differs = ranks.total((told != names).long(), self.process_group)
        if int(differs):
            raise FieldError(
                f"{self.context.place} has other fields than on another rank: here {self.fields}. Attach to the same fields on all."
            )
        for name in ("seed", "steps", *AVERAGES, "mean"):
            ranks.broadcast(getattr(self, name), self.process_group)

    def _turn(self, columns: slice, gates: slice) -> int:
        """How many steps this site has done; asked of the device once."""
        turn = self._turns.get(columns.start)
        turn = int(self.steps[gates].max()) if turn is None else turn
        self._turns[columns.start] = turn + 1
        return turn


def _nothing() -> None:
    pass


def wrapped(number: int) -> int:
    """The same as an int64, which begins anew where it ends."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
