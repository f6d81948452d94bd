"""The path whose price is per dimension, beside the plain one: the dimensions that each needs.

    python benchmarks/cost_path.py --data industrial@0 --searches 2 --seeds 2 --out DIR

leap is one price for every field, leap_by_dims one per dimension (`LeAPMethod(price_by="dims")`).
Values are means over all searches and retrained models, with the standard deviation. Lines:

tolerance  the fewest fields within a tolerance of the best on each path, `select(tolerance=...)`:
           their dimensions, and the metric of retrained models;
budget     the best fields that fit into a part of the dimensions, `select(dims=...)`;
level      the fewest dimensions of retrained models, at ten points of each path, whose mean
           validation metric is within a distance of the best one of both methods.
"""

import statistics
from collections.abc import Mapping, Sequence

from _shared import (
    Found,
    Laboratory,
    Place,
    Retrained,
    laboratory,
    parser_of,
    spread_text,
)

from torchleap._common.text import table
from torchleap.bench.sets import DataSet
from torchleap.methods import LeAPMethod
from torchleap.selection import PathPoint, Rule

METHODS = {"leap": LeAPMethod(), "leap_by_dims": LeAPMethod(price_by="dims")}
TOLERANCES = (0.002, 0.005, 0.01)
BUDGETS = (0.5, 0.25, 0.1)  # of the dimensions
LEVELS = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08, 0.05, 0.03)  # of the dimensions


def rules_of(data: DataSet) -> dict[str, Rule]:
    """Return the rules of the first two tables by their words."""
    found: dict[str, Rule] = {}
    for tolerance in TOLERANCES:
        found[f"within {tolerance:g} of the best"] = Rule.of(tolerance=tolerance)
    for budget in BUDGETS:
        found[f"{budget:.0%} of the dims"] = Rule.of(dims=int(budget * data.task.fields.dims))
    return found


def level_points(found: Found) -> list[PathPoint]:
    """Return the points of a path nearest to each part of the dimensions, each once."""
    dims = found.data.task.fields.dims
    points = []
    for level in LEVELS:
        wanted = level * dims
        nearest = min(found.points, key=lambda point: abs(point.dims - wanted))
        if nearest not in points:
            points.append(nearest)
    return points


def fewest_dims(metrics: Mapping[int, float], least: float) -> int | None:
    """Return the fewest dimensions that reach a metric; None if none does.

    Args:
        metrics: The metric by dimensions, the higher, the better.
        least: The metric to reach.

    >>> fewest_dims({100: 0.70, 50: 0.71, 10: 0.6}, 0.69)
    50
    """
    reached = [dims for dims, metric in metrics.items() if metric >= least]
    return min(reached, default=None)


def rules_table(searches: Sequence[Found], retrained: Retrained) -> str:
    """Return what each method keeps by each rule, and the metric of retrained models."""
    data = searches[0].data
    rows = []
    for words, rule in rules_of(data).items():
        for method in METHODS:
            kept = [one.kept(rule) for one in searches if one.method == method]
            dims = [_dims(data, own) for own in kept]
            cells = [
                f"{words}: {method}",
                f"{statistics.mean(map(len, kept)):.1f}",
                f"{statistics.mean(dims):.0f}",
                f"{statistics.mean(dims) / data.task.fields.dims:.0%}",
            ]
            for part in ("valid", "test"):
                name = f"{part}_{data.headline.name}"
                values = []
                for own in kept:
                    values += retrained.values(data.name, own, name)
                cells.append(spread_text(values))
            rows.append(cells)
    head = ["rule", "fields", "dims", "of all", "retrained, valid", "retrained, test"]
    title = f"{data.name}, {data.headline.title}: by tolerance on the path, and by budget"
    return "\n".join([title, table(head, rows), ""])


def level_table(searches: Sequence[Found], retrained: Retrained) -> str:
    """Return the dimensions that each path needs for a level of retrained models."""
    data = searches[0].data
    curves = {(one.method, one.seed): retrained_curve(one, retrained) for one in searches}
    best = max(max(own.values()) for own in curves.values())
    rows = []
    for distance in TOLERANCES:
        cells = [f"within {distance:g} of {abs(best):.4f}"]
        for method in METHODS:
            needed = []
            for (name, _), own in curves.items():
                if name == method:
                    needed.append(fewest_dims(own, best - distance))
            cells.append(", ".join("none" if dims is None else str(dims) for dims in needed))
        rows.append(cells)
    title = f"{data.name}: dims that reach a level of retrained models, for each search"
    return "\n".join([title, table(["validation level", *METHODS], rows), ""])


def retrained_curve(found: Found, retrained: Retrained) -> dict[int, float]:
    """Return the mean validation gain of retrained models by dimensions, along a path."""
    metric = found.data.headline
    curve = {}
    for point in level_points(found):
        values = retrained.values(found.data.name, point.kept, f"valid_{metric.name}")
        curve[point.dims] = metric.gain(statistics.mean(values))
    return curve


def _dims(data: DataSet, kept: Sequence[str]) -> int:
    return sum(data.task.fields[name].width for name in kept)


def report(lab: Laboratory) -> str:
    """Run what is not in the store, and return the tables."""
    searches = lab.search()
    wanted: list[tuple[str, Sequence[str]]] = []
    for found in searches.values():
        name = found.data.name
        wanted += [(name, found.kept(rule)) for rule in rules_of(found.data).values()]
        wanted += [(name, point.kept) for point in level_points(found)]
    retrained = lab.retrain(wanted)
    lines = []
    for name in lab.data:
        own = searches_of(name, searches)
        lines += [rules_table(own, retrained), level_table(own, retrained)]
    return "\n".join(lines)


def searches_of(data: str, searches: Mapping[Place, Found]) -> list[Found]:
    """Return the searches of a data set."""
    return [found for found in searches.values() if found.data.name == data]


def main() -> None:
    """Print the tables."""
    parser = parser_of(__doc__, ["industrial@0"])
    print(report(laboratory(parser.parse_args(), METHODS)))


if __name__ == "__main__":
    main()
