"""How well each method orders fields: retrained models at several budgets, and their summary.

    TORCHLEAP_DATA=... python benchmarks/ranking.py --out ranking                # the grid
    TORCHLEAP_DATA=... python benchmarks/ranking.py --out ranking --data census  # one set of it

The trials are those of `torchleap bench --grid benchmarks/grids/ranking.toml`, kept in the same
store: a second call only prints. For each data set the table has the test metric at each share of
the fields, and AUKC, the area under the curve of the metric over the share of kept fields, from
the smallest share of the grid to all fields, by the trapezoidal rule and divided by its width: the
mean metric over all budgets. S is the mean over data sets of a method's value over the best
method's. Jaccard compares the kept halves of the searches with different seeds.
"""

import argparse
import statistics
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from torchleap._common.text import table
from torchleap.bench.grid import REFERENCE, Grid
from torchleap.bench.run import Runner, Standing
from torchleap.bench.search_retrain import SearchRetrain, kept_by, search_retrain
from torchleap.objectives import s_auc

GRID = Path(__file__).parent / "grids" / "ranking.toml"
MODEL = "wide_deep"


def curve(results: SearchRetrain, data: str, method: str) -> dict[float, float]:
    """Return the mean test metric by share, with that of all fields at 1."""
    metric = results.data[data].headline.name
    found = {}
    for share in results.grid.shares:
        samples = results.samples(data, MODEL, share, metric)
        found[share] = statistics.mean(one.value for one in samples[method].values())
        reference = samples[REFERENCE]
    found[1.0] = statistics.mean(one.value for one in reference.values())
    return dict(sorted(found.items()))


def area(points: Mapping[float, float]) -> float:
    """Return AUKC: the mean of the metric over the share of kept fields.

    >>> area({0.0: 0.5, 0.5: 0.7, 1.0: 0.7})
    0.65
    """
    shares = list(points)
    total = 0.0
    for left, right in pairwise(shares):
        total += (right - left) * (points[left] + points[right]) / 2
    return total / (shares[-1] - shares[0])


def jaccard(results: SearchRetrain, data: str, method: str) -> float | None:
    """Return how alike the kept halves of the first two searches are; None for a single one."""
    searches = results.searches.get((data, MODEL, method), {})
    halves = [set(kept_by(results.data[data], one["scores"], 0.5)) for one in searches.values()]
    if len(halves) < 2:
        return None
    return len(halves[0] & halves[1]) / len(halves[0] | halves[1])


def report(results: SearchRetrain) -> str:
    """Return the tables of all data sets and the summary."""
    methods = [method for method in results.grid.methods if method != REFERENCE]
    shares = sorted(results.grid.shares, reverse=True)
    lines = []
    values: dict[str, dict[str, dict[str, float]]] = {}
    head = ["method", *(f"{share:.0%}" for share in shares), "AUKC", "Jaccard", "seconds"]
    for data in results.data:
        rows = []
        for method in methods:
            points = curve(results, data, method)
            own = {f"{share:.0%}": points[share] for share in shares}
            own["AUKC"] = area(points)
            for column, value in own.items():
                values.setdefault(column, {}).setdefault(method, {})[data] = value
            alike = jaccard(results, data, method)
            searches = results.searches[data, MODEL, method].values()
            seconds = statistics.mean(one["seconds"] for one in searches)
            cells = [f"{value:.4f}" for value in own.values()]
            cells += ["-" if alike is None else f"{alike:.2f}", f"{seconds:.0f}"]
            rows.append([method, *cells])
        full = curve(results, data, methods[0])[1.0]
        title = f"{data}: test {results.data[data].headline.title}, all fields {full:.4f}"
        lines += [title, table(head, rows), ""]
    rows = []
    summary = {column: s_auc(own) for column, own in values.items()}
    for method in methods:
        rows.append([method, *(f"{own[method]:.4f}" for own in summary.values())])
    lines += [f"S over {len(results.data)} data sets", table(["method", *summary], rows)]
    return "\n".join(lines)


def main() -> None:
    """Run what is not in the store, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True, help="folder of the store")
    parser.add_argument("--data", nargs="*", help="data sets of the grid; all by default")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    grid = Grid.load(GRID)
    if given.data:
        grid = Grid(
            data=tuple(recipe for recipe in grid.data if recipe.name in given.data),
            methods=grid.methods,
            models=grid.models,
            shares=grid.shares,
            search_seeds=grid.search_seeds,
            retrain_seeds=grid.retrain_seeds,
            training=grid.training,
        )
    runner = Runner(given.out, jobs=given.jobs, on_progress=show)
    print(report(search_retrain(grid, runner)))


def show(standing: Standing) -> None:
    """Print the progress and the time left."""
    left = "" if standing.left is None else f", {standing.left / 60:.0f} minutes left"
    print(f"\r{standing.done} of {standing.total}{left}   ", end="", flush=True)


if __name__ == "__main__":
    main()
