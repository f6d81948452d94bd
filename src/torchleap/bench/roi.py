"""Table 3: the loss of a model that is pruned by each method, and the cost of the search."""

import copy
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from torch import nn

from .._common.checks import check_settings, setting
from .._common.errors import TorchleapError
from .._common.files import make_folder
from .._common.locks import locked
from .._common.plain import key_of
from ..objectives import METRICS, Metric
from ..pipeline.decide import with_means
from ..pipeline.search import RetrainResult, retrain
from ..plugin import Plugin
from ..selection import Rule, Selection, select
from ..training.fit import evaluate, fit
from .grid import REFERENCE, Grid
from .run import STATE, Runner
from .sets import DataSet
from .statistics import Mean, Sample, mean_of
from .tables import Table, over_seeds, signed
from .trials import SearchTrial, Trial, registered_name

PRUNED = (0.04, 0.15, 0.2, 0.3, 0.35, 0.4, 0.5)  # fractions of the dimensions, as in the paper
EXAMPLE = 64  # rows of the batch that a model is pruned with
Stage = Literal["pruned", "tuned"]
Results = Mapping[int, dict[str, Any]]  # by seed


@dataclass(frozen=True)
class Prunings:
    """How models are pruned, the same for every method.

    Args:
        fractions: Fractions of the dimensions to prune.
        steps: Steps of fine-tuning; 0 for none.
        rate: The learning rate of fine-tuning, as a fraction of the training's.
    """

    fractions: tuple[float, ...] = setting(PRUNED, at_least=0, below=1)
    steps: int = setting(50, at_least=0)
    rate: float = setting(0.3, above=0)

    def __post_init__(self) -> None:
        some = "expected at least one fraction to prune, but found none"
        check_settings(self, {some: bool(self.fractions)})

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Return the stages at which models are measured."""
        return ("pruned", "tuned") if self.steps else ("pruned",)


class _Full:
    """The plain model of all fields, which every method prunes; the first trial trains it."""

    def __init__(self, trial: Trial, found: DataSet, state: Path) -> None:
        self.trial = trial
        self.task = found.task
        name = key_of([found.task.fingerprint, repr(trial.model), repr(trial.training)])
        self.path = state.parent / f"full-{name}.pt"

    def train(self) -> RetrainResult:
        """Train the model, or load it; other processes wait."""
        training = self.trial.training
        make_folder(self.path.parent)
        with locked(Path(f"{self.path}.lock")):
            return retrain(
                self.task,
                model=self.trial.model,
                training=training,
                seed=training.seed,
                checkpoint=self.path,
                keep_checkpoint=True,
            )


@dataclass(frozen=True)
class RoiTrial(SearchTrial):
    """Scores all fields by a method, and prunes the model of all fields by these scores."""

    kind = "roi"

    prunings: Prunings

    @property
    def title(self) -> str:
        """Return the data set, the method and the seed."""
        method = registered_name(self.method)
        return f"{self.data.name}: prune by {method}, seed {self.training.seed}"

    def run(self, found: DataSet, state: Path) -> dict[str, Any]:
        """Search, prune the plain model at each fraction, and measure it before and after tuning."""
        lent = _Full(self, found, state)
        full = lent.train()
        result = self._search(found, state, lent, full)
        plugin = with_means(copy.deepcopy(full.model), found.task, self.training.seed)
        points = []
        for fraction in self.prunings.fractions:
            dims = max(1, round((1 - fraction) * found.task.fields.dims))
            selection = select(found.task.fields, result["scores"], Rule.of(dims=dims))
            points.append({"fraction": fraction, **self._measured(found, plugin, selection)})
        return {**result, "points": points}

    def _search(
        self, found: DataSet, state: Path, lent: _Full, full: RetrainResult
    ) -> dict[str, Any]:
        """Return the result of the search; a method that needs a plain model is lent one."""
        if not self.method.asks_trained:
            return super().run(found, state)
        folder = make_folder(state / "search")
        if not (folder / "0.pt").exists():
            os.link(lent.path, folder / "0.pt")
        result = super().run(found, state)
        seconds = result["seconds"] + full.run.seconds  # as if it had trained the model itself
        return {**result, "seconds": seconds}

    def _measured(self, found: DataSet, plugin: Plugin, selection: Selection) -> dict[str, Any]:
        """Return the removed fields, and the metrics of the model without them."""
        with plugin.masked(selection):
            pruned = evaluate(plugin.model, found.task.test)
        tuned = None
        if self.prunings.steps:
            tuned = evaluate(fine_tuned(self, found, plugin, selection), found.task.test)
        return {
            "fields": len(selection.dropped),
            "dims": found.task.fields.dims - selection.dims,
            "dropped": list(selection.dropped),
            "pruned": pruned,
            "tuned": tuned,
        }


@dataclass(frozen=True)
class FullTrial(Trial):
    """Trains the plain model of all fields, to which the pruned ones are compared."""

    kind = "full"

    prunings: Prunings

    @property
    def title(self) -> str:
        """Return the data set and the seed."""
        return f"{self.data.name}: train on all fields, seed {self.training.seed}"

    def run(self, found: DataSet, state: Path) -> dict[str, Any]:
        """Train and measure the model, also after the same fine-tuning as the pruned ones."""
        full = _Full(self, found, state).train()
        tuned = None
        if self.prunings.steps:
            plugin = with_means(copy.deepcopy(full.model), found.task, self.training.seed)
            open_gates = dict.fromkeys(found.task.fields.names, 1.0)
            everything = select(found.task.fields, open_gates, Rule.of(threshold=0.5))
            tuned = evaluate(fine_tuned(self, found, plugin, everything), found.task.test)
        pruned = evaluate(full.model, found.task.test)
        return {"pruned": pruned, "tuned": tuned, "seconds": full.run.seconds}


def fine_tuned(
    trial: RoiTrial | FullTrial, found: DataSet, plugin: Plugin, selection: Selection
) -> nn.Module:
    """Return the model without the dropped fields after fine-tuning, unless that made it worse.

    Args:
        trial: The trial, which determines the training.
        found: The data set.
        plugin: The gates of the model of all fields, which stays as it is.
        selection: The fields to keep.
    """
    task = found.task
    if selection.dropped:
        batch = next(iter(task.valid.batches(min(EXAMPLE, len(task.valid)))))
        small = plugin.prune(selection, example=batch.inputs)
    else:
        small = copy.deepcopy(plugin.model)
    steps = trial.prunings.steps
    rate = trial.prunings.rate * trial.training.lr
    training = replace(trial.training, steps=steps, eval_every=steps, lr=rate)
    metric = METRICS[training.metric]
    before = metric.gain(evaluate(small, task.valid)[metric.name])
    weights = copy.deepcopy(small.state_dict())
    run = fit(small, task, training)
    if run.best_metric < before:
        small.load_state_dict(weights)
    return small


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
