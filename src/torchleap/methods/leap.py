"""LeAP as a method: the price path, from an ordinary model of all fields to the last field."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._common.checks import setting
from ..gates.path_trainer import EVERY, STEPS, PathTrainer, PriceBy
from ..objectives import Difference, Metric, Predictions
from ..plugin import attach
from ..training.fit import Hook, Run, Training, optimizers_for
from .base import GateMethod, Scores, Search, Snapshot, valid_batches, without_end
from .contributions import substitutes_of

EVALUATIONS = 32  # in the steps of the path, without waiting
PER_EPOCH_LIMIT = 2  # a path has at most this many times the steps that the training plans
LONGEST = 4  # times the steps of the path after which it ends in any case
SNAPSHOTS = 10  # that are kept at most
SNAPSHOT_BYTES = 1 << 30  # of all snapshots, beyond which only two are kept
NORMAL_95 = 1.96


@dataclass(frozen=True)
class LeAPMethod(GateMethod):
    """The price path: gates close one after the other under a price that rises in loss units.

    First an ordinary model of all fields is trained. Its training then continues with gates,
    which learn from validation rows, while the price of an open gate rises through all scales of
    the loss. The score of a field is its worth: the loss that the adapting model pays for it.

    Args:
        price_by: What a gate pays for: "field" is one price for all; "dims" is proportional to
            the dimensions and "cost" to the cost of a field, and the scores are then worth per
            dimension or per cost.
        optimism: How much it counts against a field that it helps on train rows more than on
            validation rows.
        steps: The steps in which the price rises through all scales; waiting adds to them. None
            is 1,600, or a quarter of an epoch if that is more, and at most twice the planned steps.
    """

    price_by: PriceBy = "field"
    optimism: float = 0.25
    steps: int | None = setting(None, at_least=1)

    def score(self, search: Search) -> Scores:
        """Return the worth of each field, in nats for a log loss."""
        model = search.model()
        limit = search.training.time_limit
        training = replace(search.training, time_limit=None if limit is None else 0.4 * limit)
        plain_run = search.fit(model, training=training)
        search.plain = copy.deepcopy(model)
        plugin = attach(model, search.task.fields, at="net", seed=search.seed)
        batches = valid_batches(search)
        steps = self.steps or suited_steps(search)
        trainer = plugin.trainer(
            path=True,
            steps=steps,
            optimism=self.optimism,
            price_by=self.price_by,
            batches=max(1, len(search.task.valid) // batches.size_of_all),
        )
        hook = PathSteps(trainer, search)
        settings = path_training(search.training, steps, limit)
        others = [trainer.gates.theta]
        search.fit(
            model,
            hook,
            training=settings,
            optimizers=continued(plain_run.optimizers, model, settings, except_for=others),
        )
        metric = headline_of(search)
        worth = trainer.worth()
        search.path = trainer.path(metric.name, substitutes_of(search, search.plain, worth))
        search.snapshots = hook.snapshots
        return trainer.scores()


def suited_steps(search: Search) -> int:
    """Return the steps in which the price rises: 1,600, or a quarter of an epoch if that is more.

    A training that plans fewer steps in all has a path of at most twice as many.
    """
    steps = max(STEPS, search.steps_per_epoch // 4)
    return max(EVERY, min(steps, PER_EPOCH_LIMIT * search.planned_steps))


def path_training(training: Training, steps: int, limit: float | None) -> Training:
    """Return the settings of the path: as the training before, but without an end of its own.

    Args:
        training: The settings of the training before.
        steps: The steps in which the price rises.
        limit: The seconds that the search may take; None sets no limit.
    """
    return replace(
        training,
        epochs=training.epochs + LONGEST * steps,
        steps=LONGEST * steps,
        eval_every=max(1, steps // EVALUATIONS),
        schedule="constant",
        warmup=0,
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


def headline_of(search: Search) -> Metric:
    """Return the metric of the points of a path: the one that the training is judged by."""
    return search.task.objective.metric(search.training.metric)


class PathSteps(Hook):
    """Move the gates after each step of the model, and record the points of the path.

    Args:
        trainer: The trainer of the gates.
        search: The search whose validation rows the gates learn from.
    """

    def __init__(self, trainer: PathTrainer, search: Search) -> None:
        self.trainer = trainer
        self.task = search.task
        self.metric = headline_of(search)
        self.batches = valid_batches(search)
        self.valid = without_end(self.batches)
        self.snapshots: list[Snapshot] = []
        self.first: Tensor | None = None  # (N,) outputs of the model of all fields
        self.best: Tensor | None = None  # (N,) outputs at the best point so far

    def trained_parameters(self) -> list[nn.Parameter]:
        """Return the parameter of the gates."""
        return [self.trainer.gates.theta]

    def after_step(self, run: Run) -> None:
        """Move the gates."""
        self.trainer.step(lambda: self._held_out_loss(run))

    def _held_out_loss(self, run: Run) -> Tensor:
        batch = next(self.valid)
        return self.task.objective.loss(run.model(*batch.inputs), batch.label)

    def after_eval(self, run: Run, record: dict[str, float]) -> None:
        """Add a point to the path, with the weights of the model, and the gates to the record."""
        assert run.outputs is not None
        loss = float(self.task.objective.loss(run.outputs, self.task.valid.label))
        self.trainer.evaluated(loss)
        if self._add_point(run.outputs, loss):
            weights = {name: one.detach().clone() for name, one in run.model.state_dict().items()}
            self._keep_snapshot(Snapshot(self.trainer.open_fields(), weights))
        gates = self.trainer.gates.scores()
        record.update({f"gate_{name}": score for name, score in gates.items()})
        record["price"] = self.trainer.price

    def _add_point(self, outputs: Tensor, loss: float) -> bool:
        """Return whether the model is a new point of the path, which then has it."""
        if self.first is None or self.best is None:
            self.first = outputs
            self.best = outputs
        value = self.metric.compute(self._predictions(outputs))
        change = self._change(self.first, outputs)
        gain = self._change(self.best, outputs)
        behind = -self.metric.gain(gain.value)
        error = (gain.high - gain.low) / (2 * NORMAL_95)
        if behind <= 0:
            self.best = outputs
            behind = 0.0
            error = 0.0
        level = value - change.value
        return self.trainer.add_point(
            value,
            loss,
            interval=(level + change.low, level + change.high),
            behind=behind,
            error=error,
        )

    def _change(self, before: Tensor, after: Tensor) -> Difference:
        return self.metric.difference(self._predictions(before), self._predictions(after))

    def _predictions(self, outputs: Tensor) -> Predictions:
        rows = self.task.valid
        return self.task.objective.predictions(rows.label, outputs, rows.group)

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
        if self.trainer.is_finished:
            return "all fields but the last are closed"
        return ""

    def settled(self, run: Run) -> bool:
        """Return False: a metric that no longer rises does not end a path."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the trainer, its points, and the position among validation rows."""
        return {
            **self.trainer.state_dict(),
            "batches": self.batches.state_dict(),
            "snapshots": [[list(one.kept), one.weights] for one in self.snapshots],
            "first": self.first,
            "best": self.best,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the trainer, its points, and the position among the validation rows."""
        self.trainer.load_state_dict(state)
        self.batches.load_state_dict(state["batches"])
        self.valid = without_end(self.batches)
        self.snapshots = [Snapshot(tuple(kept), weights) for kept, weights in state["snapshots"]]
        self.first = state["first"]
        self.best = state["best"]


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
