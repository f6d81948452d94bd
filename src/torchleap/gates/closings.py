"""Closing: a gate that has closed for good; `add_point`: the list of points between closings."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..selection.path import PathPoint


@dataclass(frozen=True)
class Closing:
    """A gate that has closed for good.

    Attributes:
        gate: The number of the gate.
        step: The step of the model.
        price: The price of an open gate at that time, in the unit of the loss.
    """

    gate: int
    step: int
    price: float


def add_point(points: list[PathPoint], point: PathPoint, closed: Sequence[str]) -> bool:
    """Add a point to a path; of several with the same fields the best one stays.

    Args:
        points: The points so far, the first one with the most fields, changed in place.
        point: The new point, whose closed fields are set here.
        closed: All closed fields, in the order in which they closed.

    Returns:
        Whether it was added.
    """
    larger = [one for one in points if len(one.kept) > len(point.kept)]
    own = tuple(closed)
    if larger:
        own = tuple(name for name in closed if name in larger[-1].kept)
    point = replace(point, closed=own)
    is_new = len(larger) == len(points)
    if is_new:
        points.append(point)
        return True
    if point.behind >= points[-1].behind and point.behind > 0:
        return False
    points[-1] = point
    return True
