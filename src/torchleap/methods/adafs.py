"""AdaFS (Lin et al. 2022): a controller that weighs the fields of each row."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .._common.checks import setting
from ..models import Ranker
from ..training.fit import Run, large_batch
from .base import Method, Scores, Search, put_before_net
from .field_gates import FieldGates, HeldOutGateHook


@dataclass(frozen=True)
class AdaFS(Method):
    """A small network that weighs the fields of each row, trained on validation rows.

    It was designed to weigh rows, not to rank fields: the network behind it can make up for any
    weight, a constant field gets one by chance, and the metric on validation rows is that of rows
    from which the controller has learned.

    Args:
        keep: The fraction of the fields that each row keeps, those with the largest weights; None
            keeps all of them, with their weights (soft).
        pretraining: Epochs in which the model learns with all weights at 1.
        lr: The learning rate of the controller.
        every: Steps of the model between two steps of the controller.
        dropout: The probability of dropout in the controller.
    """

    keep: float | None = None
    pretraining: int = 2
    lr: float = 1e-3
    every: int = setting(10, at_least=1)
    dropout: float = 0.2

    def score(self, search: Search) -> Scores:
        """Return the mean weights over the validation rows at the end of training."""
        model = search.model()
        layer = RowWeights(search, self)
        put_before_net(model, layer)
        hook = AdaFSHook(search, layer, self)
        search.fit(model, hook)
        return hook.scores


class RowWeights(FieldGates):
    """A layer that normalises the columns and weighs the fields of each row.

    The weights of a row have mean 1.

    **Shape**: (B, D) -> (B, D)
    """

    def __init__(self, search: Search, method: AdaFS) -> None:
        super().__init__(search)
        fields = search.task.fields
        self.kept: int | None = None
        if method.keep is not None:
            self.kept = max(1, int(method.keep * len(fields)))
        # Normalised and without a learned scale, no embedding can grow to make up for a weight.
        self.norm = nn.BatchNorm1d(fields.dims, affine=False)
        linear = nn.Linear(fields.dims, len(fields))
        nn.init.xavier_normal_(linear.weight)
        nn.init.zeros_(linear.bias)
        self.controller = nn.Sequential(
            linear, nn.BatchNorm1d(len(fields)), nn.ReLU(), nn.Dropout(method.dropout)
        )
        # A buffer: a checkpoint saves it, and a compiled model does not treat it as a constant.
        self.register_buffer("weighs", torch.tensor(method.pretraining == 0))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised and weighed input."""
        return super().forward(self.norm(x))

    def gates(self, x: Tensor) -> Tensor:
        """Return the weights of the fields of each row, or 1 in pre-training, (B, F)."""
        weights = self.weights(x)
        return torch.where(self.get_buffer("weighs"), weights, torch.ones_like(weights))

    def weights(self, x: Tensor) -> Tensor:
        """Return the weights that the controller gives to normalised rows, (B, D) -> (B, F)."""
        weights = torch.softmax(self.controller(x), dim=1)
        if self.kept is not None:
            largest = weights.topk(self.kept, dim=1).indices
            weights = weights * torch.zeros_like(weights).scatter(1, largest, 1.0)
            weights = weights / weights.sum(1, keepdim=True)
        return weights * weights.shape[1]


class AdaFSHook(HeldOutGateHook):
    """Train the controller, once the pre-training of the model is over."""

    layer: RowWeights

    def __init__(self, search: Search, layer: RowWeights, method: AdaFS) -> None:
        super().__init__(
            search,
            layer,
            list(layer.controller.parameters()),
            lr=method.lr,
            every=method.every,
            wait=method.pretraining * search.steps_per_epoch,
        )

    def after_step(self, run: Run) -> None:
        """Move the controller, and use its weights once pre-training is over."""
        super().after_step(run)
        self.layer.get_buffer("weighs").fill_(run.step >= self.wait)

    @torch.no_grad()
    def current_scores(self, run: Run) -> Scores:
        """Return the mean weights over the validation rows, in eval mode."""
        assert isinstance(run.model, Ranker)
        task = self.search.task
        was_training = run.model.training
        run.model.eval()
        total = torch.zeros(len(task.fields), dtype=torch.float64)
        for batch in task.valid.batches(large_batch(task)):
            x = self.layer.norm(run.model.inputs(*batch.inputs))
            total += self.layer.weights(x).sum(0, dtype=torch.float64)
        run.model.train(was_training)
        return self.search.by_field(total / len(task.valid))
