"""PathTrainer: let the price rise, wait where the model still learns, and record each closing."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .._common.checks import check_arguments, is_whole, number, one_of, whole
from .._common.errors import SelectionError
from .._common.states import expect
from ..distributed import ranks
from ..fields import Fields
from ..selection.path import Path, PathPoint, Substitute, Worth
from .base_trainer import BaseTrainer
from .held_out import rest
from .leap import LeAP
from .price_path import PathOptimizer

PriceBy = Literal["field", "dims", "cost"]

STEPS = 1600  # of the model in which the price rises through all scales, without waiting
DECADES = 4.0  # that the price rises in these steps
FIRST_PRICE = 3e-5  # of the loss at the start; no field of less worth than that can be seen
LAST_PRICE = 1e4  # of the loss at the start, at which the path ends in any case
TRAVEL = 20.0  # logits that a gate can move in these steps
EVERY = 4  # steps of the model per step of the gates
WAITS = 0.75  # of the steps, at most, are added by waiting
SLOWLY = 0.25  # the speed of the gates while the price waits
AT_ONCE = 3  # the price waits while more than one in so many open gates is collapsing
PATIENCE = 8  # evaluations over which the loss must have fallen by a part of the price
PART = 0.25  # that part
UNKNOWN_LOSS = math.log(2)  # nats, where no held-out loss is known
LEAST_COST = 1e-2  # of the mean cost, below which a cheaper field is not closed later
MOST_COST = 1e2
NORMAL_95 = 1.96
STEP_UP = 1e-6  # of a score, between two fields that would have the same


@dataclass(frozen=True)
class Closing:
    """A gate that has closed for good.

    Attributes:
        gate: The number of the gate.
        step: The step of the model.
        price: The price of an open gate at that time, in the unit of the loss.
    """

    gate: int
    step: int
    price: float


class PathTrainer(BaseTrainer):
    """Close one field after the other under a rising price, while the model adapts.

    `plugin.trainer(path=True)` makes one; `plugin.path()` returns what it has found.

        trainer = plugin.trainer(path=True)
        while not trainer.is_finished:
            x, y = next(batches)
            criterion(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            trainer.step(lambda: criterion(model(x_held_out), y_held_out))

    Args:
        model: The attached model, best after its ordinary training.
        gates: The gates in it.
        steps: The steps of the model in which the price rises through all scales of the loss.
            Waiting adds to them; the path may end earlier.
        optimism: How much it counts against a field that it helps on train rows more than on
            held-out rows, see `GateOptimizer`.
        price_by: What a gate pays for: "field" is the same price for each, "dims" is
            proportional to its dimensions, "cost" to `Field.cost`.
        batches: How many different held-out batches there are, for the intervals of the worth;
            None is a stream, where every row is new.

    Attributes:
        done: The steps of the model so far.
        waited: The steps during which the price waited.
        closings: The closed gates, in the order in which they closed.
        points: The points of the path, see `add_point`.
    """

    optimizer: PathOptimizer

    def __init__(
        self,
        model: nn.Module,
        gates: LeAP,
        *,
        steps: int = STEPS,
        optimism: float = 0.25,
        price_by: PriceBy = "field",
        batches: int | None = None,
    ) -> None:
        check_arguments(
            steps=whole(steps, at_least=1),
            optimism=number(optimism, at_least=0),
            price_by=one_of(price_by, ("field", "dims", "cost")),
            batches="" if batches is None else whole(batches, at_least=1),
        )
        super().__init__(model, gates)
        self.steps = steps
        self.batches = batches
        self.costs = relative_costs(gates.known_fields(), price_by)
        self.rate = TRAVEL * EVERY / steps
        self.optimizer = PathOptimizer(gates, lr=self.rate, optimism=optimism, costs=self.costs)
        self.waited = 0
        self.is_waiting = False
        self.is_complete = False  # whether the last gate is measured, too
        self.scale: float | None = None  # the held-out loss at the start
        self.risen = 0.0  # decades that the price has risen
        self.losses: list[float] = []  # of evaluations
        self.closings: list[Closing] = []
        self.points: list[PathPoint] = []
        self.gates_at_best: dict[str, float] = {}
        self._train: Tensor | None = None  # (G,) sum of the train gradients since the last step
        self._open_at_best()

    # Training

    def step(self, loss: Callable[[], Tensor] | None = None) -> None:
        """Note the gates' gradient on the train batch; move the gates at every fourth step.

        Args:
            loss: As in `BaseTrainer.step`; it is called at every fourth step.
        """
        self._return_gradient()
        self._refuse_missing_gradient("With the model in train(), call loss.backward() first")
        self._note_train_gradient()
        self.done += 1
        if not self.is_finished and self.done % EVERY == 0:
            self._move_gates(loss)
        if self.is_waiting:
            self.waited += 1
        elif self.optimizer.collapsing() <= len(self.open_fields()) // AT_ONCE:
            self.risen += DECADES / self.steps

    def _note_train_gradient(self) -> None:
        theta = self.gates.theta
        if theta.grad is not None:
            gradient = theta.grad.detach()
            self._train = gradient.clone() if self._train is None else self._train + gradient
        theta.grad = None

    def _move_gates(self, loss: Callable[[], Tensor] | None) -> None:
        train = None if self._train is None else self._train / EVERY
        self._train = None
        theta = self.gates.theta
        theta.grad = train
        self.optimizer.param_groups[0]["lr"] = self.rate * (SLOWLY if self.is_waiting else 1.0)
        if loss is None:
            self.optimizer.price = self.price
            self.optimizer.step()
            theta.grad = None
        else:
            self._step_on_held_out_rows(lambda: self._measured(loss))
        self._close_gates()

    def _measured(self, loss: Callable[[], Tensor]) -> Tensor:
        """Return the held-out loss; the first one is the scale of the price."""
        value = loss()
        if self.scale is None:
            [mean] = ranks.averages([float(value.detach())])  # the same price on all ranks
            self.scale = max(mean, 1e-12)
        self.optimizer.price = self.price
        return value

    def _close_gates(self) -> None:
        for gate in self.optimizer.ready_to_close():
            self.optimizer.measure_rest(gate)
            if self._is_last():
                self.is_complete = True
                return
            self.optimizer.close(gate)
            self.closings.append(Closing(gate, self.done, self.price))

    def _is_last(self) -> bool:
        """Return whether a single gate is left, which stays open."""
        is_open = self.optimizer.tensors["is_open"] > 0
        return int(is_open.sum()) == 1

    @property
    def price(self) -> float:
        """The price of an open gate, in the unit of the loss."""
        scale = UNKNOWN_LOSS if self.scale is None else self.scale
        return FIRST_PRICE * scale * 10**self.risen

    @property
    def is_finished(self) -> bool:
        """Whether the last gate is measured, none can close, or the price is above any worth."""
        if self.is_complete or not bool(self.optimizer.is_moving().any()):
            return True
        scale = UNKNOWN_LOSS if self.scale is None else self.scale
        return self.price > LAST_PRICE * scale

    @property
    def has_settled(self) -> bool:
        """Whether the path has ended."""
        return self.is_finished

    def evaluated(self, loss: float) -> None:
        """Let the price wait while the loss still falls, as pairs of fields are learned late.

        Args:
            loss: The loss of the model on validation rows, at regular intervals of steps.
        """
        self.losses.append(loss)
        self.is_waiting = False
        if len(self.losses) > PATIENCE and self.waited < WAITS * self.steps:
            fallen = min(self.losses[:-PATIENCE]) - min(self.losses)
            self.is_waiting = fallen > PART * self.price

    # What has been found

    def open_fields(self) -> tuple[str, ...]:
        """Return the names of the fields whose gates are open, in field order."""
        is_open = (self.optimizer.tensors["is_open"] > 0)[self.gates.field_gate].tolist()
        names = self.gates.known_fields().names
        return tuple(name for name, keep in zip(names, is_open, strict=True) if keep)

    def add_point(
        self,
        metric: float,
        loss: float,
        *,
        interval: tuple[float, float] | None = None,
        behind: float = 0.0,
        error: float = 0.0,
    ) -> bool:
        """Add the present model to the path; of several with the same fields the best one stays.

        Args:
            metric: Its metric on validation rows.
            loss: Its loss there.
            interval: The 95 % interval of the metric; None if it is not known.
            behind: How much worse the metric is than the best one before; 0 if it is the best.
            error: The standard error of that difference; 0 for the best.

        Returns:
            Whether it was added.
        """
        kept = self.open_fields()
        low, high = interval or (metric, metric)
        fields = self.gates.known_fields()
        closed = tuple(name for name in self._closed_names() if name in self._last_kept())
        point = PathPoint(
            kept=kept,
            closed=closed,
            dims=sum(fields[name].width for name in kept),
            cost=sum(fields[name].cost or 0.0 for name in kept),
            metric=metric,
            low=low,
            high=high,
            behind=behind,
            error=error,
            loss=loss,
            price=self.price,
            step=self.done,
        )
        if behind <= 0:
            self._open_at_best()
        if self.points and len(kept) == len(self.points[-1].kept):
            if behind >= self.points[-1].behind and behind > 0:
                return False
            point = replace(point, closed=self.points[-1].closed)
            self.points[-1] = point
        else:
            self.points.append(point)
        return True

    def _last_kept(self) -> tuple[str, ...]:
        """Return the fields of the last point with more fields than now."""
        now = len(self.open_fields())
        for point in reversed(self.points):
            if len(point.kept) > now:
                return point.kept
        return self.gates.known_fields().names

    def _closed_names(self) -> list[str]:
        """Return the names of the closed fields, in the order in which they closed."""
        field_gate = self.gates.field_gate.tolist()
        names = self.gates.known_fields().names
        found = []
        for closing in self.closings:
            found += [
                name for name, gate in zip(names, field_gate, strict=True) if gate == closing.gate
            ]
        return found

    def _open_at_best(self) -> None:
        rest(self.model, self.gates)
        self.gates_at_best = self.gates.scores()

    def worth(self) -> dict[str, Worth]:
        """Return the worth of each field, of fields that are still open what is known of it.

        The fields of a group have the worth of the group.
        """
        rest(self.model, self.gates)
        is_open = self.optimizer.tensors["is_open"] > 0
        nats = self.optimizer.tensors["worth"].clone()
        largest = float(torch.where(is_open, torch.tensor(0.0), nats).max())
        least = max(self.price / 2, largest)  # of a field that has outlived the price
        if not self.is_complete:
            nats = torch.where(is_open, least + self.optimizer.current_worth().clamp_min(0), nats)
        error = NORMAL_95 * self.optimizer.deviations(self.batches)
        found = {}
        for name, gate in zip(
            self.gates.known_fields().names, self.gates.field_gate.tolist(), strict=True
        ):
            value = float(nats[gate])
            half = float(error[gate])
            found[name] = Worth(value, value - half, value + half)
        return found

    def scores(self) -> dict[str, float]:
        """Return the worth of each field, with a part of the largest worth that it has outlived.

        For fields whose worth is above its standard error, a score is the geometric mean of the
        worth and of the largest worth of these fields that closed up to then: what a pair is
        worth is measured at the half that closes first, and both are needed. The others, which
        cannot be told from noise, rank below these by their worth. Where the price depends on the
        cost, it is the worth per unit of the relative cost.
        """
        worth = self.worth()
        costs = dict(zip(worth, self.costs[self.gates.field_gate].tolist(), strict=True))
        value = {name: one.nats / costs[name] for name, one in worth.items()}
        is_clear = {name: one.nats > one.error for name, one in worth.items()}
        closed = self._closed_names()
        still_open = [name for name in worth if name not in set(closed)]
        order = [*closed, *sorted(still_open, key=lambda name: value[name])]
        clear = [name for name in order if is_clear[name]]
        outlived = rising([value[name] for name in clear])
        found = {}
        for name, largest in zip(clear, outlived, strict=True):
            found[name] = math.sqrt(value[name] * largest)
        least = min(found.values(), default=math.inf)
        for name in worth:
            if name not in found:
                found[name] = min(value[name], least * (1 - STEP_UP))
        return {name: found[name] for name in worth}

    def path(self, metric: str, substitutes: tuple[Substitute, ...] = ()) -> Path:
        """Return the path so far.

        Args:
            metric: The name of the metric of its points.
            substitutes: The fields that took over for others.
        """
        if self.done == 0:
            raise SelectionError(
                "plugin.path() needs a path, but no step has been taken. Train with "
                "trainer = plugin.trainer(path=True)."
            )
        return Path(metric, self.worth(), tuple(self.points), substitutes, self.gates_at_best)

    # State

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed path needs besides the model's own state_dict."""
        return {
            "optimizer": self.optimizer.path_state(),
            "steps": self.done,
            "waited": self.waited,
            "is_waiting": self.is_waiting,
            "is_complete": self.is_complete,
            "scale": self.scale,
            "risen": self.risen,
            "losses": list(self.losses),
            "closings": [[one.gate, one.step, one.price] for one in self.closings],
            "points": Path("", {}, tuple(self.points)).to_json()["points"],
            "gates_at_best": dict(self.gates_at_best),
            "train": self._train,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the gates' averages, the price, the closings and the points.

        Args:
            state: As `state_dict()` returned it.

        Raises:
            StateError: The state does not fit these gates.
        """
        steps = state["steps"]
        expect(is_whole(steps) and steps >= 0, f"the steps of the path are {steps!r:.40}")
        closings = [Closing(int(a), int(b), float(c)) for a, b, c in state["closings"]]
        content = {"metric": "", "worth": {}, "substitutes": [], "gates": {}}
        points = Path.from_json({**content, "points": state["points"]}).points
        self.optimizer.load_path_state(state["optimizer"])
        self.done = steps
        self.waited = int(state["waited"])
        self.is_waiting = bool(state["is_waiting"])
        self.is_complete = bool(state["is_complete"])
        self.scale = None if state["scale"] is None else float(state["scale"])
        self.risen = float(state["risen"])
        self.losses = [float(loss) for loss in state["losses"]]
        self.closings = closings
        self.points = list(points)
        self.gates_at_best = dict(state["gates_at_best"])
        self._train = state["train"]
        self._aside = None

    def __repr__(self) -> str:
        count = len(self.open_fields())
        of = len(self.gates.known_fields())
        waits = ", waiting" if self.is_waiting else ""
        price = f"price {self.price:.2g}{waits}"
        return f"PathTrainer: step {self.done:,}, {price}; {count} of {of} open"


def rising(values: Sequence[float]) -> list[float]:
    """Return the largest value so far, a little more than the one before where it is the same.

    >>> [round(value, 3) for value in rising([1.0, 3.0, 2.0])]
    [1.0, 3.0, 3.0]
    """
    found: list[float] = []
    for value in values:
        if found:
            value = max(value, found[-1] * (1 + STEP_UP))
        found.append(value)
    return found


def relative_costs(fields: Fields, price_by: PriceBy) -> Tensor:
    """Return the cost of each gate relative to the mean gate, (G,), within 0.01 and 100.

    Args:
        fields: The fields; those of a group add up.
        price_by: "field", "dims" or "cost", see `PathTrainer`.
    """
    count = max(fields.gates) + 1
    costs = torch.zeros(count, dtype=torch.get_default_dtype())
    for field, gate in zip(fields, fields.gates, strict=True):
        if price_by == "field":
            costs[gate] = 1.0
        elif price_by == "dims":
            costs[gate] += field.width
        else:
            costs[gate] += _positive_cost(field.name, field.cost)
    return (costs / costs.mean()).clamp(LEAST_COST, MOST_COST)


def _positive_cost(name: str, cost: float | None) -> float:
    if cost is None or cost <= 0:
        raise SelectionError(
            f"Expected costs above 0 for a path by cost, but that of {name!r} is {cost}. "
            "Give it a small cost, or price_by='field'."
        )
    return cost
