"""Training: the settings of a training run, checked when they are made."""

from dataclasses import dataclass
from typing import Literal

from .._common.checks import LARGEST_SEED, check_settings, one_of, setting
from .._common.errors import TorchleapError
from ..objectives import METRICS

Schedule = Literal["constant", "cosine", "linear"]
Precision = Literal["float32", "bfloat16"]


class TrainingError(TorchleapError):
    """Training cannot continue: the loss is not finite, or a checkpoint is of another run."""


@dataclass(frozen=True)
class Training:
    """The settings of a training run.

    >>> training = Training(batch=256, epochs=3)
    >>> training.steps_per_epoch(1000), training.planned_steps(1000)
    (4, 12)

    Args:
        batch: Rows per step, of all ranks together.
        epochs: The largest number of passes over the train rows.
        steps: The largest number of steps, whatever the epochs; None sets no limit.
        lr: The learning rate of Adam.
        weight_decay: The weight decay of Adam; tables with sparse gradients have none.
        patience: Evaluations without a new best metric after which training stops.
        eval_every: Steps between two evaluations on the validation rows; None is once per epoch.
        metric: The metric that chooses the best weights, a name in `METRICS`.
        clip: The largest norm of the gradient; None does not clip it.
        schedule: How the learning rate falls over all steps, after the warm-up.
        warmup: Steps in which the learning rate rises to `lr`.
        average: How many steps a moving average of the weights reaches back, which is evaluated
            and kept in place of the last weights; None takes the last ones. A stream has none.
        precision: The precision of the forward pass; "bfloat16" is mixed precision.
        compile: Whether the model is compiled with torch.compile.
        time_limit: Seconds after which training stops with the best weights so far; None sets no
            limit.
        checkpoint_steps: Steps between two checkpoints, the most that a kill can lose; None does
            not count steps.
        checkpoint_minutes: The same in minutes.
        seed: The seed of the order of the rows and of everything random in the model.
    """

    batch: int = setting(4096, at_least=1)
    epochs: int = setting(100, at_least=1)
    steps: int | None = setting(None, at_least=1)
    lr: float = setting(1e-3, above=0)
    weight_decay: float = 0.0
    patience: int = setting(3, at_least=1)
    eval_every: int | None = setting(None, at_least=1)
    metric: str = "auc"
    clip: float | None = setting(None, above=0)
    schedule: Schedule = "constant"
    warmup: int = 0
    average: int | None = setting(None, at_least=1)
    precision: Precision = "float32"
    compile: bool = False
    time_limit: float | None = setting(None, above=0)
    checkpoint_steps: int | None = setting(None, at_least=1)
    checkpoint_minutes: float | None = setting(5.0, above=0)
    seed: int = setting(0, at_least=0, at_most=LARGEST_SEED)

    def __post_init__(self) -> None:
        problem = one_of(self.metric, tuple(METRICS))
        check_settings(self, {f"metric {problem}": not problem})

    def steps_per_epoch(self, rows: int) -> int:
        """Return the number of batches of all train rows; the last one may be smaller.

        Args:
            rows: The number of train rows.
        """
        return -(-rows // self.batch)

    def planned_steps(self, rows: int) -> int:
        """Return the number of steps that a run has at most.

        Args:
            rows: The number of train rows.
        """
        planned = self.epochs * self.steps_per_epoch(rows)
        if self.steps is not None:
            planned = min(planned, self.steps)
        return planned
