"""FieldGates and hooks that train them: the base of methods that multiply fields by gates."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from ..distributed import ranks
from ..training.fit import Hook, Run
from ..training.states import restore_optimizer
from .base import Scores, Search, put_before_net, valid_batches, without_end


class FieldGates(nn.Module):
    """A layer that multiplies each field, of any width, by its gate.

    **Shape**: (B, D) -> (B, D)
    """

    def __init__(self, search: Search) -> None:
        super().__init__()
        self.register_buffer("field_of", search.column_field())  # (D,)

    def forward(self, x: Tensor) -> Tensor:
        """Return the input, with all columns of a field multiplied by one gate."""
        return x * self.gates(x).index_select(-1, self.get_buffer("field_of"))

    def gates(self, x: Tensor) -> Tensor:
        """Return the gates of a batch, (F,), or (B, F) where each row has its own."""
        raise NotImplementedError

    def field_scores(self) -> Tensor:
        """Return the numbers by which the fields are ranked, (F,)."""
        raise NotImplementedError

    def penalty(self) -> Tensor | None:
        """Return the term that the gates add to the loss; None adds nothing."""
        return None


class GateHook(Hook):
    """Train gates with an optimizer of their own, on the gradients of the model's batches.

    The scores are those of the last step, not those at the model's best evaluation.

    Args:
        search: The search that trains the model.
        layer: The layer with the gates, which is part of the model.
        parameters: The parameters of the gates.
        lr: The learning rate of Adam; None is the model's.
        optimizer: Another optimizer of the gates; None is Adam.

    Attributes:
        scores: The scores at the end of training; empty before.
    """

    def __init__(
        self,
        search: Search,
        layer: FieldGates,
        parameters: list[nn.Parameter],
        *,
        lr: float | None = None,
        optimizer: Optimizer | None = None,
    ) -> None:
        self.search = search
        self.layer = layer
        self.parameters = parameters
        if lr is None:
            lr = search.training.lr
        self.optimizer = optimizer or Adam(parameters, lr=lr)
        self.scores: Scores = {}

    def trained_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the gates."""
        return self.parameters

    def penalty(self, loss: Tensor) -> Tensor | None:
        """Return the penalty of the layer."""
        return self.layer.penalty()

    def after_step(self, run: Run) -> None:
        """Move the gates by the gradients of the model's batch."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def current_scores(self, run: Run) -> Scores:
        """Return the scores at this step."""
        return self.search.by_field(self.layer.field_scores())

    def after_eval(self, run: Run, record: dict[str, float]) -> None:
        """Add the scores to the record."""
        scores = self.current_scores(run)
        record.update({f"gate_{name}": score for name, score in scores.items()})

    def at_end(self, run: Run) -> None:
        """Keep the scores of the last step."""
        self.scores = self.current_scores(run)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer of the gates."""
        return {"optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the optimizer of the gates."""
        restore_optimizer(self.optimizer, state["optimizer"])


class HeldOutGateHook(GateHook):
    """Train gates on validation rows, once in several steps of the model.

    Args:
        every: Steps of the model between two steps of the gates.
        wait: Steps of the model before the first step of the gates.
    """

    parameters_always_used = False

    def __init__(
        self,
        search: Search,
        layer: FieldGates,
        parameters: list[nn.Parameter],
        *,
        lr: float,
        every: int,
        wait: int = 0,
    ) -> None:
        super().__init__(search, layer, parameters, lr=lr)
        self.every = every
        self.wait = wait
        self.batches = valid_batches(search)
        self.valid = without_end(self.batches)

    def after_step(self, run: Run) -> None:
        """Move the gates if this is one of their steps."""
        if run.step <= self.wait or run.step % self.every:
            return
        batch = next(self.valid)
        loss = self.search.task.objective.loss(run.model(*batch.inputs), batch.label)
        # This replaces the gradients of the train batches at the gates, and does not compute those
        # of the model.
        gradients = torch.autograd.grad(loss, self.parameters)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = ranks.average(gradient)
        self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer, and the position among the validation rows."""
        return {**super().state_dict(), "batches": self.batches.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the optimizer and the position among the validation rows."""
        super().load_state_dict(state)
        self.batches.load_state_dict(state["batches"])
        self.valid = without_end(self.batches)


def train_gates(search: Search, layer: FieldGates, *, lr: float | None) -> Scores:
    """Train a model together with gates that learn from its own batches, and return their scores.

    Args:
        search: The search that trains the model.
        layer: The layer with the gates.
        lr: The learning rate of the gates; None is the model's.
    """
    model = search.model()
    put_before_net(model, layer)
    hook = GateHook(search, layer, list(layer.parameters()), lr=lr)
    search.fit(model, hook)
    return hook.scores
