"""The two models of a decision: that of all fields and the smaller one, by one recipe."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from ..selection import Selection
from ..training.fit import Run
from .checkpoint import FULL, SEARCH
from .job import Job
from .retrain import trained
from .search import SearchResult, search
from .stages import Stages


@dataclass(frozen=True)
class Pair:
    """A model of all fields and the smaller one that was made of it.

    Attributes:
        full: The model of all fields.
        small: The pruned and fine-tuned model.
        own: The fields that the search of this training selects; None if it had no search.
    """

    full: nn.Module
    small: nn.Module
    own: Selection | None


class Trained(NamedTuple):
    """The model of all fields, its evaluations, the run of the model to prune, and the search."""

    full: nn.Module
    history: Sequence[Mapping[str, float]]
    run: Run | None
    found: SearchResult


def train_pair(job: Job, selection: Selection | None = None) -> Pair:
    """Return both models, trained and pruned by the recipe of a decision.

    Where a selection is given and the search only scores fields, without a part in the weights of
    either model, there is no search.

    Args:
        job: The settings, with the seeds of this training.
        selection: The fields to keep; None keeps those that this training's own search selects.
    """
    if selection is not None and not job.trains_gates:
        plain = trained(job.task, model=job.backbone, **job.training_of(0.3, FULL))
        plugin = job.plugin(None, plain.model, selection)
        return Pair(plain.model, job.prune(plugin, selection, plain), None)
    full, _, run, found = train_and_search(job, Stages())
    own, _ = job.select(found)
    kept = own if selection is None else selection
    plugin = job.plugin(found, full, kept)
    return Pair(full, job.prune(plugin, kept, run), own)


def train_and_search(job: Job, stages: Stages) -> Trained:
    """Train the model of all fields and search; a price path does both in one run."""
    settings: dict[str, Any] = {"model": job.backbone, "method": job.method}
    if job.trains_plain:
        with stages("searching"):
            found = search(job.task, **settings, **job.training_of(0.8, SEARCH))
        assert found.plain is not None
        return Trained(found.plain, found.plain_history, found.run, found)
    with stages("training with all fields"):
        full = trained(job.task, model=job.backbone, **job.training_of(0.3, FULL))
    settings |= {"path": job.masks_fields, "fdr": job.fdr}
    with stages("searching"):
        found = search(job.task, **settings, **job.training_of(0.5, SEARCH))
    run = found.run if job.trains_gates else full
    return Trained(full.model, full.history, run, found)
