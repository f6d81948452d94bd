"""From a batch's ids and numbers to all fields side by side: the only part of a model that knows columns."""

from collections.abc import Sequence
from itertools import accumulate, groupby

import torch
from torch import Tensor, nn

from ..data.task import TaskColumn

LARGE = (
    1 << 20
)  # numbers of a table from which on its gradient is sparse: a step touches few of its rows
START = 0.01  # standard deviation of fresh embeddings


class FieldInputs(nn.Module):
    """All fields of a batch side by side, in their order.

    Shape: ids (B, slots of ids), numbers (B, slots of numbers) -> (B, D)

    Columns with one category a row and embeddings of equal width share one table and one look-up. Lists are the mean of
    their embeddings. Numbers and vectors are as the batch has them.
    """

    def __init__(self, columns: Sequence[TaskColumn], *, sparse: bool | None = None) -> None:
        super().__init__()
        self.columns = tuple(columns)
        self.tables = nn.ModuleDict()  # by width
        self.lists = nn.ModuleDict()  # by place among the columns
        self._ids = _starts(columns, ids=True)
        self._numbers = _starts(columns, ids=False)
        self._members: dict[str, list[int]] = {}  # of each table: places of its columns
        for place, column in enumerate(columns):
            if column.column.kind == "list":
                self.lists[str(place)] = _table(column.categories, column.width, sparse)
            elif column.is_ids:
                self._members.setdefault(str(column.width), []).append(place)
        for width, members in self._members.items():
            sizes = [columns[place].categories for place in members]
            self.tables[width] = _table(sum(sizes), int(width), sparse)
            self.register_buffer(f"offsets_{width}", torch.tensor([0, *accumulate(sizes)][:-1]))
            slots = [self._ids[place] for place in members]
            every = slots == list(
                range(sum(column.slots for column in columns if column.is_ids))
            )  # nothing to pick
            self.register_buffer(f"slots_{width}", None if every else torch.tensor(slots))
        self._runs = _runs(columns)
        self._sizes = {
            width: [last - first + 1 for kind, first, last in self._runs if kind == width]
            for width in self._members
        }

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        """Look up, pool, and lay side by side."""
        looked_up = {  # the runs of each table, (B, columns, width) each; split, as the gradient of many slices is as many copies
            width: table(self._rows(ids, width)).split(self._sizes[width], dim=1)
            for width, table in self.tables.items()
        }
        blocks, taken = [], dict.fromkeys(looked_up, 0)
        for kind, first, last in self._runs:
            if kind == "list":
                start = self._ids[first]
                blocks.append(
                    _pool(self.lists[str(first)], ids[:, start : start + self.columns[first].slots])
                )
            elif kind == "numbers":
                start = self._numbers[first]
                blocks.append(numbers[:, start : self._numbers[last] + self.columns[last].slots])
            else:
                blocks.append(looked_up[kind][taken[kind]].flatten(1))
                taken[kind] += 1
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=1)

    def _rows(self, ids: Tensor, width: str) -> Tensor:
        """The rows of a table that a batch reads, (B, columns)."""
        slots = getattr(self, f"slots_{width}")
        return (ids if slots is None else ids.index_select(1, slots)) + self.get_buffer(
            f"offsets_{width}"
        )


def _table(rows: int, width: int, sparse: bool | None) -> nn.Embedding:
    table = nn.Embedding(rows, width, sparse=rows * width >= LARGE if sparse is None else sparse)
    nn.init.normal_(table.weight, std=START)
    return table


def _pool(table: nn.Module, ids: Tensor) -> Tensor:
    """The mean of the embeddings of a list, (B, L) -> (B, width); 0 where it is empty."""
    present = (ids > 0).unsqueeze(-1).to(torch.float32)  # (B, L, 1)
    total = (table(ids) * present).sum(1)
    pooled: Tensor = total / present.sum(1).clamp_min(1)
    return pooled


def _starts(columns: Sequence[TaskColumn], *, ids: bool) -> dict[int, int]:
    """Where each column begins in a batch's ids, or in its numbers."""
    found, start = {}, 0
    for place, column in enumerate(columns):
        if column.is_ids == ids:
            found[place] = start
            start += column.slots
    return found


def _runs(columns: Sequence[TaskColumn]) -> list[tuple[str, int, int]]:
    """Neighbouring columns that come from one place: a table's width, "numbers" or "list", with the first and last column."""

    def kind(place: int) -> str:
        column = columns[place]
        return (
            "list"
            if column.column.kind == "list"
            else str(column.width)
            if column.is_ids
            else "numbers"
        )

    runs: list[tuple[str, int, int]] = []
    for name, group in groupby(range(len(columns)), key=kind):
        places = list(group)
        runs += (
            [(name, place, place) for place in places]
            if name == "list"
            else [(name, places[0], places[-1])]
        )
    return runs
