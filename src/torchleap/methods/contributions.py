"""What each field contributes to the outputs of a trained model, and which fields say the same."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..data.task import Batch
from ..gates.leap import LeAP
from ..models import Ranker
from ..objectives import Objective
from ..selection import Substitute, Worth
from ..selection.path import NORMAL_95
from .base import Search
from .sample import chunks, evenly_spaced
from .shark import mean_input
from .shuffled import SplitNet, rows_at_once

ROWS = 1 << 15  # validation rows that contributions are computed for, at most,
NUMBERS = 1 << 26  # with so many numbers in their input: wide inputs take fewer rows
FEWEST = 1 << 11  # that they are computed for, if there are as many
MEASURING = 0.25  # of the time of a training that is spent on them, about
ALIKE = 0.4  # the correlation of two contributions from which fields are substitutes


Mask = tuple[str, ...]  # fields that are replaced together


class Contributions(NamedTuple):
    """How a trained model changes when each field is replaced by its mean.

    Attributes:
        changes: The change of each row's output by each mask, (M, N).
        rises: The rise of the mean loss, (M,).
        errors: Its standard error over the rows, (M,).
        outputs: The raw outputs of the model for the rows, (N,).
        by_row: The rise of the loss of each row, (M, N).
    """

    changes: Tensor
    rises: Tensor
    errors: Tensor
    outputs: Tensor
    by_row: Tensor | None = None


def worth_of(names: Sequence[str], rises: Tensor, noise: float) -> dict[str, Worth]:
    """Return the worth of fields by the rise of each row's loss without them.

    Args:
        names: The names of the fields.
        rises: The rises, (F, N).
        noise: The standard deviation of the loss between two trainings.
    """
    errors = (rises.std(1) / rises.shape[1] ** 0.5).nan_to_num(0.0)
    found = {}
    measured = zip(names, rises.mean(1).tolist(), errors.tolist(), strict=True)
    for name, nats, error in measured:
        half = NORMAL_95 * math.hypot(error, noise)
        found[name] = Worth(nats, nats - half, nats + half)
    return found


class Samples:
    """The rows on which contributions are measured: validation rows, and train rows beside them.

    Args:
        search: The search.
        most: How many validation rows are used at most, see `affordable_rows`.

    Attributes:
        valid: Evenly spaced validation rows.
        train: Random train rows, a quarter as many.
    """

    def __init__(self, search: Search, most: int = ROWS) -> None:
        most = max(2, min(most, NUMBERS // search.task.fields.dims))
        self.valid = evenly_spaced(search.task.valid, most)
        count = min(max(2, len(self.valid) // 4), len(search.task.train))
        rows = search.task.train.batches(count, shuffle=True, seed=search.seed)
        self.train = next(iter(rows))


def affordable_rows(search: Search, model: Ranker, steps: int, masks: float) -> int:
    """Return on how many rows masks take about a quarter of the time of some training steps.

    Args:
        search: The search.
        model: A model of the search, which is left in eval mode. Behind its first linear layers
            a mask costs only the layers after these.
        steps: The number of training steps.
        masks: How many masks are computed in these steps.
    """
    model.eval()
    net = SplitNet(model.net, search.task.fields.dims)
    linear = [layer for layer in model.net.modules() if isinstance(layer, nn.Linear)]
    every = sum(layer.weight.numel() for layer in linear)  # multiplications per row
    behind = every if net.others else every - net.weight.numel()
    passes = 3 * steps * search.training.batch  # of single rows; backward counts twice
    rows = MEASURING * passes * every / (max(1, behind) * max(1.0, masks))
    return int(min(ROWS, max(FEWEST, rows)))


@torch.no_grad()
def contributions(
    search: Search,
    model: Ranker,
    sample: Batch,
    *,
    gates: LeAP | None = None,
    masks: Sequence[Mask] | None = None,
    nested: bool = False,
) -> Contributions:
    """Return how the outputs and the loss change when fields are replaced by their means.

    Behind a linear layer, z = W x + b, a field changes z by W_i (mean_i - x_i), so that a mask
    costs the layers after the first one.

    Args:
        search: The search.
        model: A model of it, which is left in eval mode.
        sample: The rows.
        gates: The gates in front of its network; None if it has none.
        masks: The sets of fields that are replaced together; None is each field by itself.
        nested: Whether each mask also replaces the fields of all masks before it.
    """
    task = search.task
    model.eval()
    net = SplitNet(model.net, task.fields.dims, hooks=gates is None)
    size = rows_at_once(task.fields.dims + len(net.bias))
    if gates is None:
        mean = mean_input(search, model)
    else:
        mean = sample_mean(model, sample)  # the running means of gates are older than the tables
        net.put_behind(gates.gate_in_eval()[gates.column_gate], gates.means())
    if masks is None:
        masks = [(name,) for name in task.fields.names]
    blocks = [[task.fields.columns(name) for name in mask] for mask in masks]
    changes = []
    rises = []
    outputs = []
    for batch in chunks(sample, size):
        x = model.inputs(*batch.inputs)  # (B, D)
        z = torch.addmm(net.bias, x, net.weight.T)  # (B, H)
        seen = x
        if gates is not None and net.others:
            seen = gates(x)
        output = net.finish(z, seen)
        masked = []
        start = (z, seen)
        for own_blocks in blocks:
            replaced = _replaced(net, x, start, mean, own_blocks)
            masked.append(net.finish(*replaced))
            if nested:
                start = replaced
        without = torch.stack(masked)  # (M, B)
        changes.append(output - without)
        rises.append(losses_of(task.objective, without, batch.label))
        rises[-1] -= task.objective.row_losses(output, batch.label)
        outputs.append(output)
    by_row = torch.cat(rises, dim=1).double()  # (M, N)
    errors = by_row.std(1) / by_row.shape[1] ** 0.5
    return Contributions(
        changes=torch.cat(changes, dim=1),
        rises=by_row.mean(1),
        errors=errors.nan_to_num(0.0),
        outputs=torch.cat(outputs),
        by_row=by_row,
    )


def losses_of(objective: Objective, outputs: Tensor, label: Tensor) -> Tensor:
    """Return the loss of each row for several outputs of the same rows, (M, B).

    Args:
        objective: The objective.
        outputs: The raw outputs, (M, B).
        label: The label of each row, (B,).
    """
    found = objective.row_losses(outputs.flatten(), label.repeat(len(outputs)))
    return found.view(outputs.shape)


def sample_mean(model: Ranker, sample: Batch) -> Tensor:
    """Return the mean of each column of the network's input over some rows of a sample, (D,).

    Args:
        model: The model, in eval mode.
        sample: The rows, of which at most 2,048 evenly spaced ones are read.
    """
    every = -(-len(sample) // FEWEST)
    mean: Tensor = model.inputs(*sample.take(slice(0, len(sample), every)).inputs).mean(0)
    return mean


def _replaced(
    net: SplitNet,
    x: Tensor,
    start: tuple[Tensor, Tensor],
    mean: Tensor,
    blocks: Sequence[slice],
) -> tuple[Tensor, Tensor]:
    """Return what the network computes with once some blocks of columns are their means.

    Args:
        net: The network.
        x: The input of its linear layers, (B, D).
        start: The outputs of the linear layers before, (B, H), and the input that its other parts
            see, (B, D).
        mean: The means, (D,).
        blocks: The columns to replace.
    """
    z, seen = start
    if net.others:
        seen = seen.clone()
    for columns in blocks:
        z = torch.addmm(z, mean[columns] - x[:, columns], net.weight[:, columns].T)
        if net.others:
            seen[:, columns] = mean[columns]
    return z, seen


def alike(changes: Tensor, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs of fields whose contributions to the outputs are correlated, most first.

    Args:
        changes: The change of each row's output by each field, (F, N).
        names: The names of the fields.
    """
    if len(names) < 2:
        return []
    correlation = torch.corrcoef(changes.double()).nan_to_num(0.0)
    size = correlation.abs()
    pairs = (size > ALIKE).triu(1).nonzero().tolist()
    pairs.sort(key=lambda pair: -float(size[pair[0], pair[1]]))
    return [(names[one], names[other]) for one, other in pairs]


def substitutes_of(
    pairs: Sequence[tuple[str, str]],
    copies: Mapping[str, str],
    before: Mapping[str, Worth],
    after: Mapping[str, Worth],
) -> tuple[Substitute, ...]:
    """Return the pairs of fields of which one took over when the other one closed.

    These are equivalent fields, and fields whose contributions are alike and of which the one that
    stayed longer is worth more on the path than in the model of all fields, beyond the chance of
    the rows.

    Args:
        pairs: The pairs whose contributions are alike in the model of all fields.
        copies: The fields that closed at once, each with the one that stands for it.
        before: What each field is worth in the model of all fields.
        after: What it is worth on the path.
    """
    found = []
    for pair in pairs:
        first, last = sorted(pair, key=lambda name: after[name].nats)
        is_copy = copies.get(first) == last
        rise = after[last].nats - before[last].nats
        error = math.hypot(before[last].error, after[last].error)
        if after[last].nats > 0 and (is_copy or rise > NORMAL_95 * error):
            found.append(Substitute(first, last, before[last].nats, after[last].nats))
    return tuple(sorted(found, key=lambda pair: pair.before - pair.after))
