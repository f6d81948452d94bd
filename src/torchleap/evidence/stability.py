"""Stability: how often a field is kept when the measurements of a search are repeated by chance.

The price path measures its losses row by row. A replica repeats all of these measurements on
another draw of the same validation rows (the bootstrap; groups of rows are drawn together), orders
the fields again, and applies the rule again. No model runs for it.

**What it covers.** The chance of the validation rows in the worth of each field and in the metric
of each point, and in the worth also the noise between trainings as far as the plain training shows
it (`methods/training_noise.py`).

**What it does not cover.** The models of the path stay as they are: another draw of the train rows,
another initialisation or another order of closing could lead to other models, and with them of two
fields that say the same the other one could stay. Searches with other seeds show this
(`torchleap.search(seed=...)`). A field that is kept in all replicas is therefore one that these
models surely need, not one that every model needs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .._common.errors import SelectionError
from .._common.text import table
from ..fields import Fields
from ..selection import Selection


@dataclass(frozen=True)
class Stability:
    """In how many replicas of a search each field is kept; prints as a table.

    >>> print(Stability({"age": 8, "zip": 3}, 8))
    field  kept in
    age     8 of 8
    zip     3 of 8

    Attributes:
        kept_in: The number of replicas by field, in field order.
        replicas: The number of all replicas.
    """

    kept_in: Mapping[str, int]
    replicas: int

    @property
    def frequency(self) -> dict[str, float]:
        """Return the share of the replicas in which each field is kept, in field order."""
        return {name: count / self.replicas for name, count in self.kept_in.items()}

    def __str__(self) -> str:
        rows = [[name, f"{count} of {self.replicas}"] for name, count in self.kept_in.items()]
        return table(["field", "kept in"], rows)


def stability(fields: Fields, selections: Sequence[Callable[[], Selection]]) -> Stability:
    """Return in how many replicas each field is kept.

    Where the rule can keep no field in a replica, that replica keeps none.

    Args:
        fields: The fields.
        selections: Each makes the selection of one replica.
    """
    kept_in = dict.fromkeys(fields.names, 0)
    for select in selections:
        try:
            kept = select().kept
        except SelectionError:
            kept = ()
        for name in kept:
            kept_in[name] += 1
    return Stability(kept_in, len(selections))
