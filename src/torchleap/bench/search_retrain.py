"""Table 1: search, keep a share of the fields, train a new model on them, compare on test rows."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from .._common.text import plural
from ..methods import GateMethod
from ..objectives import METRICS, Metric, s_auc
from ..selection import Rule, select
from .grid import REFERENCE, Grid
from .run import Runner
from .sets import DataSet
from .statistics import Comparison, Mean, Sample, compare, f1, mean_of, mean_ranks
from .tables import Table, interval_text
from .trials import RetrainTrial, SearchTrial, path_of

Place = tuple[str, str, float, str]  # data set, backbone, share, method
Pair = tuple[int, int]  # search seed, retrain seed
Search = tuple[str, str, str, int]  # data set, backbone, method, search seed
MARK = {"better": " >", "worse": " <", "tie": " ="}


@dataclass(frozen=True)
class SearchRetrain:
    """The results of a grid.

    Attributes:
        grid: The grid.
        data: The data sets by name.
        metrics: The test metrics of each place of the table, by metric and pair of seeds, with the
            training run behind each value.
        searches: The results of the searches by data set, backbone and method, and by seed.
    """

    grid: Grid
    data: Mapping[str, DataSet]
    metrics: Mapping[Place, Mapping[str, Mapping[Pair, Sample]]]
    searches: Mapping[tuple[str, str, str], Mapping[int, dict[str, Any]]]

    def samples(
        self, data: str, model: str, share: float, metric: str
    ) -> dict[str, Mapping[Pair, Sample]]:
        """Return the samples of a metric by method, where the data set has the metric."""
        found = {}
        for method in self.grid.methods:
            own = self.metrics.get((data, model, share, method), {})
            if own.get(metric):
                found[method] = own[metric]
        return found

    def tables(self) -> list[Table]:
        """Return a table for each metric, backbone and share, then those of truth and costs."""
        found = []
        for metric, model, share in product(METRICS.values(), self.grid.models, self.grid.shares):
            samples = {name: self.samples(name, model, share, metric.name) for name in self.data}
            samples = {name: own for name, own in samples.items() if own}
            if samples:
                found.append(self._metric_table(metric, model, share, samples))
        known = [data for data in self.data.values() if data.useful]
        if known:
            found += [self._truth_table(model, known) for model in self.grid.models]
        return found + [self._cost_table(model) for model in self.grid.models]

    def _metric_table(
        self,
        metric: Metric,
        model: str,
        share: float,
        samples: Mapping[str, Mapping[str, Mapping[Pair, Sample]]],
    ) -> Table:
        """Return a row for each method and a column for each data set, with the paper's summary.

        Args:
            metric: The metric.
            model: The name of the backbone.
            share: The share of the fields that were kept.
            samples: The samples by data set and method.
        """
        means = {}
        marks = {}
        for name, own in samples.items():
            means[name] = {method: mean_of(list(one.values())) for method, one in own.items()}
            marks[name] = _compared(own, self.grid.leap, metric.gain)
        summary = _summary(means, self.grid.methods, metric)
        rows = []
        for method in self.grid.methods:
            cells = [_cell(means[name].get(method), marks[name].get(method)) for name in means]
            rows.append((method, *cells, *summary.get(method, (None, None))))
        title = f"Test {metric.title}, {share:.0%} of the fields kept, {model}"
        total = f"S_{metric.title}" if metric.higher_is_better else f"mean {metric.title}"
        columns = ("method", *means, total, "mean rank")
        notes = (self._seeds_note(), self._marks_note(), f"{REFERENCE}: all fields.")
        return Table(title, columns, tuple(rows), notes)

    def _seeds_note(self) -> str:
        search_seeds = plural(self.grid.search_seeds, "search seed")
        seeds = f"{search_seeds} x {plural(self.grid.retrain_seeds, 'retrain seed')}"
        if self.grid.search_seeds == self.grid.retrain_seeds == 1:
            return f"{seeds}: one run each, so there is no interval, and no lead counts as one."
        same = "seeds that led to the same fields count as one run"
        return f"Mean and 95 % interval over {seeds}; {same}."

    def _marks_note(self) -> str:
        test = "paired t-test over seeds, Holm's correction, 5 %"
        return f"Against {self.grid.leap}: > better, < worse, = a tie; {test}."

    def _searched(self) -> list[str]:
        return [method for method in self.grid.methods if method != REFERENCE]

    def _truth_table(self, model: str, known: Sequence[DataSet]) -> Table:
        """Return how well each method found the useful fields, where these are known."""
        best: dict[str, dict[tuple[str, int], Sample]] = {}
        opened: dict[str, list[Sample]] = {}
        for method in self._searched():
            best[method] = {}
            opened[method] = []
            for data in known:
                searches = self.searches.get((data.name, model, method), {})
                for seed, result in searches.items():
                    pair = (data.name, seed)
                    of_best, of_open = truth_found(data, result["scores"], result["open"])
                    best[method][pair] = Sample(f"{method} {pair}", of_best)
                    opened[method].append(Sample(f"{method} {pair}", of_open))
        found = {method: own for method, own in best.items() if own}
        marks = _compared(found, self.grid.leap)
        rows = []
        for method, own in best.items():
            has_gates = isinstance(self.grid.methods[method], GateMethod)
            cells = (
                _cell(_mean(own.values()), marks.get(method)),
                _cell(_mean(opened[method]), None) if has_gates else None,
            )
            rows.append((method, *cells))
        sets = plural(len(known), "data set")
        title = f"F1 on useful fields, {sets} with known ground truth, {model}"
        notes = (
            "Best: as many fields as are useful, by score. Open: the fields that are kept without "
            "a budget: within one standard error of the best on a path, or gates above 0.5.",
            "A copy of a useful field counts as that field; a useless one in its place is wrong.",
            self._marks_note(),
        )
        return Table(title, ("method", "best", "open"), tuple(rows), notes)

    def _cost_table(self, model: str) -> Table:
        """Return the mean seconds of a search of each method on each data set."""
        rows = []
        for method in self._searched():
            cells: list[str | None] = []
            for data in self.data:
                searches = self.searches.get((data, model, method), {})
                seconds = [result["seconds"] for result in searches.values()]
                cells.append(f"{sum(seconds) / len(seconds):.1f}" if seconds else None)
            rows.append((method, *cells))
        title = f"Seconds of a search, {model}"
        return Table(title, ("method", *self.data), tuple(rows), ("Mean over the seeds.",))


def search_retrain(grid: Grid, runner: Runner) -> SearchRetrain:
    """Run a grid; trials in the store do not run again, and equal sets of fields are trained once.

    Args:
        grid: The grid.
        runner: The runner, whose store keeps the results.
    """
    data = {recipe.name: runner.data(recipe) for recipe in grid.data}
    searches = dict(_searches(grid, data))
    later = len(searches) * len(grid.shares) * grid.retrain_seeds
    found = dict(zip(searches, runner.run(list(searches.values()), to_come=later), strict=True))
    retrains = dict(_retrains(grid, data, found))
    results = dict(zip(retrains, runner.run(list(retrains.values())), strict=True))
    metrics: dict[Place, dict[str, dict[Pair, Sample]]] = defaultdict(lambda: defaultdict(dict))
    for (place, pair), result in results.items():
        if result is None:
            continue
        key = runner.key(retrains[place, pair])
        for name, value in result["metrics"].items():
            part, _, metric = name.partition("_")
            if part == "test":
                metrics[place][metric][pair] = Sample(key, value)
    by_method: dict[tuple[str, str, str], dict[int, dict[str, Any]]] = defaultdict(dict)
    for (name, model, method, seed), result in found.items():
        if result is not None:
            by_method[name, model, method][seed] = result
    return SearchRetrain(grid, data, metrics, by_method)


def _searches(grid: Grid, data: Mapping[str, DataSet]) -> Iterator[tuple[Search, SearchTrial]]:
    """Yield the trial of each search."""
    for recipe, model, name in product(grid.data, grid.models, grid.methods):
        if name == REFERENCE:
            continue
        for seed in range(grid.search_seeds):
            training = grid.training_for(data[recipe.name], seed)
            trial = SearchTrial(recipe, grid.models[model], training, grid.methods[name])
            yield (recipe.name, model, name, seed), trial


def _retrains(
    grid: Grid, data: Mapping[str, DataSet], found: Mapping[Search, Mapping[str, Any] | None]
) -> Iterator[tuple[tuple[Place, Pair], RetrainTrial]]:
    """Yield the trial of each place of the table and pair of seeds whose search has a result."""
    pairs = list(product(range(grid.search_seeds), range(grid.retrain_seeds)))
    for recipe, model, share, name in product(grid.data, grid.models, grid.shares, grid.methods):
        own = data[recipe.name]
        for pair in pairs:
            search_seed, retrain_seed = pair
            result = found.get((recipe.name, model, name, search_seed))
            if name != REFERENCE and result is None:
                continue  # the search failed
            kept = None
            if result is not None and share != 1:
                kept = kept_by(own, result, share)
            training = grid.training_for(own, retrain_seed)
            trial = RetrainTrial(recipe, grid.models[model], training, kept)
            yield ((recipe.name, model, share, name), pair), trial


def kept_by(data: DataSet, result: Mapping[str, Any], share: float) -> tuple[str, ...]:
    """Return the best share of the fields by the result of a search, in the order of the task."""
    rule = Rule.of(share=share)
    return select(data.task.fields, result["scores"], rule, path=path_of(result)).kept


def truth_found(
    data: DataSet, scores: Mapping[str, float], opened: Collection[str]
) -> tuple[float, float]:
    """Return two F1 scores: of the best fields, as many as are useful, and of the open ones.

    A field and its copies count as one, with the best of their scores: to keep either is right.

    Args:
        data: The data set, whose useful fields are known.
        scores: The scores by field.
        opened: The fields that are kept without a budget.
    """
    teams: dict[str, float] = {}
    for name, score in scores.items():
        leader = data.source.get(name, name)
        teams[leader] = max(score, teams.get(leader, score))
    # among equals the useless come first, so that a tie is never counted as found
    ordered = sorted(teams, key=lambda name: (-teams[name], name in data.useful))
    best = ordered[: len(data.useful)]
    leaders = {data.source.get(name, name) for name in opened}
    kept = [name for name in ordered if name in leaders]
    return f1(best, data.useful), f1(kept, data.useful)


def _unchanged(value: float) -> float:
    return value


def _compared(
    samples: Mapping[str, Mapping[Any, Sample]],
    leap: str,
    gain: Callable[[float], float] = _unchanged,
) -> dict[str, Comparison]:
    """Return the comparison of each method with LeAP on the seeds that both have.

    Args:
        samples: The samples by method and seeds.
        leap: The name of the method that the others are compared with.
        gain: Gives a value the sign by which higher is better.
    """
    if leap not in samples:
        return {}
    gains = {}
    for method, own in samples.items():
        if own.keys() & samples[leap].keys():
            gains[method] = {pair: Sample(run, gain(v)) for pair, (run, v) in own.items()}
    return compare(gains, leap)


def _mean(samples: Any) -> Mean | None:
    found = list(samples)
    return mean_of(found) if found else None


def _cell(mean: Mean | None, comparison: Comparison | None) -> str | None:
    if mean is None:
        return None
    if comparison is None:
        return interval_text(mean)
    return interval_text(mean) + MARK[comparison.verdict]


def _summary(
    means: Mapping[str, Mapping[str, Mean]], methods: Mapping[str, Any], metric: Metric
) -> dict[str, tuple[str, str]]:
    """Return the aggregate over data sets, and the mean rank, of methods that ran on all of them.

    Args:
        means: The means by data set and method.
        methods: The methods by name, in the order of the table.
        metric: The metric.
    """
    table = {}
    for method in methods:
        if all(method in own for own in means.values()):
            table[method] = {name: own[method].value for name, own in means.items()}
    if not table:
        return {}
    if metric.higher_is_better:
        total = s_auc(table)
    else:
        total = {method: sum(own.values()) / len(own) for method, own in table.items()}
    gains = {}
    for method, own in table.items():
        gains[method] = {name: metric.gain(value) for name, value in own.items()}
    rank = mean_ranks(gains)
    return {method: (f"{total[method]:.4f}", f"{rank[method]:.1f}") for method in table}
