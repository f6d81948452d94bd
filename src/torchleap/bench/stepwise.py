"""Table 2: do gates tell what fields are worth? Add the retained ones one by one, then each suppressed one to the peak model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from .._common.errors import TorchleapError
from ..methods import LeAPMethod, Method
from .grid import Grid
from .run import Runner
from .sets import DataSet
from .statistics import Mean, Sample, compare, mean_of, polarisation
from .tables import Table, interval_text, over_seeds, signed
from .trials import RetrainTrial, SearchTrial

Label = Literal["strong", "weak", "redundant", "no impact", "harmful"]
STRONG = 0.01  # a difference of the AUC from which on a field is a strong signal
MATTERS = 0.001  # a difference of the AUC that counts in practice, as the paper has it
ALONE = 0.55  # the AUC from which on a field by itself is informative
ONE_SEED = "One seed tells nothing about noise, so no other gain or loss counts as beyond it: give more --seeds."
LINES = 12  # fields up to which each has its own line in the picture


class Step(NamedTuple):
    """One model of the stepwise validation: the field that was added, and what that did to the metric on validation rows."""

    added: str
    gate: float
    retained: bool
    metric: Mean
    difference: Mean | None  # to the step before, or to the peak
    label: Label
    peak: bool


@dataclass(frozen=True)
class Stepwise:
    """The steps, and the gates over the training."""

    data: DataSet
    model: str
    metric: str
    steps: tuple[Step, ...]
    gates: Mapping[str, Any]  # "steps", and "gates" by field
    seeds: int

    @property
    def polarisation(self) -> float:
        """The share of gates within 0.05 of 0 or 1."""
        return polarisation([own[-1] for own in self.gates["gates"].values()])

    def tables(self) -> list[Table]:
        """The paper's table."""
        rows = []
        for number, step in enumerate(self.steps, start=1):
            name = f"+ {step.added}" if number > 1 else f"[{step.added}]"
            change = None if step.difference is None else signed(step.difference)
            cells = (f"{step.gate:.3f}", interval_text(step.metric), change, step.label)
            rows.append(
                (
                    str(number),
                    name + (" (peak)" if step.peak else ""),
                    "retained" if step.retained else "suppressed",
                    *cells,
                )
            )
        title = f"Stepwise validation of the gates: {self.data.name}, {self.model}"
        metric = self.metric.upper()
        columns = ("step", "fields", "zone", "gate", f"validation {metric}", "difference", "label")
        notes = (
            f"{over_seeds(self.seeds)}; differences, paired, are to the step before or to the peak.",
            f"Beyond noise, strong: gains at least {STRONG}; weak: gains less; harmful: loses at least {MATTERS}; "
            f"redundant: none of these, but has an {metric} of {ALONE} or more by itself; no impact: all others. "
            "The first field is called strong." + ("" if self.seeds > 1 else f" {ONE_SEED}"),
            f"Polarisation: {self.polarisation:.0%} of the gates are within 0.05 of 0 or 1.",
        )
        return [Table(title, columns, tuple(rows), notes)]

    def curves(self) -> list[dict[str, Any]]:
        """The gates over the training, a line each or their distribution if they are many; and their polarisation."""
        steps, gates = self.gates["steps"], self.gates["gates"]
        if len(gates) <= LINES:
            series = [
                {
                    "name": name,
                    "points": [[x, y, None, None] for x, y in zip(steps, own, strict=True)],
                }
                for name, own in gates.items()
            ]
        else:
            shares = (0.05, 0.25, 0.5, 0.75, 0.95)
            found = np.quantile(np.array(list(gates.values())), shares, axis=0)  # (shares, looks)
            series = [
                {
                    "name": f"{share:.0%} quantile",
                    "points": [[x, y, None, None] for x, y in zip(steps, own, strict=True)],
                }
                for share, own in zip(shares, found.tolist(), strict=True)
            ]
        polar = [polarisation(list(own)) for own in zip(*gates.values(), strict=True)]
        line = {
            "name": "within 0.05 of 0 or 1",
            "points": [[x, y, None, None] for x, y in zip(steps, polar, strict=True)],
        }
        return [
            {
                "title": f"Gates over the training: {self.data.name}",
                "x": "step",
                "y": "gate",
                "series": series,
            },
            {
                "title": f"Polarisation: {self.data.name}",
                "x": "step",
                "y": "share of gates",
                "series": [line],
            },
        ]


def stepwise(grid: Grid, runner: Runner) -> list[Stepwise]:
    """For each data set and backbone of a grid, by its LeAP method and as many retrain seeds."""
    method = grid.methods[grid.leap]
    if not isinstance(method, LeAPMethod):
        raise TorchleapError(
            f"The stepwise validation needs gates: expected the method leap, but found {grid.leap}."
        )
    return [
        _Work(grid, runner, method, runner.data(r), model).run()
        for r in grid.data
        for model in grid.models
    ]


class _Work:
    def __init__(
        self, grid: Grid, runner: Runner, method: Method, data: DataSet, model: str
    ) -> None:
        self.grid, self.runner, self.method, self.data, self.model = (
            grid,
            runner,
            method,
            data,
            model,
        )
        self.recipe = next(recipe for recipe in grid.data if recipe.name == data.name)
        self.metric = "auc" if data.task.roles.get("group") is None else "gauc"

    def run(self) -> Stepwise:
        found = self._search()
        order = sorted(found["scores"], key=lambda name: -found["scores"][name])
        retained = [name for name in order if found["scores"][name] > 0.5] or order[:1]
        suppressed = [name for name in order if name not in retained]
        prefixes = [tuple(retained[: count + 1]) for count in range(len(retained))]
        built = self._train(prefixes, to_come=2 * len(suppressed) * self.grid.retrain_seeds)
        top = max(
            range(len(prefixes)), key=lambda place: mean_of(list(built[place].values())).value
        )
        peak = prefixes[top]
        added = self._train(
            [(*peak, name) for name in suppressed],
            to_come=len(suppressed) * self.grid.retrain_seeds,
        )
        alone = self._train([(name,) for name in suppressed])
        steps = []
        for place, name in enumerate(retained):
            change = None if place == 0 else _difference(built[place], built[place - 1])
            label = utility(change, None) if change else "strong"
            steps.append(
                Step(
                    name,
                    found["scores"][name],
                    True,
                    mean_of(list(built[place].values())),
                    change,
                    label,
                    place == top,
                )
            )
        for name, own, single in zip(suppressed, added, alone, strict=True):
            change = _difference(own, built[top])
            label = utility(change, mean_of(list(single.values())).value)
            steps.append(
                Step(
                    name,
                    found["scores"][name],
                    False,
                    mean_of(list(own.values())),
                    change,
                    label,
                    False,
                )
            )
        return Stepwise(
            self.data,
            self.model,
            self.metric,
            tuple(steps),
            found["gates"],
            self.grid.retrain_seeds,
        )

    def _search(self) -> dict[str, Any]:
        trial = SearchTrial(
            self.recipe,
            self.grid.models[self.model],
            self.grid.training_for(self.data, 0),
            self.method,
        )
        return self._got([trial], to_come=3 * len(self.data.task.fields))[0]

    def _train(self, sets: Sequence[tuple[str, ...]], to_come: int = 0) -> list[dict[int, Sample]]:
        """The metric on the validation rows by seed, for each set of fields."""
        seeds = range(self.grid.retrain_seeds)
        trials = [
            RetrainTrial(
                self.recipe,
                self.grid.models[self.model],
                self.grid.training_for(self.data, seed),
                self._ordered(kept),
            )
            for kept in sets
            for seed in seeds
        ]
        found = self._got(trials, to_come)
        keys = [self.runner.key(trial) for trial in trials]
        values = [result["metrics"][f"valid_{self.metric}"] for result in found]
        samples = [Sample(key, value) for key, value in zip(keys, values, strict=True)]
        return [
            dict(zip(seeds, samples[n * len(seeds) : (n + 1) * len(seeds)], strict=True))
            for n in range(len(sets))
        ]

    def _ordered(self, kept: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in self.data.task.fields.names if name in set(kept))

    def _got(self, trials: Sequence[Any], to_come: int) -> list[dict[str, Any]]:
        found = self.runner.run(trials, to_come=to_come)
        if any(result is None for result in found):
            raise TorchleapError(
                f"The stepwise validation needs all of its models, but: {next(iter(self.runner.failures.values()))}"
            )
        return [result for result in found if result is not None]


def _difference(ours: Mapping[int, Sample], base: Mapping[int, Sample]) -> Mean:
    return compare({"base": base, "ours": ours}, "base")["ours"].difference


def utility(difference: Mean, alone: float | None) -> Label:
    """The paper's wording, computed: what adding a field did, beyond noise, and what it is worth by itself.

    >>> utility(Mean(0.0032, 0.0025, 0.0039, 3), None), utility(Mean(-0.0006, -0.0008, -0.0004, 3), 0.73)
    ('weak', 'redundant')
    """
    if difference.low > 0:
        return "strong" if difference.value >= STRONG else "weak"
    if difference.high < 0 and difference.value <= -MATTERS:
        return "harmful"
    return "redundant" if alone is not None and alone >= ALONE else "no impact"
