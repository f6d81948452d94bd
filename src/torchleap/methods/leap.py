"""LeAP as a method: the price path, from an ordinary model of all fields to the last field."""

import copy
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._common.checks import setting
from ..gates.leap import LeAP
from ..gates.price_schedule import TURN
from ..gates.relative_costs import PriceBy
from ..gates.turn_trainer import FieldWorth, TurnTrainer, turns_of
from ..models import Ranker
from ..models.narrow import narrowed
from ..plugin import attach
from ..training.evaluate import predict_together
from ..training.fit import Hook, Run, Training, optimizers_for
from .base import GateMethod, Scores, Search, Snapshot
from .contributions import (
    Samples,
    affordable_rows,
    alike,
    contributions,
    substitutes_of,
    worth_of,
)
from .equivalents import equivalents
from .interactions import Interactions
from .memorised import Memorised
from .path_points import PathMetric, headline_of
from .planting import plant
from .takeover import rises_after_takeover
from .training_noise import TrainingNoise
from .worth_meter import WorthMeter

FRACTION = 0.45  # of the steps of the training before, that a path takes,
LEAST = 300  # but at least so many: with fewer, the model cannot adapt
RATE = 0.5  # of the learning rate before, at which the path would memorise wide fields
AVERAGED = 0.5  # of a turn: how far the weights are averaged back that are measured and kept
MEASURED = 32  # batches of train rows from which the gates know the means of fields
LONGEST = 3  # times the steps of the path after which it ends in any case
SNAPSHOTS = 10  # that are kept at most
SNAPSHOT_BYTES = 1 << 30  # of all snapshots, beyond which only two are kept


@dataclass(frozen=True)
class LeAPMethod(GateMethod):
    """The price path: gates close one after the other under a price that rises in loss units.

    First an ordinary model of all fields is trained. Its training then continues with gates. In
    each turn the worth of all open fields is measured on validation rows, the price rises to twice
    the worth of the least valuable tenth, and their gates close while the model adapts. The score
    of a field is its worth next to the fields that were open when it closed; see docs/theory.md.

    Args:
        price_by: What a gate pays for: "field" is one price for all; "dims" is proportional to
            the dimensions and "cost" to the cost of a field, and the scores are then worth per
            dimension or per cost.
        optimism: How much it counts against a field that it helps on train rows more than on
            validation rows.
        slowness: How many times as many steps as usual the path takes.
        steps: The steps of the path, without those in which the price waits. None is 0.45 times
            those of the ordinary training, but at least 300, times the slowness.
    """

    measures_worth: ClassVar[bool] = True
    price_by: PriceBy = "field"
    optimism: float = 0.25
    slowness: float = setting(1.0, above=0)
    steps: int | None = setting(None, at_least=1)

    def score(self, search: Search) -> Scores:
        """Return the worth of each field, in nats for a log loss."""
        model = search.model()
        limit = search.training.time_limit
        training = replace(search.training, time_limit=None if limit is None else 0.4 * limit)
        memorised = Memorised(search)
        noise = TrainingNoise(search)
        plain_run = search.fit(model, memorised, noise, training=training)
        plain = copy.deepcopy(model)
        search.plain = plain
        search.plain_history = plain_run.history
        plugin = attach(model, search.task.fields, at="net", seed=search.seed)
        steps = self.steps or max(1, round(self.slowness * suited_steps(plain_run.step)))
        turn = max(1, steps // max(1, turns_of(len(search.task.fields))))
        trainer = TurnTrainer(
            model,
            plugin.gates,
            steps=steps,
            turn=turn,
            price_by=self.price_by,
            noise=noise.of_difference,
        )
        masks = len(search.task.fields) / TURN
        samples = Samples(search, affordable_rows(search, plain, steps, masks))
        meter = WorthMeter(search, Interactions(search, plain), samples, self.optimism)
        hook = PathSteps(model, trainer, search, meter)
        names = search.task.fields.names
        alone = contributions(search, plain, samples.valid)
        pairs = alike(alone.changes, names)
        singles = [(name,) for name in names]
        rises = rises_after_takeover(search, plain, samples.valid, alone, singles, names)
        before = worth_of(names, rises, noise.of_difference)
        copies = equivalents(search, plain, pairs)
        hook.begin(plain, copies=copies, memorised=memorised.worth())
        settings = path_training(search.training, steps, turn, limit)
        others = [trainer.gates.theta]
        trainer.gates.theta.requires_grad_(False)  # gates follow the measured worth
        search.fit(
            model,
            hook,
            training=settings,
            optimizers=continued(plain_run.optimizers, model, settings, except_for=others),
        )
        trainer.gates.theta.requires_grad_(True)
        metric = headline_of(search)
        substitutes = substitutes_of(pairs, copies, before, trainer.worth())
        search.path = trainer.path(metric.name, substitutes, tuple(sorted(meter.together)))
        search.snapshots = hook.snapshots
        return trainer.scores()


def suited_steps(trained: int) -> int:
    """Return the steps of a path, without waiting: 0.45 times those of the training.

    Args:
        trained: The steps of the training before.
    """
    return max(LEAST, round(FRACTION * trained))


def path_training(training: Training, steps: int, turn: int, limit: float | None) -> Training:
    """Return the settings of the path: as the training before, but without an end of its own.

    Args:
        training: The settings of the training before.
        steps: The steps of all turns.
        turn: The steps of a turn.
        limit: The seconds that the search may take; None sets no limit.
    """
    return replace(
        training,
        epochs=training.epochs + LONGEST * steps,
        steps=LONGEST * steps,
        eval_every=turn,
        schedule="constant",
        warmup=0,
        lr=RATE * training.lr,
        average=max(1, round(AVERAGED * turn)),
        time_limit=None if limit is None else 0.6 * limit,
    )


def continued(
    before: Sequence[Optimizer],
    model: nn.Module,
    training: Training,
    *,
    except_for: Sequence[nn.Parameter],
) -> list[Optimizer]:
    """Return new optimizers of a model that start with the state of those before.

    Args:
        before: The optimizers of the training before, of the same parameters.
        model: The model.
        training: The settings of the training.
        except_for: Parameters that have another optimizer.
    """
    optimizers = optimizers_for(model, training, except_for=except_for)
    for optimizer, old in zip(optimizers, before, strict=True):
        state = copy.deepcopy(old.state_dict())
        for group in state["param_groups"]:
            group["lr"] = training.lr
            group.pop("initial_lr", None)  # of a schedule that has ended
        optimizer.load_state_dict(state)
    return optimizers


class PathSteps(Hook):
    """Move the gates after each step of the model, and record the points of the path.

    Args:
        model: The attached model, whose gates are open.
        trainer: The trainer of the gates.
        search: The search.
        meter: Measures what each field is worth.
    """

    def __init__(
        self, model: Ranker, trainer: TurnTrainer, search: Search, meter: WorthMeter
    ) -> None:
        self.model = model
        self.trainer = trainer
        self.meter = meter
        self.is_compiled = search.training.compile
        self.task = search.task
        self.batch = search.training.batch
        self.seed = search.seed
        self.metric = PathMetric(search)
        self.snapshots: list[Snapshot] = []
        self._mask = ExitStack()
        self._is_masked = False

    def begin(
        self,
        plain: Ranker,
        *,
        copies: Mapping[str, str],
        memorised: Mapping[str, FieldWorth],
    ) -> None:
        """Record the model of all fields as the first point, and let the first fields close.

        Copies of other fields and memorised fields close at once. Products of two fields that the
        model has not learned are planted into its network. The price then waits for the model to
        learn what has become possible.

        Args:
            plain: The same model as the attached one, without gates.
            copies: The fields to close, each with the one that stands for it.
            memorised: The fields that further training would memorise, with their worth after it.
        """
        model = self.model
        outputs = predict_together(model, self.task.valid)  # as without gates, which saw no row yet
        loss = self.metric.loss(outputs)
        self.trainer.schedule.begin(loss)
        self._measure_means()
        self._add_point(model, outputs, loss)
        self.trainer.close_copies(copies)
        self.trainer.close_memorised(memorised)
        self._begin_turn(plain, outputs, gates=None)
        planted = plant(model.net, self.meter.interactions.to_plant(outputs, loss))
        if planted or memorised:  # the model learns much in its next steps
            losses = self.task.objective.row_losses(outputs, self.task.valid.label)
            self.trainer.schedule.wait_for_model(losses)

    @torch.no_grad()
    def _measure_means(self) -> None:
        """Let the gates see some train rows, so that a snapshot has means for dropped fields."""
        rows = self.task.train.batches(self.batch, shuffle=True, seed=self.seed)
        self.trainer.gates.train()
        for batch in islice(rows, MEASURED):
            if len(batch) > 1:
                self.trainer.gates(self.model.inputs(*batch.inputs))

    def trained_parameters(self) -> list[nn.Parameter]:
        """Return the parameter of the gates."""
        return [self.trainer.gates.theta]

    def after_step(self, run: Run) -> None:
        """Move the gates."""
        self.trainer.step()
        self._follow_gates()

    def _follow_gates(self) -> None:
        """Show the model what a pruned one sees while no gate moves: means of closed fields."""
        if self.trainer.is_at_rest == self._is_masked:
            return
        self._mask.close()
        self._is_masked = self.trainer.is_at_rest
        if self._is_masked:
            gates = self.trainer.gates
            self._mask.enter_context(gates.masked(self.trainer.open_fields()))
            if not self.is_compiled:  # a compiled model would be compiled again in each turn
                varies = self.trainer.optimizer.is_open[gates.column_gate]
                self._mask.enter_context(narrowed(self.model.net, varies, gates.means()))

    def at_end(self, run: Run) -> None:
        """Let the gates see all fields again."""
        self._mask.close()
        self._is_masked = False

    def after_eval(self, run: Run, record: dict[str, float]) -> None:
        """Add a point to the path, with the weights of the model, and begin the next turn."""
        assert run.outputs is not None
        trainer = self.trainer
        trainer.evaluated(self.task.objective.row_losses(run.outputs, self.task.valid.label))
        self._add_point(run.model, run.outputs, self.metric.loss(run.outputs))
        if not trainer.schedule.is_waiting and not trainer.is_finished:
            assert isinstance(run.model, Ranker)
            self._begin_turn(run.model, run.outputs, trainer.gates)
            self._follow_gates()
        gates = trainer.gates.scores()
        record.update({f"gate_{name}": score for name, score in gates.items()})
        record["price"] = trainer.price

    def _begin_turn(self, model: Ranker, outputs: Tensor, gates: LeAP | None) -> None:
        """Measure the worth of the open fields, and what those cost that close in this turn."""
        stay = self.trainer.open_fields()
        self.trainer.note_worth(self.meter.measure(model, stay, outputs, gates))
        closing = self.trainer.closing_fields()
        self.trainer.note_paid(self.meter.paid(model, closing, stay, gates))

    def _add_point(self, model: nn.Module, outputs: Tensor, loss: float) -> None:
        """Add the model to the path, with its weights, if it is a new point."""
        found = self.metric.measure(outputs)
        is_new = self.trainer.add_point(
            found.metric,
            loss,
            interval=(found.low, found.high),
            behind=found.behind,
            error=found.error,
        )
        if is_new:
            weights = {name: one.detach().clone() for name, one in model.state_dict().items()}
            self._keep_snapshot(Snapshot(self.trainer.open_fields(), weights))

    def _keep_snapshot(self, new: Snapshot) -> None:
        """Keep the weights of a point; of too many, the one that its neighbours replace best."""
        if self.snapshots and len(self.snapshots[-1].kept) == len(new.kept):
            self.snapshots.pop()
        self.snapshots.append(new)
        size = sum(one.numel() * one.element_size() for one in new.weights.values())
        most = max(2, min(SNAPSHOTS, SNAPSHOT_BYTES // max(1, size)))
        while len(self.snapshots) > most:
            self.snapshots.pop(_least_missed([len(one.kept) for one in self.snapshots]))

    def finished(self, run: Run) -> str:
        """Return whether the path has ended, as the reason to stop."""
        if self.trainer.schedule.is_over:
            return "the price is above any worth"
        if self.trainer.is_finished:
            return "all fields but the last are closed"
        return ""

    def settled(self, run: Run) -> bool:
        """Return False: a metric that no longer rises does not end a path."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the trainer, its points and the snapshots."""
        return {
            **self.trainer.state_dict(),
            "snapshots": [[list(one.kept), one.weights] for one in self.snapshots],
            "together": sorted(map(list, self.meter.together)),
            **self.metric.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the trainer, its points and the snapshots."""
        self.trainer.load_state_dict(state)
        self.snapshots = [Snapshot(tuple(kept), weights) for kept, weights in state["snapshots"]]
        self.meter.together = {tuple(names) for names in state["together"]}
        self.metric.load_state_dict(state)
        self._follow_gates()


def _least_missed(counts: Sequence[int]) -> int:
    """Return the place of the count whose neighbours are the closest in proportion.

    The first and the last one stay.

    >>> _least_missed([40, 20, 19, 10, 1])
    2
    """
    gaps = {}
    for place in range(1, len(counts) - 1):
        gaps[place] = counts[place - 1] / max(1, counts[place + 1])
    return min(gaps, key=lambda place: gaps[place])


@torch.no_grad()
def snapshot_for(snapshots: Sequence[Snapshot], kept: Sequence[str]) -> Snapshot:
    """Return the snapshot with the fewest open fields that include all the kept ones.

    Where none includes all of them, it is the one with the most.

    Args:
        snapshots: The snapshots of a path; the first one has all fields.
        kept: The fields that are kept.
    """
    wanted = set(kept)
    missing = [len(wanted - set(one.kept)) for one in snapshots]
    suited = [one for one, count in zip(snapshots, missing, strict=True) if count == min(missing)]
    return min(suited, key=lambda one: len(one.kept))
