"""Table 3: the loss of a model that is pruned by each method, and the cost of the search."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from .._common.errors import TorchleapError
from ..objectives import Metric
from .grid import REFERENCE, Grid
from .prune import FullTrial, Prunings, RoiTrial, Stage
from .run import STATE, Runner
from .sets import DataSet
from .statistics import Mean, Sample, mean_of
from .tables import Table, over_seeds, signed

Results = Mapping[int, dict[str, Any]]  # by seed


@dataclass(frozen=True)
class Roi:
    """The results of pruning by each method.

    Attributes:
        data: The data set.
        model: The name of the backbone.
        metric: The metric of the differences.
        prunings: How models were pruned.
        full: The results of the model of all fields, by seed.
        methods: The results of each method, by seed.
    """

    data: DataSet
    model: str
    metric: Metric
    prunings: Prunings
    full: Results
    methods: Mapping[str, Results]

    def differences(self, stage: Stage) -> dict[str, list[Mean]]:
        """Return the change of the metric for each fraction, by method.

        It is the difference to the model of all fields of the same seed with the same fine-tuning.
        """
        found: dict[str, list[Mean]] = {}
        for method, results in self.methods.items():
            found[method] = []
            for place in range(len(self.prunings.fractions)):
                samples = []
                for seed, result in results.items():
                    own = result["points"][place][stage][self.metric.name]
                    base = self.full[seed][stage][self.metric.name]
                    samples.append(Sample(str(seed), own - base))
                found[method].append(mean_of(samples))
        return found

    def removed(self) -> dict[str, list[float]]:
        """Return the fraction of the dimensions that was removed for each fraction, by method.

        Only complete fields are removed, so it may be more.
        """
        all_dims = self.data.task.fields.dims
        found: dict[str, list[float]] = {}
        for method, results in self.methods.items():
            found[method] = []
            for place in range(len(self.prunings.fractions)):
                dims = sum(result["points"][place]["dims"] for result in results.values())
                found[method].append(dims / len(results) / all_dims)
        return found

    def tables(self) -> list[Table]:
        """Return the differences without and with fine-tuning, and the costs of the searches."""
        stages = self.prunings.stages
        return [*(self._differences_table(stage) for stage in stages), self._cost_table()]

    def _differences_table(self, stage: Stage) -> Table:
        found = self.differences(stage)
        removed = self.removed()
        all_dims = self.data.task.fields.dims
        rows = []
        rounded = False
        for place, fraction in enumerate(self.prunings.fractions):
            cells = []
            for method, means in found.items():
                other = _other(removed[method][place], fraction)
                rounded = rounded or bool(other)
                cells.append(signed(means[place]) + other)
            rows.append((f"{fraction:.0%}", f"{round(fraction * all_dims):,}", *cells))
        after = "without fine-tuning"
        if stage == "tuned":
            after = f"after {self.prunings.steps} steps of fine-tuning"
        title = (
            f"{self.metric.title} difference by fraction of dimensions pruned, {after}: "
            f"{self.data.name}, {self.model}"
        )
        notes = self._notes(stage, rounded=rounded)
        return Table(title, ("pruned", "dims", *found), tuple(rows), notes)

    def _notes(self, stage: Stage, *, rounded: bool) -> tuple[str, ...]:
        """Return the notes of a table of differences.

        Args:
            stage: The stage of the table.
            rounded: Whether some models lost another fraction than was requested.
        """
        fields = self.data.task.fields
        values = [
            Sample(str(seed), full[stage][self.metric.name]) for seed, full in self.full.items()
        ]
        level = self.metric.format(mean_of(values).value)
        paired = ": its dropped fields are set to their means"
        if stage == "tuned":
            paired = " after the same fine-tuning"
        notes = [
            f"All fields: {level}; {fields.dims:,} dimensions, {len(fields)} fields.",
            f"{over_seeds(len(self.full))}; paired with the model of all fields of the same seed"
            f"{paired}.",
        ]
        if rounded:
            notes.append(
                "(in brackets): the fraction that was removed, where it rounds to another; "
                "only complete fields are removed."
            )
        return tuple(notes)

    def _cost_table(self) -> Table:
        rows = []
        for method, results in self.methods.items():
            samples = [Sample(str(seed), result["seconds"]) for seed, result in results.items()]
            rows.append((method, f"{mean_of(samples).value:.0f}"))
        plain = sum(full["seconds"] for full in self.full.values()) / len(self.full)
        note = (
            "With the training of the model that a method queries or gates; "
            f"plain training takes {plain:.0f} s."
        )
        title = f"Seconds of a search: {self.data.name}, {self.model}"
        return Table(title, ("method", "seconds"), tuple(rows), (note,))

    def curves(self) -> list[dict[str, Any]]:
        """Return the differences by fraction, with their intervals as bands."""
        titles = {"pruned": "without fine-tuning", "tuned": "after fine-tuning"}
        removed = self.removed()
        found = []
        for stage in self.prunings.stages:
            series = []
            for method, means in self.differences(stage).items():
                points = [_point(*pair) for pair in zip(removed[method], means, strict=True)]
                series.append({"name": method, "points": points})
            title = f"{self.metric.title} difference {titles[stage]}"
            found.append(
                {
                    "title": f"{title}: {self.data.name}, {self.model}",
                    "x": "dimensions pruned, %",
                    "y": f"difference of {self.metric.title}",
                    "series": series,
                }
            )
        return found


def _point(fraction: float, mean: Mean) -> list[float | None]:
    """Return a point of a curve; one seed has no interval."""
    if mean.runs == 1:
        return [100 * fraction, mean.value, None, None]
    return [100 * fraction, mean.value, mean.low, mean.high]


def _other(removed: float, fraction: float) -> str:
    """Return the removed fraction, where it rounds to another than the table shows."""
    if f"{removed:.0%}" == f"{fraction:.0%}":
        return ""
    return f" ({removed:.0%})"


def roi(grid: Grid, runner: Runner, prunings: Prunings) -> list[Roi]:
    """Prune at several fractions of the dimensions, by each method of a grid.

    Args:
        grid: The grid; `search_seeds` is the number of seeds.
        runner: The runner, whose store keeps the results.
        prunings: How models are pruned.
    """
    plain = dict(_full_trials(grid, runner, prunings))
    pruned = dict(_roi_trials(grid, runner, prunings))
    full = dict(zip(plain, runner.run(list(plain.values()), to_come=len(pruned)), strict=True))
    found = dict(zip(pruned, runner.run(list(pruned.values())), strict=True))
    if not runner.failures:
        for path in (runner.folder / STATE).glob("full-*"):
            path.unlink()
    outcomes = []
    for recipe, model in product(grid.data, grid.models):
        data = runner.data(recipe)
        own_full = _by_seed(full, recipe.name, model)
        if not own_full:
            problem = next(iter(runner.failures.values()))
            raise TorchleapError(f"No model of all fields could be trained: {problem}")
        methods = {}
        for name in grid.methods:
            results = _by_seed(found, recipe.name, model, name)
            paired = {seed: result for seed, result in results.items() if seed in own_full}
            if paired:
                methods[name] = paired
        outcomes.append(Roi(data, model, data.headline, prunings, own_full, methods))
    return outcomes


def _full_trials(
    grid: Grid, runner: Runner, prunings: Prunings
) -> Iterator[tuple[tuple[str, str, int], FullTrial]]:
    """Yield the trial of the model of all fields, by data set, backbone and seed."""
    for recipe, model, seed in product(grid.data, grid.models, range(grid.search_seeds)):
        training = grid.training_for(runner.data(recipe), seed)
        trial = FullTrial(recipe, grid.models[model], training, prunings)
        yield (recipe.name, model, seed), trial


def _roi_trials(
    grid: Grid, runner: Runner, prunings: Prunings
) -> Iterator[tuple[tuple[str, str, str, int], RoiTrial]]:
    """Yield the trial of each method, by data set, backbone, method and seed."""
    for recipe, model, seed in product(grid.data, grid.models, range(grid.search_seeds)):
        training = grid.training_for(runner.data(recipe), seed)
        for name, method in grid.methods.items():
            if name != REFERENCE:
                trial = RoiTrial(recipe, grid.models[model], training, method, prunings)
                yield (recipe.name, model, name, seed), trial


def _by_seed(
    results: Mapping[Any, dict[str, Any] | None], *place: str
) -> dict[int, dict[str, Any]]:
    """Return the results of a place by seed, without those of failed trials."""
    found = {}
    for (*own, seed), result in results.items():
        if tuple(own) == place and result is not None:
            found[seed] = result
    return found
