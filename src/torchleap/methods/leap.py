"""LeAP as a method, with gates that learn from validation rows or from the model's own batches."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from .._common.checks import is_whole
from ..data.task import Batch
from ..gates.settings import Divergence
from ..plugin import Plugin, attach
from ..training.fit import Hook, Run
from ..training.states import check_tensors, expect, restore_optimizer
from .base import Method, Scores, Search, valid_batches, without_end

BY_MEAN = 0.01  # of a score is the mean gate over all steps: closed gates are all the same number
WAY = 1.6  # of theta from its start to a closed gate, 0.05


@dataclass(frozen=True)
class LeAPMethod(Method):
    """Gates that mix each field with a shuffled copy of itself, priced by the field's permutation divergence.

    Args:
        strength: Closing pressure without units, see `GateOptimizer`, which rises from 0 so that fields close one after the
            other, the least useful first; None is the paper's penalty with weight `alpha`.
        optimism: How much it counts against a field that it helps on train rows more than on validation rows, see
            `GateOptimizer`; for `gates_on="valid"` with a strength.
        lr: Of the gates; None is 1e-3, which gives the model some thousand steps to learn what a field is for before a useless
            one is closed, or more if there are few steps: a useless gate then closes at three quarters.
        gates_on: "valid" takes a step of the gates on validation rows after each of the model's, as the released code does; over
            several epochs, gates that learn from train rows keep what helps the model memorise. "train" learns from the same
            batch as the model: for a stream that is seen once, where every row is new. "auto" is "train" for a single epoch.
        warmup: Share of the first epoch in which the gates stay open.
    """

    strength: float | None = 0.4
    alpha: float = 1e-3
    optimism: float = 0.25
    lr: float | None = None
    gates_on: Literal["auto", "valid", "train"] = "auto"
    divergence: Divergence = "rms"
    normalize: bool = False
    adaptive: bool = True
    warmup: float = 0.0

    def _once(self, search: Search) -> bool:
        """Whether the gates learn from the model's own batches."""
        return self.gates_on == "train" or (self.gates_on == "auto" and search.training.epochs == 1)

    def score(self, search: Search) -> Scores:
        """The gates at the end of training."""
        model = search.model()
        steps = steps_of(search)
        plugin = attach(
            model,
            search.task.fields,
            at="net",
            alpha=self.alpha,
            divergence=self.divergence,
            normalize=self.normalize,
            adaptive=self.adaptive,
            warmup=int(self.warmup * steps * (1 if self._once(search) else 2)),
            seed=search.seed,
        )
        hook = GateSteps(plugin, self, search, on_train=self._once(search))
        search.fit(model, hook)
        return hook.scores


@dataclass(frozen=True)
class LeAPBaseMethod(LeAPMethod):
    """The base version: the same price for every field (ShuffleGate)."""

    strength: float | None = None
    divergence: Divergence = "mean"
    adaptive: bool = False


def steps_of(search: Search) -> int:
    """Steps of an epoch."""
    return -(-len(search.task.train) // search.training.batch)


def planned_steps(search: Search) -> int:
    """Steps of the whole training, at most."""
    steps = search.training.epochs * steps_of(search)
    return min(steps, search.training.steps or steps)


class GateSteps(Hook):
    """Trains the gates beside the model."""

    def __init__(
        self, plugin: Plugin, method: LeAPMethod, search: Search, *, on_train: bool
    ) -> None:
        self.plugin = plugin
        self.method = method
        self.on_train = on_train
        self.optimizer: torch.optim.Optimizer
        pressure = (
            1.0 if method.strength is None else max(method.strength, 0.1)
        )  # Adam makes a step of any price
        planned = planned_steps(search)
        lr = method.lr or min(5e-2, max(1e-3, 2 * WAY / (pressure * 0.75 * planned)))
        self.rise = min(WAY / (lr * pressure), planned / 2) if method.strength is not None else 0.0
        if method.strength is None:
            self.optimizer = torch.optim.Adam([plugin.gates.theta], lr=lr, fused=True)
        else:
            self.optimizer = plugin.optimizer(
                strength=method.strength, lr=lr, optimism=method.optimism
            )
        self.closing = self.rise / 2 + WAY / (lr * pressure)
        self.total = torch.zeros_like(plugin.gates.theta.detach())
        self.steps = 0
        self.batches = valid_batches(search)
        self.valid = without_end(self.batches)
        self.scores: Scores = {}

    def own_parameters(self) -> list[nn.Parameter]:
        """The gates."""
        return [self.plugin.gates.theta]

    def penalty(self, loss: Tensor) -> Tensor | None:
        """The price of open gates, where they learn from the model's own batch."""
        return self._price() if self.on_train else None

    def _price(self) -> Tensor | None:
        return self.plugin.penalty() if self.method.strength is None else None

    def after_step(self, run: Run) -> None:
        """Move the gates, against a pressure that has risen a little."""
        if self.rise:
            assert self.method.strength is not None
            self.optimizer.param_groups[0]["strength"] = self.method.strength * min(
                1.0, run.step / self.rise
            )
        if self.on_train:
            self.optimizer.step()
            self.optimizer.zero_grad()
        else:
            self._step_on(next(self.valid), run.model)
        self.total += self.plugin.gates.gate().detach()
        self.steps += 1

    def _step_on(self, batch: Batch, model: nn.Module) -> None:
        with self.plugin.held_out():
            loss = binary_cross_entropy_with_logits(model(*batch.inputs), batch.label)
            price = self._price()
            (loss if price is None else loss + price).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()

    def after_eval(self, run: Run, record: dict[str, float]) -> None:
        """Remember the gates."""
        record.update({f"gate_{name}": score for name, score in self.plugin.scores().items()})

    def settled(self, run: Run) -> bool:
        """Whether a useless gate has had the time to close: the metric may stand still while it is on its way."""
        return run.step >= self.closing

    def at_end(self, run: Run) -> None:
        """The gates as they are at last, not at the model's best look; of closed ones, the last to close comes first."""
        mean = (self.total / max(1, self.steps))[self.plugin.gates.field_gate].tolist()
        last = self.plugin.scores().items()
        self.scores = {
            name: (1 - BY_MEAN) * gate + BY_MEAN * own
            for (name, gate), own in zip(last, mean, strict=True)
        }

    def state_dict(self) -> dict[str, Any]:
        """The optimizer of the gates, and the place among the validation rows."""
        gates = {"total": self.total, "steps": self.steps}
        return {
            "optimizer": self.optimizer.state_dict(),
            "batches": self.batches.state_dict(),
            **gates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on."""
        restore_optimizer(self.optimizer, state["optimizer"])
        self.batches.load_state_dict(state["batches"])
        self.valid = without_end(self.batches)
        check_tensors({"total": state["total"]}, {"total": self.total}, "the gates")
        expect(is_whole(state["steps"]), f"the steps of the gates are {state['steps']!r:.40}")
        self.total, self.steps = state["total"], state["steps"]
