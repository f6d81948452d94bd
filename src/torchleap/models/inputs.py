"""From a batch's ids and numbers to all fields side by side: only this part knows columns."""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..data.task import TaskColumn

LARGE = (
    1 << 20
)  # values; larger tables have sparse gradients, because a step reads few of their rows
START = 0.01  # standard deviation of new embeddings


class Run(NamedTuple):
    """Neighbouring columns that come from one place."""

    kind: str  # the width of their table, "numbers" or "list"
    first: int
    last: int
    number: int  # among the runs of the same kind


class FieldInputs(nn.Module):
    """All fields of a batch side by side, in their order.

    Columns with one category per row and embeddings of equal width share one table and one
    lookup. Lists are the mean of their embeddings. Numbers and vectors are as the batch has them.

    **Shape**

    - Input: ids (B, slots of ids) and numbers (B, slots of numbers).
    - Output: (B, D)

    Args:
        columns: The columns of a task.
        sparse: Whether tables have sparse gradients; None means that large ones do.
    """

    def __init__(self, columns: Sequence[TaskColumn], *, sparse: bool | None = None) -> None:
        super().__init__()
        self.columns = tuple(columns)
        self.tables = nn.ModuleDict()  # by width
        self.lists = nn.ModuleDict()  # by place among the columns
        self._ids = _starts(columns, ids=True)
        self._numbers = _starts(columns, ids=False)
        members: dict[str, list[int]] = {}  # the places of the columns of each table
        for place, column in enumerate(columns):
            if column.column.kind == "list":
                self.lists[str(place)] = _table(column.categories, column.width, sparse)
            elif column.is_ids:
                members.setdefault(str(column.width), []).append(place)
        for width, places in members.items():
            self._add_table(width, places, sparse)
        self._runs = _runs(columns)
        self._sizes: dict[str, list[int]] = {width: [] for width in members}
        for run in self._runs:
            if run.kind in self._sizes:
                self._sizes[run.kind].append(run.last - run.first + 1)

    def _add_table(self, width: str, places: list[int], sparse: bool | None) -> None:
        """Make the table that some columns share, and note where each one's rows and ids begin."""
        sizes = [self.columns[place].categories for place in places]
        self.tables[width] = _table(sum(sizes), int(width), sparse)
        self.register_buffer(f"offsets_{width}", torch.tensor([0, *accumulate(sizes)][:-1]))
        slots = [self._ids[place] for place in places]
        all_slots = range(sum(column.slots for column in self.columns if column.is_ids))
        if slots == list(all_slots):  # there is nothing to pick
            self.register_buffer(f"slots_{width}", None)
        else:
            self.register_buffer(f"slots_{width}", torch.tensor(slots))

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        """Read the tables, pool lists, and put the fields side by side."""
        # Split, because the gradient of many slices would be as many copies.
        looked_up = {
            width: table(self._rows(ids, width)).split(self._sizes[width], dim=1)
            for width, table in self.tables.items()
        }
        blocks = []
        for kind, first, last, number in self._runs:
            if kind == "list":
                start = self._ids[first]
                stop = start + self.columns[first].slots
                blocks.append(_pool(self.lists[str(first)], ids[:, start:stop]))
            elif kind == "numbers":
                stop = self._numbers[last] + self.columns[last].slots
                blocks.append(numbers[:, self._numbers[first] : stop])
            else:
                blocks.append(looked_up[kind][number].flatten(1))
        if len(blocks) == 1:
            return blocks[0]
        return torch.cat(blocks, dim=1)

    def _rows(self, ids: Tensor, width: str) -> Tensor:
        """Return the rows of a table that a batch reads, (B, columns)."""
        slots = getattr(self, f"slots_{width}")
        if slots is not None:
            ids = ids.index_select(1, slots)
        return ids + self.get_buffer(f"offsets_{width}")


def _table(rows: int, width: int, sparse: bool | None) -> nn.Embedding:
    if sparse is None:
        sparse = rows * width >= LARGE
    table = nn.Embedding(rows, width, sparse=sparse)
    nn.init.normal_(table.weight, std=START)
    return table


def _pool(table: nn.Module, ids: Tensor) -> Tensor:
    """Return the mean of the embeddings of a list, (B, L) -> (B, width); 0 where it is empty."""
    present = (ids > 0).unsqueeze(-1).to(torch.float32)  # (B, L, 1)
    total = (table(ids) * present).sum(1)
    pooled: Tensor = total / present.sum(1).clamp_min(1)
    return pooled


def _starts(columns: Sequence[TaskColumn], *, ids: bool) -> dict[int, int]:
    """Return where each column begins among the ids of a batch, or among its numbers."""
    found = {}
    start = 0
    for place, column in enumerate(columns):
        if column.is_ids == ids:
            found[place] = start
            start += column.slots
    return found


def _kind(column: TaskColumn) -> str:
    """Return the place that a column comes from, see `Run`."""
    if column.column.kind == "list":
        return "list"
    if column.is_ids:
        return str(column.width)
    return "numbers"


def _runs(columns: Sequence[TaskColumn]) -> list[Run]:
    """Return the runs of neighbouring columns; each list is one of its own."""
    runs: list[Run] = []
    seen: Counter[str] = Counter()
    for kind, group in groupby(range(len(columns)), key=lambda place: _kind(columns[place])):
        places = list(group)
        ends = [(places[0], places[-1])]
        if kind == "list":
            ends = [(place, place) for place in places]
        for first, last in ends:
            runs.append(Run(kind, first, last, seen[kind]))
            seen[kind] += 1
    return runs
