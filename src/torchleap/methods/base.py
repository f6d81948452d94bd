"""The parts that all methods share: a search to work in, and one call that returns scores.

A new method is a file beside this one with a frozen dataclass of its settings, whose
`score(search)` returns a number for each field, and one line in `METHODS`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._common.checks import check_settings
from ..data.task import Batch, Batches, Task
from ..models import Backbone, Ranker, build
from ..selection import Path as FieldPath
from ..training.fit import Hook, Run, Training, TrainingError, fit

Scores = dict[str, float]  # by field, in their order; higher is better


class Snapshot(NamedTuple):
    """The weights of a model at one point of a path.

    Attributes:
        kept: The fields that were open.
        weights: The state of the attached model, gates included.
    """

    kept: tuple[str, ...]
    weights: dict[str, Tensor]


@dataclass
class Search:
    """The task, the backbone and the training that a method works with.

    Attributes:
        task: The rows and their fields.
        backbone: The kind of model.
        training: How models are trained.
        seed: The seed of everything random.
        callbacks: Hooks that only watch, for every training run.
        checkpoints: The folder in which the training runs of this search are saved; each resumes
            from there, finished ones included. None saves nothing.
        history: The records of all training runs so far.
        runs: The number of training runs so far.
        trained: The model that was trained last, with its best weights.
        last_run: The training run of that model.
        path: The path and the worth of the fields, if the method has found them.
        plain: The model of all fields that the method trained first, if it trained one.
        plain_history: The evaluations of that training.
        snapshots: The weights of the last model at some points of the path.
    """

    task: Task
    backbone: Backbone
    training: Training
    seed: int = 0
    callbacks: Sequence[Hook] = ()
    checkpoints: Path | None = None
    history: list[dict[str, float]] = field(default_factory=list)
    runs: int = 0
    trained: nn.Module | None = None
    last_run: Run | None = None
    path: FieldPath | None = None
    plain: nn.Module | None = None
    plain_history: list[dict[str, float]] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of training steps in an epoch."""
        return self.training.steps_per_epoch(len(self.task.train))

    @property
    def planned_steps(self) -> int:
        """Return the number of training steps at most."""
        return self.training.planned_steps(len(self.task.train))

    def model(self) -> Ranker:
        """Return a fresh model, the same for the same seed."""
        torch.manual_seed(self.seed)
        return build(self.backbone, self.task)

    def fit(
        self,
        model: nn.Module,
        *hooks: Hook,
        training: Training | None = None,
        optimizers: Sequence[Optimizer] | None = None,
    ) -> Run:
        """Train a model and add the records of the run to the history.

        Args:
            model: The model, which is changed in place.
            hooks: The hooks of a method; callbacks see the values that they add to a record.
            training: Other settings than those of the search; None takes those.
            optimizers: The optimizers of the model; None makes new ones.
        """
        path = None
        if self.checkpoints is not None:
            path = self.checkpoints / f"{self.runs}.pt"
        run = fit(
            model,
            self.task,
            training or self.training,
            hooks=(*hooks, *self.callbacks),
            optimizers=optimizers,
            checkpoint=path,
            keep_checkpoint=True,
        )
        self.runs += 1
        self.trained = model
        self.last_run = run
        self.history += run.history
        return run

    def fit_plain(self) -> Ranker:
        """Return a trained model of all fields, as it is without any method; `plain` is this model.

        A method that changes it afterwards changes a copy.
        """
        model = self.model()
        self.plain_history = self.fit(model).history
        self.plain = model
        return model

    def by_field(self, values: Tensor) -> Scores:
        """Return one number for each field by name, (F,) -> F scores."""
        return dict(zip(self.task.fields.names, values.detach().double().tolist(), strict=True))

    def column_field(self) -> Tensor:
        """Return the position of the field of each column of the model's input, (D,)."""
        widths = torch.tensor(self.task.fields.widths)
        return torch.arange(len(widths)).repeat_interleave(widths)


@dataclass(frozen=True)
class Method:
    """A way to score fields: a frozen dataclass of its settings.

    Attributes:
        uses_trained_model: Whether its first training run is that of a plain model, which it then
            examines; a model that was trained for another method can take its place. The method
            trains it by `Search.fit_plain`, so that its search can be asked for a path.
        measures_worth: Whether its search has the worth of each field.
    """

    uses_trained_model: ClassVar[bool] = False
    measures_worth: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_settings(self)

    def score(self, search: Search) -> Scores:
        """Return the scores of all fields; the higher, the more a field is worth keeping."""
        raise NotImplementedError


@dataclass(frozen=True)
class GateMethod(Method):
    """A method whose own trained model has LeAP's gates, so that it is the one to prune."""


def put_before_net(model: Ranker, layer: nn.Module) -> None:
    """Insert a layer in front of the network of a model, where all fields lie side by side.

    Args:
        model: The model, which is changed in place.
        layer: The layer, (B, D) -> (B, D).
    """
    model.net = nn.Sequential(layer, model.net)


def valid_batches(search: Search, *, at_least: int = 1) -> Batches:
    """Return shuffled batches of validation rows, for gates that learn from held-out rows.

    Args:
        search: The search.
        at_least: The fewest rows per batch, if there are as many, for trainings on small batches.
    """
    rows = search.task.valid
    size = min(max(search.training.batch, at_least), len(rows))
    return rows.batches(size, shuffle=True, seed=search.seed, together=True)


def without_end(batches: Batches) -> Iterator[Batch]:
    """Yield batches epoch after epoch.

    A batch of one row, which can be neither shuffled nor normalised, is left out.
    """
    if len(batches.rows) < 2 or not len(batches):
        ranks = batches.shard[1]
        where = f" on each of {ranks} ranks" if ranks > 1 else ""
        raise TrainingError(
            f"Expected at least two validation rows for the gates to learn from{where}, "
            f"but found {len(batches.rows)} in all."
        )
    while True:
        yield from (batch for batch in batches if len(batch) > 1)
