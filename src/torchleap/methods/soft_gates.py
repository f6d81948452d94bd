"""Gates that multiply each field and are smooth to train: AutoField, STG and variational dropout."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim import Adam, Optimizer

from ..distributed import ranks
from ..training.fit import Hook, Run
from ..training.states import restore_optimizer
from .base import Method, Scores, Search, put_before_net, valid_batches, without_end


@dataclass(frozen=True)
class AutoField(Method):
    """A keep and a drop logit for each field, which learn from validation rows through Gumbel noise (Wang et al. 2022).

    Args:
        lr: Of the logits.
        every: Steps of the model between two steps of the logits.
        decay: How much the temperature falls with each step of the model, from 1.
        coldest: Where the temperature stops.
        as_published: Let every look at the validation rows draw noise and lower the temperature as well, as the public code does.
    """

    lr: float = 1e-3
    every: int = 10
    decay: float = 5e-5
    coldest: float = 0.01
    as_published: bool = False

    def score(self, search: Search) -> Scores:
        """The keep logits at the end of training."""
        model = search.model()
        layer = KeepOrDrop(search, self)
        put_before_net(model, layer)
        hook = AutoFieldSteps(search, layer, lr=self.lr, every=self.every)
        search.fit(model, hook)
        return hook.scores


@dataclass(frozen=True)
class STG(Method):
    """Stochastic gates: a Gaussian for each field, clamped to [0, 1], and a price for the chance to be open (Yamada et al. 2020).

    Args:
        weight: Of the mean chance to be open, in the loss.
        deviation: Of the noise on each gate.
        lr: Of the gates; None is the model's.
    """

    weight: float = 0.1
    deviation: float = 0.5  # sigma
    lr: float | None = None

    def score(self, search: Search) -> Scores:
        """The means at the end of training."""
        return scores_of_gates(search, GaussianGates, self, self.lr)


@dataclass(frozen=True)
class VariationalDropout(Method):
    """A drop probability for each field, with noise that can be differentiated and a price for keeping (as in EasyRec).

    Args:
        weight: Of the sum of the keep probabilities, divided by the batch size.
        temperature: Of the noise; the lower, the closer each gate is to 0 or 1.
        lr: Of the probabilities; None is the model's.
    """

    weight: float = 0.01
    temperature: float = 0.1
    lr: float | None = None

    def score(self, search: Search) -> Scores:
        """The keep probabilities at the end of training."""
        return scores_of_gates(search, DropGates, self, self.lr)


class FieldGates(nn.Module):
    """Multiplies each field, of any width, by its gate.

    Shape: (B, D) -> (B, D)
    """

    def __init__(self, search: Search) -> None:
        super().__init__()
        self.register_buffer("field_of", search.column_field())  # (D,)

    def forward(self, x: Tensor) -> Tensor:
        """One gate for all columns of a field."""
        return x * self.gates(x).index_select(-1, self.get_buffer("field_of"))

    def gates(self, x: Tensor) -> Tensor:
        """The gates of a batch, (F,), or (B, F) where each row has its own."""
        raise NotImplementedError

    def worth(self) -> Tensor:
        """What the fields are ranked by, (F,)."""
        raise NotImplementedError

    def penalty(self) -> Tensor | None:
        """What the gates add to the loss."""
        return None


class KeepOrDrop(FieldGates):
    """AutoField's gates: the keep half of a softmax over two logits, with Gumbel noise in training."""

    def __init__(self, search: Search, method: AutoField) -> None:
        super().__init__(search)
        self.method = method
        self.logits = nn.Parameter(torch.full((len(search.task.fields), 2), 0.5))  # drop, keep
        # a buffer, so that a checkpoint keeps it and a compiled model does not take it for a constant
        self.register_buffer("step", torch.zeros(()))

    @property
    def temperature(self) -> Tensor:
        """It falls with the steps of the model."""
        return (1 - self.method.decay * self.get_buffer("step")).clamp_min(self.method.coldest)

    def gates(self, x: Tensor) -> Tensor:
        """The keep probabilities."""
        published = self.method.as_published
        if published:
            self.get_buffer("step").add_(1)
        noisy = self.logits + self._gumbel() if self.training or published else self.logits
        return torch.softmax(noisy / self.temperature, dim=1)[:, 1]

    def _gumbel(self) -> Tensor:
        return -torch.empty_like(self.logits).exponential_().log()

    def worth(self) -> Tensor:
        """The keep logits."""
        return self.logits[:, 1]


class GaussianGates(FieldGates):
    """STG's gates, one draw for a batch; half open in the beginning."""

    def __init__(self, search: Search, method: STG) -> None:
        super().__init__(search)
        self.method = method
        self.mean = nn.Parameter(torch.zeros(len(search.task.fields)))  # mu

    def gates(self, x: Tensor) -> Tensor:
        """Noise in training alone."""
        noise = self.method.deviation * torch.randn_like(self.mean) if self.training else 0.0
        return (self.mean + 0.5 + noise).clamp(0, 1)

    def penalty(self) -> Tensor:
        """The mean chance of a gate to be open."""
        chances: Tensor = torch.special.ndtr((self.mean + 0.5) / self.method.deviation)
        return self.method.weight * chances.mean()

    def worth(self) -> Tensor:
        """The means."""
        return self.mean


class DropGates(FieldGates):
    """Gates of variational dropout, drawn for each row; a field is dropped with chance 1/2 in the beginning."""

    def __init__(self, search: Search, method: VariationalDropout) -> None:
        super().__init__(search)
        self.method = method
        self.batch = search.training.batch
        self.drop = nn.Parameter(torch.zeros(len(search.task.fields)))  # w, a logit

    def gates(self, x: Tensor) -> Tensor:
        """Nearly 0 or 1 in training, the keep probabilities otherwise."""
        if not self.training:
            return torch.sigmoid(-self.drop)
        noise = torch.logit(torch.rand(len(x), len(self.drop), device=x.device), eps=1e-7)
        return torch.sigmoid(-(self.drop + noise) / self.method.temperature)  # (B, F)

    def penalty(self) -> Tensor:
        """The sum of the keep probabilities; its weight falls with the batch, as if it belonged to the loss of a single row."""
        return self.method.weight / self.batch * torch.sigmoid(-self.drop).sum()

    def worth(self) -> Tensor:
        """The keep probabilities."""
        return torch.sigmoid(-self.drop)


class GateHook(Hook):
    """Trains gates with an Adam of their own on the model's batches, and scores them as they are at last.

    Args:
        lr: None is the model's.
    """

    def __init__(
        self,
        search: Search,
        layer: FieldGates,
        parameters: list[nn.Parameter],
        *,
        lr: float | None = None,
    ) -> None:
        self.search = search
        self.layer = layer
        self.parameters = parameters
        self.optimizer: Optimizer = Adam(parameters, lr=search.training.lr if lr is None else lr)
        self.scores: Scores = {}

    def trained_parameters(self) -> list[nn.Parameter]:
        """The gates."""
        return self.parameters

    def penalty(self, loss: Tensor) -> Tensor | None:
        """The price of open gates."""
        return self.layer.penalty()

    def after_step(self, run: Run) -> None:
        """Move the gates by the gradients of the model's batch."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def worth(self, run: Run) -> Scores:
        """The scores at this moment."""
        return self.search.by_field(self.layer.worth())

    def after_eval(self, run: Run, record: dict[str, float]) -> None:
        """Remember the scores."""
        record.update({f"gate_{name}": score for name, score in self.worth(run).items()})

    def at_end(self, run: Run) -> None:
        """The gates as they are at last, not at the model's best look."""
        self.scores = self.worth(run)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer of the gates."""
        return {"optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on."""
        restore_optimizer(self.optimizer, state["optimizer"])


class HeldOutSteps(GateHook):
    """Trains gates on validation rows, once in so many steps of the model.

    Args:
        wait: Steps of the model before the first one of the gates.
    """

    parameters_always_used = False

    def __init__(
        self,
        search: Search,
        layer: FieldGates,
        parameters: list[nn.Parameter],
        *,
        lr: float | None = None,
        every: int = 10,
        wait: int = 0,
    ) -> None:
        super().__init__(search, layer, parameters, lr=lr)
        self.every = every
        self.wait = wait
        self.batches = valid_batches(search)
        self.endless = without_end(self.batches)

    def after_step(self, run: Run) -> None:
        """Move the gates, if it is time."""
        if run.step <= self.wait or run.step % self.every:
            return
        batch = next(self.endless)
        loss = binary_cross_entropy_with_logits(run.model(*batch.inputs), batch.label)
        # what the train batches have left at the gates is replaced, and the model's own gradients are not computed
        for parameter, gradient in zip(
            self.parameters, torch.autograd.grad(loss, self.parameters), strict=True
        ):
            parameter.grad = ranks.average(gradient)
        self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """The optimizer, and the place among the validation rows."""
        return {**super().state_dict(), "batches": self.batches.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on."""
        super().load_state_dict(state)
        self.batches.load_state_dict(state["batches"])
        self.endless = without_end(self.batches)


class AutoFieldSteps(HeldOutSteps):
    """Trains the logits, and lets the temperature fall."""

    layer: KeepOrDrop

    def __init__(self, search: Search, layer: KeepOrDrop, *, lr: float, every: int) -> None:
        super().__init__(search, layer, [layer.logits], lr=lr, every=every)

    def after_step(self, run: Run) -> None:
        """The temperature of the next step depends on the steps of the model, and on nothing else."""
        super().after_step(run)
        if not self.layer.method.as_published:
            self.layer.get_buffer("step").fill_(run.step)


def scores_of_gates(search: Search, kind: Any, method: Method, lr: float | None) -> Scores:
    """Train a model together with gates that learn from its own batches."""
    model = search.model()
    layer: FieldGates = kind(search, method)
    put_before_net(model, layer)
    hook = GateHook(search, layer, list(layer.parameters()), lr=lr)
    search.fit(model, hook)
    return hook.scores
