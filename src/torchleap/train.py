"""fit: the only training loop. Methods plug into it by hooks; it knows none by name."""

import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from .data.task import Batch, Rows, Task
from .errors import TorchleapError, is_number, is_whole, refuse_settings
from .lazy_adam import LazyAdam
from .metrics import auc, gauc, log_loss
from .text import replace_file

Metric = Literal["auc", "gauc", "log_loss"]
Schedule = Literal["constant", "cosine", "linear"]
Precision = Literal["float32", "bfloat16"]
FORMAT = 1
LARGE_BATCH = 1 << 15  # rows at once where nothing is learnt, at most
LARGE_INPUT = 1 << 28  # bytes of their input, about: a model holds several tensors of that size


class TrainingError(TorchleapError):
    """Training cannot go on: a loss that is no number, or a checkpoint of another run."""


@dataclass(frozen=True)
class Training:
    """How to train.

    Args:
        batch: Rows a step.
        epochs: At most so many.
        steps: At most so many, whatever the epochs; None is any number.
        patience: Looks at the validation rows without a new best after which it stops.
        look_every: Steps between two looks; None is once an epoch.
        metric: What the best weights are chosen by.
        clip: Largest norm of the gradient; None is any.
        schedule: Of the learning rate, over all epochs, after `warmup` steps of rising.
        precision: "bfloat16" computes in mixed precision.
        compile: Compile the model with torch.compile.
        time_limit: Seconds after which it stops with the best so far.
        checkpoint_steps: Steps between two checkpoints, and likewise checkpoint_minutes.
    """

    batch: int = 4096
    epochs: int = 100
    steps: int | None = None
    lr: float = 1e-3
    weight_decay: float = 0.0
    patience: int = 3
    look_every: int | None = None
    metric: Metric = "auc"
    clip: float | None = None
    schedule: Schedule = "constant"
    warmup: int = 0
    precision: Precision = "float32"
    compile: bool = False
    time_limit: float | None = None
    checkpoint_steps: int | None = None
    checkpoint_minutes: float | None = 5.0
    seed: int = 0

    def __post_init__(self) -> None:
        whole = {name: getattr(self, name) for name in ("batch", "epochs", "steps", "patience", "look_every", "checkpoint_steps")}
        rules = {
            f"{name} must be a whole number of at least 1, but is {value!r}": value is None or (is_whole(value) and value >= 1)
            for name, value in whole.items()
        }
        positive = {name: getattr(self, name) for name in ("lr", "clip", "time_limit", "checkpoint_minutes")}
        rules |= {
            f"{name} must be a number above 0, but is {value!r}": value is None or (is_number(value) and 0 < value < math.inf)
            for name, value in positive.items()
        }
        for name, kinds in (("metric", Metric), ("schedule", Schedule), ("precision", Precision)):
            value = getattr(self, name)
            rules[f"{name} must be one of {', '.join(get_args(kinds))}, but is {value!r}"] = value in get_args(kinds)
        rules[f"warmup must be a whole number of at least 0, but is {self.warmup!r}"] = is_whole(self.warmup) and self.warmup >= 0
        rules[f"seed must be a whole number, but is {self.seed!r}"] = is_whole(self.seed)
        refuse_settings(rules)


class Hook:
    """What a method or a callback adds to training; every part can be left out."""

    def at_start(self, run: "Run") -> None:
        """Called before the first step, and before the first one after a resume."""

    def penalty(self, loss: Tensor) -> Tensor | None:
        """What to add to the loss of a batch, which is given."""
        return None

    def after_step(self, run: "Run") -> None:
        """Called after each step."""

    def after_look(self, run: "Run", record: dict[str, float]) -> None:
        """Called after each look at the validation rows, with what was found."""

    def settled(self, run: "Run") -> bool:
        """Whether training may end when the metric no longer rises; asked after such a look."""
        return True

    def at_end(self, run: "Run") -> None:
        """Called after the last step, before the best weights are put back."""

    def own_parameters(self) -> list[nn.Parameter]:
        """Parameters of the model that the hook trains itself, in `after_step`; their gradients are left to it."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has to keep."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""


@dataclass
class Run:
    """Where a training run stands.

    Attributes:
        history: What each look found: the step, seconds, the mean loss of the steps since the look before, the learning rate, the
            metrics of the validation rows, and what hooks add.
        best: The weights at the best look, and its metric; higher is better.
        stopped: Why it ended.
    """

    model: nn.Module
    task: Task
    training: Training
    step: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict, repr=False)
    best_metric: float = -math.inf
    looks_since: int = 0
    seconds: float = 0.0
    stopped: str = ""

    @property
    def steps(self) -> int:
        """How many steps there will be at most."""
        planned = self.training.epochs * -(-len(self.task.train) // self.training.batch)
        return min(planned, self.training.steps or planned)


def fit(
    model: nn.Module,
    task: Task,
    training: Training | None = None,
    *,
    hooks: Sequence[Hook] = (),
    checkpoint: str | os.PathLike[str] | None = None,
    keep_checkpoint: bool = False,
) -> Run:
    """Train until the metric on the validation rows no longer rises, and leave the model with its best weights.

    The same seed on the same machine gives the same weights, also after a resume.

    Args:
        model: As in `torchleap.models`, (ids, numbers) -> log odds; it may have gates.
        checkpoint: A file to save the run to and, if it is there, to go on from; it is removed at the end. Ctrl-C saves it first.
        keep_checkpoint: Leave it instead: the same call then finds the run finished, and only loads what it found.
    """
    training = training or Training()
    if len(task.train) < training.batch:
        raise TrainingError(
            f"Expected at least one batch of {training.batch:,} train rows, but found {len(task.train):,} rows. Lower batch=."
        )
    path = None if checkpoint is None else Path(checkpoint)
    run = _Loop(model, task, training, hooks, path).run_to_its_end()
    if path is not None and not keep_checkpoint:
        path.unlink(missing_ok=True)
    return run


def large_batch(task: Task) -> int:
    """Rows at once where nothing is learnt."""
    return min(LARGE_BATCH, max(1, LARGE_INPUT // (4 * task.fields.dims)))


@torch.no_grad()
def predict(model: nn.Module, rows: Rows) -> Tensor:
    """The log odds of all rows, in their order; the model is in eval mode for it."""
    was_training = model.training
    model.eval()
    try:
        found = [model(*batch.inputs).float() for batch in rows.batches(large_batch(rows.task))]
    finally:
        model.train(was_training)
    return torch.cat(found)


def evaluate(model: nn.Module, rows: Rows) -> dict[str, float]:
    """AUC and log loss on some rows, and GAUC where they have groups."""
    log_odds, label = predict(model, rows), rows.label
    found = {"auc": auc(label, log_odds), "log_loss": log_loss(label, torch.sigmoid(log_odds.double()))}
    group = rows.group
    return found if group is None else {**found, "gauc": gauc(label, log_odds, group)}


class _Loop:
    """One run of `fit`."""

    def __init__(self, model: nn.Module, task: Task, training: Training, hooks: Sequence[Hook], path: Path | None) -> None:
        self.run = Run(model, task, training)
        self.hooks = hooks
        self.path = path
        torch.manual_seed(training.seed)
        self.batches = task.train.batches(training.batch, shuffle=True, seed=training.seed)
        self.optimizers = optimizers_for(model, training, except_for=[p for hook in hooks for p in hook.own_parameters()])
        self.learnt = [p for optimizer in self.optimizers for group in optimizer.param_groups for p in group["params"]]
        changes = training.schedule != "constant" or training.warmup > 0
        self.schedules = [LambdaLR(optimizer, self._share_of_rate) for optimizer in self.optimizers] if changes else []
        self.forward = torch.compile(model) if training.compile else model
        self.losses: list[float] = []  # since the last look
        self.interrupted = False
        self.started = self.saved = time.monotonic()
        if path is not None and path.exists():
            self._resume(path)

    def run_to_its_end(self) -> Run:
        run = self.run
        try:
            for hook in self.hooks:
                hook.at_start(run)
            if not run.stopped:
                with self._interrupts_wait():
                    self._train()
            for hook in self.hooks:
                hook.at_end(run)
        finally:
            for optimizer in self._lazy():
                optimizer.release()
        run.model.load_state_dict(run.best)
        run.model.eval()
        return run

    def _train(self) -> None:
        run, training = self.run, self.run.training
        while not run.stopped:
            for batch in self.batches:
                if len(batch) > 1:  # a single row, at the end of an epoch, can be neither shuffled nor normalised
                    self._step(batch)
                end_of_epoch = self.batches.position == len(self.batches)
                last = run.step == run.steps and training.steps is not None
                if last or (run.step % training.look_every == 0 if training.look_every else end_of_epoch):
                    self._look()
                if last:
                    run.stopped = run.stopped or "all steps are done"
                if run.stopped or self._is_late():
                    break
                self._save_when_due()
                if self.interrupted:
                    raise KeyboardInterrupt
            if not run.stopped and self.batches.epoch >= training.epochs:
                run.stopped = "all epochs are done"
        if not run.best:
            self._look()
        run.seconds = self._seconds()
        if self.path is not None:
            self._save(self.path)
        if self.interrupted:
            raise KeyboardInterrupt

    def _step(self, batch: Batch) -> None:
        run = self.run
        if not run.model.training:
            run.model.train()
        with self._precision():
            log_odds = self.forward(*batch.inputs)
        loss = binary_cross_entropy_with_logits(log_odds.float(), batch.label)
        penalties = [hook.penalty(loss) for hook in self.hooks]
        loss = sum((penalty for penalty in penalties if penalty is not None), start=loss)
        for parameter in self.learnt:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        self.losses.append(loss.item())
        if not math.isfinite(self.losses[-1]):
            raise TrainingError(self._why_not_finite(batch, self.losses[-1]))
        if run.training.clip is not None:
            dense = [p for p in run.model.parameters() if p.grad is not None and not p.grad.is_sparse]
            nn.utils.clip_grad_norm_(dense, run.training.clip)
        for optimizer in self.optimizers:
            optimizer.step()
        for schedule in self.schedules:
            schedule.step()
        run.step += 1
        for hook in self.hooks:
            hook.after_step(run)

    def _lazy(self) -> list[LazyAdam]:
        return [optimizer for optimizer in self.optimizers if isinstance(optimizer, LazyAdam)]

    def _look(self) -> None:
        run = self.run
        for optimizer in self._lazy():
            optimizer.settle()
        found = evaluate(run.model, run.task.valid)
        if run.training.metric not in found:
            raise TrainingError("metric='gauc' needs groups. Read the data with group=.")
        score = -found["log_loss"] if run.training.metric == "log_loss" else found[run.training.metric]
        record = {
            "step": run.step,
            "seconds": self._seconds(),
            "train_loss": sum(self.losses) / max(1, len(self.losses)),
            "lr": self.optimizers[0].param_groups[0]["lr"],
            **{f"valid_{name}": value for name, value in found.items()},
        }
        self.losses.clear()
        run.history.append(record)
        for hook in self.hooks:
            hook.after_look(run, record)
        run.looks_since += 1
        if score > run.best_metric or not run.best:
            run.best_metric, run.looks_since = score, 0
            run.best = {name: tensor.detach().clone() for name, tensor in run.model.state_dict().items()}
        elif run.looks_since >= run.training.patience and all(hook.settled(run) for hook in self.hooks):
            run.stopped = f"{run.training.metric} did not get better in {run.training.patience} looks"

    def _is_late(self) -> bool:
        limit = self.run.training.time_limit
        if limit is not None and self._seconds() > limit:
            self.run.stopped = f"the time limit of {limit:g} seconds"
        return bool(self.run.stopped)

    def _seconds(self) -> float:
        return self.run.seconds + time.monotonic() - self.started

    def _precision(self) -> AbstractContextManager[Any]:
        if self.run.training.precision == "float32":
            return nullcontext()
        device = next(self.run.model.parameters()).device.type
        return torch.autocast(device, dtype=torch.bfloat16)

    def _share_of_rate(self, step: int) -> float:
        """The learning rate of a step, as a share of the given one."""
        training = self.run.training
        rising = min(1.0, (step + 1) / training.warmup) if training.warmup else 1.0
        done = min(1.0, max(0, step - training.warmup) / max(1, self.run.steps - training.warmup))
        falling = {"constant": 1.0, "linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}
        return rising * falling[training.schedule]

    def _why_not_finite(self, batch: Batch, loss: float) -> str:
        inputs = getattr(self.run.model, "inputs", None)
        suspects: list[str] = []
        if isinstance(inputs, nn.Module):
            with torch.no_grad():
                side_by_side = inputs(*batch.inputs)
            fields = self.run.task.fields
            suspects = [name for name in fields.names if not side_by_side[:, fields.columns(name)].isfinite().all()]
            if not suspects:
                sizes = {name: float(side_by_side[:, fields.columns(name)].abs().max()) for name in fields.names}
                suspects = sorted(sizes, key=lambda name: -sizes[name])[:3]
        rate = self.optimizers[0].param_groups[0]["lr"]
        return (
            f"The loss is {loss} at step {self.run.step + 1}, with a learning rate of {rate:g}. Suspicious fields: "
            f"{', '.join(suspects[:5]) or 'none'}. Lower lr=, or set clip=."
        )

    # Checkpoints

    @contextmanager
    def _interrupts_wait(self) -> Iterator[None]:
        """Ctrl-C waits for the end of the step and for a checkpoint, if there is to be one; a second one does not."""
        if self.path is None or threading.current_thread() is not threading.main_thread():
            yield
            return

        def remember(*_: object) -> None:
            if self.interrupted:
                raise KeyboardInterrupt
            self.interrupted = True

        before = signal.signal(signal.SIGINT, remember)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _save_when_due(self) -> None:
        training = self.run.training
        steps, minutes = training.checkpoint_steps, training.checkpoint_minutes
        by_steps = steps is not None and self.run.step % steps == 0
        by_time = minutes is not None and time.monotonic() - self.saved > 60 * minutes
        if self.path is not None and (by_steps or by_time or self.interrupted):
            self._save(self.path)
            self.saved = time.monotonic()

    def _save(self, path: Path) -> None:
        run = self.run
        content = {
            "format": FORMAT,
            "training": asdict(run.training),
            "fields": list(run.task.fields.names),
            "model": run.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "schedules": [schedule.state_dict() for schedule in self.schedules],
            "hooks": [hook.state_dict() for hook in self._hooks_with_state()],
            "batches": self.batches.state_dict(),
            "random": torch.get_rng_state(),
            "losses": self.losses,
            "run": {
                "step": run.step,
                "history": run.history,
                "best": run.best,
                "best_metric": run.best_metric,
                "looks_since": run.looks_since,
                "seconds": run.seconds if run.stopped else self._seconds(),
                "stopped": run.stopped,
            },
        }
        with replace_file(path) as temporary:
            torch.save(content, temporary)

    def _resume(self, path: Path) -> None:
        try:
            content = torch.load(path, weights_only=True)
        except Exception as error:
            reason = str(error).splitlines()[0]
            raise TrainingError(f"{path} is no whole checkpoint ({reason}). Remove it to start anew.") from error
        self._check(path, content)
        self.run.model.load_state_dict(content["model"])
        parts: list[tuple[Sequence[Any], list[Any]]] = [
            (self.optimizers, content["optimizers"]),
            (self.schedules, content["schedules"]),
            (self._hooks_with_state(), content["hooks"]),
        ]
        for objects, states in parts:
            for thing, state in zip(objects, states, strict=True):
                thing.load_state_dict(state)
        self.batches.load_state_dict(content["batches"])
        torch.set_rng_state(content["random"])
        self.losses = content["losses"]
        for name, value in content["run"].items():
            setattr(self.run, name, value)

    def _hooks_with_state(self) -> list[Hook]:
        """Those that a checkpoint keeps; others, which only watch, may come and go between two runs."""
        return [hook for hook in self.hooks if hook.state_dict()]

    def _check(self, path: Path, content: Any) -> None:
        run = self.run
        problems = []
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            problems.append(f"it has another format than {FORMAT}")
        else:
            ours = {name: tuple(tensor.shape) for name, tensor in run.model.state_dict().items()}
            theirs = {name: tuple(tensor.shape) for name, tensor in content["model"].items()}
            if content["fields"] != list(run.task.fields.names):
                problems.append("it has other fields")
            if ours != theirs:
                problems.append("its model has other weights")
            if len(content["hooks"]) != len(self._hooks_with_state()):
                problems.append("it has other hooks")
            settings = asdict(run.training)
            other = {name: value for name, value in content["training"].items() if value != settings.get(name)}
            problems += [f"its {name} is {value!r}, not {settings.get(name)!r}" for name, value in other.items()]
        if problems:
            raise TrainingError(f"{path} is a checkpoint of another run: {'; '.join(problems[:3])}. Remove it to start anew.")


def optimizers_for(model: nn.Module, training: Training, *, except_for: Sequence[nn.Parameter] = ()) -> list[Optimizer]:
    """Adam for the weights; the same for tables with sparse gradients, at the cost of the rows of a batch."""
    others = {id(parameter) for parameter in except_for}
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad and id(parameter) not in others]
    sparse = [module for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse]
    tables = [table for table in sparse if any(table.weight is parameter for parameter in learnt)]
    others |= {id(table.weight) for table in tables}
    dense = [parameter for parameter in learnt if id(parameter) not in others]
    found: list[Optimizer] = []
    if dense:
        found.append(Adam(dense, lr=training.lr, weight_decay=training.weight_decay, fused=True))
    if tables:
        found.append(LazyAdam(tables, lr=training.lr))
    if not found:
        raise TrainingError("The model has nothing to train: no parameter requires a gradient.")
    return found
