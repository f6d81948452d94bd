"""search: scores for all fields of a task, by any method; retrain: a fresh model on the fields that are kept."""

import os
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .._common.files import make_folder, write_atomically
from ..data.task import Task
from ..distributed import ranks
from ..fields import Fields
from ..methods import METHODS, Method, Scores, Search
from ..methods import named as method_named
from ..models import Backbone, build
from ..models import named as backbone_named
from ..selection import Selection, select
from ..training.fit import Hook, Run, Training, TrainingError, evaluate, fit

FEW = 32  # rows of a batch at least: the statistics of fewer are noise


@dataclass(frozen=True)
class SearchResult:
    """Scores by field, and what they took.

    Attributes:
        memory: Bytes that the process held at most.
        model: What the method has trained, with its best weights and whatever the method put into it; None if it trains none.
    """

    fields: Fields
    method: Method
    scores: Scores
    seconds: float
    memory: int
    history: list[dict[str, float]] = field(repr=False)
    model: nn.Module | None = field(repr=False, default=None)

    def select(
        self,
        threshold: float | None = None,
        *,
        share: float | None = None,
        dims: int | None = None,
        cost: float | None = None,
    ) -> Selection:
        """Decide which fields to keep by one rule; see `torchleap.selection.select`."""
        names = {kind: name for name, kind in METHODS.items()}
        settings: dict[str, Any] = (
            asdict(self.method)
            if is_dataclass(self.method) and not isinstance(self.method, type)
            else {}
        )
        name = names.get(type(self.method), type(self.method).__name__)
        return select(
            self.fields,
            self.scores,
            threshold=threshold,
            share=share,
            dims=dims,
            cost=cost,
            method=name,
            settings=settings,
        )


@dataclass(frozen=True)
class RetrainResult:
    """A model that was trained on the kept fields alone."""

    model: nn.Module = field(repr=False)
    metrics: dict[str, float]
    seconds: float
    run: Run = field(repr=False)


def search(
    task: Task,
    *,
    model: str | Backbone = "wide_deep",
    method: str | Method = "leap",
    training: Training | None = None,
    seed: int = 0,
    callbacks: Sequence[Hook] = (),
    checkpoint: str | os.PathLike[str] | None = None,
    keep_checkpoint: bool = False,
) -> SearchResult:
    """Score all fields of a task.

    >>> result = search(task, method="leap", seed=0)  # doctest: +SKIP
    >>> after = retrain(task, result.select(share=0.5), seed=0)  # doctest: +SKIP

    Args:
        callbacks: Hooks that watch the training, as in `torchleap.callbacks`.
        checkpoint: A folder to save the training to and, if it is there, to go on from; it is removed at the end.
        keep_checkpoint: Leave it instead: the same call then only loads what it found.
    """
    started = time.monotonic()
    chosen = method_named(method)
    folder = None if checkpoint is None else Path(checkpoint)
    work = Search(
        task, backbone_named(model), seeded(training, task, seed), seed, callbacks, folder
    )
    with _folder_for(chosen, work, keep=keep_checkpoint):
        scores = chosen.score(work)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return SearchResult(
        task.fields, chosen, scores, time.monotonic() - started, memory, work.history, work.trained
    )


def retrain(
    task: Task,
    selection: Selection | None = None,
    *,
    model: str | Backbone = "wide_deep",
    training: Training | None = None,
    seed: int = 0,
    callbacks: Sequence[Hook] = (),
    checkpoint: str | os.PathLike[str] | None = None,
    keep_checkpoint: bool = False,
) -> RetrainResult:
    """Train a fresh plain model on the kept fields, or on all of them, and measure it on the test rows.

    Args:
        callbacks: Hooks that watch the training, as in `torchleap.callbacks`.
        checkpoint: A file to save the training to and, if it is there, to go on from; it is removed at the end.
        keep_checkpoint: Leave it instead, as in `fit`.
    """
    kept = task if selection is None else task.only(selection)
    torch.manual_seed(seed)
    fresh = build(model, kept)
    settings = seeded(training, task, seed)
    run = fit(
        fresh,
        kept,
        settings,
        hooks=callbacks,
        checkpoint=checkpoint,
        keep_checkpoint=keep_checkpoint,
    )
    metrics = {
        f"{part}_{name}": v
        for part in ("valid", "test")
        for name, v in evaluate(fresh, getattr(kept, part)).items()
    }
    return RetrainResult(fresh, metrics, run.seconds, run)


@contextmanager
def _folder_for(method: Method, work: Search, *, keep: bool) -> Iterator[None]:
    """The folder of a search's checkpoints, which belong to one method with its settings; it goes when the search is done."""
    if work.checkpoints is None:
        yield
        return
    note = work.checkpoints / "search.txt"
    with ranks.first_before_others():
        if ranks.is_first():
            make_folder(work.checkpoints)
            found = note.read_text(encoding="utf-8") if note.exists() else repr(method)
            if found != repr(method):
                raise TrainingError(
                    f"{work.checkpoints} is of another search: {found}, not {method!r}. Remove it to start anew."
                )
            write_atomically(note, repr(method))
    yield
    if keep or not ranks.is_first():
        return
    for path in (*(work.checkpoints / f"{number}.pt" for number in range(work.runs)), note):
        path.unlink(missing_ok=True)
    with suppress(OSError):  # somebody put something else there
        work.checkpoints.rmdir()


def seeded(training: Training | None, task: Task, seed: int) -> Training:
    """The settings with this seed; without settings, a batch that suits the number of rows."""
    return replace(training or Training(batch=suited_batch(task)), seed=seed)


def suited_batch(task: Task) -> int:
    """Rows a step, by the number of train rows."""
    rows = len(task.train)
    return min(rows, max(FEW, min(4096, rows // 200)))  # some 200 steps an epoch: gates need steps
