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


@dataclass(frozen=True)
class LeAP(Method):
    """Gates that mix each field with a shuffled copy of itself, priced by the field's permutation divergence.

    Args:
        strength: Closing pressure without units, see `GateOptimizer`; None is the paper's penalty with weight `alpha`.
        lr: Of the gates; None lets a useless one close within two or three epochs, whatever the number of steps.
        gates_on: "valid" takes a step of the gates on validation rows after each of the model's, as the released code does; over
            several epochs, gates that learn from train rows keep what helps the model memorise. "train" learns from the same
            batch as the model: for a stream that is seen once.
        warmup: Share of the first epoch in which the gates stay open.
    """

    strength: float | None = 0.4
    alpha: float = 1e-3
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


class GateSteps(Hook):
    """Trains the gates beside the model."""

    def __init__(self, plugin: Plugin, method: LeAP, search: Search) -> None:
        self.plugin = plugin
        self.method = method
        self.optimizer: torch.optim.Optimizer
        lr = method.lr or self._lr(steps_of(search), 1.0 if method.strength is None else method.strength)
        if method.strength is None:
            self.optimizer = torch.optim.Adam([plugin.gates.theta], lr=lr, fused=True)
        else:
            self.optimizer = plugin.optimizer(strength=method.strength, lr=lr)
        self.batches = valid_batches(search)
        self.valid = without_end(self.batches)
        self.scores: Scores = {}

    def _lr(self, steps: int, pressure: float) -> float:
        """A useless gate falls by lr * pressure a step, and has to fall by 1."""
        return min(2e-2, max(5e-4, 1 / (2 * steps * max(pressure, 0.1))))

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

    def at_end(self, run: Run) -> None:
        """The gates as they are at last, not at the model's best look."""
        self.scores = self.plugin.scores()

    def state_dict(self) -> dict[str, Any]:
        """The optimizer of the gates, and the place among the validation rows."""
        return {"optimizer": self.optimizer.state_dict(), "batches": self.batches.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.batches.load_state_dict(state["batches"])
        self.valid = without_end(self.batches)
