"""Methods that push fields, or single embeddings, to zero: LPFS, Deep Lasso and OptFS."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, embedding

from .._common.errors import TorchleapError
from ..data.task import Task
from ..models import FieldInputs, Ranker
from ..training.fit import Hook, Run, large_batch
from .base import Method, Scores, Search, put_before_net
from .leap import steps_of
from .soft_gates import FieldGates, GateHook

# LPFS


@dataclass(frozen=True)
class LPFS(Method):
    """Gates x^2 / (x^2 + eps) that turn into steps while eps falls, with a soft threshold on x (Guo et al. 2022).

    Args:
        plus: LPFS++: an odd gate with a slope at 0, from where a field can come back.
        planned_epochs: Within which eps falls from `first` to `last`; training may stop before, and goes on with `last` after.
        threshold: What |x| loses after each step; None lets the x of a useless field reach 0 in half of the planned steps.
        lr: Of x, by gradient descent with momentum; None is 1.25 times the threshold, so that x falls where it lowers the loss
            by less than 0.08 a unit.
        amplitude: Of the additional slope of LPFS++, and likewise root.
        as_published: As the public code has it, which reaches no zero in a real run: eps falls by 0.9978 every 100 steps, |x| by
            1e-5 a step, and x learns by Adam at the model's rate.
    """

    plus: bool = False
    planned_epochs: int = 5
    threshold: float | None = None
    lr: float | None = None
    first: float = 0.1
    last: float = 1e-5
    amplitude: float = 10.0  # a
    root: float = 2.0  # t
    as_published: bool = False

    def score(self, search: Search) -> Scores:
        """The sizes of x at the end of training."""
        model = search.model()
        layer = SmoothSteps(search, self)
        put_before_net(model, layer)
        hook = ProximalSteps(search, layer, self)
        search.fit(model, hook)
        return hook.scores

    def epsilon_at(self, step: int, planned: int) -> float:
        """How wide the step of a gate is."""
        if self.as_published:
            return max(self.last, self.first * 0.9978 ** (step // 100))
        return float(self.first * (self.last / self.first) ** min(1.0, step / planned))


class SmoothSteps(FieldGates):
    """LPFS' gates."""

    def __init__(self, search: Search, method: LPFS) -> None:
        super().__init__(search)
        self.method = method
        self.x = nn.Parameter(torch.ones(len(search.task.fields)))
        # a buffer, so that a checkpoint keeps it and a compiled model does not take it for a constant
        self.register_buffer("epsilon", torch.tensor(method.first))

    def gates(self, x: Tensor) -> Tensor:
        """Nearly 1, or nearly 0."""
        epsilon = self.get_buffer("epsilon")
        square = self.x.square()
        step = square / (square + epsilon)
        if not self.method.plus:
            return step
        return (
            self.x.sign() * step
            + self.method.amplitude * epsilon ** (1 / self.method.root) * self.x.atan()
        )

    def worth(self) -> Tensor:
        """How far x is from 0."""
        return self.x.abs()


class ProximalSteps(GateHook):
    """Trains x, pulls it to 0, and lets eps fall."""

    layer: SmoothSteps

    def __init__(self, search: Search, layer: SmoothSteps, method: LPFS) -> None:
        super().__init__(search, layer, [layer.x], lr=method.lr)
        self.method = method
        self.planned = planned_steps(search, method.planned_epochs)
        rule = 1e-5 if method.as_published else 2 / self.planned
        self.threshold = rule if method.threshold is None else method.threshold
        self.lr = 1.25 * self.threshold if method.lr is None else method.lr
        if not method.as_published:
            # Adam would give a field that helps the model memorise a little the same push as one that matters, and its step
            # followed by a soft threshold is no proximal step of any penalty
            self.optimizer = torch.optim.SGD([layer.x], lr=self.lr, momentum=0.9)

    def after_step(self, run: Run) -> None:
        """A step, the threshold, and the next eps."""
        share = self._share_of_step()
        if not self.method.as_published:
            self.optimizer.param_groups[0]["lr"] = share * self.lr
        super().after_step(run)
        with torch.no_grad():
            self.layer.x.copy_(nn.functional.softshrink(self.layer.x, share * self.threshold))
        self.layer.get_buffer("epsilon").fill_(self.method.epsilon_at(run.step, self.planned))

    def _share_of_step(self) -> float:
        """No pull is wider than half of a gate's step, or with few steps it would carry a useful field past it, for ever."""
        width = float(self.layer.get_buffer("epsilon")) ** 0.5
        return (
            1.0
            if self.method.as_published or not self.threshold
            else min(1.0, 0.5 * width / self.threshold)
        )


def planned_steps(search: Search, epochs: int) -> int:
    """Steps of the epochs that are planned, or of all there will be."""
    return min(epochs, search.training.epochs) * steps_of(search)


# Deep Lasso


@dataclass(frozen=True)
class DeepLasso(Method):
    """A lasso on the gradient of the loss by each field, summed over the batch (Cherepanova et al. 2023).

    Args:
        weight: Of the lasso; the loss has the rest.
    """

    weight: float = 0.1

    def score(self, search: Search) -> Scores:
        """The norms of the gradients on the validation rows at the end of training."""
        if search.training.compile:
            raise TorchleapError(
                "DeepLasso needs gradients of gradients, which torch.compile cannot take. Set compile=False."
            )
        model = search.model()
        net = WatchedNet(model.net)
        model.net = net
        hook = GradientLasso(search, net, self.weight)
        search.fit(model, hook)
        return hook.scores


class WatchedNet(nn.Module):
    """A network that remembers its last input in training."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.seen: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Run and remember."""
        if self.training:
            self.seen = x = (
                x if x.requires_grad else x.detach().requires_grad_()
            )  # no gradient: no field has an embedding
        log_odds: Tensor = self.net(x)
        return log_odds


class GradientLasso(Hook):
    """Adds the lasso to the loss, and scores the fields at the end."""

    def __init__(self, search: Search, net: WatchedNet, weight: float) -> None:
        self.search = search
        self.net = net
        self.weight = weight
        self.field_of = search.column_field()
        self.scores: Scores = {}

    def penalty(self, loss: Tensor) -> Tensor:
        """What makes the loss L into (1 - w) L + w R."""
        x, self.net.seen = self.net.seen, None
        assert x is not None
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        return self.weight * (lasso(gradient, self.field_of) - loss)

    def at_end(self, run: Run) -> None:
        """The norms of the gradients in eval mode."""
        assert isinstance(run.model, Ranker)
        run.model.eval()
        total = torch.zeros(len(self.search.task.fields), dtype=torch.float64)
        for batch in self.search.task.valid.batches(large_batch(self.search.task)):
            x = run.model.inputs(*batch.inputs).detach().requires_grad_()
            # rows do not see each other in eval(), so the gradient of the sum holds the gradient of each row's own loss
            loss = binary_cross_entropy_with_logits(self.net(x), batch.label, reduction="sum")
            total += squares_by_field(torch.autograd.grad(loss, x)[0].double(), self.field_of)
        self.scores = self.search.by_field(total.sqrt() / len(self.search.task.valid))


def lasso(gradient: Tensor, field_of: Tensor) -> Tensor:
    """The sum over fields of the norms of their gradients, (B, D) -> ()."""
    return (squares_by_field(gradient, field_of) + 1e-8).sqrt().sum()


def squares_by_field(gradient: Tensor, field_of: Tensor) -> Tensor:
    """The sum of squares over all rows and columns of each field, (B, D) -> (F,)."""
    by_column = gradient.square().sum(0)
    return by_column.new_zeros(int(field_of[-1]) + 1).index_add(0, field_of, by_column)


# OptFS


@dataclass(frozen=True)
class OptFS(Method):
    """A gate for each embedding of a table, and for each number or vector, that grows steeper with each epoch (Lyu et al. 2023).

    Args:
        weight: Of the sum of all gates in the loss; None is 0.02 by the number of gates, which is the public code's 1e-8 at two
            million of them.
        steepness: Of the gates in the last of the planned epochs; it is 1 in the first.
        planned_epochs: Training may stop before, and goes on with the last steepness after.
        lr: Of the gates; None is the model's.
    """

    weight: float | None = None  # lambda
    steepness: float = 200.0  # gamma
    planned_epochs: int = 5
    lr: float | None = None

    def score(self, search: Search) -> Scores:
        """The share of a field's train rows whose embedding is kept, at the end of training."""
        model = search.model()
        layer = RowGates(search, self)
        put_before_net(model, layer)
        layer.put_into_tables(model)
        hook = SteeperGates(search, layer, self)
        search.fit(model, hook)
        return hook.scores

    def steepness_at(self, epoch: int, planned: int) -> float:
        """From 1 by equal factors."""
        return float(self.steepness ** min(1.0, epoch / max(1, planned - 1)))


class OpenGates(nn.Module):
    """Gates that are 1 in the beginning: sigmoid(t m) / sigmoid(0.5), with m at 0.5 and t at 1."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.m = nn.Parameter(torch.full((count, 1), 0.5))
        # a buffer, so that a checkpoint keeps it and a compiled model does not take it for a constant
        self.register_buffer("steepness", torch.tensor(1.0))

    def forward(self, ids: Tensor) -> Tensor:
        """The gates with these numbers, (...) -> (..., 1)."""
        m = embedding(ids, self.m)
        return torch.sigmoid(self.get_buffer("steepness") * m) / torch.sigmoid(torch.tensor(0.5))

    def total(self) -> Tensor:
        """What is paid for, all together."""
        return torch.sigmoid(self.get_buffer("steepness") * self.m).sum()


class GatedTable(nn.Module):
    """A table of embeddings with a gate for each.

    Attributes:
        counts: How often each embedding comes in train rows, by field: one tensor for each column of the table.
        fields: The places of these columns.
    """

    def __init__(
        self, table: nn.Module, gates: OpenGates, fields: list[int], counts: list[Tensor]
    ) -> None:
        super().__init__()
        self.table = table
        self.open = gates
        self.fields = fields
        self.counts = counts

    def forward(self, ids: Tensor) -> Tensor:
        """Look up and multiply."""
        rows: Tensor = self.table(ids)
        gates: Tensor = self.open(ids)
        return rows * gates

    def shares(self, kept: Tensor) -> dict[int, float]:
        """The mean over train rows of what each embedding has, by field."""
        parts = torch.split_with_sizes(kept.double(), [len(count) for count in self.counts])
        means = [
            part @ count / count.sum().clamp_min(1)
            for part, count in zip(parts, self.counts, strict=True)
        ]
        return dict(zip(self.fields, map(float, means), strict=True))


class RowGates(FieldGates):
    """OptFS' gates: here those of numbers and vectors, one each; in the tables those of embeddings."""

    def __init__(self, search: Search, method: OptFS) -> None:
        super().__init__(search)
        self.task = search.task
        self.method = method
        self.open = OpenGates(len(search.task.fields))
        self.register_buffer(
            "is_ids", torch.tensor([column.is_ids for column in search.task.columns])
        )
        self.tables: list[GatedTable] = []  # a plain list: they belong to the model's inputs

    def put_into_tables(self, model: Ranker) -> None:
        """Let every table of a model have its gates."""
        assert isinstance(model.inputs, FieldInputs)
        counts = id_counts(self.task)
        single = [
            place
            for place, column in enumerate(self.task.columns)
            if column.is_ids and column.column.kind != "list"
        ]
        for width in list(model.inputs.tables):
            members = [place for place in single if self.task.columns[place].width == int(width)]
            model.inputs.tables[width] = self._gated(model.inputs.tables[width], members, counts)
        for place in list(model.inputs.lists):
            model.inputs.lists[place] = self._gated(model.inputs.lists[place], [int(place)], counts)

    def _gated(self, table: nn.Module, members: list[int], counts: dict[int, Tensor]) -> GatedTable:
        own = [counts[place] for place in members]
        gated = GatedTable(table, OpenGates(sum(map(len, own))), members, own)
        self.tables.append(gated)
        return gated

    def everywhere(self) -> list[OpenGates]:
        """All gates, those of numbers and vectors first."""
        return [self.open, *(table.open for table in self.tables)]

    def gates(self, x: Tensor) -> Tensor:
        """1 for ids: they have theirs in the tables."""
        own = self.open(torch.arange(len(self.open.m), device=x.device)).squeeze(1)
        return torch.where(self.get_buffer("is_ids"), 1.0, own)

    def penalty(self) -> Tensor:
        """The sum of all gates."""
        numbers = (
            torch.sigmoid(self.open.get_buffer("steepness") * self.open.m)
            .squeeze(1)[~self.get_buffer("is_ids")]
            .sum()
        )
        return self.weight * (numbers + sum(table.open.total() for table in self.tables))

    @property
    def weight(self) -> float:
        """Of the sum of all gates."""
        count = int((~self.get_buffer("is_ids")).sum()) + sum(
            len(table.open.m) for table in self.tables
        )
        return 0.02 / count if self.method.weight is None else self.method.weight

    def worth(self) -> Tensor:
        """The share of kept embeddings; a hair of their gates at t = 1 ranks fields that are kept as a whole."""
        kept, soft = (
            self._shares(value)
            for value in (lambda m: (m > 0).double(), lambda m: torch.sigmoid(m.double()))
        )
        return kept + 1e-6 * soft

    @torch.no_grad()
    def _shares(self, value: Any) -> Tensor:
        found: Tensor = value(self.open.m.squeeze(1))
        for table in self.tables:
            for place, share in table.shares(value(table.open.m.squeeze(1))).items():
                found[place] = share
        return found


class SteeperGates(GateHook):
    """Trains the gates, and makes them steeper with each epoch."""

    layer: RowGates

    def __init__(self, search: Search, layer: RowGates, method: OptFS) -> None:
        super().__init__(search, layer, [gates.m for gates in layer.everywhere()], lr=method.lr)
        self.method = method
        self.steps = steps_of(search)
        self.planned = min(method.planned_epochs, search.training.epochs)

    def after_step(self, run: Run) -> None:
        """A step, and the steepness of the next."""
        super().after_step(run)
        for gates in self.layer.everywhere():
            gates.get_buffer("steepness").fill_(
                self.method.steepness_at(run.step // self.steps, self.planned)
            )


def id_counts(task: Task) -> dict[int, Tensor]:
    """How often each id comes in train rows, by place of the column; empty places of lists do not count."""
    slots = task.slots(ids=True)
    columns = {place: column for place, column in enumerate(task.columns) if column.is_ids}
    counts = {
        place: torch.zeros(column.categories, dtype=torch.float64)
        for place, column in columns.items()
    }
    for batch in task.train.batches(large_batch(task)):
        for place, column in columns.items():
            counts[place] += torch.bincount(
                batch.ids[:, slots[column.name]].flatten(), minlength=column.categories
            )
    for place, column in columns.items():
        if column.column.kind == "list":
            counts[place][0] = 0
    return counts
