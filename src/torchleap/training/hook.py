"""Hook: how methods and callbacks take part in training; Run: the state of a run."""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

from ..data.task import Task
from .settings import Training


@dataclass
class Run:
    """The state of a training run.

    Attributes:
        model: The model in training.
        task: The task that it is trained on; None for a stream.
        training: The settings.
        step: Steps done.
        history: A record for each evaluation: the step, seconds, the mean loss of the steps since
            the evaluation before, the learning rate, the metrics of the validation rows, and the
            values that hooks add.
        best: The weights at the best evaluation.
        best_metric: The metric there, as a gain: higher is always better.
        evals_since_best: Evaluations since then.
        seconds: Seconds of training, of all parts of a run that was resumed.
        stopped: Why the run ended; "" before its end.
        optimizers: The optimizers of the model, for `carry_over`.
        outputs: The raw outputs of the validation rows at the last evaluation, (N,).
    """

    model: nn.Module
    task: Task | None
    training: Training
    step: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict, repr=False)
    best_metric: float = -math.inf
    evals_since_best: int = 0
    seconds: float = 0.0
    stopped: str = ""
    optimizers: list[Optimizer] = field(default_factory=list, repr=False)
    outputs: Tensor | None = field(default=None, repr=False)

    @property
    def steps(self) -> int | None:
        """Return the number of steps that the run has at most; None if it has no end."""
        if self.task is None:
            return self.training.steps
        return self.training.planned_steps(len(self.task.train))


class Hook:
    """A part of training that a method or a callback adds; every method can be left out.

    Attributes:
        first_rank_only: Whether only the first of several ranks calls it, as a hook that watches.
        parameters_always_used: Whether every step gives a gradient to all of
            `trained_parameters()`.
    """

    first_rank_only: ClassVar[bool] = False
    parameters_always_used: ClassVar[bool] = True

    def at_start(self, run: Run) -> None:
        """Prepare for the first step, or for the first one after a resume."""

    def penalty(self, loss: Tensor) -> Tensor | None:
        """Return a term to add to the loss of a batch; None adds nothing.

        Args:
            loss: The loss of the batch, with its graph.
        """
        return None

    def after_step(self, run: Run) -> None:
        """React to a step."""

    def after_eval(self, run: Run, record: dict[str, float]) -> None:
        """React to an evaluation.

        Args:
            run: The run.
            record: The last record of its history; values may be added to it.
        """

    def settled(self, run: Run) -> bool:
        """Return whether training may stop because the metric no longer rises."""
        return True

    def finished(self, run: Run) -> str:
        """Return why training has to end after this step; "" lets it continue."""
        return ""

    def at_end(self, run: Run) -> None:
        """React to the last step, before the best weights are restored."""

    def trained_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the model that the hook itself trains in `after_step`.

        The loop's optimizers leave them and their gradients alone.
        """
        return []

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint saves; an empty one is not saved."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
