"""How well each method orders fields: retrained models at several budgets, and their summary.

    TORCHLEAP_DATA=... python benchmarks/ranking.py --out ranking                # the grid
    TORCHLEAP_DATA=... python benchmarks/ranking.py --out ranking --data census  # one set of it

The trials are those of `torchleap bench --grid benchmarks/grids/ranking.toml`, kept in the same
store: a second call only prints. For each data set the table has the test metric at each share of
the fields, and AUKC, the area under the curve of the metric over the share of kept fields, from
the smallest share of the grid to all fields, by the trapezoidal rule and divided by its width: the
mean metric over all budgets. A value is the mean over search and retrain seeds, with the standard
deviation between them. S is the mean over data sets of a method's value over the best method's.
Jaccard compares the kept halves of all pairs of searches. A share of less than one field is left
out: a set of nine fields has no value at 10 %, and its AUKC begins at 25 %.

For the worlds of known ground truth: F1 of the best fields, as many as are useful, in which a copy
counts as its original if that is not kept; how many of the fields that matter only in pairs are
among these; and the fraction of pairs of a useless and a useful field in the wrong order.

Each value is compared with that of leap by a paired t-test over the same seeds: ++ better and --
worse at 5 % with Holm's correction over all comparisons of the tables, + and - without correction.
Trainings of one search count as runs of their own, as in `torchleap bench`, so that a single + is
weak evidence.
"""

import argparse
import math
import statistics
from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from pathlib import Path

from _shared import (
    MODEL,
    QUICK_EPOCHS,
    Found,
    add_run_options,
    possible_shares,
    recipes,
    runner_of,
    spread_text,
)
from _truth import TRUTH, truth_of

from torchleap._common.text import table
from torchleap.bench.grid import REFERENCE, Grid
from torchleap.bench.run import Runner
from torchleap.bench.search_retrain import Pair, SearchRetrain, search_retrain
from torchleap.bench.sets import Recipe
from torchleap.bench.statistics import Sample, compare, holm
from torchleap.objectives import s_auc
from torchleap.selection import Rule

GRID = Path(__file__).parent / "grids" / "ranking.toml"
AREA = "AUKC"
ALPHA = 0.05
LOWER_IS_BETTER = "noise above useful"
Samples = Mapping[tuple[str | int, int], Sample]  # by search and retrain seed, or set and seed
Cell = tuple[str, str, str]  # data set, column, method


def area(points: Mapping[float, float]) -> float:
    """Return AUKC: the mean of the metric over the share of kept fields.

    >>> round(area({0.0: 0.5, 0.5: 0.7, 1.0: 0.7}), 4)
    0.65
    """
    shares = sorted(points)
    total = 0.0
    for left, right in pairwise(shares):
        total += (right - left) * (points[left] + points[right]) / 2
    return total / (shares[-1] - shares[0])


def jaccard(sets: Iterable[Iterable[str]]) -> float:
    """Return how alike sets are: the mean over all pairs of them; NaN for a single one.

    >>> round(jaccard(["ab", "ab", "bc"]), 4)
    0.5556
    """
    found = []
    for one, other in combinations(map(set, sets), 2):
        found.append(len(one & other) / len(one | other))
    return statistics.mean(found) if found else math.nan


@dataclass(frozen=True)
class Ranking:
    """The results of the grid.

    Attributes:
        results: The searches and the metrics of retrained models.
    """

    results: SearchRetrain

    @property
    def methods(self) -> list[str]:
        """Return the methods that search."""
        return [method for method in self.results.grid.methods if method != REFERENCE]

    @property
    def columns(self) -> list[str]:
        """Return the titles of the columns with a metric: the shares and the area."""
        shares = sorted(self.results.grid.shares, reverse=True)
        return [*(f"{share:.0%}" for share in shares), AREA]

    def searches(self, data: str, method: str) -> list[Found]:
        """Return the searches of a method on a data set."""
        results = self.results.searches.get((data, MODEL, method), {})
        task = self.results.data[data]
        return [Found.of(task, method, seed, result) for seed, result in results.items()]

    def by_share(self, data: str, method: str) -> dict[float, Mapping[Pair, Sample]]:
        """Return the samples of the headline metric by share; 1 is all fields."""
        found = {1.0: self.full(data)}
        for share in self.results.grid.shares:
            samples = self._at(data, share)
            if method in samples:
                found[share] = samples[method]
        return found

    def full(self, data: str) -> Mapping[Pair, Sample]:
        """Return the samples of models of all fields."""
        return self._at(data, max(self.results.grid.shares))[REFERENCE]

    def _at(self, data: str, share: float) -> dict[str, Mapping[Pair, Sample]]:
        """Return the samples of the headline metric at a share, by method."""
        metric = self.results.data[data].headline.name
        return self.results.samples(data, MODEL, share, metric)

    def samples(self, data: str) -> dict[str, dict[str, Samples]]:
        """Return the samples of a data set by column and method."""
        found: dict[str, dict[str, Samples]] = {column: {} for column in self.columns}
        for method in self.methods:
            by_share = self.by_share(data, method)
            if len(by_share) == 1:
                continue  # its searches failed
            for share in by_share.keys() - {1.0}:
                found[f"{share:.0%}"][method] = by_share[share]
            found[AREA][method] = areas(by_share)
        return found

    def truth(self) -> dict[str, dict[str, Samples]]:
        """Return the measures of known ground truth by column and method, over all such sets."""
        known = [recipe.name for recipe in self.results.grid.data if recipe.kind == "truth"]
        found: dict[str, dict[str, Samples]] = {column: {} for column in TRUTH}
        for method in self.methods:
            own: dict[str, dict[tuple[str | int, int], Sample]] = {name: {} for name in TRUTH}
            for data in known:
                for one in self.searches(data, method):
                    for column, value in truth_of(one).items():
                        run = f"{method} {data} {one.seed}"
                        own[column][data, one.seed] = Sample(run, value)
            for column, samples in own.items():
                if samples:
                    found[column][method] = samples
        return found


def areas(by_share: Mapping[float, Mapping[Pair, Sample]]) -> dict[Pair, Sample]:
    """Return the area under the curve of each pair of seeds."""
    found = {}
    for pair in by_share[1.0]:
        own = {share: samples[pair] for share, samples in by_share.items() if pair in samples}
        if len(own) == len(by_share):
            run = " ".join(sample.run for sample in own.values())
            found[pair] = Sample(run, area({share: one.value for share, one in own.items()}))
    return found


@dataclass(frozen=True)
class Marks:
    """How each value compares with that of leap.

    Attributes:
        gains: The mean gain over leap of each cell.
        p: Its p-value; NaN where there is a single run.
        adjusted: The same by Holm, over all cells.
    """

    gains: Mapping[Cell, float]
    p: Mapping[Cell, float]
    adjusted: Mapping[Cell, float]

    @staticmethod
    def of(tables: Mapping[str, Mapping[str, Mapping[str, Samples]]], leap: str) -> "Marks":
        """Compare all cells with those of leap.

        Args:
            tables: The samples by table, column and method; higher is better, but for noise.
            leap: The name of the method that the others are compared with.
        """
        gains: dict[Cell, float] = {}
        p: dict[Cell, float] = {}
        for title, columns in tables.items():
            for column, samples in columns.items():
                if leap not in samples:
                    continue
                sign = -1 if column == LOWER_IS_BETTER else 1
                for method, found in compare(samples, leap).items():
                    gains[title, column, method] = sign * found.difference.value
                    p[title, column, method] = found.p
        return Marks(gains, p, dict(zip(p, holm(list(p.values())), strict=True)))

    def mark(self, cell: Cell) -> str:
        """Return the sign of a cell: ++ or -- after the correction, + or - before it."""
        if cell not in self.p:
            return ""
        sign = "+" if self.gains[cell] > 0 else "-"
        if self.adjusted[cell] < ALPHA:
            return sign * 2
        return sign if self.p[cell] < ALPHA else ""

    def summary(self) -> str:
        """Return in how many cells another method is better than leap, and worse."""
        marks = [self.mark(cell) for cell in self.p]
        tested = sum(not math.isnan(p) for p in self.p.values())
        better = f"{marks.count('++')} better, {marks.count('--')} worse"
        alone = sum(mark[:1] == "+" for mark in marks)
        chance = ALPHA / 2 * tested
        return (
            f"Other methods against leap in {tested} cells: {better} after Holm's correction; "
            f"without it {alone} better, of which {chance:.0f} are expected by chance."
        )


def marked(samples: Samples, mark: str) -> str:
    """Return the mean, the standard deviation and the mark of a cell."""
    return f"{spread_text([one.value for one in samples.values()])} {mark:<2}"


def metric_table(ranking: Ranking, data: str, marks: Marks) -> str:
    """Return the table of a data set: a line for each method."""
    samples = ranking.samples(data)
    rows = []
    for method in ranking.methods:
        cells = [method]
        for column in ranking.columns:
            if method in samples[column]:
                cells.append(marked(samples[column][method], marks.mark((data, column, method))))
            else:
                cells.append("-")
        searches = ranking.searches(data, method)
        alike = jaccard(found.kept(Rule.of(share=0.5)) for found in searches)
        seconds = [found.seconds for found in searches]
        cells.append("-" if math.isnan(alike) else f"{alike:.2f}")
        cells.append(f"{statistics.mean(seconds):.0f}" if seconds else "-")
        rows.append(cells)
    full = spread_text([one.value for one in ranking.full(data).values()])
    title = f"{data}: test {ranking.results.data[data].headline.title}, all fields {full}"
    return "\n".join([title, table(["method", *ranking.columns, "Jaccard", "seconds"], rows), ""])


def truth_table(ranking: Ranking, marks: Marks) -> str:
    """Return how well each method finds what is known to be useful, over all such sets."""
    samples = ranking.truth()
    if not any(samples.values()):
        return ""
    rows = []
    for method in ranking.methods:
        cells = [method]
        for column in TRUTH:
            if method in samples[column]:
                cells.append(marked(samples[column][method], marks.mark((column, column, method))))
            else:
                cells.append("-")
        rows.append(cells)
    title = "Known ground truth, over all worlds"
    return "\n".join([title, table(["method", *TRUTH], rows), ""])


def summary_table(ranking: Ranking) -> str:
    """Return S of each column, of the methods that have a value on all data sets with it."""
    summary = {}
    for column in ranking.columns:
        values: dict[str, dict[str, float]] = {}
        for data in ranking.results.data:
            for method, own in ranking.samples(data)[column].items():
                mean = statistics.mean(one.value for one in own.values())
                values.setdefault(method, {})[data] = mean
        if not values:
            continue
        count = max(map(len, values.values()))
        summary[column] = s_auc({name: own for name, own in values.items() if len(own) == count})
    rows = []
    for method in ranking.methods:
        cells = [own.get(method) for own in summary.values()]
        rows.append([method, *("-" if cell is None else f"{cell:.4f}" for cell in cells)])
    title = f"S over {len(ranking.results.data)} data sets"
    return "\n".join([title, table(["method", *summary], rows), ""])


def report(results: SearchRetrain) -> str:
    """Return the tables of all data sets and the summaries."""
    ranking = Ranking(results)
    tables = {data: ranking.samples(data) for data in results.data}
    truth = {column: {column: samples} for column, samples in ranking.truth().items()}
    marks = Marks.of({**tables, **truth}, results.grid.leap)
    lines = [metric_table(ranking, data, marks) for data in results.data]
    lines += [truth_table(ranking, marks), summary_table(ranking), marks.summary()]
    return "\n".join(line for line in lines if line)


def results_of(grid: Grid, runner: Runner) -> SearchRetrain:
    """Run the grid, each data set with the shares that leave a field."""
    by_shares: dict[tuple[float, ...], list[Recipe]] = {}
    for recipe in grid.data:
        shares = possible_shares(runner.data(recipe), grid.shares)
        by_shares.setdefault(shares, []).append(recipe)
    parts = []
    for shares, own in by_shares.items():
        parts.append(search_retrain(replace(grid, data=tuple(own), shares=shares), runner))
    data = {recipe.name: runner.data(recipe) for recipe in grid.data}
    metrics = dict(ChainMap(*(dict(part.metrics) for part in parts)))
    searches = dict(ChainMap(*(dict(part.searches) for part in parts)))
    return SearchRetrain(grid, data, metrics, searches)


def grid_of(given: argparse.Namespace) -> Grid:
    """Return the grid of the file, or the part of it that the options ask for."""
    grid = Grid.load(GRID)
    words = given.data or [recipe.name for recipe in grid.data]
    methods = given.methods or list(grid.methods)
    training = {"epochs": QUICK_EPOCHS} if given.quick else grid.training
    own = Grid.of(recipes(words, quick=given.quick), [*methods, REFERENCE])
    return replace(
        grid,
        data=own.data,
        methods=own.methods,
        training=training,
        search_seeds=given.searches or grid.search_seeds,
        retrain_seeds=given.seeds or grid.retrain_seeds,
    )


def main() -> None:
    """Run what is not in the store, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, help="folder of the store")
    parser.add_argument("--data", nargs="*", help="data sets; by default those of the grid")
    parser.add_argument("--methods", nargs="*", help="methods; by default those of the grid")
    parser.add_argument("--searches", type=int, help="searches of each method")
    parser.add_argument("--seeds", type=int, help="trainings of each set of fields")
    add_run_options(parser)
    given = parser.parse_args()
    runner = runner_of(given)
    print(report(results_of(grid_of(given), runner)))
    for failure in runner.failures.values():
        print(f"failed: {failure}")


if __name__ == "__main__":
    main()
