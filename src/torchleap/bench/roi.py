"""Table 3: what a model loses when shares of its dimensions are pruned by the scores of each method, and what the search cost."""

import copy
import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from .._common.checks import is_number, is_whole, refuse_settings
from .._common.errors import TorchleapError
from .._common.files import make_folder
from .._common.locks import locked
from .._common.plain import key_of
from ..pipeline.decide import with_means
from ..pipeline.search import RetrainResult, retrain
from ..plugin import Plugin
from ..selection import Selection, select
from ..training.fit import evaluate, fit
from .grid import REFERENCE, Grid
from .run import Runner
from .sets import DataSet
from .statistics import Mean, Sample, mean_of
from .tables import Table, over_seeds, signed
from .trials import SearchTrial, Trial

PRUNED = (0.04, 0.15, 0.2, 0.3, 0.35, 0.4, 0.5)  # shares of the dimensions, as in the paper
Stage = Literal["pruned", "tuned"]


@dataclass(frozen=True)
class Prunings:
    """How to prune, the same for every method.

    Args:
        shares: Of the dimensions that go.
        steps: Of fine-tuning; 0 is none.
        rate: Of fine-tuning, as a share of the training's.
    """

    shares: tuple[float, ...] = PRUNED
    steps: int = 50
    rate: float = 0.3

    def __post_init__(self) -> None:
        rules = {
            f"a share must be at least 0 and below 1, but is {s!r}": is_number(s) and 0 <= s < 1
            for s in self.shares
        }
        rules["expected at least one share to prune, but found none"] = bool(self.shares)
        rules[f"steps must be a whole number of at least 0, but is {self.steps!r}"] = (
            is_whole(self.steps) and self.steps >= 0
        )
        rules[f"rate must be a number above 0, but is {self.rate!r}"] = (
            is_number(self.rate) and 0 < self.rate < math.inf
        )
        refuse_settings(rules)


class _Full:
    """The plain model of all fields that every method's scores prune; trained once for each seed, whoever comes first."""

    def __init__(self, trial: Trial, found: DataSet, state: Path) -> None:
        self.trial, self.task = trial, found.task
        name = key_of([found.task.fingerprint, repr(trial.model), repr(trial.training)])
        self.path = state.parent / f"full-{name}.pt"

    def train(self) -> RetrainResult:
        """Train it, or load it."""
        training = self.trial.training
        with _lock(self.path):
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
    """The scores of a method, and the model of all fields pruned by them."""

    prunings: Prunings

    @property
    def title(self) -> str:
        """Which pruning it is."""
        return f"{self.data.name}: prune by {type(self.method).__name__}, seed {self.training.seed}"

    def run(self, found: DataSet, state: Path) -> dict[str, Any]:
        """Search, then prune the plain model at each share: without fine-tuning, and with."""
        shared = _Full(self, found, state)
        full = shared.train()
        result = self._searched(found, state, shared, full)
        plugin = with_means(copy.deepcopy(full.model), found.task, self.training.seed)
        points = [
            self._pruned(found, plugin, result["scores"], share) for share in self.prunings.shares
        ]
        return {**result, "points": points}

    def _searched(
        self, found: DataSet, state: Path, shared: _Full, full: RetrainResult
    ) -> dict[str, Any]:
        if not self.method.uses_trained_model:
            return super().run(found, state)
        folder = state / "search"
        make_folder(folder)
        if not (folder / "0.pt").exists():
            os.link(shared.path, folder / "0.pt")
        result = super().run(found, state)
        return {
            **result,
            "seconds": result["seconds"] + full.run.seconds,
        }  # what it would have taken without the loan

    def _pruned(
        self, found: DataSet, plugin: Plugin, scores: Mapping[str, float], share: float
    ) -> dict[str, Any]:
        fields = found.task.fields
        selection = select(fields, scores, dims=max(1, round((1 - share) * fields.dims)))
        with plugin.masked(selection):
            pruned = evaluate(plugin.model, found.task.test)
        tuned = (
            evaluate(fine_tuned(self, found, plugin, selection), found.task.test)
            if self.prunings.steps
            else None
        )
        gone = {
            "fields": len(selection.dropped),
            "dims": fields.dims - selection.dims,
            "dropped": list(selection.dropped),
        }
        return {"share": share, **gone, "pruned": pruned, "tuned": tuned}


@dataclass(frozen=True)
class FullTrial(Trial):
    """The plain model of all fields: what the others are compared with, also after the same fine-tuning."""

    prunings: Prunings

    @property
    def title(self) -> str:
        """Which model it is."""
        return f"{self.data.name}: train on all fields, seed {self.training.seed}"

    def run(self, found: DataSet, state: Path) -> dict[str, Any]:
        """Train, measure, fine-tune, measure."""
        full = _Full(self, found, state).train()
        plugin = with_means(copy.deepcopy(full.model), found.task, self.training.seed)
        everything = select(
            found.task.fields, dict.fromkeys(found.task.fields.names, 1.0), threshold=0.5
        )
        tuned = fine_tuned(self, found, plugin, everything) if self.prunings.steps else None
        after = None if tuned is None else evaluate(tuned, found.task.test)
        return {
            "pruned": evaluate(full.model, found.task.test),
            "tuned": after,
            "seconds": full.run.seconds,
        }


def fine_tuned(
    trial: "RoiTrial | FullTrial", found: DataSet, plugin: Plugin, selection: Selection
) -> nn.Module:
    """The model without the dropped fields, after some more steps; the weights at the better end of them."""
    task, training, prunings = found.task, trial.training, trial.prunings
    example = next(iter(task.valid.batches(min(64, len(task.valid))))).inputs
    small = (
        plugin.prune(selection, example=example)
        if selection.dropped
        else copy.deepcopy(plugin.model)
    )
    before, cut = evaluate(small, task.valid)[training.metric], copy.deepcopy(small.state_dict())
    run = fit(
        small,
        task,
        replace(
            training,
            steps=prunings.steps,
            eval_every=prunings.steps,
            lr=prunings.rate * training.lr,
        ),
    )
    if (run.best_metric < before) if training.metric != "log_loss" else (run.best_metric < -before):
        small.load_state_dict(cut)
    return small


@dataclass(frozen=True)
class Roi:
    """What pruning by each method did, over the seeds."""

    grid: Grid
    data: DataSet
    model: str
    metric: str
    prunings: Prunings
    full: Mapping[int, dict[str, Any]]  # by seed
    methods: Mapping[str, Mapping[int, dict[str, Any]]]  # by method and seed

    def differences(self, stage: Stage) -> dict[str, list[Mean]]:
        """By method, for each share: the change of the metric against the model of all fields with the same fine-tuning."""
        found: dict[str, list[Mean]] = {}
        for method, results in self.methods.items():
            found[method] = [
                mean_of(
                    [
                        Sample(
                            str(seed),
                            result["points"][place][stage][self.metric]
                            - self.full[seed][stage][self.metric],
                        )
                        for seed, result in results.items()
                    ]
                )
                for place in range(len(self.prunings.shares))
            ]
        return found

    def removed(self) -> dict[str, list[float]]:
        """By method, for each share: the share of the dimensions that went; fields go whole, so it may be more."""
        dims = self.data.task.fields.dims
        return {
            method: [
                sum(result["points"][place]["dims"] for result in results.values())
                / len(results)
                / dims
                for place in range(len(self.prunings.shares))
            ]
            for method, results in self.methods.items()
        }

    def tables(self) -> list[Table]:
        """The differences without and with fine-tuning, and the costs of the searches."""
        stages: list[Stage] = ["pruned", "tuned"] if self.prunings.steps else ["pruned"]
        return [*(self._differences_table(stage) for stage in stages), self._cost_table()]

    def _differences_table(self, stage: Stage) -> Table:
        found, removed = self.differences(stage), self.removed()
        dims = self.data.task.fields.dims
        rows = [
            (
                f"{share:.0%}",
                f"{round(share * dims):,}",
                *(
                    signed(found[method][place]) + _other(removed[method][place], share)
                    for method in found
                ),
            )
            for place, share in enumerate(self.prunings.shares)
        ]
        after = (
            "without fine-tuning"
            if stage == "pruned"
            else f"after {self.prunings.steps} steps of fine-tuning"
        )
        level = mean_of(
            [Sample(str(seed), full[stage][self.metric]) for seed, full in self.full.items()]
        )
        more = any(cell.endswith(")") for row in rows for cell in row)
        title = f"{self.metric.upper()} difference by share of dimensions pruned, {after}: {self.data.name}, {self.model}"
        notes = (
            f"All fields: {level.value:.4f}; {dims:,} dimensions, {len(self.data.task.fields)} fields.",
            f"{over_seeds(len(self.full))}; paired with the model of all fields of the same seed"
            + (
                " after the same fine-tuning."
                if stage == "tuned"
                else ": its dropped fields are set to their means."
            ),
            *(
                ["(in brackets): the share that went, where it rounds to another; fields go whole."]
                if more
                else []
            ),
        )
        return Table(title, ("pruned", "dims", *found), tuple(rows), notes)

    def _cost_table(self) -> Table:
        rows = []
        for method, results in self.methods.items():
            seconds = mean_of(
                [Sample(str(seed), result["seconds"]) for seed, result in results.items()]
            )
            rows.append((method, f"{seconds.value:.0f}"))
        plain = sum(full["seconds"] for full in self.full.values()) / len(self.full)
        notes = (
            f"With the training of the model that a method asks or gates; plain training takes {plain:.0f} s.",
        )
        return Table(
            f"Seconds of a search: {self.data.name}, {self.model}",
            ("method", "seconds"),
            tuple(rows),
            notes,
        )

    def curves(self) -> list[dict[str, Any]]:
        """Differences by share, with their intervals as bands."""
        stages: list[Stage] = ["pruned", "tuned"] if self.prunings.steps else ["pruned"]
        titles, removed = (
            {"pruned": "without fine-tuning", "tuned": "after fine-tuning"},
            self.removed(),
        )
        return [
            {
                "title": f"{self.metric.upper()} difference {titles[stage]}: {self.data.name}, {self.model}",
                "x": "dimensions pruned, %",
                "y": f"difference of {self.metric.upper()}",
                "series": [
                    {
                        "name": method,
                        "points": [
                            [
                                100 * share,
                                mean.value,
                                *((None, None) if mean.runs == 1 else (mean.low, mean.high)),
                            ]
                            for share, mean in zip(removed[method], means, strict=True)
                        ],
                    }
                    for method, means in self.differences(stage).items()
                ],
            }
            for stage in stages
        ]


def _other(removed: float, share: float) -> str:
    """The share that went, where the table would not tell it."""
    return "" if f"{removed:.0%}" == f"{share:.0%}" else f" ({removed:.0%})"


def roi(grid: Grid, runner: Runner, prunings: Prunings) -> list[Roi]:
    """Prune at several shares of the dimensions, by each method of a grid, for each of its search seeds."""
    full: dict[tuple[str, str, int], FullTrial] = {}
    trials: dict[tuple[str, str, str, int], RoiTrial] = {}
    for recipe in grid.data:
        for model, backbone in grid.models.items():
            for seed in range(grid.search_seeds):
                training = grid.training_for(runner.data(recipe), seed)
                full[recipe.name, model, seed] = FullTrial(recipe, backbone, training, prunings)
                for name, method in grid.methods.items():
                    if name != REFERENCE:
                        trials[recipe.name, model, name, seed] = RoiTrial(
                            recipe, backbone, training, method, prunings
                        )
    wholes = dict(zip(full, runner.run(list(full.values()), to_come=len(trials)), strict=True))
    found = dict(zip(trials, runner.run(list(trials.values())), strict=True))
    if not runner.failures:
        for path in (runner.folder / "state").glob("full-*"):
            path.unlink()
    outcomes = []
    for recipe in grid.data:
        data = runner.data(recipe)
        for model in grid.models:
            full_here = {
                s: w
                for (name, b, s), w in wholes.items()
                if (name, b) == (recipe.name, model) and w is not None
            }
            if not full_here:
                raise TorchleapError(
                    f"No model of all fields could be trained: {next(iter(runner.failures.values()))}"
                )
            methods: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
            for (own_data, own_model, chosen, seed), result in found.items():
                if (
                    (own_data, own_model) == (recipe.name, model)
                    and seed in full_here
                    and result is not None
                ):
                    methods[chosen][seed] = result
            metric = "auc" if data.task.roles.get("group") is None else "gauc"
            outcomes.append(Roi(grid, data, model, metric, prunings, full_here, methods))
    return outcomes


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Let one process at a time work within this context."""
    make_folder(path.parent)
    with locked(Path(f"{path}.lock")):
        yield
