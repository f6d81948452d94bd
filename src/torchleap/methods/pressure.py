"""LeAP with a pressure without units or the paper's penalty, and LeAP-Base."""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from ..gates.settings import Divergence
from ..gates.trainer import GateTrainer
from ..plugin import attach
from ..training.fit import Hook, Run
from .base import GateMethod, Scores, Search, valid_batches, without_end


@dataclass(frozen=True)
class PressureMethod(GateMethod):
    """Gates that mix each field with a shuffled copy of itself, trained by a `GateTrainer`.

    Its scores are gates, which say whether a field is needed; they do not order the needed ones
    by their worth, as `LeAPMethod` does.

    Args:
        strength: The pressure without units, which rises from 0 so that fields close one after the
            other, the least useful first; None is the paper's penalty with weight `alpha`.
        alpha: The weight of the paper's penalty.
        optimism: How much it counts against a field that it helps on train rows more than on
            validation rows; for `gates_on="valid"` with a strength.
        lr: The learning rate of the gates; None derives it from the planned steps.
        gates_on: "valid" takes a step of the gates on validation rows after each of the model's,
            as the released code does: over several epochs, gates that learn from train rows keep
            fields that help the model to memorise. "train" learns from the same batch as the
            model: for a stream that is seen once, where every row is new. "auto" is "train" for a
            single epoch.
        divergence: "rms", or the paper's "mean", see `LeAP`.
        normalize: Whether the divergence is measured in units of the field's own values.
        adaptive: Whether the penalty of each gate is scaled by its divergence.
        warmup: The fraction of the first epoch in which the gates stay open.
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

    def score(self, search: Search) -> Scores:
        """Return the gates at the end of training, with a small part of their mean."""
        model = search.model()
        on_train = self._learns_on_train(search)
        batches_per_step = 1 if on_train else 2
        plugin = attach(
            model,
            search.task.fields,
            at="net",
            alpha=self.alpha,
            divergence=self.divergence,
            normalize=self.normalize,
            adaptive=self.adaptive,
            warmup=int(self.warmup * search.steps_per_epoch * batches_per_step),
            seed=search.seed,
        )
        trainer = plugin.trainer(
            steps=search.planned_steps,
            strength=self.strength,
            lr=self.lr or None,
            optimism=self.optimism,
        )
        hook = GateSteps(trainer, search, on_train=on_train)
        search.fit(model, hook)
        return hook.scores

    def _learns_on_train(self, search: Search) -> bool:
        """Return whether the gates learn from the model's own batches."""
        if self.gates_on == "auto":
            return search.training.epochs == 1
        return self.gates_on == "train"


@dataclass(frozen=True)
class LeAPBaseMethod(PressureMethod):
    """The base version, which is ShuffleGate: the same price for every field."""

    strength: float | None = None
    divergence: Divergence = "mean"
    adaptive: bool = False


class GateSteps(Hook):
    """Train the gates beside the model, after each of its steps.

    Args:
        trainer: The trainer of the gates.
        search: The search whose validation rows the gates may learn from.
        on_train: Whether they learn from the model's own batches instead.
    """

    def __init__(self, trainer: GateTrainer, search: Search, *, on_train: bool) -> None:
        self.trainer = trainer
        self.objective = search.task.objective
        self.on_train = on_train
        self.batches = valid_batches(search)
        self.valid = without_end(self.batches)
        self.scores: Scores = {}

    def trained_parameters(self) -> list[nn.Parameter]:
        """Return the parameter of the gates."""
        return [self.trainer.gates.theta]

    def penalty(self, loss: Tensor) -> Tensor | None:
        """Return the paper's penalty, where gates learn from the model's own batch."""
        if self.on_train:
            return self.trainer.penalty()
        return None

    def after_step(self, run: Run) -> None:
        """Move the gates."""
        if self.on_train:
            self.trainer.step()
            return
        batch = next(self.valid)
        self.trainer.step(lambda: self.objective.loss(run.model(*batch.inputs), batch.label))

    def after_eval(self, run: Run, record: dict[str, float]) -> None:
        """Add the gates to the record."""
        gates = self.trainer.gates.scores()
        record.update({f"gate_{name}": score for name, score in gates.items()})

    def settled(self, run: Run) -> bool:
        """Return whether a useless gate has had the time to close."""
        return self.trainer.has_settled

    def at_end(self, run: Run) -> None:
        """Keep the scores of the last step, not those at the model's best evaluation."""
        self.scores = self.trainer.scores()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the trainer, and the position among the validation rows."""
        return {**self.trainer.state_dict(), "batches": self.batches.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the trainer and the position among the validation rows."""
        self.trainer.load_state_dict(state)
        self.batches.load_state_dict(state["batches"])
        self.valid = without_end(self.batches)
