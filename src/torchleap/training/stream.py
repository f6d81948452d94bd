"""stream: train on rows that never end, each seen once; LearnGates: gates that train with them."""

import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._common.errors import MetricError
from .._common.states import expect
from ..distributed import ranks
from ..gates.price_window import PriceWindow, WindowTrainer
from ..gates.trainer import GateTrainer
from ..objectives import OBJECTIVES, Objective
from ..plugin import Plugin
from .checkpoints import Checkpoints
from .hook import Hook, Run
from .loop import Loop, Signals
from .pace import STEPS
from .settings import Training, TrainingError
from .states import check_format, differences, restore_rng, restoring
from .step import Loss

WINDOW = 1000  # steps between two evaluations
PREDICT_EVERY = 10  # batches; one in so many is predicted before it is trained on
LONGEST_HISTORY = 1000  # evaluations
Predicted = tuple[Tensor, Tensor]  # labels and raw outputs


def stream(
    model: nn.Module,
    batches: Iterable[Any],
    training: Training | None = None,
    *,
    hooks: Sequence[Hook] = (),
    optimizers: Sequence[Optimizer] | None = None,
    loss: Loss | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    background: bool = False,
    keep: int = 2,
) -> Run:
    """Train on fresh batches, each once, until the last step, the time limit or their end.

    Every `eval_every` steps (1,000 if it is None) a record of this window is added to `run.history`
    and passed to the hooks. Its AUC and log loss are those of every tenth batch, predicted before
    it was trained on. On several ranks (`torchrun`) each brings its own batches; a model that is
    neither wrapped nor sharded yet is wrapped in DDP.

    >>> plugin = tl.attach(model, fields, at="deep")  # doctest: +SKIP
    >>> stream(model, loader, hooks=[LearnGates(plugin)], checkpoint="state")  # doctest: +SKIP

    Args:
        model: The model, which is trained in place and left in eval mode.
        batches: Batches of `(inputs, label)`, where a tuple of inputs is several arguments, or
            objects with these two attributes. With `state_dict` and `load_state_dict`, as
            torchdata's StatefulDataLoader has them, a resumed run continues with the next batch.
        training: The settings; batch, epochs, patience and metric have no effect. None is
            `Training()`.
        hooks: The parts that methods and callbacks add, called in this order.
        optimizers: The optimizers of the model; None is Adam, see `optimizers_for`.
        loss: The loss of outputs and labels; None is the log loss of log odds. With another loss
            there are no metrics.
        checkpoint: A folder that all ranks reach: the latest checkpoint in it is resumed, and new
            ones are saved there. None saves nothing.
        background: Whether checkpoints are written while training continues. They begin earlier
            then, so that a kill loses no more than otherwise.
        keep: The number of checkpoints to keep.
    """
    training = training or Training(epochs=1)
    cure = ""
    if checkpoint is not None:
        cure = f": it resumes from the latest checkpoint in {checkpoint}"
    with ranks.explained(f"Start the job again{cure}."):
        checkpoints = None
        if checkpoint is not None:
            checkpoints = Checkpoints(Path(checkpoint), keep=keep, background=background)
        run = _Stream(model, batches, training, hooks, optimizers, loss, checkpoints).train()
    model.eval()
    return run


class LearnGates(Hook):
    """Train the gates on the model's own batches, for a stream in which every row is new.

    Args:
        plugin: The plug-in of the attached model.
        strength: The pressure at its full size, see `GateOptimizer`.
        lr: The learning rate of the gates.
        price: A price in units of the loss that rises, holds and falls again and again, in place
            of the pressure, see `WindowTrainer`; strength and lr then have no effect. None is the
            pressure.
    """

    def __init__(
        self,
        plugin: Plugin,
        *,
        strength: float = 0.4,
        lr: float = 1e-3,
        price: PriceWindow | None = None,
    ) -> None:
        self.plugin = plugin
        self.trainer: GateTrainer | WindowTrainer
        if price is None:
            self.trainer = plugin.trainer(strength=strength, lr=lr)
        else:
            self.trainer = plugin.trainer(price=price)
        self.optimizer: Optimizer = self.trainer.optimizer  # for `Drift`, which resets a gate in it

    def trained_parameters(self) -> list[nn.Parameter]:
        """Return the parameter of the gates."""
        return [self.plugin.gates.theta]

    def after_step(self, run: Run) -> None:
        """Move the gates."""
        self.trainer.step()

    def after_eval(self, run: Run, record: dict[str, float]) -> None:
        """Add the gates to the record, and the price if there is one."""
        record.update({f"gate_{name}": score for name, score in self.plugin.scores().items()})
        if isinstance(self.trainer, WindowTrainer):
            record["price"] = self.trainer.price

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the gates' trainer."""
        return self.trainer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the gates' trainer."""
        self.trainer.load_state_dict(state)


class _Stream(Loop):
    """One run of `stream`."""

    saved = ("step", "history", "seconds")

    def __init__(
        self,
        model: nn.Module,
        batches: Iterable[Any],
        training: Training,
        hooks: Sequence[Hook],
        optimizers: Sequence[Optimizer] | None,
        loss: Loss | None,
        checkpoints: Checkpoints | None,
    ) -> None:
        if training.average is not None:
            raise TrainingError(
                "Expected average=None for a stream, which is evaluated on each batch before it "
                f"is trained on it, but found average={training.average}. Leave it out, or use fit."
            )
        self.objective: Objective | None = None
        if loss is None:
            self.objective = OBJECTIVES["binary"]
            loss = self.objective.loss
        super().__init__(
            Run(model, None, training),
            hooks,
            loss=loss,
            optimizers=optimizers,
            saves=checkpoints is not None,
            background=checkpoints is not None and checkpoints.background,
        )
        self.batches = batches
        self.checkpoints = checkpoints
        self.predicted: list[Predicted] = []  # since the last evaluation
        if checkpoints is not None:
            latest = checkpoints.latest()
            if latest is not None:
                self._resume(checkpoints, latest)

    def _train(self) -> None:
        run = self.run
        steps = run.training.steps
        if steps is not None and run.step >= steps:
            run.stopped = "all steps are done"
        source = iter(self.batches)
        signals = Signals()
        while not run.stopped and not signals.interrupted:
            batch = self._next(source)
            if batch is None:
                run.stopped = "the batches have ended"
            else:
                signals = self._train_batch(batch)
        self.stop_clock()
        self.stepper.share_buffers()
        self._save()
        self._wait()
        self.raise_if_interrupted(signals)

    def _next(self, source: Iterator[Any]) -> Any:
        """Return the next batch; None if it is missing on any rank, since a step needs all."""
        batch = next(source, None)
        if ranks.count() > 1 and float(ranks.total(torch.tensor(float(batch is None)))) > 0:
            return None
        return batch

    def _train_batch(self, batch: Any) -> Signals:
        """Train on a batch, evaluate and save if it is time to, and note whether the run stops."""
        run = self.run
        inputs, label = parts_of(batch)
        if self.objective is not None and run.step % PREDICT_EVERY == 0:
            self._predict(inputs, label)
        signals = self.train_step(inputs, label)
        if run.step % (run.training.eval_every or WINDOW) == 0:
            self._evaluate()
        if run.step == run.training.steps:
            run.stopped = "all steps are done"
        elif signals.late:
            run.stopped = self.time_limit_text()
        elif signals.checkpoint_due and not signals.interrupted:
            self._continue_saving()
        return signals

    @torch.no_grad()
    def _predict(self, inputs: tuple[Any, ...], label: Tensor) -> None:
        """Remember the labels and the model's outputs of a batch that it has not seen."""
        model = self.run.model
        self.stepper.share_buffers()
        model.eval()
        outputs = model(*inputs).float().cpu().reshape(label.shape)
        self.predicted.append((label.detach().cpu(), outputs))
        model.train()

    def _evaluate(self) -> None:
        self.stepper.update_weights()
        self.add_record(self._metrics())
        del self.run.history[:-LONGEST_HISTORY]

    def _metrics(self) -> dict[str, float]:
        """Return the metrics of the predicted batches of all ranks; NaN where they are too few."""
        if self.objective is None:
            return {}
        empty = torch.zeros(0)
        own_label = torch.cat([label for label, _ in self.predicted] or [empty])
        own_output = torch.cat([output for _, output in self.predicted] or [empty])
        self.predicted.clear()
        label = torch.cat(ranks.all_gather(own_label)).flatten()
        output = torch.cat(ranks.all_gather(own_output)).flatten()
        try:
            return self.objective.evaluate(label, output)
        except MetricError:  # the rows are so few that they have a single label
            return {metric.name: math.nan for metric in self.objective.metrics_for(None)}

    # Checkpoints

    def _save(self) -> None:
        """Begin a checkpoint, if there is to be one, after the one before has been written."""
        if self.checkpoints is None:
            return
        self._wait()
        self.stepper.share_buffers()  # any rank may write what all have
        self.checkpoints.save(self.run.step, self.state_dict(), self._own_state())
        self.pace.begin(self.run.step)

    def _own_state(self) -> dict[str, Any]:
        """Return the state that each rank has of its own."""
        place = None
        if hasattr(self.batches, "state_dict"):
            place = self.batches.state_dict()
        return {"random": torch.get_rng_state(), "batches": place, "predicted": self.predicted}

    def _checkpoint_is_due(self) -> bool:
        """Return whether to begin a checkpoint, wait for one, or note that one is complete."""
        written = self.checkpoints is not None and self.checkpoints.is_written()
        return super()._checkpoint_is_due() or (self.pace.writing and written)

    def _continue_saving(self) -> None:
        """Begin a checkpoint or wait for the one being written; then the other, if also due."""
        due = True
        while due:
            if self.pace.writing:
                self._wait()
            else:
                self._save()
            due = self.pace.is_due(self.run.step, by=[STEPS])

    def _wait(self) -> None:
        """Wait until the checkpoint that is being written is complete."""
        if self.checkpoints is not None:
            began = time.monotonic()
            self.checkpoints.wait()
            self.pace.finish(self.run.step, time.monotonic() - began)

    def _resume(self, checkpoints: Checkpoints, path: Path) -> None:
        """Restore a checkpoint of this stream; one of another model or other hooks is refused."""
        state, own_states, count = checkpoints.load(path, self.state_dict())
        check_format(state, path, "Give another folder.")
        with restoring(path, "Remove it to resume from the one before."):
            if differences(state, self.run.model, len(self.stepper.stateful_hooks())):
                raise TrainingError(
                    f"{path} is a checkpoint of another model or of other hooks. "
                    "Give another folder."
                )
            self.load_state_dict(state)
            self._restore_batches([own["batches"] for own in own_states], path)
            rng = None
            if count == ranks.count():
                rng = own_states[0]["random"]
                self.predicted = _checked_predicted(own_states[0]["predicted"])
            restore_rng(rng, self.run.training.seed, self.run.step)

    def _restore_batches(self, places: list[Any], path: Path) -> None:
        """Move the batches to the place that the ranks had reached, if it is known.

        Args:
            places: The states of the batches of each rank, or of this rank alone.
            path: The checkpoint, for the message.
        """
        if not hasattr(self.batches, "load_state_dict") or places[0] is None:
            return
        if any(not _is_same(place, places[0]) for place in places[1:]):
            raise TrainingError(
                f"{path} is of {len(places)} ranks, now there are {ranks.count()}, and the batches "
                f"of each rank were at a place of their own. Start {len(places)} ranks, or give "
                "batches whose state_dict() is the same on all ranks, such as those of "
                "Rows.batches(..., together=True)."
            )
        self.batches.load_state_dict(places[0])


def _checked_predicted(saved: Any) -> list[Predicted]:
    """Return saved pairs of labels and outputs; anything else is a StateError."""
    expect(isinstance(saved, list), "its predictions are not a list")
    for pair in saved:
        fits = isinstance(pair, tuple) and len(pair) == 2
        fits = fits and all(isinstance(part, Tensor) for part in pair)
        fits = fits and pair[0].shape == pair[1].shape
        expect(fits, "its predictions are not labels with outputs")
    return list(saved)


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two states of tensors and plain values are equal."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other)


def parts_of(batch: Any) -> tuple[tuple[Any, ...], Tensor]:
    """Return the arguments of the model and the label of a batch."""
    if hasattr(batch, "inputs") and hasattr(batch, "label"):
        inputs = batch.inputs
        label = batch.label
    elif isinstance(batch, tuple | list) and len(batch) == 2:
        inputs, label = batch
    else:
        raise TrainingError(
            "Expected batches of (inputs, label), or with these two attributes, but found "
            f"{type(batch).__name__}. Convert them: ((inputs, label) for ... in loader)."
        )
    if not isinstance(inputs, tuple):
        inputs = (inputs,)
    return inputs, label
