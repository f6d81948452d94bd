"""ShuffledOutputs: the outputs of a trained model with one field shuffled, without a full pass."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_linear_bn_eval

from ..data.batches import IN_MEMORY
from ..data.task import Batch, Task
from ..models import FieldInputs, Ranker
from ..models.layers import Sum

# Bytes of the values that are kept for all rows at once: their first layer, and their input where
# a part of the network needs it. A million rows before 256 hidden units take 1 GB. Larger values
# are not kept but computed again for each field.
HELD = 4 << 30
CHUNK = 64 << 20  # bytes of the widest tensor of the rows that are computed at a time
ROWS = 1 << 12  # the most rows at a time: their hidden layers stay in the processor's caches

Chunk = tuple[int, Tensor, Tensor]  # the first of some rows, their first layer, and their input


def rows_at_once(width: int, size: int = CHUNK) -> int:
    """Return how many rows to compute at a time.

    Args:
        width: The numbers per row, of 4 bytes each.
        size: The bytes that the rows may take.
    """
    return max(1, min(ROWS, size // (4 * max(1, width))))


class ShuffledOutputs:
    """The outputs of a trained model for some rows, as they are and with one field shuffled.

    Behind a linear layer, z = W x + b, other values of field i change z by W_i (x'_i - x_i) and by
    nothing else. So z is computed once, and a shuffled field costs the layers after the first one,
    and only for the rows in which its value changes. Only a part of the network that does not
    begin with a linear layer sees the complete input again.

    Args:
        model: The trained model, which is left in eval mode.
        task: The task of the model; its validation rows are used.
        sample: The positions of the rows, sorted, (N,).
        orders: Permutations of these rows, (repeats, N).

    Attributes:
        unshuffled: The outputs for the rows as they are, (N,).
        held: The first layer, (N, H), and the input, (N, D) or (N, 0) where no part needs it, of
            all rows; None where they take too much memory.
    """

    @torch.no_grad()
    def __init__(self, model: Ranker, task: Task, sample: Tensor, orders: Tensor) -> None:
        assert isinstance(model.inputs, FieldInputs)
        model.eval()
        self.inputs = model.inputs
        self.net = SplitNet(model.net, task.fields.dims)
        self.task = task
        self.sample = sample
        self.orders = orders
        hidden = len(self.net.bias)
        seen = task.fields.dims if self.net.others else 0
        self.size = max(1, rows_at_once(hidden + seen) // len(orders))
        self.unshuffled = torch.empty(len(sample))
        self.held: tuple[Tensor, Tensor] | None = None
        held = None
        if 4 * len(sample) * (hidden + seen) <= HELD:
            held = (torch.empty(len(sample), hidden), torch.empty(len(sample), seen))
        for start, z, x in self._computed_chunks():
            here = slice(start, start + len(z))
            self.unshuffled[here] = self.net.finish(z, x)
            if held is not None:
                held[0][here] = z
                held[1][here] = x
        self.held = held

    @torch.no_grad()
    def of(self, place: int) -> Tensor:
        """Return the outputs with one field in each of the orders, (repeats, N).

        Args:
            place: The position of the field.
        """
        values = self._values(place)  # (N, d)
        columns = self.task.fields.columns(self.task.fields.names[place])
        weight = self.net.weight[:, columns].T  # (d, H)
        repeats = len(self.orders)
        found = self.unshuffled.repeat(repeats, 1)
        for start, z, x in self._chunks():
            here = slice(start, start + len(z))
            shuffled = values.index_select(0, self.orders[:, here].flatten())  # (repeats * rows, d)
            change = (shuffled.view(repeats, len(z), -1) - values[here]).flatten(0, 1)
            changed = change.any(1).nonzero().squeeze(1)  # the others keep their outputs
            if not len(changed):
                continue
            repeat = changed // len(z)
            row = changed % len(z)
            z = z.index_select(0, row).addmm_(change.index_select(0, changed), weight)
            if self.net.others:
                x = x.index_select(0, row)
                x[:, columns] = shuffled.index_select(0, changed)
            found[repeat, start + row] = self.net.finish(z, x)
        return found

    def _chunks(self) -> Iterator[Chunk]:
        """Yield all rows chunk by chunk; their input is empty where no part needs it."""
        if self.held is None:
            yield from self._computed_chunks()
            return
        starts = range(0, len(self.sample), self.size)
        parts = (torch.split(held, self.size) for held in self.held)
        yield from zip(starts, *parts, strict=True)

    def _computed_chunks(self) -> Iterator[Chunk]:
        rows = self.task.valid
        size = self.size
        if rows.bytes > IN_MEMORY:
            # From disk, all rows between the first and the last of a chunk are read.
            size = max(1, size * len(self.sample) // len(rows))
        for start in range(0, len(self.sample), size):
            batch = self._read(self.sample[start : start + size])
            x = self.inputs(*batch.inputs)
            z = torch.addmm(self.net.bias, x, self.net.weight.T)
            if not self.net.others:
                x = x[:, :0]
            yield start, z, x

    def _read(self, chosen: Tensor) -> Batch:
        """Return validation rows, from memory or from disk."""
        rows = self.task.valid
        if rows.bytes <= IN_MEMORY:
            return rows.all().take(chosen)
        first = int(chosen[0])
        last = int(chosen[-1])
        return rows.read([[first, last + 1]]).take(chosen - first)

    def _values(self, place: int) -> Tensor:
        """Return one field of all rows, (N, d); no other field is read or looked up."""
        column = self.inputs.columns[place]
        rows = self.task.only([column.name]).valid.all().take(self.sample)
        reader = reader_of(self.inputs, place)
        size = rows_at_once(column.width * column.slots)
        parts = zip(*(torch.split(tensor, size) for tensor in rows.inputs), strict=True)
        return torch.cat([reader(*part) for part in parts])


class SplitNet:
    """A network as the linear layers that its parts begin with, joined into one, and the rest.

    A network that is not a sum of parts, or that has hooks, counts as one part that does not begin
    with a linear layer.

    Args:
        net: The network.
        dims: The width of its input.
        hooks: Whether the hooks of the network count; False leaves out those of gates.

    Attributes:
        weight: The weights of the linear layers, one below the other, (H, D).
        bias: Their biases, (H,).
        others: The parts that begin with another layer.
    """

    def __init__(self, net: nn.Module, dims: int, *, hooks: bool = True) -> None:
        hooked = hooks and any(
            module._forward_hooks or module._forward_pre_hooks for module in net.modules()
        )
        self.others: list[nn.Module] = []
        self.rests: list[nn.Module] = []
        weights = [torch.zeros(0, dims)]
        biases = [torch.zeros(0)]
        parts = [net]
        if type(net) is Sum and not hooked:
            parts = list(net.children())
        for part in parts:
            first, *rest = as_in_eval(part)
            if type(first) is not nn.Linear or hooked:
                self.others.append(part)
                continue
            self.rests.append(nn.Sequential(*rest))
            weights.append(first.weight)
            biases.append(torch.zeros(len(first.weight)) if first.bias is None else first.bias)
        self.sizes = [len(bias) for bias in biases[1:]]
        self.weight = torch.cat(weights)
        self.bias = torch.cat(biases)

    def put_behind(self, gate: Tensor, mean: Tensor) -> None:
        """Let the linear layers take their input as it is before gates that mix it with its mean.

        Args:
            gate: The gate of each column, (D,).
            mean: The mean that it is mixed with, (D,).
        """
        self.bias = self.bias + self.weight @ ((1 - gate) * mean)
        self.weight = self.weight * gate

    def finish(self, z: Tensor, x: Tensor) -> Tensor:
        """Return the outputs, (B,).

        Args:
            z: The outputs of the linear layers, (B, H).
            x: The input, (B, D), which only the other parts use.
        """
        total = torch.zeros(len(z))
        for rest, own in zip(self.rests, torch.split(z, self.sizes, dim=1), strict=True):
            total += rest(own).view(-1)
        for part in self.others:
            total += part(x).view(-1)
        return total


def as_in_eval(part: nn.Module) -> list[nn.Module]:
    """Return the layers of a part without dropout and batch norms.

    Each batch norm behind a linear layer is multiplied into that layer.
    """
    layers = list(part) if isinstance(part, nn.Sequential) else [part]
    found: list[nn.Module] = []
    for layer in layers:
        if isinstance(layer, nn.BatchNorm1d) and found and type(found[-1]) is nn.Linear:
            found[-1] = fuse_linear_bn_eval(found[-1], layer)
        elif not isinstance(layer, nn.Dropout):
            found.append(layer)
    return found


def reader_of(inputs: FieldInputs, place: int) -> FieldInputs:
    """Return the inputs of one column alone, which share the tables of all columns.

    Args:
        inputs: The inputs of all columns.
        place: The position of the column.
    """
    column = inputs.columns[place]
    reader = FieldInputs([replace(column, categories=min(1, column.categories))])
    if column.column.kind == "list":
        reader.lists["0"] = inputs.lists[str(place)]
    elif column.is_ids:
        width = str(column.width)
        single = [other for other in inputs.columns if other.is_ids and other.column.kind != "list"]
        same_table = [other.name for other in single if other.width == column.width]
        offsets = inputs.get_buffer(f"offsets_{width}")
        reader.tables[width] = inputs.tables[width]
        offset = offsets[same_table.index(column.name)]
        reader.get_buffer(f"offsets_{width}").fill_(offset)
    return reader
