"""Table 1: search, keep the best share of the fields, train a fresh model on them, and compare methods on the test rows."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .._common.text import plural
from ..methods import LeAPMethod
from ..objectives import s_auc
from ..selection import select
from .grid import REFERENCE, Grid
from .run import Runner
from .sets import DataSet
from .statistics import Comparison, Mean, Sample, compare, f1, mean_of, mean_ranks
from .tables import Table, interval_text
from .trials import RetrainTrial, SearchTrial

Place = tuple[str, str, float, str]  # data set, backbone, share, method
Pair = tuple[int, int]  # search seed, retrain seed
MARK = {"better": " >", "worse": " <", "tie": " ="}


@dataclass(frozen=True)
class SearchRetrain:
    """What a grid found: for each place of the table the test metrics by pair of seeds, with the training run behind each."""

    grid: Grid
    data: Mapping[str, DataSet]
    metrics: Mapping[Place, Mapping[str, Mapping[Pair, Sample]]]
    searches: Mapping[
        tuple[str, str, str], Mapping[int, dict[str, Any]]
    ]  # data set, backbone, method: the results by seed

    def samples(
        self, data: str, model: str, share: float, metric: str
    ) -> dict[str, Mapping[Pair, Sample]]:
        """By method, where the data set has the metric."""
        found = {
            method: self.metrics.get((data, model, share, method), {})
            for method in self.grid.methods
        }
        return {method: own[metric] for method, own in found.items() if own.get(metric)}

    def tables(self) -> list[Table]:
        """For each backbone and share one of AUC with the paper's summary; then the other metrics, the truth and the costs."""
        shares = [(model, share) for model in self.grid.models for share in self.grid.shares]
        metrics = [self._metric_table(model, share, "auc") for model, share in shares]
        others = [
            self._metric_table(model, share, metric)
            for metric in ("gauc", "log_loss")
            for model, share in shares
        ]
        truth = [self._truth_table(model) for model in self.grid.models]
        costs = [self._cost_table(model) for model in self.grid.models]
        return [table for table in (*metrics, *others, *truth, *costs) if table is not None]

    def _metric_table(self, model: str, share: float, metric: str) -> Table | None:
        columns = {data: self.samples(data, model, share, metric) for data in self.data}
        columns = {data: own for data, own in columns.items() if own}
        if not columns:
            return None
        means = {
            data: {method: mean_of(list(own.values())) for method, own in found.items()}
            for data, found in columns.items()
        }
        marks = {
            data: _compared(found, self.grid.leap, rising=metric != "log_loss")
            for data, found in columns.items()
        }
        everywhere = [
            method
            for method in self.grid.methods
            if all(method in found for found in means.values())
        ]
        summary = _summary({m: {d: means[d][m].value for d in means} for m in everywhere}, metric)
        rows = [
            (
                method,
                *(_cell(means[data].get(method), marks[data].get(method)) for data in means),
                *summary.get(method, (None,) * 2),
            )
            for method in self.grid.methods
        ]
        title = f"Test {metric.replace('_', ' ').upper().replace('LOG LOSS', 'log loss')}, {share:.0%} of the fields kept, {model}"
        extra = {
            "auc": ("S_AUC", "mean rank"),
            "gauc": ("S_GAUC", "mean rank"),
            "log_loss": ("mean log loss", "mean rank"),
        }
        return Table(title, ("method", *means, *extra[metric]), tuple(rows), self._notes())

    def _notes(self) -> tuple[str, ...]:
        seeds = f"{plural(self.grid.search_seeds, 'search seed')} x {plural(self.grid.retrain_seeds, 'retrain seed')}"
        alone = self.grid.search_seeds == self.grid.retrain_seeds == 1
        return (
            f"{seeds}: one run each, so there is no interval, and no lead counts as one."
            if alone
            else f"Mean and 95 % interval over {seeds}; seeds that led to the same fields count as one run.",
            f"Against {self.grid.leap}: > better, < worse, = a tie; paired t-test over seeds, Holm's correction, 5 %.",
            f"{REFERENCE}: all fields.",
        )

    def _searched(self) -> list[str]:
        return [method for method in self.grid.methods if method != REFERENCE]

    def _truth_table(self, model: str) -> Table | None:
        known = [data for data in self.data.values() if data.useful]
        if not known:
            return None
        best: dict[str, dict[tuple[str, int], Sample]] = {}
        opened: dict[str, list[Sample]] = {}
        for method in self._searched():
            found = {
                (data.name, seed): truth_found(data, result["scores"])
                for data in known
                for seed, result in self.searches.get((data.name, model, method), {}).items()
            }
            best[method] = {
                pair: Sample(f"{method} {pair}", of_best) for pair, (of_best, _) in found.items()
            }
            opened[method] = [
                Sample(f"{method} {pair}", of_open) for pair, (_, of_open) in found.items()
            ]
        marks = _compared(
            {method: own for method, own in best.items() if own}, self.grid.leap, rising=True
        )
        rows = []
        for method, own in best.items():
            gated = isinstance(self.grid.methods[method], LeAPMethod)
            cells = (list(own.values()), marks.get(method)), (opened[method] if gated else [], None)
            rows.append(
                (
                    method,
                    *(
                        _cell(mean_of(samples), mark) if samples else None
                        for samples, mark in cells
                    ),
                )
            )
        title = f"F1 on useful fields, {plural(len(known), 'data set')} of which the truth is known, {model}"
        notes = (
            "Best: of as many fields as are useful, by score. Open: of the fields whose gate is above 0.5.",
            "A copy of a useful field stands for it; a worthless field in its place is a mistake.",
            *self._notes()[1:2],
        )
        return Table(title, ("method", "best", "open"), tuple(rows), notes)

    def _cost_table(self, model: str) -> Table:
        rows = []
        for method in self._searched():
            found = [
                [r["seconds"] for r in self.searches.get((data, model, method), {}).values()]
                for data in self.data
            ]
            cells = [f"{sum(own) / len(own):.1f}" if own else None for own in found]
            rows.append((method, *cells))
        return Table(
            f"Seconds of a search, {model}",
            ("method", *self.data),
            tuple(rows),
            ("Mean over the seeds.",),
        )


def search_retrain(grid: Grid, runner: Runner) -> SearchRetrain:
    """Run a grid; what the store has is not run again, and equal sets of fields are trained once."""
    data = {recipe.name: runner.data(recipe) for recipe in grid.data}
    searches = dict(_searches(grid, data))
    later = len(searches) * len(grid.shares) * grid.retrain_seeds
    found = dict(zip(searches, runner.run(list(searches.values()), to_come=later), strict=True))
    retrains = dict(_retrains(grid, data, found))
    results = dict(zip(retrains, runner.run(list(retrains.values())), strict=True))
    metrics: dict[Place, dict[str, dict[Pair, Sample]]] = defaultdict(lambda: defaultdict(dict))
    for (place, pair), result in results.items():
        for name, value in (result or {"metrics": {}})["metrics"].items():
            part, _, metric = name.partition("_")
            if part == "test":
                metrics[place][metric][pair] = Sample(runner.key(retrains[place, pair]), value)
    by_method: dict[tuple[str, str, str], dict[int, dict[str, Any]]] = defaultdict(dict)
    for (name, model, method, seed), result in found.items():
        if result is not None:
            by_method[name, model, method][seed] = result
    return SearchRetrain(grid, data, metrics, by_method)


def _searches(
    grid: Grid, data: Mapping[str, DataSet]
) -> Iterator[tuple[tuple[str, str, str, int], SearchTrial]]:
    for recipe in grid.data:
        for model, backbone in grid.models.items():
            for name, method in grid.methods.items():
                for seed in range(grid.search_seeds if name != REFERENCE else 0):
                    training = grid.training_for(data[recipe.name], seed)
                    yield (
                        (recipe.name, model, name, seed),
                        SearchTrial(recipe, backbone, training, method),
                    )


def _retrains(
    grid: Grid,
    data: Mapping[str, DataSet],
    found: Mapping[tuple[str, str, str, int], Mapping[str, Any] | None],
) -> Iterator[tuple[tuple[Place, Pair], RetrainTrial]]:
    for recipe in grid.data:
        own = data[recipe.name]
        for model, backbone in grid.models.items():
            for share in grid.shares:
                for name in grid.methods:
                    for pair in (
                        (s, r) for s in range(grid.search_seeds) for r in range(grid.retrain_seeds)
                    ):
                        result = found.get((recipe.name, model, name, pair[0]))
                        if name != REFERENCE and result is None:
                            continue  # the search failed
                        kept = (
                            None
                            if result is None or share == 1
                            else kept_by(own, result["scores"], share)
                        )
                        trial = RetrainTrial(
                            recipe, backbone, grid.training_for(own, pair[1]), kept
                        )
                        yield ((recipe.name, model, share, name), pair), trial


def kept_by(data: DataSet, scores: Mapping[str, float], share: float) -> tuple[str, ...]:
    """The best share of the fields, in the order of the task."""
    return select(data.task.fields, scores, share=share).kept


def truth_found(
    data: DataSet, scores: Mapping[str, float], threshold: float = 0.5
) -> tuple[float, float]:
    """F1 of the best fields, as many as are useful, and of those that score above the threshold.

    A field and its copies count as one, with the best of their scores: to keep either is right.
    """
    teams: dict[str, float] = {}
    for name, score in scores.items():
        leader = data.source.get(name, name)
        teams[leader] = max(score, teams.get(leader, score))
    ordered = sorted(
        teams, key=lambda name: (-teams[name], name in set(data.useful))
    )  # among equals the useless first
    best, opened = (
        ordered[: len(data.useful)],
        [name for name in ordered if teams[name] > threshold],
    )
    return f1(best, data.useful), f1(opened, data.useful)


def _compared(
    samples: Mapping[str, Mapping[Any, Sample]], leap: str, *, rising: bool
) -> dict[str, Comparison]:
    """Each method against LeAP on the seeds that both have; where lower is better, signs are turned."""
    if leap not in samples:
        return {}
    shared = {m: own for m, own in samples.items() if own.keys() & samples[leap].keys()}
    turned = {
        m: {k: Sample(s.run, s.value if rising else -s.value) for k, s in own.items()}
        for m, own in shared.items()
    }
    return compare(turned, leap)


def _cell(mean: Mean | None, comparison: Comparison | None) -> str | None:
    if mean is None:
        return None
    return interval_text(mean) + (MARK[comparison.verdict] if comparison is not None else "")


def _summary(table: Mapping[str, Mapping[str, float]], metric: str) -> dict[str, tuple[str, str]]:
    """The aggregate over data sets, and the mean rank, of the methods that ran on all of them."""
    if not table:
        return {}
    falling = metric == "log_loss"
    total = (
        {m: sum(own.values()) / len(own) for m, own in table.items()} if falling else s_auc(table)
    )
    rank = mean_ranks(
        {m: {d: -v if falling else v for d, v in own.items()} for m, own in table.items()}
    )
    return {method: (f"{total[method]:.4f}", f"{rank[method]:.1f}") for method in table}
