"""A path by masking: the metric of a trained model while field after field becomes its mean."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from .._common.errors import SelectionError
from ..fields import Fields
from ..models import Ranker
from ..selection import Group, Path, PathPoint, rank
from .base import Method, Search
from .path_points import Measured, PathMetric
from .shark import mean_input
from .shuffled import SplitNet, rows_at_once

MOST_POINTS = 30  # of a path by masking; the numbers of fields then have about equal ratios


def refuse_unmaskable(method: Method) -> None:
    """Raise a SelectionError if a method trains no plain model, in which fields can be masked."""
    if method.uses_trained_model:
        return
    raise SelectionError(
        "Expected a method that trains a plain model of all fields, in which fields are masked "
        f"one after the other, but {type(method).__name__} trains none. Search with "
        "method='permutation', 'shark' or 'sfs', or with 'leap', which has a path of its own."
    )


def masked_path(search: Search, scores: Mapping[str, float]) -> Path:
    """Return the path of a trained model whose fields are masked, the lowest score first.

    A masked field has its mean over the validation rows in every row. The model does not adapt,
    so a model that is trained without these fields is usually better than the point. Fields of a
    group are masked together, protected ones never.

    Args:
        search: A search with a trained plain model; the worth that it has measured stays.
        scores: The score of each field.
    """
    if not isinstance(search.plain, Ranker):
        raise SelectionError(
            "Expected a search with a plain model of all fields, but it has trained none. "
            "Train it by search.fit_plain()."
        )
    fields = search.task.fields
    groups = rank(fields, scores)
    counts = falling_counts(len(groups), sum(group.protected for group in groups))
    closed = [names_to_mask(groups, more, fewer) for more, fewer in pairwise(counts)]
    outputs = masked_outputs(search, search.plain, closed)
    metric = PathMetric(search)
    points = []
    for count, names, own in zip(counts, [(), *closed], outputs, strict=True):
        found = metric.measure(own)
        points.append(_point(fields, groups[:count], names, found, metric.loss(own)))
    worth = {} if search.path is None else search.path.worth
    return Path(metric.metric.name, worth, tuple(points))


def falling_counts(groups: int, protected: int, most: int = MOST_POINTS) -> list[int]:
    """Return how many groups are kept at each point: all of them first, and at least one.

    Args:
        groups: The number of groups.
        protected: How many of them are never masked.
        most: The largest number of points.

    >>> falling_counts(5, 2)
    [5, 4, 3, 2]
    >>> falling_counts(1000, 0, most=7)
    [1000, 316, 100, 32, 10, 3, 1]
    """
    last = max(1, protected)
    if groups - last < most:
        return list(range(groups, last - 1, -1))
    ratio = last / groups
    found = {round(groups * ratio ** (place / (most - 1))) for place in range(most)}
    return sorted(found, reverse=True)


def names_to_mask(groups: Sequence[Group], more: int, fewer: int) -> tuple[str, ...]:
    """Return the fields that are masked from one number of kept groups to the next, in order.

    Args:
        groups: All groups, the best first.
        more: The number of groups that are kept before.
        fewer: The number that are kept afterwards.
    """
    masked = reversed(groups[fewer:more])
    return tuple(name for group in masked for name in reversed(group.names))


@torch.no_grad()
def masked_outputs(search: Search, model: Ranker, closed: Sequence[Sequence[str]]) -> Tensor:
    """Return the outputs for all validation rows while more and more fields are masked.

    Behind a linear layer, z = W x + b, a field changes z by W_i (x_i - mean_i): all points together
    cost one pass of the first layer, and each of them one of the other layers. They are computed
    from the last one to the first, so that rows which differ only in masked fields have the same
    output, not one that is the same up to rounding: ranks depend on ties.

    Args:
        search: The search.
        model: The trained model, which is left in eval mode.
        closed: The fields that are masked at each point beyond those of the point before.

    Returns:
        The outputs of the complete model, and those at each point, (1 + points, N).
    """
    fields = search.task.fields
    mean = mean_input(search, model)  # (D,)
    net = SplitNet(model.net, fields.dims)
    masked = {name for names in closed for name in names}
    never = [name for name in fields.names if name not in masked]
    parts = [_columns(fields, names) for names in (never, *reversed(closed))]
    weights = [net.weight[:, columns].T for columns in parts]  # (d, H) each
    of_means = net.bias + net.weight @ mean  # (H,)
    rows = search.task.valid
    size = rows_at_once(fields.dims + len(net.bias))
    found = torch.empty(len(parts), len(rows))
    for number, batch in enumerate(rows.between(0, len(rows), size)):
        x = model.inputs(*batch.inputs)  # (B, D), which may lie in the rows themselves
        z = of_means.repeat(len(x), 1)  # (B, H)
        seen = mean.repeat(len(x), 1) if net.others else x[:, :0]
        here = slice(number * size, number * size + len(x))
        for place, (columns, weight) in enumerate(zip(parts, weights, strict=True)):
            z.addmm_(x[:, columns] - mean[columns], weight)
            if net.others:
                seen[:, columns] = x[:, columns]
            found[-1 - place, here] = net.finish(z, seen)
    return found


def _columns(fields: Fields, names: Sequence[str]) -> Tensor:
    """Return the positions of all columns of some fields, (d,)."""
    every = torch.arange(fields.dims)
    return torch.cat([every[fields.columns(name)] for name in names])


def _point(
    fields: Fields,
    kept: Sequence[Group],
    closed: tuple[str, ...],
    found: Measured,
    loss: float,
) -> PathPoint:
    """Return a point of the path, which has neither a price nor a step."""
    names = {name for group in kept for name in group.names}
    return PathPoint(
        kept=tuple(name for name in fields.names if name in names),
        closed=closed,
        dims=sum(group.width for group in kept),
        cost=sum(group.cost for group in kept),
        **found._asdict(),
        loss=loss,
        price=None,
        step=None,
    )
