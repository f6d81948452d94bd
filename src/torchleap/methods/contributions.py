"""What each field contributes to the outputs of a trained model, and which fields say the same."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..models import Ranker
from ..selection import Substitute, Worth
from ..selection.path import NORMAL_95
from .base import Search
from .sample import chunks, evenly_spaced
from .shark import mean_input
from .shuffled import SplitNet, rows_at_once

ROWS = 1 << 15  # validation rows that contributions are computed for, at most,
NUMBERS = 1 << 26  # with so many numbers in their input: wide inputs take fewer rows,
SLOW_ROWS = 1 << 12  # and for networks that have to see the complete input again for each field
ALIKE = 0.4  # the correlation of two contributions from which fields are substitutes


class Contributions(NamedTuple):
    """How a trained model changes when each field is replaced by its mean.

    Attributes:
        changes: The change of each row's output, (F, N).
        rises: The rise of the mean loss, (F,).
        errors: Its standard error over the rows, (F,).
    """

    changes: Tensor
    rises: Tensor
    errors: Tensor

    def worth(self, names: Sequence[str], *, on_train: Tensor, optimism: float) -> dict[str, Worth]:
        """Return the rise of the loss without each field, corrected for memorised fields.

        A model relies on a field that it has memorised, so that its loss rises without it, but on
        train rows by far more than on others.

        Args:
            names: The names of the fields.
            on_train: The rise of the loss on train rows, (F,).
            optimism: How much it counts against a field that it helps there more than here.
        """
        corrected = self.rises - optimism * (on_train - self.rises)
        halves = (NORMAL_95 * self.errors).tolist()
        found = {}
        for name, rise, half in zip(names, corrected.tolist(), halves, strict=True):
            found[name] = Worth(rise, rise - half, rise + half)
        return found


@torch.no_grad()
def contributions(search: Search, model: Ranker, *, on_train: bool = False) -> Contributions:
    """Return how the outputs and the loss change when each field is replaced by its mean.

    Behind a linear layer, z = W x + b, a field changes z by W_i (mean_i - x_i), so that a field
    costs the layers after the first one.

    Args:
        search: The search whose validation rows are used, evenly spaced ones if there are many.
        model: A trained model without gates, which is left in eval mode.
        on_train: Whether random train rows are used instead.
    """
    task = search.task
    mean = mean_input(search, model)  # (D,)
    net = SplitNet(model.net, task.fields.dims)
    most = SLOW_ROWS if net.others else ROWS
    most = max(2, min(most, NUMBERS // task.fields.dims))
    if on_train:
        count = min(most, len(task.train))
        sample = next(iter(task.train.batches(count, shuffle=True, seed=search.seed)))
    else:
        sample = evenly_spaced(task.valid, most)
    size = rows_at_once(task.fields.dims + len(net.bias))
    changes = []
    rises = []
    for batch in chunks(sample, size):
        label = batch.label
        x = model.inputs(*batch.inputs)  # (B, D)
        z = x @ net.weight.T + net.bias  # (B, H)
        output = net.finish(z, x)
        loss = task.objective.row_losses(output, label)
        own_changes = []
        own_rises = []
        for name in task.fields.names:
            columns = task.fields.columns(name)
            difference = mean[columns] - x[:, columns]
            seen = x
            if net.others:
                seen = x.clone()
                seen[:, columns] = mean[columns]
            masked = net.finish(z + difference @ net.weight[:, columns].T, seen)
            own_changes.append(output - masked)
            own_rises.append(task.objective.row_losses(masked, label) - loss)
        changes.append(torch.stack(own_changes))
        rises.append(torch.stack(own_rises))
    by_row = torch.cat(rises, dim=1).double()  # (F, N)
    errors = by_row.std(1) / by_row.shape[1] ** 0.5
    return Contributions(torch.cat(changes, dim=1), by_row.mean(1), errors.nan_to_num(0.0))


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
    pairs: Sequence[tuple[str, str]], rises: Mapping[str, float], worth: Mapping[str, Worth]
) -> tuple[Substitute, ...]:
    """Return the pairs of fields of which one took over when the other one closed.

    Args:
        pairs: The pairs whose contributions are alike in the model of all fields.
        rises: The rise of that model's loss without each field.
        worth: The worth of each field on the path.
    """
    found = []
    for pair in pairs:
        first, last = sorted(pair, key=lambda name: worth[name].nats)
        after = worth[last].nats
        if after > 0:
            found.append(Substitute(first, last, rises[last], after))
    return tuple(sorted(found, key=lambda pair: pair.before - pair.after))
