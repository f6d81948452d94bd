"""Loop: the parts of a training run that `fit` and `stream` share.

Methods take part through hooks; the loop knows none of them by name.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._common.states import check_tensors
from ..distributed import ranks
from .hook import Hook, Run
from .pace import Pace
from .states import FORMAT, restore_run
from .step import Loss, Stepper


class Signals(NamedTuple):
    """Events that at least one rank has noticed by the end of a step; clocks of ranks differ.

    Attributes:
        interrupted: Whether Ctrl-C was pressed.
        late: Whether the time limit has passed.
        checkpoint_due: Whether it is time for a checkpoint.
    """

    interrupted: bool = False
    late: bool = False
    checkpoint_due: bool = False


class Loop:
    """One training run; a subclass decides on batches, evaluations and checkpoints in `_train`.

    Args:
        run: The run at its start.
        hooks: The hooks, in the order in which they are called.
        loss: The loss of outputs and labels.
        optimizers: The optimizers of the model; None makes those of `optimizers_for`.
        saves: Whether there are checkpoints: Ctrl-C then waits for one.
        background: Whether checkpoints are written while training continues.

    Attributes:
        saved: The attributes of the run that a checkpoint contains.
    """

    saved: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        run: Run,
        hooks: Sequence[Hook],
        *,
        loss: Loss,
        optimizers: Sequence[Optimizer] | None = None,
        saves: bool,
        background: bool = False,
    ) -> None:
        self.run = run
        self.saves = saves
        self.background = background
        torch.manual_seed(run.training.seed + ranks.rank())
        self.stepper = Stepper(run, hooks, loss=loss, optimizers=optimizers)
        self.interrupted = False
        self.started: float | None = time.monotonic()

    def train(self) -> Run:
        """Train until the run stops, and return it; one that had stopped is not trained further."""
        run = self.run
        self.pace = Pace(
            run.training.checkpoint_steps,
            run.training.checkpoint_minutes,
            step=run.step,
            background=self.background,
        )
        try:
            for hook in self.stepper.hooks:
                hook.at_start(run)
            if not run.stopped:
                with self._delayed_interrupts():
                    self._train()
            for hook in self.stepper.hooks:
                hook.at_end(run)
        finally:
            self.stepper.release()
        return run

    def _train(self) -> None:
        raise NotImplementedError

    def train_step(
        self, inputs: tuple[Any, ...], label: Tensor, explain: Callable[[], str] = str
    ) -> Signals:
        """Train on a batch, and return the signals of all ranks; arguments as in `Stepper.step`."""
        flags = self.stepper.step(inputs, label, flags=self._signals, explain=explain)
        signals = Signals(*flags)
        if self._interrupted_alone():
            signals = signals._replace(interrupted=True)
        return signals

    def _signals(self) -> Signals:
        """Return the signals of this rank."""
        limit = self.run.training.time_limit
        late = limit is not None and self.seconds() > limit
        return Signals(self.interrupted, late, self._checkpoint_is_due())

    def _checkpoint_is_due(self) -> bool:
        """Return whether a checkpoint is due after the step that is being done."""
        return self.saves and self.pace.is_due(self.run.step + 1)

    def raise_if_interrupted(self, signals: Signals) -> None:
        """Raise a KeyboardInterrupt if Ctrl-C was pressed before the end of the last step."""
        if signals.interrupted or self._interrupted_alone():
            raise KeyboardInterrupt

    def _interrupted_alone(self) -> bool:
        """Return whether Ctrl-C was pressed in the only rank; several ranks agree in a step."""
        return self.interrupted and ranks.count() == 1

    def add_record(self, metrics: dict[str, float]) -> None:
        """Add an evaluation to the history, and pass it to the hooks.

        Args:
            metrics: The metrics of the validation rows by name.
        """
        record = {
            "step": self.run.step,
            "seconds": self.seconds(),
            "train_loss": self.stepper.take_mean_loss(),
            "lr": self.stepper.rate,
            **{f"valid_{name}": value for name, value in metrics.items()},
        }
        self.run.history.append(record)
        for hook in self.stepper.hooks:
            hook.after_eval(self.run, record)

    def time_limit_text(self) -> str:
        """Return why a run stopped that has reached its time limit."""
        return f"the time limit of {self.run.training.time_limit:g} seconds"

    def seconds(self) -> float:
        """Return the seconds of training so far, those before a resume included."""
        if self.started is None:
            return self.run.seconds
        return self.run.seconds + time.monotonic() - self.started

    def stop_clock(self) -> None:
        """Stop counting seconds: training has ended, and only saving is left."""
        self.run.seconds = self.seconds()
        self.started = None

    # The state that checkpoints of all loops have in common

    def state_dict(self) -> dict[str, Any]:
        """Return the model, optimizers, schedules, hooks and the values of the run."""
        values = {name: getattr(self.run, name) for name in self.saved}
        return {
            "format": FORMAT,
            "model": self.run.model.state_dict(),
            **self.stepper.state_dict(),
            "run": {**values, "seconds": self.seconds()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned, each part only if it fits."""
        model = self.run.model
        own = model.state_dict()
        check_tensors(state["model"], own, "the model")
        best = state["run"].get("best")
        if best:
            check_tensors(best, own, "the best model")
        model.load_state_dict(state["model"])
        self.stepper.load_state_dict(state)
        restore_run(self.run, state["run"], self.saved)

    # Ctrl-C

    @contextmanager
    def _delayed_interrupts(self) -> Iterator[None]:
        """Let Ctrl-C wait for the end of the step and for a checkpoint, but not a second one."""
        if not self.saves or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _interrupt(self, *_: object) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
