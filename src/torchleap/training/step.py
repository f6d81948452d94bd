"""Stepper: one training step of a model, its optimizers and its hooks, on one rank or on many."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ..distributed import ranks
from ..gates.leap import LeAP
from .average import WeightAverage
from .hook import Hook, Run
from .lazy_adam import LazyAdam, is_sparse_table
from .settings import Training, TrainingError
from .states import restore_optimizer

Loss = Callable[[Tensor, Tensor], Tensor]
Flags = tuple[bool, ...]


class Stepper:
    """A model with its optimizers and hooks, which are stepped together.

    On several ranks the model is wrapped in DDP, unless it is sharded or wrapped already, and each
    rank steps on its own rows.

    Args:
        run: The run that the steps belong to.
        hooks: The hooks, in the order in which they are called.
        loss: The loss of outputs and labels.
        optimizers: The optimizers of the model; None makes those of `optimizers_for`.

    Attributes:
        losses: The losses of the steps since the last evaluation.
    """

    def __init__(
        self,
        run: Run,
        hooks: Sequence[Hook],
        *,
        loss: Loss,
        optimizers: Sequence[Optimizer] | None = None,
    ) -> None:
        self.run = run
        self.loss = loss
        self.all_hooks = list(hooks)
        self.hooks = [hook for hook in hooks if ranks.is_first() or not hook.first_rank_only]
        if not optimizers:
            others = [one for hook in self.hooks for one in hook.trained_parameters()]
            optimizers = optimizers_for(run.model, run.training, except_for=others)
        self.optimizers = list(optimizers)
        run.optimizers = self.optimizers
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        self.parameters = [parameter for group in groups for parameter in group["params"]]
        self.schedules = self._schedules()
        self.average: WeightAverage | None = None
        if run.training.average is not None:
            self.average = WeightAverage(run.model, run.training.average)
        self.forward = self._wrapped_model()
        self.losses: list[float] = []

    def _schedules(self) -> list[LambdaLR]:
        training = self.run.training
        if training.schedule == "constant" and not training.warmup:
            return []
        return [LambdaLR(optimizer, self._rate_factor) for optimizer in self.optimizers]

    def _wrapped_model(self) -> Callable[..., Tensor]:
        model = self.run.model
        if ranks.count() > 1 and not is_distributed(model):
            unused = not all(hook.parameters_always_used for hook in self.hooks)
            model = DistributedDataParallel(model, find_unused_parameters=unused)
        if self.run.training.compile:
            return torch.compile(model)
        return model

    def step(
        self,
        inputs: tuple[Any, ...],
        label: Tensor,
        *,
        flags: Callable[[], Flags] = tuple,
        explain: Callable[[], str] = str,
    ) -> Flags:
        """Train on the rows of one batch.

        Args:
            inputs: The arguments of the model.
            label: The label of each row, (B,).
            flags: Returns this rank's flags after the backward pass.
            explain: Returns a sentence about the batch, in case the loss is not finite.

        Returns:
            For each flag, whether it is set on any rank.
        """
        run = self.run
        if not run.model.training:
            run.model.train()
        with self._precision():
            outputs = self.forward(*inputs)
        loss = self._with_penalties(self.loss(outputs, label))
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        own = loss.item()
        mean, found = _combined(own, flags())
        if not math.isfinite(mean):
            raise TrainingError(self._why_not_finite(own, explain))
        self.losses.append(mean)
        self._clip()
        for optimizer in self.optimizers:
            optimizer.step()
        for schedule in self.schedules:
            schedule.step()
        run.step += 1
        if self.average is not None:
            self.average.step()
        for hook in self.hooks:
            hook.after_step(run)
        return found

    def _precision(self) -> AbstractContextManager[Any]:
        if self.run.training.precision == "float32":
            return nullcontext()
        device = next(self.run.model.parameters()).device.type
        return torch.autocast(device, dtype=torch.bfloat16)

    def _with_penalties(self, loss: Tensor) -> Tensor:
        """Return the loss plus the penalties of the hooks; each hook sees the bare loss."""
        penalties = [hook.penalty(loss) for hook in self.hooks]
        return sum((penalty for penalty in penalties if penalty is not None), start=loss)

    def _clip(self) -> None:
        clip = self.run.training.clip
        if clip is None:
            return
        # a hook may compare the gradients of its own parameters with a price in units of the loss
        others = {id(one) for hook in self.hooks for one in hook.trained_parameters()}
        parameters = [one for one in self.run.model.parameters() if id(one) not in others]
        dense = [one for one in parameters if one.grad is not None and not one.grad.is_sparse]
        nn.utils.clip_grad_norm_(dense, clip)

    def _why_not_finite(self, loss: float, explain: Callable[[], str]) -> str:
        place = f"at step {self.run.step + 1}, with a learning rate of {self.rate:g}"
        if math.isfinite(loss):
            return (
                f"The loss of another rank is not finite {place}. The message of that rank "
                "contains more."
            )
        details = explain()
        if details:
            details += " "
        return f"The loss is {loss} {place}. {details}Lower lr=, or set clip=."

    def _rate_factor(self, step: int) -> float:
        """Return the factor of the learning rate at a step: of the warm-up and of the schedule."""
        training = self.run.training
        last = self.run.steps
        rising = 1.0
        if training.warmup:
            rising = min(1.0, (step + 1) / training.warmup)
        done = 0.0
        if last is not None:
            done = min(1.0, max(0, step - training.warmup) / max(1, last - training.warmup))
        falling = {
            "constant": 1.0,
            "linear": 1 - done,
            "cosine": 0.5 * (1 + math.cos(math.pi * done)),
        }
        return rising * falling[training.schedule]

    @property
    def rate(self) -> float:
        """Return the learning rate of the first group."""
        rate: float = self.optimizers[0].param_groups[0]["lr"]
        return rate

    def take_mean_loss(self) -> float:
        """Return the mean loss since the last call, 0 without a step, and forget these losses."""
        mean = sum(self.losses) / max(1, len(self.losses))
        self.losses.clear()
        return mean

    # The state of the model between two steps

    def update_weights(self) -> None:
        """Bring all weights and buffers up to date, before anything but a step reads them."""
        for optimizer in self.optimizers:
            if isinstance(optimizer, LazyAdam):
                optimizer.settle()
        self.share_buffers()

    @contextmanager
    def weights_to_evaluate(self) -> Iterator[None]:
        """Let the model have the weights that count: the average, if the settings ask for it."""
        self.update_weights()
        if self.average is None:
            yield
            return
        with self.average.in_place():
            self.share_buffers()
            yield

    def share_buffers(self) -> None:
        """Give all ranks the first one's buffers, as DDP does before the next step anyway.

        Such buffers are the statistics of batch norm. Gates synchronise theirs themselves.
        """
        if ranks.count() == 1:
            return
        for module in self.run.model.modules():
            if not isinstance(module, LeAP):
                for buffer in module.buffers(recurse=False):
                    ranks.broadcast(buffer)

    def release(self) -> None:
        """Remove the hooks that the optimizers have put on the model."""
        for optimizer in self.optimizers:
            if isinstance(optimizer, LazyAdam):
                optimizer.release()

    def stateful_hooks(self) -> list[Hook]:
        """Return the hooks that a checkpoint saves, the same on all ranks.

        Others, which only watch, may differ between a run and its resumption.
        """
        return [hook for hook in self.all_hooks if hook.state_dict()]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of everything but the model."""
        return {
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "schedules": [schedule.state_dict() for schedule in self.schedules],
            "hooks": [hook.state_dict() for hook in self.stateful_hooks()],
            "losses": list(self.losses),
            "average": None if self.average is None else self.average.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned, each part only if it fits."""
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            restore_optimizer(optimizer, saved)
        for schedule, saved in zip(self.schedules, state["schedules"], strict=True):
            schedule.load_state_dict(saved)
        for hook, saved in zip(self.stateful_hooks(), state["hooks"], strict=True):
            hook.load_state_dict(saved)
        self.losses = [float(loss) for loss in state["losses"]]
        if self.average is not None:
            self.average.load_state_dict(state["average"])


def _combined(loss: float, flags: Flags) -> tuple[float, Flags]:
    """Return the mean loss over ranks and the flags set on any, in one small collective."""
    if ranks.count() == 1:
        return loss, flags
    mean, *found = ranks.average(torch.tensor([loss, *flags], dtype=torch.float64)).tolist()
    return mean, tuple(value > 0 for value in found)


def is_distributed(model: nn.Module) -> bool:
    """Return whether the model is wrapped in DDP or sharded, and so handles ranks itself."""
    wrapped = any(isinstance(module, DistributedDataParallel) for module in model.modules())
    return wrapped or any(hasattr(parameter, "full_tensor") for parameter in model.parameters())


def optimizers_for(
    model: nn.Module, training: Training, *, except_for: Sequence[nn.Parameter] = ()
) -> list[Optimizer]:
    """Return Adam for the weights, and LazyAdam for tables with sparse gradients.

    Both do the same to a weight; LazyAdam at the cost of the rows of a batch.

    Args:
        model: The model.
        training: The settings; only the learning rate and the weight decay have an effect.
        except_for: Parameters that others train.
    """
    others = {id(parameter) for parameter in except_for}
    trained = {
        id(parameter): parameter
        for parameter in model.parameters()
        if parameter.requires_grad and id(parameter) not in others
    }
    sparse = [module for module in model.modules() if is_sparse_table(module)]
    tables = [table for table in sparse if id(table.get_parameter("weight")) in trained]
    in_tables = {id(table.get_parameter("weight")) for table in tables}
    dense = [parameter for key, parameter in trained.items() if key not in in_tables]
    found: list[Optimizer] = []
    if dense:
        found.append(Adam(dense, lr=training.lr, weight_decay=training.weight_decay, fused=True))
    if tables:
        found.append(LazyAdam(tables, lr=training.lr))
    if not found:
        raise TrainingError("The model has nothing to train: no parameter requires a gradient.")
    return found
