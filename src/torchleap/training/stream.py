"""stream: training on rows that never end, each seen once; and gates that learn from them."""

import math
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._common.errors import MetricError
from .._common.states import check_tensors, expect
from .._common.text import first_line
from ..distributed import ranks
from ..objectives import auc, log_loss
from ..plugin import Plugin
from .checkpoints import Checkpoints
from .loop import Hook, Loop, Loss, Run, Training, TrainingError, go_on_by_chance, of_log_odds
from .pace import STEPS
from .states import UNFIT, restore_run

WINDOW = 1000  # steps between two looks
PREDICTED = 10  # every so many batches are predicted before they are learnt from
REMEMBERED = 1000  # looks


def stream(
    model: nn.Module,
    batches: Iterable[Any],
    training: Training | None = None,
    *,
    hooks: Sequence[Hook] = (),
    optimizers: Sequence[Optimizer] | None = None,
    loss: Loss = of_log_odds,
    checkpoint: str | os.PathLike[str] | None = None,
    background: bool = False,
    keep: int = 2,
) -> Run:
    """Train on fresh batches, each once, until `training.steps`, the time limit or the end of the batches.

    Every `eval_every` steps (1,000 if it is None) a record of the window goes to `run.history` and to the hooks. Its AUC and log
    loss are of every tenth batch, predicted before it was learnt from. On several ranks (`torchrun`) each brings its own batches;
    a model that is not wrapped or sharded yet is wrapped in DDP.

    >>> plugin = tl.attach(model, fields, at="deep")  # doctest: +SKIP
    >>> stream(model, loader, hooks=[LearnGates(plugin)], checkpoint="state")  # doctest: +SKIP

    Args:
        batches: Of `(inputs, label)`, where a tuple of inputs is several arguments, or objects with these two attributes. With
            `state_dict` and `load_state_dict`, as torchdata's StatefulDataLoader has them, a resume goes on with the next batch.
        training: Its batch, epochs, patience and metric play no part.
        optimizers: Of the model; None is Adam, see `optimizers_for`.
        checkpoint: A folder that all ranks reach: the latest checkpoint there is gone on from, and new ones are saved there.
        background: Write checkpoints while the training goes on. They begin earlier, so that a kill loses no more than without.
        keep: How many checkpoints to keep.
    """
    training = training or Training(epochs=1)
    place = "" if checkpoint is None else f": it goes on from the latest checkpoint in {checkpoint}"
    with ranks.explained(f"Start the job again{place}."):
        saved = (
            None
            if checkpoint is None
            else Checkpoints(Path(checkpoint), keep=keep, background=background)
        )
        loop = _Stream(model, batches, training, hooks, optimizers, loss, saved)
        run = loop.run_to_its_end()
    model.eval()
    return run


class LearnGates(Hook):
    """Train the gates on the model's own batches, for a stream in which every row is new.

    Args:
        plugin: The plug-in of the attached model.
        strength: The pressure at its full size, see `GateOptimizer`.
        lr: The learning rate of the gates.
    """

    def __init__(self, plugin: Plugin, *, strength: float = 0.4, lr: float = 1e-3) -> None:
        self.plugin = plugin
        self.trainer = plugin.trainer(strength=strength, lr=lr)
        self.optimizer = self.trainer.optimizer  # for `Drift`, which resets a gate in it

    def own_parameters(self) -> list[nn.Parameter]:
        """Return the parameter of the gates."""
        return [self.plugin.gates.theta]

    def after_step(self, run: Run) -> None:
        """Move the gates."""
        self.trainer.step()

    def after_eval(self, run: Run, record: dict[str, float]) -> None:
        """Add the gates to the record."""
        record.update({f"gate_{name}": score for name, score in self.plugin.scores().items()})

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the gates' trainer."""
        return self.trainer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the gates' trainer."""
        self.trainer.load_state_dict(state)


class _Stream(Loop):
    """One run of `stream`."""

    def __init__(
        self,
        model: nn.Module,
        batches: Iterable[Any],
        training: Training,
        hooks: Sequence[Hook],
        optimizers: Sequence[Optimizer] | None,
        loss: Loss,
        saved: Checkpoints | None,
    ) -> None:
        super().__init__(
            Run(model, None, training),
            hooks,
            saves=saved is not None,
            background=saved is not None and saved.background,
            optimizers=optimizers,
            loss=loss,
        )
        self.batches = batches
        self.checkpoints = saved
        self.predicted: list[tuple[Tensor, Tensor]] = []  # labels and log odds, since the last look
        latest = None if saved is None else saved.latest()
        if latest is not None:
            self._resume(latest)

    def _train(self) -> None:
        run, training = self.run, self.run.training
        window = training.eval_every or WINDOW
        source = iter(self.batches)
        if training.steps is not None and run.step >= training.steps:
            run.stopped = "all steps are done"
        stop = False
        while not run.stopped:
            batch = self._next(source)
            if batch is None:
                run.stopped = "the batches have ended"
                break
            inputs, label = parts_of(batch)
            if self.stepper.loss is of_log_odds and run.step % PREDICTED == 0:
                self._predict(inputs, label)
            stop, late, due = self.learn(inputs, label)
            if run.step % window == 0:
                self._look()
            if run.step == training.steps:
                run.stopped = "all steps are done"
            elif late:
                run.stopped = f"the time limit of {training.time_limit:g} seconds"
            elif due and not stop:
                self._go_on_saving()
            if stop:
                break
        self.stop_the_clock()
        self.stepper.agree()
        self._save()
        self._wait()
        if stop or (self.interrupted and ranks.count() == 1):
            raise KeyboardInterrupt

    def _next(self, source: Any) -> Any:
        """The next batch; None if it is missing, here or on another rank: a step needs all."""
        batch = next(source, None)
        if ranks.count() > 1 and float(ranks.total(torch.tensor(float(batch is None)))) > 0:
            return None
        return batch

    @torch.no_grad()
    def _predict(self, inputs: tuple[Any, ...], label: Tensor) -> None:
        model = self.run.model
        self.stepper.agree()
        model.eval()
        self.predicted.append(
            (label.detach().cpu(), model(*inputs).float().cpu().reshape(label.shape))
        )
        model.train()

    def _look(self) -> None:
        self.stepper.settle()
        self.tell(self._metrics())
        del self.run.history[:-REMEMBERED]

    def _metrics(self) -> dict[str, float]:
        if self.stepper.loss is not of_log_odds:
            return {}
        own = [torch.cat(each) for each in zip(*self.predicted, strict=True)] or [
            torch.zeros(0),
            torch.zeros(0),
        ]
        self.predicted.clear()
        label, log_odds = (torch.cat(ranks.gathered(each)) for each in own)
        try:
            return {
                "auc": auc(label, log_odds),
                "log_loss": log_loss(label, torch.sigmoid(log_odds.double())),
            }
        except MetricError:  # so few rows that they have one label
            return {"auc": math.nan, "log_loss": math.nan}

    # Checkpoints

    def _shared(self) -> dict[str, Any]:
        run = self.run
        about = {"step": run.step, "history": run.history, "seconds": self.seconds()}
        return {"model": run.model.state_dict(), **self.stepper.state_dict(), "run": about}

    def _own(self) -> dict[str, Any]:
        place = self.batches.state_dict() if hasattr(self.batches, "state_dict") else None
        return {"random": torch.get_rng_state(), "batches": place, "predicted": self.predicted}

    def _save(self) -> None:
        if self.checkpoints is not None:
            self._wait()
            self.stepper.agree()  # any rank may write what all have
            self.checkpoints.save(self.run.step, self._shared(), self._own())
            self.pace.begin(self.run.step)

    def _is_due(self) -> bool:
        """A checkpoint is to be begun, or one that is being written is whole, or has to be waited for."""
        written = self.checkpoints is not None and self.checkpoints.is_written()
        return super()._is_due() or (self.pace.writing and written)

    def _go_on_saving(self) -> None:
        """Begin a checkpoint, or wait for the one that is being written; then the other, if that is due as well."""
        due = True
        while due:
            self._wait() if self.pace.writing else self._save()
            due = self.pace.is_due(self.run.step, by=[STEPS])

    def _wait(self) -> None:
        if self.checkpoints is not None:
            began = time.monotonic()
            self.checkpoints.wait()
            self.pace.finish(self.run.step, time.monotonic() - began)

    def _resume(self, path: Path) -> None:
        assert self.checkpoints is not None
        shared, each, count = self.checkpoints.load(path, self._shared())
        try:
            self._restore(path, shared, each, as_many=count == ranks.count())
        except TrainingError:
            raise
        except UNFIT as error:
            ranks.raise_if_lost(error)
            raise TrainingError(
                f"{path} cannot be resumed: {first_line(error)}. Remove it to resume from the one before."
            ) from error

    def _restore(
        self, path: Path, shared: dict[str, Any], each: list[Any], *, as_many: bool
    ) -> None:
        """Set all that a checkpoint holds, each part only if it fits."""
        ours = {name: tuple(tensor.shape) for name, tensor in self.run.model.state_dict().items()}
        theirs = {name: tuple(tensor.shape) for name, tensor in shared["model"].items()}
        if ours != theirs or len(shared["hooks"]) != len(self.stepper.hooks_with_state()):
            raise TrainingError(
                f"{path} is a checkpoint of another model or of other hooks. Give another folder."
            )
        check_tensors(shared["model"], self.run.model.state_dict(), "the model")
        self.run.model.load_state_dict(shared["model"])
        self.stepper.load_state_dict(shared)
        restore_run(self.run, shared["run"], ("step", "history", "seconds"))
        self._go_on_in_batches([own["batches"] for own in each], path)
        go_on_by_chance(
            each[0]["random"] if as_many else None, self.run.training.seed, self.run.step
        )
        self.predicted = _pairs(each[0]["predicted"]) if as_many else []

    def _go_on_in_batches(self, places: list[Any], path: Path) -> None:
        if not hasattr(self.batches, "load_state_dict") or places[0] is None:
            return  # nobody knows where they stood: they go on where they are
        if any(not _same(place, places[0]) for place in places[1:]):
            raise TrainingError(
                f"{path} is of {len(places)} ranks, now there are {ranks.count()}, and each rank's batches stood at their own "
                f"place. Start {len(places)} ranks, or give batches whose state_dict() is the same on all ranks, as "
                "Rows.batches(..., together=True) has it."
            )
        self.batches.load_state_dict(places[0])


def _pairs(saved: Any) -> list[tuple[Tensor, Tensor]]:
    """Return labels and log odds that were predicted, if they are that."""
    expect(isinstance(saved, list), "what was predicted is not a list")
    for pair in saved:
        fits = (
            isinstance(pair, tuple)
            and len(pair) == 2
            and all(isinstance(part, Tensor) for part in pair)
        )
        expect(
            fits and pair[0].shape == pair[1].shape,
            "what was predicted is not labels with log odds",
        )
    return list(saved)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def parts_of(batch: Any) -> tuple[tuple[Any, ...], Tensor]:
    """The arguments of the model, and the label."""
    if hasattr(batch, "inputs") and hasattr(batch, "label"):
        inputs, label = batch.inputs, batch.label
    elif isinstance(batch, tuple | list) and len(batch) == 2:
        inputs, label = batch
    else:
        raise TrainingError(
            f"Expected batches of (inputs, label), or with these two attributes, but found {type(batch).__name__}. "
            "Convert them: ((inputs, label) for ... in loader)."
        )
    return (inputs if isinstance(inputs, tuple) else (inputs,)), label
