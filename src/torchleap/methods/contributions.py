"""What each field contributes to the outputs of a trained model, and which fields say the same."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..models import Ranker
from ..selection import Substitute, Worth
from .base import Search
from .shark import mean_input

ROWS = 4096  # validation rows that contributions are computed for, at most
NUMBERS = 1 << 25  # of their input, at most: wide inputs take fewer rows
ALIKE = 0.4  # the correlation of two contributions from which fields are substitutes


@torch.no_grad()
def contributions(search: Search, model: Ranker) -> tuple[Tensor, Tensor]:
    """Return how the outputs and the loss change when each field is replaced by its mean.

    Args:
        search: The search whose validation rows are used.
        model: A trained model without gates.

    Returns:
        The change of each row's output, (F, N), and the rise of the mean loss, (F,).
    """
    task = search.task
    mean = mean_input(search, model)
    rows = max(2, min(ROWS, len(task.valid), NUMBERS // task.fields.dims))
    batch = next(iter(task.valid.batches(rows, shuffle=True, seed=search.seed)))
    x = model.inputs(*batch.inputs)
    output = model.net(x)
    loss = task.objective.loss(output, batch.label)
    changes = []
    rises = []
    for name in task.fields.names:
        columns = task.fields.columns(name)
        own = x[:, columns].clone()
        x[:, columns] = mean[columns]
        masked = model.net(x)
        x[:, columns] = own
        changes.append((output - masked).reshape(len(output), -1).sum(1))
        rises.append(task.objective.loss(masked, batch.label) - loss)
    return torch.stack(changes), torch.stack(rises)


def substitutes_of(
    search: Search, plain: nn.Module, worth: Mapping[str, Worth]
) -> tuple[Substitute, ...]:
    """Return the pairs of fields of which one took over when the other one closed.

    Two fields are substitutes if their contributions to the outputs of the model of all fields
    are correlated, and the one that is worth more is worth something.

    Args:
        search: The search.
        plain: The model of all fields.
        worth: The worth of each field on the path.
    """
    assert isinstance(plain, Ranker)
    if len(worth) < 2:
        return ()
    changes, rises = contributions(search, plain)
    alike = torch.corrcoef(changes.double()).nan_to_num(0.0)
    names = search.task.fields.names
    found = []
    for one, other in (alike.abs() > ALIKE).triu(1).nonzero().tolist():
        first, last = sorted((one, other), key=lambda place: worth[names[place]].nats)
        before = float(rises[last])
        after = worth[names[last]].nats
        if after > 0:
            found.append(Substitute(names[first], names[last], before, after))
    return tuple(sorted(found, key=lambda pair: pair.before - pair.after))
