"""Fields that are the same but for their names, units or rotation: each can stand for the other."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..fields import Fields
from ..models import FieldInputs, Ranker
from .base import Search
from .sample import evenly_spaced
from .shuffled import reader_of

ROWS = 1 << 15  # validation rows that two fields are compared on, at most
NUMBERS = 1 << 23  # of the values of one field, at most: wide fields take fewer rows
CANDIDATES = 500  # pairs that are compared, at most
SAME = 0.98  # of the variation of each field that the other one must determine
REPEATS = 100  # rows with an id that other rows have too, below which ids cannot be compared
RIDGE = 1e-3  # of the mean variance of a column


def equivalents(
    search: Search, model: Ranker, candidates: Sequence[tuple[str, str]]
) -> dict[str, str]:
    """Return the fields that can be dropped at once, with the field that stands for each.

    Two fields are equivalent if each determines the other: ids that are renamed, numbers in
    another unit, vectors that are rotated. Of several, the one that stays is a protected one,
    else the cheapest, else the first.

    Args:
        search: The search whose validation rows are compared.
        model: A trained model, by whose tables ids are distinguished.
        candidates: The pairs of names to compare; of very many, the first ones are.
    """
    fields = search.task.fields
    stands_for = {name: name for name in fields.names}
    for one, other in candidates[:CANDIDATES]:
        if not _is_alone(fields, (one, other)):
            continue
        widest = max(fields[one].width, fields[other].width)
        count = max(2, min(ROWS, NUMBERS // widest))
        first = values_of(search, model, one, count)
        second = values_of(search, model, other, count)
        if are_equivalent(first, second, ids=_both_are_ids(model, fields, (one, other))):
            _join(stands_for, one, other)
    return _dropped(fields, stands_for)


@torch.no_grad()
def values_of(search: Search, model: Ranker, name: str, count: int) -> Tensor:
    """Return the values of a field in evenly spaced validation rows, (N, width).

    Args:
        search: The search.
        model: A trained model, whose tables have the values of ids.
        name: The name of the field.
        count: How many rows are taken at most.
    """
    assert isinstance(model.inputs, FieldInputs)
    batch = evenly_spaced(search.task.only([name]).valid, count)
    reader = reader_of(model.inputs, search.task.fields.names.index(name))
    found: Tensor = reader(*batch.inputs)
    return found


def are_equivalent(one: Tensor, other: Tensor, *, ids: bool) -> bool:
    """Return whether each of two fields determines the other.

    >>> x = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0))
    >>> are_equivalent(x, 3 * x[:, [1, 0]] + 1, ids=False)
    True
    >>> are_equivalent(x, x[:, :1], ids=False)
    False

    Args:
        one: The values of a field, (N, width).
        other: Those of another one in the same rows, (N, other width).
        ids: Whether both are ids, of which only equality counts.
    """
    share = determined_ids if ids else determined_numbers
    return share(one, other) >= SAME and share(other, one) >= SAME


def determined_numbers(given: Tensor, target: Tensor) -> float:
    """Return the share of a field's variance that is a linear function of another field.

    The function is fitted to every other row, and the share is that of the rows in between.

    Args:
        given: The field that is known, (N, width).
        target: The field to predict, (N, other width).
    """
    x = given.double()
    y = target.double()
    x = x - x[::2].mean(0)
    y = y - y[::2].mean(0)
    square = x[::2].T @ x[::2]
    ridge = RIDGE * square.diagonal().mean().clamp_min(1e-30)
    weights = torch.linalg.solve(
        square + ridge * torch.eye(len(square), dtype=square.dtype), x[::2].T @ y[::2]
    )
    missed = (y[1::2] - x[1::2] @ weights).square().sum()
    total = y[1::2].square().sum()
    if float(total) <= 0:
        return 0.0
    return 1.0 - float(missed / total)


def determined_ids(given: Tensor, target: Tensor) -> float:
    """Return by which share another id lowers the errors in guessing a field's id.

    Without it, the most common id is guessed; with it, the most common one of the other rows with
    the same given id (Goodman and Kruskal's lambda, each row left out of its own guess). Rows
    whose given id is in no other row say nothing; too few others count as 0.

    Args:
        given: The embedding of the id that is known, (N, width).
        target: That of the id to guess, (N, other width).
    """
    known = codes_of(given)
    wanted = codes_of(target)
    is_repeated = torch.bincount(known)[known] > 1
    known = known[is_repeated]
    wanted = wanted[is_repeated]
    if len(known) < REPEATS:
        return 0.0
    many = int(wanted.max()) + 1
    pairs, place, count = torch.unique(
        known * many + wanted, return_inverse=True, return_counts=True
    )
    owner = pairs // many  # the given id of each pair
    best = torch.zeros(int(known.max()) + 1, dtype=count.dtype)
    best.scatter_reduce_(0, owner, count, "amax")
    is_best = count == best[owner]
    ties = torch.zeros_like(best).index_add_(0, owner, is_best.to(best.dtype))
    # Without its own row, an id of one row, or one of a tie, is not the most common one.
    is_right = is_best & (ties[owner] == 1) & (count > 1)
    errors = len(known) - int(is_right[place].sum())
    without = len(wanted) - int(torch.bincount(wanted).max())
    if without == 0:
        return 0.0
    return 1.0 - errors / without


def codes_of(values: Tensor) -> Tensor:
    """Return a whole number for each row of a table, the same for the same values, (N,)."""
    rng = torch.Generator().manual_seed(0)
    direction = torch.randn(values.shape[1], generator=rng, dtype=torch.float64)
    projected = (values.double() * direction).sum(1)  # equal rows give equal bits
    codes: Tensor = torch.unique(projected, return_inverse=True)[1]
    return codes


def _is_alone(fields: Fields, names: Sequence[str]) -> bool:
    """Return whether each of the fields has a gate of its own."""
    gates = list(fields.gates)
    return all(gates.count(gates[fields.names.index(name)]) == 1 for name in names)


def _both_are_ids(model: Ranker, fields: Fields, names: Sequence[str]) -> bool:
    assert isinstance(model.inputs, FieldInputs)
    return all(model.inputs.columns[fields.names.index(name)].is_ids for name in names)


def _join(stands_for: dict[str, str], one: str, other: str) -> None:
    """Give the fields of two groups the same representative."""
    old = stands_for[other]
    new = stands_for[one]
    for name, current in stands_for.items():
        if current == old:
            stands_for[name] = new


def _dropped(fields: Fields, stands_for: Mapping[str, str]) -> dict[str, str]:
    """Return for each group of equivalents those that are dropped, with the one that stays."""
    groups: dict[str, list[str]] = {}
    for name, representative in stands_for.items():
        groups.setdefault(representative, []).append(name)
    found = {}
    for names in groups.values():
        stays = min(names, key=lambda name: (not fields[name].protected, fields[name].cost or 0))
        for name in names:
            if name != stays and not fields[name].protected:
                found[name] = stays
    return found
