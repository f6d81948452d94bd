"""One step of training, on one rank or on many: what every loop shares. Methods plug in by hooks; none is known by name."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from .._common.checks import is_number, is_seed, is_whole, refuse_settings
from .._common.errors import TorchleapError
from ..data.task import Task
from ..distributed import ranks
from ..gates.leap import LeAP
from .lazy_adam import LazyAdam
from .pace import Pace
from .states import check_random, restore_optimizer

Metric = Literal["auc", "gauc", "log_loss"]
Schedule = Literal["constant", "cosine", "linear"]
Precision = Literal["float32", "bfloat16"]
Loss = Callable[[Tensor, Tensor], Tensor]


class TrainingError(TorchleapError):
    """Training cannot go on: a loss that is no number, or a checkpoint of another run."""


@dataclass(frozen=True)
class Training:
    """How to train.

    Args:
        batch: Rows a step, of all ranks together.
        epochs: At most so many.
        steps: At most so many, whatever the epochs; None is any number.
        patience: Looks at the validation rows without a new best after which it stops.
        eval_every: Steps between two looks; None is once an epoch.
        metric: What the best weights are chosen by.
        clip: Largest norm of the gradient; None is any.
        schedule: Of the learning rate, over all epochs, after `warmup` steps of rising.
        precision: "bfloat16" computes in mixed precision.
        compile: Compile the model with torch.compile.
        time_limit: Seconds after which it stops with the best so far.
        checkpoint_steps: Steps between two checkpoints, and likewise checkpoint_minutes: a kill loses at most that.
    """

    batch: int = 4096
    epochs: int = 100
    steps: int | None = None
    lr: float = 1e-3
    weight_decay: float = 0.0
    patience: int = 3
    eval_every: int | None = None
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
        whole = {
            name: getattr(self, name)
            for name in ("batch", "epochs", "steps", "patience", "eval_every", "checkpoint_steps")
        }
        rules = {
            f"{name} must be a whole number of at least 1, but is {value!r}": value is None
            or (is_whole(value) and value >= 1)
            for name, value in whole.items()
        }
        positive = {
            name: getattr(self, name) for name in ("lr", "clip", "time_limit", "checkpoint_minutes")
        }
        rules |= {
            f"{name} must be a number above 0, but is {value!r}": value is None
            or (is_number(value) and 0 < value < math.inf)
            for name, value in positive.items()
        }
        for name, kinds in (("metric", Metric), ("schedule", Schedule), ("precision", Precision)):
            value = getattr(self, name)
            rules[f"{name} must be one of {', '.join(get_args(kinds))}, but is {value!r}"] = (
                value in get_args(kinds)
            )
        rules[f"warmup must be a whole number of at least 0, but is {self.warmup!r}"] = (
            is_whole(self.warmup) and self.warmup >= 0
        )
        rules[f"seed must be a whole number from 0 to 4,294,967,295, but is {self.seed!r}"] = (
            is_seed(self.seed)
        )
        refuse_settings(rules)


class Hook:
    """What a method or a callback adds to training; every part can be left out.

    Attributes:
        first_rank_alone: Whether, of several ranks, only the first has it: for what only watches, and tells.
        always_uses_own: Whether every step of the model gives a gradient to all of `own_parameters()`.
    """

    first_rank_alone: ClassVar[bool] = False
    always_uses_own: ClassVar[bool] = True

    def at_start(self, run: "Run") -> None:
        """Called before the first step, and before the first one after a resume."""

    def penalty(self, loss: Tensor) -> Tensor | None:
        """What to add to the loss of a batch, which is given."""
        return None

    def after_step(self, run: "Run") -> None:
        """Called after each step."""

    def after_eval(self, run: "Run", record: dict[str, float]) -> None:
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
        task: What is trained on; None is a stream.
        history: What each look found: the step, seconds, the mean loss of the steps since the look before, the learning rate, the
            metrics of the validation rows, and what hooks add.
        best: The weights at the best look, and its metric; higher is better.
        stopped: Why it ended.
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

    @property
    def steps(self) -> int | None:
        """How many steps there will be at most; None if it has no end."""
        if self.task is None:
            return self.training.steps
        planned = self.training.epochs * -(-len(self.task.train) // self.training.batch)
        return min(planned, self.training.steps or planned)


def of_log_odds(log_odds: Tensor, label: Tensor) -> Tensor:
    """The log loss."""
    return binary_cross_entropy_with_logits(log_odds.float(), label)


class Stepper:
    """A model, its optimizers and its hooks, and one step of all of them.

    On several ranks the model is wrapped in DDP, unless it is sharded or wrapped already: each rank steps by its own rows.

    Attributes:
        losses: Of the steps since the last look.
    """

    def __init__(
        self,
        run: Run,
        hooks: Sequence[Hook],
        *,
        optimizers: Sequence[Optimizer] | None = None,
        loss: Loss = of_log_odds,
    ) -> None:
        training, model = run.training, run.model
        self.run = run
        self.given = list(hooks)
        self.hooks = [hook for hook in hooks if ranks.is_first() or not hook.first_rank_alone]
        self.loss = loss
        others = [parameter for hook in self.hooks for parameter in hook.own_parameters()]
        self.optimizers = list(optimizers or optimizers_for(model, training, except_for=others))
        self.learnt = [
            p
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for p in group["params"]
        ]
        changes = training.schedule != "constant" or training.warmup > 0
        self.schedules = (
            [LambdaLR(optimizer, self._share_of_rate) for optimizer in self.optimizers]
            if changes
            else []
        )
        called = model
        if ranks.count() > 1 and not is_distributed(model):
            unused = not all(hook.always_uses_own for hook in self.hooks)
            called = DistributedDataParallel(model, find_unused_parameters=unused)
        self.forward = torch.compile(called) if training.compile else called
        self.losses: list[float] = []

    def step(
        self,
        inputs: tuple[Any, ...],
        label: Tensor,
        asks: Callable[[], tuple[bool, ...]] = tuple,
        why: Callable[[], str] = str,
    ) -> tuple[bool, ...]:
        """Learn from the rows of one batch.

        Args:
            asks: Questions to answer after it, with yes if any rank says so.
            why: More about a loss that is no number.
        """
        run = self.run
        if not run.model.training:
            run.model.train()
        with self._precision():
            found = self.forward(*inputs)
        loss = self.loss(found, label)
        penalties = [hook.penalty(loss) for hook in self.hooks]
        loss = sum((penalty for penalty in penalties if penalty is not None), start=loss)
        for parameter in self.learnt:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        own = loss.item()
        mean, answers = self._agree(own, asks())
        if not math.isfinite(mean):
            raise TrainingError(self._why_not_finite(own, why))
        self.losses.append(mean)
        if run.training.clip is not None:
            dense = [
                p for p in run.model.parameters() if p.grad is not None and not p.grad.is_sparse
            ]
            nn.utils.clip_grad_norm_(dense, run.training.clip)
        for optimizer in self.optimizers:
            optimizer.step()
        for schedule in self.schedules:
            schedule.step()
        run.step += 1
        for hook in self.hooks:
            hook.after_step(run)
        return answers

    def _agree(self, loss: float, answers: tuple[bool, ...]) -> tuple[float, tuple[bool, ...]]:
        """The mean loss over ranks, and whether any says yes, in one small collective."""
        if ranks.count() == 1:
            return loss, answers
        mean, *found = ranks.average(torch.tensor([loss, *answers], dtype=torch.float64)).tolist()
        return mean, tuple(value > 0 for value in found)

    def _why_not_finite(self, loss: float, why: Callable[[], str]) -> str:
        rate = self.optimizers[0].param_groups[0]["lr"]
        place = f"at step {self.run.step + 1}, with a learning rate of {rate:g}"
        if math.isfinite(loss):
            return f"The loss of another rank is no number {place}. That rank tells more."
        told = f"{why()} ".lstrip()
        return f"The loss is {loss} {place}. {told}Lower lr=, or set clip=."

    def mean_loss(self) -> float:
        """Since it was last asked."""
        found = sum(self.losses) / max(1, len(self.losses))
        self.losses.clear()
        return found

    def lazy(self) -> list[LazyAdam]:
        """The optimizers that leave rows behind."""
        return [optimizer for optimizer in self.optimizers if isinstance(optimizer, LazyAdam)]

    def settle(self) -> None:
        """Bring all weights up to date, before anything but a step reads them."""
        for optimizer in self.lazy():
            optimizer.settle()
        self.agree()

    def agree(self) -> None:
        """Take over the first rank's buffers, such as batch norm's statistics, as DDP does before the next step anyway."""
        for module in self.run.model.modules() if ranks.count() > 1 else ():
            if not isinstance(module, LeAP):  # gates agree by themselves
                for buffer in module.buffers(recurse=False):
                    ranks.broadcast(buffer)

    def hooks_with_state(self) -> list[Hook]:
        """Those that a checkpoint keeps, the same on all ranks; others, which only watch, may come and go between two runs."""
        return [hook for hook in self.given if hook.state_dict()]

    def state_dict(self) -> dict[str, Any]:
        """All but the model."""
        return {
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "schedules": [schedule.state_dict() for schedule in self.schedules],
            "hooks": [hook.state_dict() for hook in self.hooks_with_state()],
            "losses": list(self.losses),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on."""
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            restore_optimizer(optimizer, saved)
        for schedule, saved in zip(self.schedules, state["schedules"], strict=True):
            schedule.load_state_dict(saved)
        for hook, saved in zip(self.hooks_with_state(), state["hooks"], strict=True):
            hook.load_state_dict(saved)
        self.losses = [float(loss) for loss in state["losses"]]

    def _precision(self) -> AbstractContextManager[Any]:
        if self.run.training.precision == "float32":
            return nullcontext()
        device = next(self.run.model.parameters()).device.type
        return torch.autocast(device, dtype=torch.bfloat16)

    def _share_of_rate(self, step: int) -> float:
        """The learning rate of a step, as a share of the given one."""
        training, last = self.run.training, self.run.steps
        rising = min(1.0, (step + 1) / training.warmup) if training.warmup else 1.0
        done = (
            0.0
            if last is None
            else min(1.0, max(0, step - training.warmup) / max(1, last - training.warmup))
        )
        falling = {
            "constant": 1.0,
            "linear": 1 - done,
            "cosine": 0.5 * (1 + math.cos(math.pi * done)),
        }
        return rising * falling[training.schedule]


class Loop:
    """What the training loops have in common; each says in `_train` which batches there are and when it looks and saves.

    Args:
        saves: Whether there are checkpoints: Ctrl-C then waits for one.
        background: Whether they are written while training goes on.
    """

    def __init__(
        self,
        run: Run,
        hooks: Sequence[Hook],
        *,
        saves: bool,
        background: bool = False,
        optimizers: Sequence[Optimizer] | None = None,
        loss: Loss = of_log_odds,
    ) -> None:
        self.run = run
        self.saves = saves
        self.background = background
        torch.manual_seed(run.training.seed + ranks.rank())
        self.stepper = Stepper(run, hooks, optimizers=optimizers, loss=loss)
        self.interrupted = False
        self.started: float | None = time.monotonic()

    def run_to_its_end(self) -> Run:
        """Train; a run that was loaded as finished is not gone on with."""
        run, every = self.run, self.run.training
        self.pace = Pace(
            every.checkpoint_steps,
            every.checkpoint_minutes,
            step=run.step,
            background=self.background,
        )
        try:
            for hook in self.stepper.hooks:
                hook.at_start(run)
            if not run.stopped:
                with self._interrupts_wait():
                    self._train()
            for hook in self.stepper.hooks:
                hook.at_end(run)
        finally:
            for optimizer in self.stepper.lazy():
                optimizer.release()
        return run

    def _train(self) -> None:
        raise NotImplementedError

    def learn(
        self, inputs: tuple[Any, ...], label: Tensor, why: Callable[[], str] = str
    ) -> tuple[bool, bool, bool]:
        """One step; then whether Ctrl-C was pressed, the time is over, a checkpoint is due: on any rank, as clocks differ."""
        stop, late, due = self.stepper.step(inputs, label, self._asks, why)
        return (
            stop or (self.interrupted and ranks.count() == 1),
            late,
            due,
        )  # of several, each has to know before it stops

    def _asks(self) -> tuple[bool, bool, bool]:
        training = self.run.training
        late = training.time_limit is not None and self.seconds() > training.time_limit
        return self.interrupted, late, self._is_due()

    def _is_due(self) -> bool:
        """Whether a checkpoint is due after this step."""
        return self.saves and self.pace.is_due(self.run.step + 1)

    def tell(self, metrics: dict[str, float]) -> None:
        """Add a look to the history, and show it to the hooks."""
        record = {
            "step": self.run.step,
            "seconds": self.seconds(),
            "train_loss": self.stepper.mean_loss(),
            "lr": self.stepper.optimizers[0].param_groups[0]["lr"],
            **{f"valid_{name}": value for name, value in metrics.items()},
        }
        self.run.history.append(record)
        for hook in self.stepper.hooks:
            hook.after_eval(self.run, record)

    def seconds(self) -> float:
        """Of all its parts, before and after a resume."""
        return self.run.seconds + (0.0 if self.started is None else time.monotonic() - self.started)

    def stop_the_clock(self) -> None:
        """Training is over; what is left to do does not count."""
        self.run.seconds, self.started = self.seconds(), None

    @contextmanager
    def _interrupts_wait(self) -> Iterator[None]:
        """Ctrl-C waits for the end of the step and for a checkpoint, if there is to be one; a second one does not."""
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


def go_on_by_chance(state: Tensor | None, seed: int, step: int) -> None:
    """Put back this rank's random numbers; where there are none, as for another number of ranks, they begin anew."""
    if state is not None:
        check_random(state)
        torch.set_rng_state(state)
    else:
        torch.manual_seed(seed + 1_000_003 * step + ranks.rank())


def is_distributed(model: nn.Module) -> bool:
    """Whether the model takes care of several ranks itself: it is wrapped in DDP, or sharded."""
    wrapped = any(isinstance(module, DistributedDataParallel) for module in model.modules())
    return wrapped or any(hasattr(parameter, "full_tensor") for parameter in model.parameters())


def optimizers_for(
    model: nn.Module, training: Training, *, except_for: Sequence[nn.Parameter] = ()
) -> list[Optimizer]:
    """Adam for the weights; the same for tables with sparse gradients, at the cost of the rows of a batch."""
    others = {id(parameter) for parameter in except_for}
    learnt = [
        parameter
        for parameter in model.parameters()
        if parameter.requires_grad and id(parameter) not in others
    ]
    sparse = [
        module
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
    ]
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
