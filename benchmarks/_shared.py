"""Shared parts of the measurements of the price path: options, and trials in a store.

Searches and trainings are trials of `torchleap.bench`: each runs once and is stored in --out, so
that a command that was stopped continues where it was, and a second call only prints. A training
is known by its set of fields, so commands with the same --out share it. The store does not know
that the code of a method has changed: after such a change give another --out.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchleap.bench.grid import Grid
from torchleap.bench.run import Runner, Standing
from torchleap.bench.sets import SYNTHETIC, DataSet, Recipe, named
from torchleap.bench.trials import RetrainTrial, SearchTrial, Trial, path_of
from torchleap.methods import Method
from torchleap.models import benchmark
from torchleap.selection import Path, PathPoint, Rule, select

MODEL = "wide_deep"
EPOCHS = 60  # at most; trainings stop early
QUICK_EPOCHS = 2
QUICK_ROWS = 6_000  # of a synthetic set
Place = tuple[str, str, int]  # data set, method, search seed


@dataclass(frozen=True)
class Found:
    """A search from the store.

    Attributes:
        data: The data set.
        method: The name of the method.
        seed: The seed of the search.
        scores: The score of each field.
        path: The path with the worth of each field; None if the method measures no worth.
        seconds: The time of the search.
    """

    data: DataSet
    method: str
    seed: int
    scores: Mapping[str, float]
    path: Path | None
    seconds: float

    @staticmethod
    def of(data: DataSet, method: str, seed: int, result: Mapping[str, Any]) -> "Found":
        """Return the search whose result a store has."""
        return Found(data, method, seed, result["scores"], path_of(result), result["seconds"])

    def kept(self, rule: Rule) -> tuple[str, ...]:
        """Return the fields that `SearchResult.select` would keep, in field order."""
        return select(self.data.task.fields, self.scores, rule, path=self.path).kept

    @property
    def points(self) -> tuple[PathPoint, ...]:
        """Return the points of the path."""
        if self.path is None or not self.path.points:
            raise SystemExit(f"{self.method} has no path on {self.data.name}.")
        return self.path.points


@dataclass(frozen=True)
class Retrained:
    """The metrics of retrained models.

    Attributes:
        metrics: By data set, kept fields and seed; those of all fields are under all names.
        seeds: The number of seeds of each set of fields.
    """

    metrics: Mapping[tuple[str, tuple[str, ...], int], Mapping[str, float]]
    seeds: int

    def values(self, data: str, kept: Sequence[str], metric: str) -> list[float]:
        """Return a metric such as "valid_log_loss" of the models of some fields, by seed."""
        return [self.metrics[data, tuple(kept), seed][metric] for seed in range(self.seeds)]


@dataclass(frozen=True)
class Laboratory:
    """A grid of data sets and methods, and the runner whose store keeps all results.

    Attributes:
        grid: The data sets, methods, seeds and settings of trainings.
        runner: The runner.
    """

    grid: Grid
    runner: Runner

    @property
    def data(self) -> dict[str, DataSet]:
        """Return the data sets by name."""
        return {recipe.name: self.runner.data(recipe) for recipe in self.grid.data}

    def search(self) -> dict[Place, Found]:
        """Return the searches by data set, method and seed; those in the store do not run."""
        data = self.data
        trials: dict[Place, Trial] = {}
        for recipe in self.grid.data:
            for name, method in self.grid.methods.items():
                for seed in range(self.grid.search_seeds):
                    training = self.grid.training_for(data[recipe.name], seed)
                    trial = SearchTrial(recipe, self.grid.models[MODEL], training, method)
                    trials[recipe.name, name, seed] = trial
        found = {}
        for place, result in zip(trials, self._results(trials.values()), strict=True):
            found[place] = Found.of(data[place[0]], place[1], place[2], result)
        return found

    def retrain(self, wanted: Iterable[tuple[str, Sequence[str]]]) -> Retrained:
        """Return the metrics of models that are trained on some fields, with each seed.

        Args:
            wanted: Names of data sets, each with the fields to keep, in field order.
        """
        sets = dict.fromkeys((name, tuple(kept)) for name, kept in wanted)
        trials = {}
        for recipe in self.grid.data:
            for name, kept in sets:
                if name == recipe.name:
                    for seed in range(self.grid.retrain_seeds):
                        trials[name, kept, seed] = self._training(recipe, kept, seed)
        results = self._results(trials.values())
        metrics = {place: one["metrics"] for place, one in zip(trials, results, strict=True)}
        return Retrained(metrics, self.grid.retrain_seeds)

    def _training(self, recipe: Recipe, kept: tuple[str, ...], seed: int) -> RetrainTrial:
        data = self.runner.data(recipe)
        training = self.grid.training_for(data, seed)
        is_all = len(kept) == len(data.task.fields)
        return RetrainTrial(
            recipe, self.grid.models[MODEL], training, kept=None if is_all else kept
        )

    def _results(self, trials: Collection[Trial]) -> Iterator[dict[str, Any]]:
        """Yield the results of trials; one that failed ends the command with the reason."""
        for result in self.runner.run(list(trials)):
            if result is None:
                raise SystemExit("\n".join(self.runner.failures.values()))
            yield result


def parser_of(documentation: str, data: Sequence[str]) -> argparse.ArgumentParser:
    """Return the options that all these commands have.

    Args:
        documentation: The docstring of the command, for --help.
        data: The names of the data sets by default.
    """
    parser = argparse.ArgumentParser(
        description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, help="folder of the store")
    parser.add_argument("--data", nargs="+", default=list(data), help="names of data sets")
    parser.add_argument("--seeds", type=int, default=2, help="trainings of each set of fields")
    parser.add_argument("--searches", type=int, default=1, help="searches of each method")
    add_run_options(parser)
    return parser


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options about how trials run."""
    parser.add_argument("--jobs", type=int, default=2, help="trials at the same time")
    parser.add_argument(
        "--quick", action="store_true", help="two epochs and few rows, to try the command"
    )


def laboratory(given: argparse.Namespace, methods: Mapping[str, Method]) -> Laboratory:
    """Return the data sets and the runner that the options ask for.

    Args:
        given: The options of `parser_of`.
        methods: The methods by name.
    """
    grid = Grid(
        data=recipes(given.data, quick=given.quick),
        methods=methods,
        models={MODEL: benchmark(MODEL)},
        search_seeds=given.searches,
        retrain_seeds=given.seeds,
        training={"epochs": QUICK_EPOCHS if given.quick else EPOCHS},
    )
    return Laboratory(grid, runner_of(given))


def runner_of(given: argparse.Namespace) -> Runner:
    """Return the runner of --out and --jobs, which shows its progress."""
    return Runner(given.out, jobs=given.jobs, on_progress=show_progress)


def recipes(words: Iterable[str], *, quick: bool) -> tuple[Recipe, ...]:
    """Return the data sets of words such as "truth@0-2"; synthetic ones with few rows if quick."""
    found = []
    for word in words:
        for recipe in named(word):
            if quick and recipe.kind in SYNTHETIC:
                recipe = replace(recipe, settings={**recipe.settings, "rows": QUICK_ROWS})
            found.append(recipe)
    return tuple(found)


def show_progress(standing: Standing) -> None:
    """Print the progress and the time left, beside the tables."""
    left = "" if standing.left is None else f", {standing.left / 60:.0f} minutes left"
    end = "\n" if standing.done == standing.total else ""
    line = f"\r{standing.done} of {standing.total}{left}   "
    print(line, end=end, flush=True, file=sys.stderr)


def possible_shares(data: DataSet, shares: Iterable[float]) -> tuple[float, ...]:
    """Return the shares that leave a field: a tenth of nine fields is refused by `select`."""
    count = len(data.task.fields)
    return tuple(share for share in shares if math.floor(count * share + 1e-9) >= 1)


def nearest_points(points: Sequence[PathPoint], counts: Iterable[float]) -> list[PathPoint]:
    """Return the points nearest to numbers of fields, each once, in the order of the numbers."""
    found = []
    for count in counts:
        nearest = min(points, key=lambda point: abs(len(point.kept) - count))
        if nearest not in found:
            found.append(nearest)
    return found


def spread_of(values: Sequence[float]) -> float:
    """Return the standard deviation between seeds; NaN for one seed."""
    if len(values) < 2:
        return math.nan
    return statistics.stdev(values)


def spread_text(values: Sequence[float]) -> str:
    """Return a mean and the standard deviation of the values, where there are several.

    >>> spread_text([0.81, 0.83]), spread_text([0.81])
    ('0.8200 ± 0.0141', '0.8100')
    """
    mean = f"{statistics.mean(values):.4f}"
    if len(values) < 2:
        return mean
    return f"{mean} ± {statistics.stdev(values):.4f}"
