"""Full permutation: what a trained model loses when the rows of one field are shuffled."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.utils.fusion import fuse_linear_bn_eval

from .._common.checks import one_of, refuse_settings
from .._common.errors import TorchleapError
from ..data.batches import IN_MEMORY
from ..data.rows import Rows
from ..data.task import Task
from ..models import FieldInputs, Ranker
from ..models.backbones import Sum
from ..objectives import METRICS, auc, auc_of_classes, gauc
from .base import Method, Scores, Search

# What is kept for all rows at once: their first layer, and their input where a part of the network needs all of it. A million
# rows before 256 hidden units take 1 GB. What would be more is not kept but computed again for each field.
HELD = 4 << 30  # bytes
CHUNK = 64 << 20  # bytes of the widest tensor that is made of some rows at a time
ROWS = 1 << 12  # at a time, at most: so few that their hidden layers stay in the processor's caches


def rows_at_once(width: int, size: int = CHUNK) -> int:
    """How many rows of this width to work on at a time, in that many bytes."""
    return max(1, min(ROWS, size // (4 * max(1, width))))


@dataclass(frozen=True)
class Permutation(Method):
    """How much the metric on validation rows falls when a field's rows are shuffled over the whole set.

    The last record of the search's history has the standard deviation over the repeats, `fall_std_<field>`: a field whose fall
    is not several times as large cannot be told from one without any.

    Args:
        repeats: Shuffles of each field, of which the mean counts.
        share: Of the validation rows that are looked at, drawn by lot.
        metric: What falls; the log loss rises instead.
    """

    asks_trained: ClassVar[bool] = True
    repeats: int = 3
    share: float = 1.0
    metric: str = "auc"

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = one_of(self.metric, tuple(METRICS))
        refuse_settings(
            {
                f"metric {unknown}": not unknown,
                f"repeats must be at least 1, but is {self.repeats!r}": self.repeats >= 1,
                f"share must be above 0 and at most 1, but is {self.share!r}": 0 < self.share <= 1,
            }
        )

    def score(self, search: Search) -> Scores:
        """The mean fall over the repeats."""
        model = search.model()
        search.fit(model)
        falls = self.falls(search, model)
        if self.repeats > 1:
            deviations = search.by_field(falls.std(1))
            search.history[-1].update(
                {f"fall_std_{name}": value for name, value in deviations.items()}
            )
        return search.by_field(falls.mean(1))

    def falls(self, search: Search, model: Ranker) -> Tensor:
        """The fall of the metric for each field and repeat, (F, repeats)."""
        sample, orders = self._drawn(len(search.task.valid), search.seed)
        metric = self._metric(search.task.valid, sample)
        shuffling = Shuffling(model, search.task, sample, orders)
        whole = metric(shuffling.log_odds)
        places = range(len(search.task.fields))
        falls = [[whole - metric(shuffled) for shuffled in shuffling.of(place)] for place in places]
        return torch.tensor(falls, dtype=torch.float64)

    def _drawn(self, rows: int, seed: int) -> tuple[Tensor, Tensor]:
        """The rows to look at, (N,), and the orders they are shuffled into, (repeats, N): the same ones for all fields."""
        rng = torch.Generator().manual_seed(seed)
        count = min(rows, max(2, round(self.share * rows)))
        sample = (
            torch.arange(rows)
            if count == rows
            else torch.randperm(rows, generator=rng)[:count].sort().values
        )
        return sample, torch.stack(
            [torch.randperm(count, generator=rng) for _ in range(self.repeats)]
        )

    def _metric(self, rows: Rows, sample: Tensor) -> Callable[[Tensor], float]:
        """The metric of the log odds of a sample; higher is better."""
        label, group = rows.label[sample], rows.group
        if self.metric == "log_loss":
            return lambda log_odds: (
                -float(binary_cross_entropy_with_logits(log_odds.double(), label.double()))
            )
        if self.metric == "gauc":
            if group is None:
                raise TorchleapError("metric='gauc' needs groups. Read the data with group=.")
            groups = group[sample]
            return lambda log_odds: gauc(label, log_odds, groups)
        auc(label, label)  # refuses a single class
        positive, negative = (label == 1).numpy(), (label == 0).numpy()
        return lambda log_odds: auc_of_classes(
            log_odds.numpy()[positive], log_odds.numpy()[negative]
        )


class Shuffling:
    """What a trained model says of some rows, as they are and with the rows of one field shuffled.

    Behind a linear layer, z = W x + b, other values of a field change z by W_i (x'_i - x_i) and nothing else. So z is computed
    once, and a shuffled field costs what follows the first layer, for the rows alone that it gives another value. Only a part
    of the network that does not begin with a linear layer sees the whole input again.

    Attributes:
        log_odds: Of the rows as they are, (N,).
    """

    @torch.no_grad()
    def __init__(self, model: Ranker, task: Task, sample: Tensor, orders: Tensor) -> None:
        assert isinstance(model.inputs, FieldInputs)
        model.eval()
        self.inputs = model.inputs
        self.halves = Halves(model.net, task.fields.dims)
        self.task = task
        self.sample = sample
        self.orders = orders
        hidden, seen = len(self.halves.bias), task.fields.dims if self.halves.others else 0
        self.size = max(1, rows_at_once(hidden + seen) // len(orders))
        self.log_odds = torch.empty(len(sample))
        self.held: tuple[Tensor, Tensor] | None = None
        self._fill((hidden, seen) if 4 * len(sample) * (hidden + seen) <= HELD else None)

    def _fill(self, widths: tuple[int, int] | None) -> None:
        """Compute the log odds, and keep what they come from if there is room for these widths."""
        held = (
            None
            if widths is None
            else (
                torch.empty(len(self.sample), widths[0]),
                torch.empty(len(self.sample), widths[1]),
            )
        )
        for start, z, x in self._computed():
            here = slice(start, start + len(z))
            self.log_odds[here] = self.halves.second(z, x)
            if held is not None:
                held[0][here], held[1][here] = z, x
        self.held = held

    @torch.no_grad()
    def of(self, place: int) -> Tensor:
        """The log odds with one field in each of the orders, (repeats, N)."""
        values = self._values(place)  # (N, d)
        columns = self.task.fields.columns(self.task.fields.names[place])
        weight = self.halves.weight[:, columns].T  # (d, H)
        found = self.log_odds.repeat(len(self.orders), 1)
        for start, z, x in self._chunks():
            here = slice(start, start + len(z))
            shuffled = values.index_select(0, self.orders[:, here].flatten())  # (repeats * rows, d)
            change = (shuffled.view(len(self.orders), len(z), -1) - values[here]).flatten(0, 1)
            changed = change.any(1).nonzero().squeeze(1)  # the others keep their log odds
            if not len(changed):
                continue
            repeat, row = changed // len(z), changed % len(z)
            z = z.index_select(0, row).addmm_(change.index_select(0, changed), weight)
            if self.halves.others:
                x = x.index_select(0, row)
                x[:, columns] = shuffled.index_select(0, changed)
            found[repeat, start + row] = self.halves.second(z, x)
        return found

    def _chunks(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """The place of the first of some rows, their first layer, and their input, which is empty where nothing needs it."""
        if self.held is None:
            yield from self._computed()
        else:
            starts = range(0, len(self.sample), self.size)
            yield from zip(
                starts, *(torch.split(tensor, self.size) for tensor in self.held), strict=True
            )

    def _computed(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        rows, halves = self.task.valid, self.halves
        in_memory = rows.bytes <= IN_MEMORY
        # from disk, all rows between the first and the last of the sample are read
        size = self.size if in_memory else max(1, self.size * len(self.sample) // len(rows))
        for start in range(0, len(self.sample), size):
            chosen = self.sample[start : start + size]
            first, last = int(chosen[0]), int(chosen[-1])
            batch = (
                rows.all().take(chosen)
                if in_memory
                else rows.read([[first, last + 1]]).take(chosen - first)
            )
            x = self.inputs(*batch.inputs)
            yield (
                start,
                torch.addmm(halves.bias, x, halves.weight.T),
                x if halves.others else x[:, :0],
            )

    def _values(self, place: int) -> Tensor:
        """One field of all rows, (N, d): nothing else is read or looked up."""
        column = self.inputs.columns[place]
        rows = self.task.only([column.name]).valid.all().take(self.sample)
        reader, size = reader_of(self.inputs, place), rows_at_once(column.width * column.slots)
        parts = zip(*(torch.split(tensor, size) for tensor in rows.inputs), strict=True)
        return torch.cat([reader(*part) for part in parts])


class Halves:
    """A network in two halves: the linear layers that its parts begin with, as one, and what follows.

    A network that is no sum of parts, or has hooks, is one part that does not begin with a linear layer.

    Attributes:
        weight: Of the linear layers, one below the other, (H, D).
        bias: (H,)
        others: The parts that begin with something else.
    """

    def __init__(self, net: nn.Module, dims: int) -> None:
        hooked = any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
        self.others: list[nn.Module] = []
        self.rests: list[nn.Module] = []
        firsts: list[nn.Linear] = []
        for part in net.children() if type(net) is Sum and not hooked else [net]:
            first, *rest = as_in_eval(part if isinstance(part, nn.Sequential) else [part])
            if type(first) is nn.Linear and not hooked:
                firsts.append(first)
                self.rests.append(nn.Sequential(*rest))
            else:
                self.others.append(part)
        self.sizes = [first.out_features for first in firsts]
        self.weight = torch.cat([torch.zeros(0, dims), *(first.weight for first in firsts)])
        biases = [
            torch.zeros(first.out_features) if first.bias is None else first.bias
            for first in firsts
        ]
        self.bias = torch.cat([torch.zeros(0), *biases])

    def second(self, z: Tensor, x: Tensor) -> Tensor:
        """The log odds, from the first layers (B, H) and from the input (B, D), which only the other parts look at."""
        total = torch.zeros(len(z))
        for rest, own in zip(self.rests, torch.split(z, self.sizes, dim=1), strict=True):
            total += rest(own).view(-1)
        for part in self.others:
            total += part(x).view(-1)
        return total


def as_in_eval(layers: nn.Sequential | list[nn.Module]) -> list[nn.Module]:
    """The same layers without dropout, each batch norm multiplied into the linear layer before it."""
    found: list[nn.Module] = []
    for layer in layers:
        if isinstance(layer, nn.BatchNorm1d) and found and type(found[-1]) is nn.Linear:
            found[-1] = fuse_linear_bn_eval(found[-1], layer)
        elif not isinstance(layer, nn.Dropout):
            found.append(layer)
    return found


def reader_of(inputs: FieldInputs, place: int) -> FieldInputs:
    """The same inputs for one column; it has no tables of its own."""
    column = inputs.columns[place]
    reader = FieldInputs([replace(column, categories=min(1, column.categories))])
    if column.column.kind == "list":
        reader.lists["0"] = inputs.lists[str(place)]
    elif column.is_ids:
        kind = str(column.width)
        single = [other for other in inputs.columns if other.is_ids and other.column.kind != "list"]
        together = [other.name for other in single if other.width == column.width]
        reader.tables[kind] = inputs.tables[kind]
        reader.get_buffer(f"offsets_{kind}").fill_(
            inputs.get_buffer(f"offsets_{kind}")[together.index(column.name)]
        )
    return reader
