"""What every method has in common: settings, and one method that turns a search into scores by field."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from .._common.checks import check_settings
from ..data.task import Batch, Batches, Task
from ..models import Backbone, Ranker, build
from ..training.fit import Hook, Run, Training, TrainingError, fit

Scores = dict[str, float]  # by field, in their order; the higher the better


@dataclass
class Search:
    """What a method works with: the task, a backbone, and how to train it.

    Attributes:
        callbacks: Hooks that only watch, for every training run.
        checkpoints: A folder; the training runs of this search are saved there and go on from there, also finished ones.
        history: What the training runs of this search have recorded.
        trained: The model that was trained last, with its best weights.
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
    last_run: Run | None = None  # of that model

    def model(self) -> Ranker:
        """A fresh model, the same for the same seed."""
        torch.manual_seed(self.seed)
        return build(self.backbone, self.task)

    def fit(self, model: nn.Module, *hooks: Hook, training: Training | None = None) -> Run:
        """Train a model with the hooks of a method, for the settings of the search or for others."""
        path = None if self.checkpoints is None else self.checkpoints / f"{self.runs}.pt"
        every = (
            *hooks,
            *self.callbacks,
        )  # callbacks last: they see what the hooks have added to a record
        run = fit(
            model,
            self.task,
            training or self.training,
            hooks=every,
            checkpoint=path,
            keep_checkpoint=True,
        )
        self.runs += 1
        self.trained = model
        self.last_run = run
        self.history += run.history
        return run

    def by_field(self, values: Tensor) -> Scores:
        """Numbers of the fields, in their order, by name."""
        return dict(zip(self.task.fields.names, values.detach().double().tolist(), strict=True))

    def column_field(self) -> Tensor:
        """The field of each column of the model's input, (D,)."""
        widths = torch.tensor(self.task.fields.widths)
        return torch.arange(len(widths)).repeat_interleave(widths)


@dataclass(frozen=True)
class Method:
    """A way to score fields; each is a frozen dataclass of its settings.

    Attributes:
        asks_trained: Whether its first training is that of a plain model, which it then asks; another method's can serve.
    """

    asks_trained: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_settings(self)

    def score(self, search: Search) -> Scores:
        """The scores of all fields; the higher, the more it is worth to keep."""
        raise NotImplementedError


def put_before_net(model: Ranker, layer: nn.Module) -> None:
    """Let a layer see and change all fields side by side, (B, D) -> (B, D), before the backbone's network does."""
    model.net = nn.Sequential(layer, model.net)


def valid_batches(search: Search) -> Batches:
    """Shuffled batches of validation rows, for gates that learn from rows that the model does not train on."""
    rows = search.task.valid
    return rows.batches(
        min(search.training.batch, len(rows)), shuffle=True, seed=search.seed, together=True
    )


def without_end(batches: Batches) -> Iterator[Batch]:
    """Epoch after epoch; a batch of one row, which cannot be shuffled or normalised, is left out."""
    if len(batches.rows) < 2 or not len(batches):
        of = f" on each of {batches.shard[1]} ranks" if batches.shard[1] > 1 else ""
        raise TrainingError(
            f"Expected at least two validation rows for the gates to learn from{of}, but found {len(batches.rows)} in all."
        )
    while True:
        yield from (batch for batch in batches if len(batch) > 1)
