"""What each gate pays for on a price path: the same, by its dimensions, or by its cost."""

from typing import Literal

import torch
from torch import Tensor

from .._common.errors import SelectionError
from ..fields import Fields

PriceBy = Literal["field", "dims", "cost"]

LEAST_COST = 1e-2  # of the mean cost, below which a cheaper field is not closed later
MOST_COST = 1e2


def relative_costs(fields: Fields, price_by: PriceBy) -> Tensor:
    """Return the cost of each gate relative to the mean gate, (G,), within 0.01 and 100.

    Args:
        fields: The fields; those of a group add up.
        price_by: "field" is the same for each gate, "dims" is proportional to its dimensions,
            "cost" to `Field.cost`.
    """
    count = max(fields.gates) + 1
    costs = torch.zeros(count, dtype=torch.get_default_dtype())
    for field, gate in zip(fields, fields.gates, strict=True):
        if price_by == "field":
            costs[gate] = 1.0
        elif price_by == "dims":
            costs[gate] += field.width
        else:
            costs[gate] += _positive_cost(field.name, field.cost)
    return (costs / costs.mean()).clamp(LEAST_COST, MOST_COST)


def _positive_cost(name: str, cost: float | None) -> float:
    if cost is None or cost <= 0:
        raise SelectionError(
            f"Expected costs above 0 for a path by cost, but that of {name!r} is {cost}. "
            "Give it a small cost, or price_by='field'."
        )
    return cost
