"""The trials of Table 3: a plain model of all fields, pruned by the scores of each method."""

import copy
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from .._common.checks import check_settings, setting
from .._common.files import make_folder
from .._common.locks import locked
from .._common.plain import key_of
from ..pipeline.prune import with_means
from ..pipeline.retrain import RetrainResult, retrain
from ..plugin import Plugin
from ..selection import Rule, Selection, select
from ..training.finetune import fit_pruned
from ..training.fit import evaluate
from .sets import DataSet
from .trials import SearchTrial, Trial, path_of, registered_name

PRUNED = (0.04, 0.15, 0.2, 0.3, 0.35, 0.4, 0.5)  # fractions of the dimensions, as in the paper
EXAMPLE = 64  # rows of the batch that a model is pruned with
Stage = Literal["pruned", "tuned"]


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
        """Search, and measure the plain model after it was pruned at each fraction."""
        lent = _Full(self, found, state)
        full = lent.train()
        result = self._search(found, state, lent, full)
        plugin = with_means(copy.deepcopy(full.model), found.task, self.training.seed)
        points = []
        for fraction in self.prunings.fractions:
            dims = max(1, round((1 - fraction) * found.task.fields.dims))
            selection = select(
                found.task.fields, result["scores"], Rule.of(dims=dims), path=path_of(result)
            )
            points.append({"fraction": fraction, **self._measured(found, plugin, selection)})
        return {**result, "points": points}

    def _search(
        self, found: DataSet, state: Path, lent: _Full, full: RetrainResult
    ) -> dict[str, Any]:
        """Return the result of the search; a method that needs a plain model is lent one."""
        if not self.method.uses_trained_model:
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
        small = plugin.prune(selection, example=batch.inputs, time_limit=None)
    else:
        small = copy.deepcopy(plugin.model)
    steps = trial.prunings.steps
    rate = trial.prunings.rate * trial.training.lr
    fit_pruned(small, task, replace(trial.training, steps=steps, eval_every=steps, lr=rate))
    return small
