"""TurnTrainer: a price path whose gates close by turns, by a worth measured from outside."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._common.checks import check_arguments, number, whole
from .._common.states import check_tensors
from ..selection.path import NORMAL_95, Worth
from .leap import LeAP
from .path_trainer import PathTrainer
from .price_path import OPEN, SHUT
from .price_schedule import ON_ITS_WAY, TURN
from .relative_costs import PriceBy
from .worth_estimate import STEP_UP, rising

PART = 1 / 3  # of a turn in which a gate moves from open to closed; then the model adapts
RETURNS = 0.25  # of its full speed with which a gate opens again whose field does not pay
AT_ONCE = 0.25  # of the open gates that close in a turn, at most, rounded up
DOUBT = 2.0  # standard errors that a field may be worth more than was measured
PRECISE = 4.0  # standard errors from which a worth is precise
SURE = 1.5  # standard errors from 0 beyond which a field is useful, or does harm
NOTICEABLE = 2e-3  # of the loss at the start: a worth that counts though it is not certain
LEAST_ERROR = 1e-12  # of a worth, as a weight
TENSORS = ("alone", "error", "share", "now", "pays", "paid", "paid_error", "has_paid")


class FieldWorth(NamedTuple):
    """What a field is worth in the present model, in the unit of the loss.

    Attributes:
        alone: The loss without this field.
        error: The standard error of that.
        share: The part of it that counts when fields take turns: two fields that matter only
            together share what both are worth.
        moves: By how much other draws of the rows change that part.
    """

    alone: float
    error: float
    share: float
    moves: tuple[float, ...] = ()


class PaidWorth(NamedTuple):
    """What closing a field costs, once the others have taken over what they can.

    Attributes:
        nats: The rise of the loss, next to the fields that stay open.
        error: The standard error of that.
    """

    nats: float
    error: float


class TurnTrainer(PathTrainer):
    """Close the least valuable tenth of the open gates in each turn, while the model adapts.

    Where the worth of all fields can be measured on many rows at once (`note_worth`), that is far
    more precise than the gradient of a gate on a batch. The price rises to twice the worth of the
    next fields, whose gates then move from open to closed within a turn. A gate pays nothing while
    the price is below twice the worth of its field, and opens again if the worth turns out higher.

    Args:
        model: The attached model, after its ordinary training.
        gates: The gates in it.
        steps: The steps of the model in all turns, without waiting.
        turn: The steps of the model in a turn.
        price_by: What a gate pays for, as in `PathTrainer`.
        noise: By how much the losses of two trainings with different seeds differ, as a standard
            deviation; the intervals of the worth cover it.
    """

    def __init__(
        self,
        model: nn.Module,
        gates: LeAP,
        *,
        steps: int,
        turn: int,
        price_by: PriceBy = "field",
        noise: float = 0.0,
    ) -> None:
        check_arguments(turn=whole(turn, at_least=1), noise=number(noise, at_least=0))
        super().__init__(model, gates, steps=steps, price_by=price_by)
        self.noise = noise
        self.optimizer.param_groups[0]["lr"] = (OPEN - SHUT) / max(1, int(PART * turn))
        self.tensors = {name: torch.zeros_like(self.costs) for name in TENSORS}
        self.moves: dict[int, tuple[float, ...]] = {}  # of the share of each gate, by draws
        self.is_at_rest = False
        self._waited = False  # whether the price waited in the step before

    def step(self, loss: Callable[[], Tensor] | None = None) -> None:
        """Move the gates that pay towards 0 and the others back; no gradient is needed.

        Args:
            loss: Not used.
        """
        self.gates.theta.grad = None
        if self.gates.warming_up:
            return
        self.done += 1
        if self.is_finished:
            return
        waits = self.schedule.wait()
        if self.is_at_rest and waits == self._waited:
            return
        self._waited = waits
        pays = self.tensors["pays"] > 0
        speed = torch.where(pays, -1.0, RETURNS)
        if waits:
            speed = torch.where(pays, 0.0, RETURNS)
        self.is_at_rest = not self.optimizer.move(speed)
        self._close_those_below()

    def _close_those_below(self) -> None:
        """Close the gates that have fallen far enough, the least valuable first, but the last."""
        per_cost = self.tensors["now"] / self.costs
        ready = self.optimizer.ready_to_close()
        for gate in sorted(ready, key=lambda gate: float(per_cost[gate])):
            if int(self.optimizer.is_open.sum()) > 1:
                self._close(gate)
        self.is_complete = int(self.optimizer.is_open.sum()) == 1

    def close_memorised(self, worth: Mapping[str, FieldWorth]) -> None:
        """Close fields at once that the model would memorise in further training.

        Args:
            worth: The fields, with what each was worth in a model that has memorised it. Protected
                fields and those of a group stay open.
        """
        is_moving = self.optimizer.is_moving().tolist()
        for name, gate in self._gate_numbers().items():
            is_alone = int((self.gates.field_gate == gate).sum()) == 1
            if name in worth and is_alone and is_moving[gate]:
                for tensor in ("alone", "error", "share"):
                    self.tensors[tensor][gate] = getattr(worth[name], tensor)
                self._close(gate)

    def _pays(self) -> Tensor:
        """Return for each gate whether the price is above twice the worth of its field, (G,).

        Of very many, the least valuable quarter of the open gates pays.
        """
        per_cost = self.tensors["now"] / self.costs
        moving = per_cost[self.optimizer.is_moving()]
        if not len(moving):
            return torch.zeros_like(per_cost, dtype=torch.bool)
        most = moving.kthvalue(math.ceil(AT_ONCE * len(moving))).values
        return (self.price > 2 * per_cost) & (per_cost <= most)

    def note_worth(self, worth: Mapping[str, FieldWorth]) -> None:
        """Begin the next turn, unless the price waits.

        Args:
            worth: What open fields are worth in the present model; what was known of the others
                stays. The fields of a group add up.
        """
        found = {name: torch.zeros_like(self.costs) for name in TENSORS}
        is_new = torch.zeros_like(self.costs, dtype=torch.bool)
        for name, gate in self._gate_numbers().items():
            if name in worth:
                is_new[gate] = True
                found["alone"][gate] += worth[name].alone
                found["error"][gate] = math.hypot(float(found["error"][gate]), worth[name].error)
                found["share"][gate] += worth[name].share
        doubt = in_doubt(found["share"], found["error"]) - found["share"]
        # Divided by a small cost, chance would count for more than the sure worth of dear fields.
        found["now"] = found["share"] + doubt * self.costs.clamp_max(1.0)
        # A gate on its way has paid for a part of its worth already.
        is_open = self.optimizer.is_open & (self.optimizer.logits() > ON_ITS_WAY)
        self._note_moves(worth, is_new & is_open)
        for name in ("alone", "error", "share"):
            self.tensors[name] = torch.where(is_new & is_open, found[name], self.tensors[name])
        self.tensors["now"] = torch.where(is_new, found["now"], self.tensors["now"])
        self.is_at_rest = False
        if not self.schedule.is_waiting:
            per_cost = self.tensors["now"] / self.costs
            self.schedule.let_close(per_cost[self.optimizer.is_moving()])
        self.tensors["pays"] = self._pays().to(self.costs)

    def _note_moves(self, worth: Mapping[str, FieldWorth], is_noted: Tensor) -> None:
        """Note by how much other draws change what gates are worth; fields of a group add up."""
        found: dict[int, list[tuple[float, ...]]] = {}
        for name, gate in self._gate_numbers().items():
            if name in worth and bool(is_noted[gate]):
                found.setdefault(gate, []).append(worth[name].moves)
        for gate, members in found.items():
            self.moves[gate] = tuple(map(sum, zip(*members, strict=True)))

    def closing_fields(self) -> list[tuple[str, ...]]:
        """Return the fields of each gate that begins to close, the least valuable gate first."""
        begins = self.optimizer.is_moving() & (self.tensors["pays"] > 0)
        begins &= self.optimizer.logits() > ON_ITS_WAY
        per_cost = self.tensors["now"] / self.costs
        gates = sorted(begins.nonzero().flatten().tolist(), key=lambda gate: float(per_cost[gate]))
        return [self._names_of(gate) for gate in gates]

    def note_paid(self, paid: Mapping[tuple[str, ...], PaidWorth]) -> None:
        """Note what closing gates costs, which is the worth that they are reported with.

        Args:
            paid: The cost by the fields of each gate.
        """
        number = self._gate_numbers()
        for names, cost in paid.items():
            gate = number[names[0]]
            self.tensors["paid"][gate] = cost.nats
            self.tensors["paid_error"][gate] = cost.error
            self.tensors["has_paid"][gate] = 1.0

    def _names_of(self, gate: int) -> tuple[str, ...]:
        return tuple(name for name, own in self._gate_numbers().items() if own == gate)

    def worth(self) -> dict[str, Worth]:
        """Return the worth of each field in the model in which it was the next to close.

        It is what closing it costs, where that was noted, else the loss without it. The interval
        covers the chance of the rows and the noise of training.
        """
        has_paid = self.tensors["has_paid"] > 0
        nats = torch.where(has_paid, self.tensors["paid"], self.tensors["alone"])
        error = torch.where(has_paid, self.tensors["paid_error"], self.tensors["error"])
        found = {}
        for name, gate in self._gate_numbers().items():
            value = float(nats[gate])
            half = NORMAL_95 * math.hypot(float(error[gate]), self.noise)
            found[name] = Worth(value, value - half, value + half)
        return found

    def scores(self) -> dict[str, float]:
        """Return the worth of each field in the order of closing, per unit of its relative cost.

        Neighbours in the wrong order have their mean ("isotonic regression"). A field whose worth
        is not visible scores 0, so that the cheaper of such fields is kept first, in every search;
        one that visibly does harm scores less.
        """
        share = self.tensors["share"]
        return self._scores_of(share, self._closing_order(share / self.costs))

    def redrawn(self, draw: int, rng: torch.Generator) -> tuple[dict[str, float], dict[str, float]]:
        """Return the scores in another draw of the rows, and by how much it changes the worth.

        What another training would change is drawn from the noise of training. The order of the
        fields is that of their worth in this draw.

        Args:
            draw: The number of the draw.
            rng: The random numbers for the noise of training.
        """
        moves = self.noise * torch.randn(len(self.costs), generator=rng)
        for gate, own in self.moves.items():
            if own:
                moves[gate] += own[draw]
        share = self.tensors["share"] + moves.to(self.costs)
        by_worth = torch.argsort(share / self.costs, stable=True).tolist()
        changes = {name: float(moves[gate]) for name, gate in self._gate_numbers().items()}
        return self._scores_of(share, by_worth), changes

    def _scores_of(self, share: Tensor, order: Sequence[int]) -> dict[str, float]:
        """Return the scores of fields by what their gates are worth, (G,), in an order of gates."""
        error = self.tensors["error"].clamp_min(LEAST_ERROR)
        is_useful = share > SURE * error
        is_useful |= in_doubt(share, error) > NOTICEABLE * self.schedule.first_loss
        is_harmful = ~is_useful & (share < -SURE * error)
        per_cost = share / self.costs
        scores = torch.where(is_harmful, per_cost, 0.0).tolist()
        useful = [gate for gate in order if bool(is_useful[gate])]
        errors = (error / self.costs)[useful].tolist()
        values = rising(per_cost[useful].tolist(), [1 / one**2 for one in errors])
        sizes = self._sizes()[useful].tolist()
        for place, other in enumerate(cheaper_first(values, errors, sizes)):
            scores[useful[other]] = max(values[place], 0.0) + STEP_UP * (1 + place)
        return {name: scores[gate] for name, gate in self._gate_numbers().items()}

    def _sizes(self) -> Tensor:
        """Return the cost of each gate in the unit of `Field.cost`, (G,)."""
        sizes = torch.zeros_like(self.costs)
        for field, gate in zip(
            self.gates.known_fields(), self.gates.field_gate.tolist(), strict=True
        ):
            sizes[gate] += field.cost or 0.0
        return sizes

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the path and the worth of the fields."""
        worth = {name: tensor.clone() for name, tensor in self.tensors.items()}
        moves = [[gate, list(own)] for gate, own in self.moves.items()]
        moving = {"is_at_rest": self.is_at_rest, "waited": self._waited, "moves": moves}
        return {**super().state_dict(), "worth": worth, "moving": moving}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the path and the worth of the fields, if they fit these gates."""
        check_tensors(state["worth"], self.tensors, "the worth of the fields")
        super().load_state_dict(state)
        self.tensors = {name: one.clone().to(self.costs) for name, one in state["worth"].items()}
        self.is_at_rest = bool(state["moving"]["is_at_rest"])
        self._waited = bool(state["moving"]["waited"])
        self.moves = {int(gate): tuple(own) for gate, own in state["moving"]["moves"]}


def in_doubt(worth: Tensor, error: Tensor) -> Tensor:
    """Return what fields may be worth, (G,): more than was measured, unless that is precise.

    Up to a measured worth of 0 it is two standard errors more; from four standard errors on it is
    the measured worth.

    >>> in_doubt(torch.tensor([-1.0, 0.0, 1.0, 4.0]), torch.ones(4))
    tensor([1.0000, 2.0000, 2.5000, 4.0000])
    """
    return torch.maximum(worth, DOUBT * error + torch.minimum(worth, worth / 2))


def cheaper_first(
    values: Sequence[float], errors: Sequence[float], costs: Sequence[float]
) -> list[int]:
    """Return the order of fields in which the most expensive of equally valuable ones is lowest.

    From the top, all fields within a standard error of the difference to the best one are equally
    valuable, if each is precisely measured.

    Args:
        values: The worth of the fields, which never falls.
        errors: Their standard errors.
        costs: Their costs.

    >>> cheaper_first([1.0, 7.0, 7.5], [0.5, 0.5, 0.5], [1.0, 2.0, 8.0])
    [0, 2, 1]
    """
    order = []
    rest = list(range(len(values)))
    while rest:
        best = rest[-1]
        equal = [best]
        for place in reversed(rest[:-1]):
            difference = values[best] - values[place]
            if difference > math.hypot(errors[best], errors[place]):
                break
            if values[place] < PRECISE * errors[place]:
                break
            equal.append(place)
        rest = rest[: -len(equal)]
        order += sorted(equal, key=lambda place: (costs[place], -place))
    return order[::-1]


def turns_of(gates: int) -> int:
    """Return the number of turns until one gate is left.

    >>> turns_of(10), turns_of(500)
    (9, 42)
    """
    turns = 0
    while gates > 1:
        gates -= math.ceil(TURN * gates)
        turns += 1
    return turns
