"""LeAP as a method, with gates that learn from validation rows or from the model's own batches."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ..plugin import Plugin, attach
from ..settings import Divergence
from ..train import Hook, Run
from .base import Method, Scores, Search, valid_batches, without_end

BY_MEAN = 0.01  # of a score is the mean gate over the looks: closed gates are all the same number
WAY = 1.6  # of theta from its start to a closed gate, 0.05


@dataclass(frozen=True)
class LeAP(Method):
    """Gates that mix each field with a shuffled copy of itself, priced by the field's permutation divergence.

    Args:
        strength: Closing pressure without units, see `GateOptimizer`; None is the paper's penalty with weight `alpha`.
        optimism: How much it counts against a field that it helps on train rows more than on validation rows, see
            `GateOptimizer`; for `gates_on="valid"` with a strength.
        lr: Of the gates; None is 1e-3, which gives the model some thousand steps to learn what a field is for before a useless
            one is closed, or more if there are few steps: a useless gate then closes half way.
        gates_on: "valid" takes a step of the gates on validation rows after each of the model's, as the released code does; over
            several epochs, gates that learn from train rows keep what helps the model memorise. "train" learns from the same
            batch as the model: for a stream that is seen once.
        warmup: Share of the first epoch in which the gates stay open.
    """

    strength: float | None = 0.4
    alpha: float = 1e-3
    optimism: float = 0.25
    lr: float | None = None
    gates_on: Literal["valid", "train"] = "valid"
    divergence: Divergence = "rms"
    normalize: bool = False
    adaptive: bool = True
    warmup: float = 0.0

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
            warmup=int(self.warmup * steps * (2 if self.gates_on == "valid" else 1)),
            seed=search.seed,
        )
        hook = GateSteps(plugin, self, search)
        search.fit(model, hook)
        return hook.scores


@dataclass(frozen=True)
class LeAPBase(LeAP):
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

    def __init__(self, plugin: Plugin, method: LeAP, search: Search) -> None:
        self.plugin = plugin
        self.method = method
        self.optimizer: torch.optim.Optimizer
        pressure = 1.0 if method.strength is None else max(method.strength, 0.1)  # Adam makes a step of any price
        lr = method.lr or min(2e-2, max(1e-3, 2 * WAY / (pressure * planned_steps(search))))
        if method.strength is None:
            self.optimizer = torch.optim.Adam([plugin.gates.theta], lr=lr, fused=True)
        else:
            self.optimizer = plugin.optimizer(strength=method.strength, lr=lr, optimism=method.optimism)
        self.closing = WAY / (lr * pressure)
        self.batches = valid_batches(search)
        self.valid = without_end(self.batches)
        self.scores: Scores = {}

    def own_parameters(self) -> list[nn.Parameter]:
        """The gates."""
        return [self.plugin.gates.theta]

    def penalty(self, loss: Tensor) -> Tensor | None:
        """The price of open gates, where they learn from the model's own batch."""
        return self._price() if self.method.gates_on == "train" else None

    def _price(self) -> Tensor | None:
        return self.plugin.penalty() if self.method.strength is None else None

    def after_step(self, run: Run) -> None:
        """Move the gates."""
        if self.method.gates_on == "train":
            self.optimizer.step()
            self.optimizer.zero_grad()
            return
        batch = next(self.valid)
        with self.plugin.held_out():
            loss = binary_cross_entropy_with_logits(run.model(*batch.inputs), batch.label)
            price = self._price()
            (loss if price is None else loss + price).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()

    def after_look(self, run: Run, record: dict[str, float]) -> None:
        """Remember the gates."""
        record.update({f"gate_{name}": score for name, score in self.plugin.scores().items()})

    def settled(self, run: Run) -> bool:
        """Whether a useless gate has had the time to close: the metric may stand still while it is on its way."""
        return run.step >= self.closing

    def at_end(self, run: Run) -> None:
        """The gates as they are at last, not at the model's best look; of closed ones, the last to close comes first."""
        last = self.plugin.scores()
        looks = [record for record in run.history if f"gate_{next(iter(last))}" in record]
        mean = {name: sum(look[f"gate_{name}"] for look in looks) / max(1, len(looks)) for name in last}
        self.scores = {name: (1 - BY_MEAN) * gate + BY_MEAN * mean[name] for name, gate in last.items()}

    def state_dict(self) -> dict[str, Any]:
        """The optimizer of the gates, and the place among the validation rows."""
        return {"optimizer": self.optimizer.state_dict(), "batches": self.batches.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.batches.load_state_dict(state["batches"])
        self.valid = without_end(self.batches)
