"""The settings of a decision, and the choices that depend on several of them."""

import copy
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from .._common.checks import check_arguments, number
from .._common.errors import SelectionError
from ..data.task import Task
from ..evidence.certify import check_comparable, check_margin, check_slicing
from ..gates.relative_costs import relative_costs
from ..methods import GateMethod, LeAPMethod, Method
from ..methods.leap import snapshot_for
from ..models import Backbone
from ..plugin import Plugin, attached
from ..selection import Path as FieldPath
from ..selection import Rule, Selection, rank
from ..selection.rule import ONE_ERROR, FalseDiscoveries, MinimalWorth, Share, Threshold, Tolerance
from ..training.fit import Hook, Run, Training, TrainingError
from .checkpoint import FINE_TUNING
from .prune import prune_and_finetune, with_means
from .search import SearchResult, decoys_per_field

ENOUGH_ROWS = 10  # of each class, below which a comparison means nothing
DEFAULT_SHARE = Share(0.5)  # of methods without a natural threshold


@dataclass(frozen=True)
class Job:
    """The settings of a decision: the arguments of `decide`, with names replaced by objects."""

    task: Task
    backbone: Backbone
    method: Method
    training: Training
    given: Rule | None  # the rule of the user
    margin: float
    relative: bool
    slice_margin: float | None
    slice_by: tuple[str, ...]
    seed: int
    time_limit: float | None
    callbacks: Sequence[Hook]
    folder: Path | None
    runs: int = 1  # that share the time limit

    @property
    def tolerated(self) -> float:
        """Return the fraction of the full model's metric that the margin is; 0 if it is none."""
        return self.margin if self.relative else 0.0

    @property
    def has_decoys(self) -> bool:
        """Return whether the search has decoys: its models read them, and cannot be pruned."""
        return isinstance(self.rule, FalseDiscoveries)

    @property
    def trains_gates(self) -> bool:
        """Return whether the model to prune is the method's own, which has gates."""
        return isinstance(self.method, GateMethod) and not self.has_decoys

    @property
    def trains_plain(self) -> bool:
        """Return whether the method itself trains the model of all fields, before its path."""
        return isinstance(self.method, LeAPMethod) and not self.has_decoys

    @property
    def masks_fields(self) -> bool:
        """Return whether the rule reads a path that the method makes only if it is asked for it."""
        return isinstance(self.rule, Tolerance) and not self.trains_plain

    @property
    def rule(self) -> Rule:
        """Return the rule of the user, or the default of the method."""
        if self.given is not None:
            return self.given
        if isinstance(self.method, LeAPMethod):
            return Tolerance(ONE_ERROR)
        return Rule.of() if isinstance(self.method, GateMethod) else DEFAULT_SHARE

    @property
    def decoys(self) -> int | None:
        """Return the number of decoys of each field; None without."""
        return decoys_per_field(self.task, self.rule.limit) if self.has_decoys else None

    @property
    def fdr(self) -> float | None:
        """Return the rate of false discoveries that the search needs decoys for; None without."""
        return float(self.rule.limit) if self.has_decoys else None

    def check(self) -> None:
        """Raise an error for everything that can be known to be wrong before the first step."""
        check_margin(self.margin)
        check_slicing(self.task, self.slice_margin, self.slice_by)
        limit = self.time_limit
        check_arguments(time_limit="" if limit is None else number(limit, above=0))
        fields = self.task.fields
        self.rule.check(rank(fields, dict.fromkeys(fields.names, 0.0)))
        if isinstance(self.method, LeAPMethod):
            relative_costs(fields, self.method.price_by)  # refuses a cost of 0
        _ = self.decoys  # refuses too few fields for the rate
        if isinstance(self.rule, MinimalWorth) and not self.method.measures_worth:
            raise SelectionError(
                f"worth= needs a search that measures worth, but {type(self.method).__name__} "
                "gives only scores. Use method='leap' or method='permutation', or share=."
            )
        if self.masks_fields and not self.method.uses_trained_model:
            raise SelectionError(
                f"tolerance= needs a search with a path, but {type(self.method).__name__} closes "
                "no fields and trains no plain model to mask them in. Use method='leap' or "
                "method='permutation', or share=."
            )
        rows = len(self.task.train)
        batch = self.training.batch
        if rows < batch:
            raise TrainingError(
                f"Expected at least one batch of {batch:,} train rows, but found {rows:,} rows. "
                "Lower batch=."
            )
        for part in (self.task.valid, self.task.test):
            check_comparable(part)

    def settings(self) -> dict[str, Any]:
        """Return the settings that a decision must share with its checkpoints."""
        task = self.task
        limit = self.training.time_limit
        if self.time_limit is not None:
            limit = self.time_limit / self.runs
        return {
            "model": repr(self.backbone),
            "method": repr(self.method),
            **asdict(self.training),
            "time_limit": limit,
            "protected": sorted(task.protected),
            "costs": dict(sorted(task.costs.items())),
            "data": task.fingerprint,
            "decoys": self.decoys,
        }

    def training_of(self, fraction: float, saved_as: str) -> dict[str, Any]:
        """Return the arguments of a stage that may take this fraction of the time."""
        return {
            "training": self.limited(fraction),
            "seed": self.seed,
            "order_seed": self.training.seed,
            "callbacks": self.callbacks,
            "checkpoint": self.path(saved_as),
            "keep_checkpoint": True,
        }

    def limited(self, fraction: float) -> Training:
        """Return the settings of a training that may take this fraction of the time."""
        if self.time_limit is None:
            return self.training
        return replace(self.training, time_limit=fraction * self.time_limit / self.runs)

    def path(self, name: str) -> Path | None:
        """Return the path of a checkpoint; None if nothing is saved."""
        return None if self.folder is None else self.folder / name

    def select(self, found: SearchResult) -> tuple[Selection, str | None]:
        """Return the selection by the rule, or that of all fields with the reason."""
        reason = self._reason_to_keep_all(found)
        if reason is None:
            return found.select_by(self.rule), None
        everything = found.select(share=1.0)
        wanted = self.rule
        settings = {**without_rule(everything), **wanted.to_json()}
        return replace(everything, settings=settings, rule=wanted, kept_in=(), replicas=0), reason

    def _reason_to_keep_all(self, found: SearchResult) -> str | None:
        """Return why nothing can be decided: too few rows, or no score at the threshold."""
        if self.given is None:
            for rows in (self.task.test, self.task.valid):
                if self.task.objective.support(rows.label) < ENOUGH_ROWS:
                    described = self.task.objective.describe(rows.label, rows.part)
                    return f"{described}, are too few to decide"
        rule = self.rule
        if isinstance(rule, FalseDiscoveries):
            groups = rank(found.fields, found.scores)
            nothing = not self.task.protected and not rule.discoveries(groups, found.path).kept
            return rule.why_none(groups, found.path) if nothing else None
        if isinstance(rule, Tolerance) and found.path is not None:
            return None if self.given is not None else self._reason_of_few_rows(found.path)
        scores = found.scores
        if found.path is not None and found.path.gates:
            scores = dict(found.path.gates)
        best = max(scores, key=lambda name: scores[name])
        score = scores[best]
        if not isinstance(rule, Threshold) or self.task.protected or score >= rule.limit:
            return None
        return f"no field scores {rule.limit:g} or more, the best is {best!r} with {score:.2f}"

    def _reason_of_few_rows(self, path: FieldPath) -> str | None:
        """Return why the path cannot tell its ends apart, if the validation rows are too few."""
        last = path.points[-1]
        if last.behind > last.error or len(last.kept) > 1 or last.error == 0:
            return None
        rows = self.task.valid
        found = self.task.objective.support(rows.label)
        if last.behind <= 0:
            return None  # one field is as good as all
        needed = math.ceil(found * (2 * last.error / last.behind) ** 2)
        described = self.task.objective.describe(rows.label, rows.part)
        return (
            f"{described}, are too few to see any difference: even with one field the metric is "
            f"within one standard error of the best; about {needed:,} rows of the rarer class "
            "would be needed"
        )

    def plugin(self, found: SearchResult | None, full: nn.Module, selection: Selection) -> Plugin:
        """Return the gates of the model to prune; `found` is read where the search has gates.

        It is LeAP's own model, with the weights from the point of its path that fits the
        selection best, or for other methods a copy of `full` with open gates.
        """
        if not self.trains_gates:
            return with_means(copy.deepcopy(full), self.task, self.seed)
        assert found is not None
        assert found.model is not None
        if found.snapshots:
            found.model.load_state_dict(snapshot_for(found.snapshots, selection.kept).weights)
        return attached(found.model)

    def prune(self, plugin: Plugin, selection: Selection, trained: Run | None) -> nn.Module:
        """Return the pruned and fine-tuned model; the optimizers of its training continue."""
        return prune_and_finetune(
            plugin,
            selection,
            self.task,
            self.limited(0.1),
            trained=trained,
            callbacks=self.callbacks,
            checkpoint=self.path(FINE_TUNING),
        )


def without_rule(selection: Selection) -> dict[str, Any]:
    """Return the settings of a selection without its rule, which the record has beside them."""
    rule = selection.rule.to_json() if selection.rule else {}
    return {name: value for name, value in selection.settings.items() if name not in rule}
