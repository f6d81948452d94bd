"""Table 2: validate gates by adding retained fields one by one, then each suppressed field."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from .._common.errors import TorchleapError
from ..methods import GateMethod, Method
from ..objectives import Metric
from .grid import Grid
from .run import Runner
from .sets import DataSet, Recipe
from .statistics import Mean, Sample, compare, mean_of, polarisation
from .tables import Table, interval_text, over_seeds, signed
from .trials import RetrainTrial, SearchTrial

Label = Literal["strong", "weak", "redundant", "no impact", "harmful"]
STRONG = 0.01  # a gain of the metric from which a field is a strong signal
MATTERS = 0.001  # a difference of the metric that counts in practice, as in the paper
ALONE = 0.55  # the metric from which a field by itself is informative
ONE_SEED = (
    "One seed gives no measure of noise, so no other gain or loss counts as beyond it: "
    "give more --seeds."
)
LINES = 12  # fields up to which each has its own line in the picture
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)  # of the gates, where there are more fields


class Step(NamedTuple):
    """One model of the stepwise validation, with one more field.

    Attributes:
        added: The field that was added.
        gate: Its gate after the search.
        retained: Whether the gate is open.
        metric: The metric on validation rows.
        difference: The difference to the step before, or to the peak; None for the first.
        label: The utility of the field in a word.
        peak: Whether this is the best model of retained fields.
    """

    added: str
    gate: float
    retained: bool
    metric: Mean
    difference: Mean | None
    label: Label
    peak: bool


@dataclass(frozen=True)
class Stepwise:
    """The stepwise validation of a data set and backbone.

    Attributes:
        data: The data set.
        model: The name of the backbone.
        metric: The metric of the steps.
        steps: The steps, in their order.
        gates: The gates over the training: "steps", and "gates" by field.
        seeds: The number of seeds of each model.
    """

    data: DataSet
    model: str
    metric: Metric
    steps: tuple[Step, ...]
    gates: Mapping[str, Any]
    seeds: int

    @property
    def polarisation(self) -> float:
        """Return the fraction of gates within 0.05 of 0 or 1."""
        return polarisation([own[-1] for own in self.gates["gates"].values()])

    def tables(self) -> list[Table]:
        """Return the paper's table."""
        rows = [_row(number, step) for number, step in enumerate(self.steps, start=1)]
        title = f"Stepwise validation of the gates: {self.data.name}, {self.model}"
        metric = f"validation {self.metric.title}"
        columns = ("step", "fields", "zone", "score", metric, "difference", "label")
        return [Table(title, columns, tuple(rows), self._notes())]

    def _notes(self) -> tuple[str, ...]:
        labels = (
            f"Beyond noise, strong: gains at least {STRONG}; weak: gains less; "
            f"harmful: loses at least {MATTERS}; redundant: none of these, but has an "
            f"{self.metric.title} of {ALONE} or more by itself; no impact: all others. "
            "The first field is called strong."
        )
        if self.seeds == 1:
            labels = f"{labels} {ONE_SEED}"
        paired = "differences, paired, are to the step before or to the peak"
        decided = f"{self.polarisation:.0%} of the gates are within 0.05 of 0 or 1"
        return f"{over_seeds(self.seeds)}; {paired}.", labels, f"Polarisation: {decided}."

    def curves(self) -> list[dict[str, Any]]:
        """Return the gates over the training, or their quantiles if they are many; and how polar.

        A line is a dict of its name and its points `[x, y, low, high]`.
        """
        polar = [polarisation(own) for own in zip(*self.gates["gates"].values(), strict=True)]
        return [
            {
                "title": f"Gates over the training: {self.data.name}",
                "x": "step",
                "y": "gate",
                "series": [self._line(name, own) for name, own in self._lines().items()],
            },
            {
                "title": f"Polarisation: {self.data.name}",
                "x": "step",
                "y": "fraction of gates",
                "series": [self._line("within 0.05 of 0 or 1", polar)],
            },
        ]

    def _lines(self) -> Mapping[str, Sequence[float]]:
        gates: Mapping[str, Sequence[float]] = self.gates["gates"]
        if len(gates) <= LINES:
            return gates
        found = np.quantile(np.array(list(gates.values())), QUANTILES, axis=0)
        names = [f"{quantile:.0%} quantile" for quantile in QUANTILES]
        return dict(zip(names, found.tolist(), strict=True))

    def _line(self, name: str, values: Sequence[float]) -> dict[str, Any]:
        steps = self.gates["steps"]
        points = [[x, y, None, None] for x, y in zip(steps, values, strict=True)]
        return {"name": name, "points": points}


def _row(number: int, step: Step) -> tuple[str | None, ...]:
    name = f"+ {step.added}" if number > 1 else f"[{step.added}]"
    if step.peak:
        name = f"{name} (peak)"
    return (
        str(number),
        name,
        "retained" if step.retained else "suppressed",
        f"{step.gate:.3g}",
        interval_text(step.metric),
        None if step.difference is None else signed(step.difference),
        step.label,
    )


def stepwise(grid: Grid, runner: Runner) -> list[Stepwise]:
    """Validate the gates of a grid's LeAP method, for each data set and backbone.

    Args:
        grid: The grid; `retrain_seeds` is the number of seeds of each model.
        runner: The runner, whose store keeps the results.
    """
    method = grid.methods[grid.leap]
    if not isinstance(method, GateMethod):
        raise TorchleapError(
            f"The stepwise validation needs gates: expected the method leap, but found {grid.leap}."
        )
    found = []
    for recipe in grid.data:
        for model in grid.models:
            found.append(_Work(grid, runner, method, recipe, model).run())
    return found


class _Work:
    """The models of a stepwise validation, from the search to the labels."""

    def __init__(
        self, grid: Grid, runner: Runner, method: Method, recipe: Recipe, model: str
    ) -> None:
        self.grid = grid
        self.runner = runner
        self.method = method
        self.recipe = recipe
        self.model = model
        self.data = runner.data(recipe)
        self.metric = self.data.headline

    def run(self) -> Stepwise:
        """Search, train the models, and return the steps."""
        found = self._search()
        scores: dict[str, float] = found["scores"]
        order = sorted(scores, key=lambda name: -scores[name])
        retained = [name for name in order if name in found["open"]] or order[:1]
        suppressed = [name for name in order if name not in retained]
        prefixes = [retained[: count + 1] for count in range(len(retained))]
        built = self._train(prefixes, to_come=2 * len(suppressed) * self.grid.retrain_seeds)
        top = max(range(len(built)), key=lambda place: self.metric.gain(_mean(built[place]).value))
        peaked = [[*prefixes[top], name] for name in suppressed]
        added = self._train(peaked, to_come=len(suppressed) * self.grid.retrain_seeds)
        alone = self._train([[name] for name in suppressed])
        steps = _retained_steps(scores, retained, built, top)
        steps += _suppressed_steps(scores, suppressed, added, alone, built[top])
        seeds = self.grid.retrain_seeds
        return Stepwise(self.data, self.model, self.metric, tuple(steps), found["gates"], seeds)

    def _search(self) -> dict[str, Any]:
        training = self.grid.training_for(self.data, 0)
        trial = SearchTrial(self.recipe, self.grid.models[self.model], training, self.method)
        return self._results([trial], to_come=3 * len(self.data.task.fields))[0]

    def _train(self, sets: Sequence[Sequence[str]], to_come: int = 0) -> list[dict[int, Sample]]:
        """Return the metric on the validation rows by seed, for each set of fields."""
        places = [(place, seed) for place in range(len(sets)) for seed in self._seeds()]
        trials = [self._retrain(sets[place], seed) for place, seed in places]
        results = self._results(trials, to_come)
        found: list[dict[int, Sample]] = [{} for _ in sets]
        for (place, seed), trial, result in zip(places, trials, results, strict=True):
            value = result["metrics"][f"valid_{self.metric.name}"]
            found[place][seed] = Sample(self.runner.key(trial), value)
        return found

    def _seeds(self) -> range:
        return range(self.grid.retrain_seeds)

    def _retrain(self, kept: Sequence[str], seed: int) -> RetrainTrial:
        ordered = tuple(name for name in self.data.task.fields.names if name in kept)
        training = self.grid.training_for(self.data, seed)
        return RetrainTrial(self.recipe, self.grid.models[self.model], training, ordered)

    def _results(self, trials: Sequence[Any], to_come: int) -> list[dict[str, Any]]:
        found = self.runner.run(trials, to_come=to_come)
        results = [result for result in found if result is not None]
        if len(results) < len(found):
            problem = next(iter(self.runner.failures.values()))
            raise TorchleapError(f"The stepwise validation needs all of its models, but: {problem}")
        return results


def _retained_steps(
    scores: Mapping[str, float],
    retained: Sequence[str],
    built: Sequence[Mapping[int, Sample]],
    top: int,
) -> list[Step]:
    """Return the steps that add the retained fields one by one.

    Args:
        scores: The gates by field.
        retained: The fields, in the order in which they are added.
        built: The samples of the models with the first field, the first two, ..., by seed.
        top: The place of the best of these models.
    """
    steps = []
    for place, name in enumerate(retained):
        change = None
        label: Label = "strong"
        if place > 0:
            change = _difference(built[place], built[place - 1])
            label = utility(change, None)
        mean = _mean(built[place])
        steps.append(Step(name, scores[name], True, mean, change, label, place == top))
    return steps


def _suppressed_steps(
    scores: Mapping[str, float],
    suppressed: Sequence[str],
    added: Sequence[Mapping[int, Sample]],
    alone: Sequence[Mapping[int, Sample]],
    peak: Mapping[int, Sample],
) -> list[Step]:
    """Return the steps that add each suppressed field to the best model.

    Args:
        scores: The gates by field.
        suppressed: The fields.
        added: The samples of the best model with each of them, by seed.
        alone: The samples of a model of each of them alone, by seed.
        peak: The samples of the best model, by seed.
    """
    steps = []
    for name, own, single in zip(suppressed, added, alone, strict=True):
        change = _difference(own, peak)
        label = utility(change, _mean(single).value)
        steps.append(Step(name, scores[name], False, _mean(own), change, label, False))
    return steps


def _mean(samples: Mapping[int, Sample]) -> Mean:
    return mean_of(list(samples.values()))


def _difference(ours: Mapping[int, Sample], base: Mapping[int, Sample]) -> Mean:
    return compare({"base": base, "ours": ours}, "base")["ours"].difference


def utility(difference: Mean, alone: float | None) -> Label:
    """Return the paper's word for a field, by what adding it changed beyond noise.

    Args:
        difference: The change of the metric when the field is added.
        alone: The metric of a model of this field alone; None if it was not trained.

    >>> utility(Mean(0.0032, 0.0025, 0.0039, 3), None)
    'weak'
    >>> utility(Mean(-0.0006, -0.0008, -0.0004, 3), 0.73)
    'redundant'
    """
    if difference.low > 0:
        return "strong" if difference.value >= STRONG else "weak"
    if difference.high < 0 and difference.value <= -MATTERS:
        return "harmful"
    if alone is not None and alone >= ALONE:
        return "redundant"
    return "no impact"
