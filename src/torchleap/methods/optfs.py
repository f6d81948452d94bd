"""OptFS (Lyu et al. 2023): a gate for each embedding, steeper with each epoch."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from ..data.task import Task
from ..models import FieldInputs, Ranker
from ..training.fit import Run, large_batch
from .base import Method, Scores, Search, put_before_net
from .field_gates import FieldGates, GateHook


@dataclass(frozen=True)
class OptFS(Method):
    """A gate for each embedding of a table, and for each number or vector.

    Args:
        weight: The weight of the sum of all gates in the loss; None is 0.02 divided by the number
            of gates, which is the public code's 1e-8 for two million of them.
        steepness: The steepness of the gates in the last planned epoch; it is 1 in the first.
        planned_epochs: Epochs in which the gates become steeper. Training may stop earlier; where
            it lasts longer, the last steepness stays.
        lr: The learning rate of the gates; None is the model's.
    """

    weight: float | None = None  # lambda
    steepness: float = 200.0  # gamma
    planned_epochs: int = 5
    lr: float | None = None

    def score(self, search: Search) -> Scores:
        """Return the fraction of train rows whose embedding is kept, at the end of training."""
        model = search.model()
        layer = EmbeddingGates(search, self)
        put_before_net(model, layer)
        layer.put_into_tables(model)
        hook = OptFSHook(search, layer, self)
        search.fit(model, hook)
        return hook.scores

    def steepness_at(self, epoch: int, planned: int) -> float:
        """Return the steepness of an epoch, which grows from 1 by equal factors."""
        return float(self.steepness ** min(1.0, epoch / max(1, planned - 1)))


class OpenGates(nn.Module):
    """Gates sigmoid(t m) / sigmoid(0.5), which are 1 at the start: m is 0.5 and t is 1.

    **Shape**: ids (...) -> (..., 1)
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.m = nn.Parameter(torch.full((count, 1), 0.5))
        # A buffer: a checkpoint saves it, and a compiled model does not treat it as a constant.
        self.register_buffer("steepness", torch.tensor(1.0))  # t

    def forward(self, ids: Tensor) -> Tensor:
        """Return the gates with these numbers."""
        m = embedding(ids, self.m)
        return torch.sigmoid(self.get_buffer("steepness") * m) / torch.sigmoid(torch.tensor(0.5))

    def openness(self) -> Tensor:
        """Return sigmoid(t m) of all gates, whose sum is penalised, (count, 1)."""
        return torch.sigmoid(self.get_buffer("steepness") * self.m)


class GatedTable(nn.Module):
    """A table of embeddings with a gate for each.

    **Shape**: ids (...) -> (..., width)

    Attributes:
        fields: The positions of the columns whose embeddings the table contains.
        counts: For each of these columns, how often each id occurs in train rows, (categories,).
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
        """Return the embeddings, multiplied by their gates."""
        rows: Tensor = self.table(ids)
        gates: Tensor = self.open(ids)
        return rows * gates

    def means_by_field(self, values: Tensor) -> dict[int, float]:
        """Return the mean over train rows of a number of each embedding, by column."""
        parts = torch.split_with_sizes(values.double(), [len(count) for count in self.counts])
        found = {}
        for place, part, count in zip(self.fields, parts, self.counts, strict=True):
            found[place] = float(part @ count / count.sum().clamp_min(1))
        return found


class EmbeddingGates(FieldGates):
    """The gates of numbers and vectors, one each; those of embeddings are in the tables.

    **Shape**: (B, D) -> (B, D)
    """

    def __init__(self, search: Search, method: OptFS) -> None:
        super().__init__(search)
        self.task = search.task
        self.method = method
        self.open = OpenGates(len(search.task.fields))
        is_ids = [column.is_ids for column in search.task.columns]
        self.register_buffer("is_ids", torch.tensor(is_ids))
        self.tables: list[GatedTable] = []  # a plain list: they belong to the model's inputs

    def put_into_tables(self, model: Ranker) -> None:
        """Add gates to every table of a model."""
        inputs = model.inputs
        assert isinstance(inputs, FieldInputs)
        counts = id_counts(self.task)
        members: dict[str, list[int]] = {width: [] for width in inputs.tables}
        for place, column in enumerate(self.task.columns):
            if column.is_ids and column.column.kind != "list":
                members[str(column.width)].append(place)
        for width, places in members.items():
            inputs.tables[width] = self._gated(inputs.tables[width], places, counts)
        for key in list(inputs.lists):
            inputs.lists[key] = self._gated(inputs.lists[key], [int(key)], counts)

    def _gated(self, table: nn.Module, places: list[int], counts: dict[int, Tensor]) -> GatedTable:
        own = [counts[place] for place in places]
        gated = GatedTable(table, OpenGates(sum(map(len, own))), places, own)
        self.tables.append(gated)
        return gated

    def all_gates(self) -> list[OpenGates]:
        """Return all gates, those of numbers and vectors first."""
        return [self.open, *(table.open for table in self.tables)]

    def gates(self, x: Tensor) -> Tensor:
        """Return the gates of numbers and vectors, and 1 for ids, (F,)."""
        own = self.open(torch.arange(len(self.open.m), device=x.device)).squeeze(1)
        return torch.where(self.get_buffer("is_ids"), 1.0, own)

    def penalty(self) -> Tensor:
        """Return the weighted sum of all gates."""
        numbers = self.open.openness().squeeze(1)[~self.get_buffer("is_ids")].sum()
        return self.weight * (numbers + sum(table.open.openness().sum() for table in self.tables))

    @property
    def weight(self) -> float:
        """Return the weight of the sum of all gates."""
        if self.method.weight is not None:
            return self.method.weight
        numbers = int((~self.get_buffer("is_ids")).sum())
        return 0.02 / (numbers + sum(len(table.open.m) for table in self.tables))

    def field_scores(self) -> Tensor:
        """Return the fraction of train rows whose embedding is kept, (F,).

        A millionth of the mean gate at t = 1 ranks fields that are kept completely.
        """
        kept = self._means_by_field(lambda m: (m > 0).double())
        soft = self._means_by_field(lambda m: torch.sigmoid(m.double()))
        return kept + 1e-6 * soft

    @torch.no_grad()
    def _means_by_field(self, value: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the mean over train rows of a function of m, (F,)."""
        found = value(self.open.m.squeeze(1))
        for table in self.tables:
            means = table.means_by_field(value(table.open.m.squeeze(1)))
            for place, mean in means.items():
                found[place] = mean
        return found


class OptFSHook(GateHook):
    """Train the gates, and make them steeper with each epoch."""

    layer: EmbeddingGates

    def __init__(self, search: Search, layer: EmbeddingGates, method: OptFS) -> None:
        super().__init__(search, layer, [gates.m for gates in layer.all_gates()], lr=method.lr)
        self.method = method
        self.planned = min(method.planned_epochs, search.training.epochs)

    def after_step(self, run: Run) -> None:
        """Move the gates, and set the steepness of the next step."""
        super().after_step(run)
        epoch = run.step // self.search.steps_per_epoch
        steepness = self.method.steepness_at(epoch, self.planned)
        for gates in self.layer.all_gates():
            gates.get_buffer("steepness").fill_(steepness)


def id_counts(task: Task) -> dict[int, Tensor]:
    """Return how often each id occurs in train rows, by the position of the column.

    Empty places of lists do not count.
    """
    slots = task.slots(ids=True)
    columns = {place: column for place, column in enumerate(task.columns) if column.is_ids}
    counts = {}
    for place, column in columns.items():
        counts[place] = torch.zeros(column.categories, dtype=torch.float64)
    for batch in task.train.batches(large_batch(task)):
        for place, column in columns.items():
            ids = batch.ids[:, slots[column.name]].flatten()
            counts[place] += torch.bincount(ids, minlength=column.categories)
    for place, column in columns.items():
        if column.column.kind == "list":
            counts[place][0] = 0
    return counts
