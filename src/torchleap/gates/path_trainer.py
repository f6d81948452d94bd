"""PathTrainer: let the price rise, wait where the model still learns, and record each closing."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .._common.checks import check_arguments, is_whole, number, one_of, whole
from .._common.errors import SelectionError
from .._common.states import expect
from ..distributed import ranks
from ..selection.path import Path, PathPoint, Substitute, Worth
from .base_trainer import BaseTrainer
from .closings import Closing, add_point
from .held_out import rest
from .leap import LeAP
from .price_path import PathOptimizer
from .price_schedule import PriceSchedule
from .relative_costs import PriceBy, relative_costs
from .worth_estimate import combined

STEPS = 1300  # of the model in which the price rises through all scales, without waiting
TRAVEL = 30.0  # logits that a gate can move in these steps
EVERY = 4  # steps of the model per step of the gates
NORMAL_95 = 1.96


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
        schedule: How the price rises, and what it waits for.
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
        costs = relative_costs(gates.known_fields(), price_by)
        rate = TRAVEL * EVERY / steps
        self.optimizer = PathOptimizer(gates, lr=rate, optimism=optimism, costs=costs)
        self.costs = self.optimizer.costs
        self.schedule = PriceSchedule(steps)
        self.is_complete = False  # whether the last gate is measured, too
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
        if self.gates.warming_up:  # no gate can move yet, so that the price does not rise either
            return
        self._train = self._take_gradient(self._train)
        self.done += 1
        if not self.is_finished and self.done % EVERY == 0:
            self._move_gates(loss)
        self.schedule.step(self.optimizer.logits()[self.optimizer.is_moving()])

    def _move_gates(self, loss: Callable[[], Tensor] | None) -> None:
        train = None if self._train is None else self._train / EVERY
        self._train = None
        theta = self.gates.theta
        theta.grad = train
        self.optimizer.is_waiting = self.schedule.is_waiting
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
        if self.schedule.scale is None:
            [mean] = ranks.averages([float(value.detach())])  # the same price on all ranks
            self.schedule.begin(mean)
        self.optimizer.price = self.price
        return value

    def _close_gates(self) -> None:
        for gate in self.optimizer.ready_to_close():
            self.optimizer.measure_rest(gate)
            if int(self.optimizer.is_open.sum()) == 1:  # the last one stays open
                self.is_complete = True
                return
            self._close(gate)

    def _close(self, gate: int) -> None:
        self.optimizer.close(gate)
        self.closings.append(Closing(gate, self.done, self.price))

    @property
    def price(self) -> float:
        """The price of an open gate, in the unit of the loss."""
        return self.schedule.price

    @property
    def is_finished(self) -> bool:
        """Whether the last gate is measured, none can close, or the price is above any worth."""
        if self.is_complete or not bool(self.optimizer.is_moving().any()):
            return True
        return self.schedule.is_over

    @property
    def has_settled(self) -> bool:
        """Whether the path has ended."""
        return self.is_finished

    def evaluated(self, losses: Tensor) -> None:
        """Let the price wait while the loss still falls, see `PriceSchedule.evaluated`.

        Args:
            losses: The loss of each validation row at present, (N,); always the same rows, at
                regular intervals of steps.
        """
        self.schedule.evaluated(losses)

    def close_copies(self, copies: Mapping[str, str]) -> None:
        """Close fields at once that say the same as others, and have no worth beside these.

        Args:
            copies: The fields to close, each with the field that stands for it.
        """
        number = self._gate_numbers()
        for name in copies:
            self._close(number[name])

    # What has been found

    def open_fields(self) -> tuple[str, ...]:
        """Return the names of the fields whose gates are open, in field order."""
        is_open = self.optimizer.is_open[self.gates.field_gate].tolist()
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
        point = PathPoint(
            kept=kept,
            closed=(),
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
        return add_point(self.points, point, self._closed_names())

    def _closed_names(self) -> list[str]:
        """Return the names of the closed fields, in the order in which they closed."""
        found = []
        for closing in self.closings:
            own = [name for name, gate in self._gate_numbers().items() if gate == closing.gate]
            found += own
        return found

    def _open_at_best(self) -> None:
        rest(self.model, self.gates)
        self.gates_at_best = self.gates.scores()

    def worth(self) -> dict[str, Worth]:
        """Return the worth of each field, of fields that are still open what is known of it.

        It is the measured worth, combined with what the order of closing says (`combined`); its
        interval is that of the measurement. The fields of a group have the worth of the group.
        """
        rest(self.model, self.gates)
        errors = self.optimizer.deviations(self.batches)
        per_cost = self._measured_worth() / self.costs
        order = self._closing_order(per_cost)
        found = combined(per_cost[order].tolist(), (errors / self.costs)[order].tolist())
        by_gate = {}
        for gate, value in zip(order, found, strict=True):
            nats = value * float(self.costs[gate])
            half = NORMAL_95 * float(errors[gate])
            by_gate[gate] = Worth(nats, nats - half, nats + half)
        return {name: by_gate[gate] for name, gate in self._gate_numbers().items()}

    def _closing_order(self, worth: Tensor) -> list[int]:
        """Return all gates, the first to close first; those that are open come last, by worth."""
        order = [closing.gate for closing in self.closings]
        still_open = self.optimizer.is_open.nonzero().flatten().tolist()
        return order + sorted(still_open, key=lambda gate: float(worth[gate]))

    def _gate_numbers(self) -> dict[str, int]:
        """Return the number of each field's gate, in field order."""
        gates = self.gates.field_gate.tolist()
        return dict(zip(self.gates.known_fields().names, gates, strict=True))

    def _measured_worth(self) -> Tensor:
        """Return the measured worth of each gate, of open ones at least what closed ones have."""
        worth = self.optimizer.tensors["worth"]
        if self.is_complete:
            return worth
        is_open = self.optimizer.is_open
        largest = float(torch.where(is_open, torch.zeros_like(worth), worth).max())
        least = max(self.price / 2, largest)  # of a field that has outlived the price
        return torch.where(is_open, least + self.optimizer.current_worth().clamp_min(0), worth)

    def scores(self) -> dict[str, float]:
        """Return the worth of each field, per unit of its relative cost where the price is."""
        costs = self.costs[self.gates.field_gate].tolist()
        found = {}
        for (name, worth), cost in zip(self.worth().items(), costs, strict=True):
            found[name] = worth.nats / cost
        return found

    def path(
        self,
        metric: str,
        substitutes: tuple[Substitute, ...] = (),
        together: tuple[tuple[str, ...], ...] = (),
    ) -> Path:
        """Return the path so far.

        Args:
            metric: The name of the metric of its points.
            substitutes: The fields that took over for others.
            together: The fields that are worth something only together.
        """
        if self.done == 0:
            raise SelectionError(
                "plugin.path() needs a path, but no step has been taken. Train with "
                "trainer = plugin.trainer(path=True)."
            )
        points = tuple(self.points)
        return Path(metric, self.worth(), points, substitutes, self.gates_at_best, together)

    # State

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed path needs besides the model's own state_dict."""
        return {
            "optimizer": self.optimizer.path_state(),
            "steps": self.done,
            "is_complete": self.is_complete,
            "schedule": self.schedule.state_dict(),
            "closings": [[one.gate, one.step, one.price] for one in self.closings],
            "points": Path("", {}, tuple(self.points)).to_json()["points"],
            "gates_at_best": dict(self.gates_at_best),
            "train": None if self._train is None else ranks.full(self._train),
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
        self.is_complete = bool(state["is_complete"])
        self.schedule.load_state_dict(state["schedule"])
        self.closings = closings
        self.points = list(points)
        self.gates_at_best = dict(state["gates_at_best"])
        self._train = self._laid_out(state["train"])
        self._aside = None

    def __repr__(self) -> str:
        count = len(self.open_fields())
        of = len(self.gates.known_fields())
        waits = ", waiting" if self.schedule.is_waiting else ""
        price = f"price {self.price:.2g}{waits}"
        return f"PathTrainer: step {self.done:,}, {price}; {count} of {of} open"
