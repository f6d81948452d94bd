"""Path: the worth of every field, and the metric of a model at each number of fields.

A search that closes one field after the other leaves a path: at each of its points some fields are
open, and the model has adapted to exactly these. Any other method can mask fields in a trained
model instead, which does not adapt. Rules read the path to decide how many fields to keep.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .._common.errors import SelectionError
from .decoys import DecoyScores

NORMAL_95 = 1.96  # standard errors to either side that contain 95 % of a normal distribution


@dataclass(frozen=True)
class Worth:
    """What a field contributes: the loss that a model pays without it, with a 95 % interval.

    Attributes:
        nats: The rise of the held-out loss while the field closed, in the unit of the loss (nats
            for a log loss), next to the fields that were still open. Below 0 the model is better
            without the field. Methods without gates measure it in a trained model of all fields.
        low: The lower end of the interval.
        high: The upper end.
    """

    nats: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Return the standard error."""
        return (self.high - self.low) / (2 * NORMAL_95)


@dataclass(frozen=True)
class Substitute:
    """A field that took over when another one closed.

    Attributes:
        closed: The field that closed.
        field: The open field whose worth rose by it.
        before: The worth of that field before, in nats.
        after: Its worth after the model had adapted.
    """

    closed: str
    field: str
    before: float
    after: float


@dataclass(frozen=True)
class PathPoint:
    """The model at one number of open fields.

    Attributes:
        kept: The open fields, in field order.
        closed: The fields that closed since the point before, the first to close first.
        dims: The dimensions of the open fields.
        cost: Their cost, in the unit of `Field.cost`.
        metric: The metric of the model on the validation rows.
        low: The lower end of the metric's 95 % interval: it covers the chance of the validation
            rows in the difference to the model of all fields.
        high: The upper end.
        behind: How much worse the metric is than the best one before, 0 where it is the best.
        error: The standard error of that difference, measured on the same rows.
        loss: The loss on the validation rows.
        price: The price of an open gate, in the unit of the loss; None where fields are masked.
        step: The training step; None where fields are masked in a trained model.
    """

    kept: tuple[str, ...]
    closed: tuple[str, ...]
    dims: int
    cost: float
    metric: float
    low: float
    high: float
    behind: float
    error: float
    loss: float
    price: float | None
    step: int | None


@dataclass(frozen=True)
class Path:
    """The points of a path, from all fields to the last one, and the worth of each field.

    Attributes:
        metric: The name of the metric.
        worth: The worth of each field by its name, in field order.
        points: The points, with fewer and fewer fields; empty for a method that measures worth
            without closing fields.
        substitutes: The fields that took over for others, the largest rise first.
        gates: The gates of the fields at the best point; empty without gates.
        together: Pairs of fields that are worth something only together, as the factors of a
            product are.
        decoys: What the decoys of the fields reached in the same search; None without decoys.
    """

    metric: str
    worth: Mapping[str, Worth]
    points: tuple[PathPoint, ...] = ()
    substitutes: tuple[Substitute, ...] = ()
    gates: Mapping[str, float] = field(default_factory=dict)
    together: tuple[tuple[str, ...], ...] = ()
    decoys: DecoyScores | None = None

    @property
    def is_adapted(self) -> bool:
        """Return whether the model adapted to the fields of each point; a masked one does not."""
        return all(point.step is not None for point in self.points)

    @property
    def best(self) -> PathPoint:
        """Return the point with the best metric; of several, the one with the most fields."""
        self._refuse_without_points()
        best = self.points[0]
        for point in self.points:
            if point.behind == 0 and point.error == 0:
                best = point
        return best

    def smallest_within(self, tolerance: float | None = None) -> PathPoint:
        """Return the point with the fewest fields whose metric is within a tolerance of the best.

        Args:
            tolerance: The difference that is accepted; None is one standard error of it, which is
                what other validation rows would change by chance.
        """
        best = self.best
        found = best
        for point in self.points[self.points.index(best) :]:
            accepted = point.error if tolerance is None else tolerance
            if point.behind <= accepted:
                found = point
        return found

    def _refuse_without_points(self) -> None:
        if not self.points:
            raise SelectionError(
                "Expected a search that closes fields one after the other, but this one has no "
                "path. Search with method='leap' or with path=True, or give share=."
            )

    def to_json(self) -> dict[str, Any]:
        """Return the path as a plain dict, which `from_json` reads."""
        return asdict(self)

    @staticmethod
    def from_json(content: Any) -> "Path":
        """Return the path that `to_json` wrote."""
        try:
            decoys = content.get("decoys")
            points = [
                PathPoint(**{**one, "kept": tuple(one["kept"]), "closed": tuple(one["closed"])})
                for one in content["points"]
            ]
            return Path(
                metric=content["metric"],
                worth={name: Worth(**one) for name, one in content["worth"].items()},
                points=tuple(points),
                substitutes=tuple(Substitute(**one) for one in content["substitutes"]),
                gates=dict(content["gates"]),
                together=tuple(tuple(names) for names in content.get("together", ())),
                decoys=None if decoys is None else DecoyScores.from_json(decoys),
            )
        except (TypeError, KeyError, AttributeError) as error:
            raise SelectionError(
                f"Expected a path with metric, worth, points, substitutes and gates: {error}."
            ) from error

    def __str__(self) -> str:
        from .._common.text import table

        rows = []
        for point in self.points:
            interval = f"{point.low:.4f} to {point.high:.4f}"
            row = [str(len(point.kept)), str(point.dims), f"{point.metric:.4f}", interval]
            if point.price is not None:
                row.append(f"{point.price:.1e}")
            rows.append([*row, ", ".join(point.closed)])
        last = ["price", "closed"] if self.is_adapted else ["masked, without adaptation"]
        return table(["fields", "dims", self.metric, "95 % interval", *last], rows)
