"""Deep Lasso (Cherepanova et al. 2023): a lasso on the gradient of the loss by each field."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .._common.errors import TorchleapError
from ..models import Ranker
from ..training.fit import Hook, Run, large_batch
from .base import Method, Scores, Search


@dataclass(frozen=True)
class DeepLasso(Method):
    """A penalty on the norms of the gradients of the loss by each field, over a batch.

    Args:
        weight: The weight of the penalty; that of the loss is one minus it.
    """

    weight: float = 0.1

    def score(self, search: Search) -> Scores:
        """Return the norms of the gradients on the validation rows at the end of training."""
        if search.training.compile:
            raise TorchleapError(
                "DeepLasso needs gradients of gradients, which torch.compile cannot compute. "
                "Set compile=False."
            )
        model = search.model()
        net = WatchedNet(model.net)
        model.net = net
        hook = GradientLasso(search, net, self.weight)
        search.fit(model, hook)
        return hook.scores


class WatchedNet(nn.Module):
    """A network that remembers its last input in training.

    **Shape**: (B, D) -> (B,)

    Attributes:
        seen: The last input, with a graph; None once it was used.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.seen: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the network, and remember the input."""
        if self.training:
            if not x.requires_grad:  # where no field has an embedding
                x = x.detach().requires_grad_()
            self.seen = x
        output: Tensor = self.net(x)
        return output


class GradientLasso(Hook):
    """Add the lasso to the loss, and score the fields at the end.

    Args:
        search: The search that trains the model.
        net: The network of the model.
        weight: The weight of the lasso.

    Attributes:
        scores: The scores at the end of training; empty before.
    """

    def __init__(self, search: Search, net: WatchedNet, weight: float) -> None:
        self.search = search
        self.net = net
        self.weight = weight
        self.field_of = search.column_field()
        self.scores: Scores = {}

    def penalty(self, loss: Tensor) -> Tensor:
        """Return the term that turns the loss L into (1 - w) L + w R, where R is the lasso."""
        x = self.net.seen
        self.net.seen = None
        assert x is not None
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        return self.weight * (lasso(gradient, self.field_of) - loss)

    def at_end(self, run: Run) -> None:
        """Compute the norms of the gradients in eval mode."""
        assert isinstance(run.model, Ranker)
        run.model.eval()
        task = self.search.task
        total = torch.zeros(len(task.fields), dtype=torch.float64)
        for batch in task.valid.batches(large_batch(task)):
            x = run.model.inputs(*batch.inputs).detach().requires_grad_()
            # In eval mode, rows do not depend on each other: the gradient of the sum contains the
            # gradient of each row's own loss.
            loss = task.objective.loss(self.net(x), batch.label, reduction="sum")
            (gradient,) = torch.autograd.grad(loss, x)
            total += squares_by_field(gradient.double(), self.field_of)
        self.scores = self.search.by_field(total.sqrt() / len(task.valid))


def lasso(gradient: Tensor, field_of: Tensor) -> Tensor:
    """Return the sum over fields of the norms of their gradients, (B, D) -> ()."""
    return (squares_by_field(gradient, field_of) + 1e-8).sqrt().sum()


def squares_by_field(gradient: Tensor, field_of: Tensor) -> Tensor:
    """Return the sum of squares over all rows and columns of each field, (B, D) -> (F,)."""
    by_column = gradient.square().sum(0)
    return by_column.new_zeros(int(field_of[-1]) + 1).index_add(0, field_of, by_column)
