"""AdaFS: a controller weighs the fields of each row anew."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..models import Ranker
from ..training.fit import Run, large_batch
from .base import Method, Scores, Search, put_before_net
from .leap import steps_of
from .soft_gates import FieldGates, HeldOutSteps


@dataclass(frozen=True)
class AdaFS(Method):
    """A small network that weighs the fields of each row, trained on validation rows (Lin et al. 2022).

    It was made to weigh rows, not to rank fields: the network behind it can make up for any weight, a constant field gets
    one by chance, and the AUC on validation rows is that of rows which the controller has learnt from.

    Args:
        keep: Share of the fields that each row keeps, those with the largest weights; None keeps all, as weighed (soft).
        pretraining: Epochs in which the model learns with all weights at 1.
        lr: Of the controller.
        every: Steps of the model between two steps of the controller.
        dropout: In the controller.
    """

    keep: float | None = None
    pretraining: int = 2
    lr: float = 1e-3
    every: int = 10
    dropout: float = 0.2

    def score(self, search: Search) -> Scores:
        """The mean weights over the validation rows at the end of training."""
        model = search.model()
        layer = RowWeights(search, self)
        put_before_net(model, layer)
        hook = AdaFSSteps(search, layer, self)
        search.fit(model, hook)
        return hook.scores


class RowWeights(FieldGates):
    """Normalises the columns and weighs the fields of each row; the weights of a row have mean 1."""

    def __init__(self, search: Search, method: AdaFS) -> None:
        super().__init__(search)
        fields = search.task.fields
        self.kept = None if method.keep is None else max(1, int(method.keep * len(fields)))
        # neither the size of its embeddings nor that of a scale of the norm lets the model make up for a weight
        self.norm = nn.BatchNorm1d(fields.dims, affine=False)
        linear = nn.Linear(fields.dims, len(fields))
        nn.init.xavier_normal_(linear.weight)
        nn.init.zeros_(linear.bias)
        self.controller = nn.Sequential(
            linear, nn.BatchNorm1d(len(fields)), nn.ReLU(), nn.Dropout(method.dropout)
        )
        # a buffer, so that a checkpoint keeps it and a compiled model does not take it for a constant
        self.register_buffer("weighs", torch.tensor(method.pretraining == 0))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, then weigh."""
        return super().forward(self.norm(x))

    def gates(self, x: Tensor) -> Tensor:
        """The weights of the fields of each row, or 1 in pre-training, (B, F)."""
        weights = self.weights(x)
        return torch.where(self.get_buffer("weighs"), weights, torch.ones_like(weights))

    def weights(self, x: Tensor) -> Tensor:
        """What the controller says to normalised rows, (B, F)."""
        shares = torch.softmax(self.controller(x), dim=1)
        if self.kept is not None:
            largest = torch.zeros_like(shares).scatter(
                1, shares.topk(self.kept, dim=1).indices, 1.0
            )
            shares = shares * largest
            shares = shares / shares.sum(1, keepdim=True)
        return shares * shares.shape[1]


class AdaFSSteps(HeldOutSteps):
    """Trains the controller once pre-training is over."""

    layer: RowWeights

    def __init__(self, search: Search, layer: RowWeights, method: AdaFS) -> None:
        wait = method.pretraining * steps_of(search)
        super().__init__(
            search,
            layer,
            list(layer.controller.parameters()),
            lr=method.lr,
            every=method.every,
            wait=wait,
        )

    def after_step(self, run: Run) -> None:
        """Pre-train, then move the controller too."""
        super().after_step(run)
        self.layer.get_buffer("weighs").fill_(run.step >= self.wait)

    @torch.no_grad()
    def worth(self, run: Run) -> Scores:
        """The mean weights over the validation rows, in eval mode."""
        assert isinstance(run.model, Ranker)
        was_training = run.model.training
        run.model.eval()
        total = torch.zeros(len(self.search.task.fields), dtype=torch.float64)
        for batch in self.search.task.valid.batches(large_batch(self.search.task)):
            x = self.layer.norm(run.model.inputs(*batch.inputs))
            total += self.layer.weights(x).sum(0, dtype=torch.float64)
        run.model.train(was_training)
        return self.search.by_field(total / len(self.search.task.valid))
