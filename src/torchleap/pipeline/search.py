"""search: scores for all fields of a task, by any method."""

import os
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

from torch import nn

from .._common.errors import SelectionError
from .._common.files import make_folder, write_atomically
from ..data.task import Task
from ..distributed import ranks
from ..fields import Fields
from ..methods import METHODS, LeAPMethod, Method, Scores, Search, Snapshot
from ..methods import named as method_named
from ..methods.masking import masked_path, refuse_unmaskable
from ..models import Backbone
from ..models import named as backbone_named
from ..selection import Limits, Rule, Selection, Worth, select
from ..selection import Path as FieldPath
from ..selection.rule import ONE_ERROR, Tolerance
from ..training.fit import Hook, Run, Training, TrainingError
from .retrain import seeded

NOTE = "search.txt"  # holds the method that the checkpoints of a search belong to


@dataclass(frozen=True)
class SearchResult:
    """Scores by field, and the effort behind them.

    Attributes:
        fields: The fields of the task.
        method: The method with its settings.
        scores: The score of each field; the higher, the more it is worth keeping.
        seconds: The time of the search.
        memory: The most bytes that the process held.
        history: The evaluations of all training runs of the search.
        model: The model that the method trained, with its best weights and the layers that the
            method added to it; None if it trains none.
        run: The training of that model, with the state of its optimizers.
        path: The model at each number of fields, and the worth of each field; None if the method
            has neither. Its points are empty for a method that does not close fields, unless
            `search(path=True)` asked for them.
        plain: The model of all fields that the method trained first; None if it trained none.
        plain_history: The evaluations of that training.
        snapshots: The weights of `model` at some points of the path.
    """

    fields: Fields
    method: Method
    scores: Scores
    seconds: float
    memory: int
    history: list[dict[str, float]] = field(repr=False)
    model: nn.Module | None = field(repr=False, default=None)
    run: Run | None = field(repr=False, default=None)
    path: FieldPath | None = field(repr=False, default=None)
    plain: nn.Module | None = field(repr=False, default=None)
    plain_history: Sequence[Mapping[str, float]] = field(repr=False, default=())
    snapshots: Sequence[Snapshot] = field(repr=False, default=())

    @property
    def worth(self) -> Mapping[str, Worth]:
        """Return the worth of each field in nats, with its interval, in field order."""
        if self.path is None or not self.path.worth:
            raise SelectionError(
                f"Expected a search that measures worth, but {type(self.method).__name__} gives "
                "only scores. Search with method='leap' or 'permutation'."
            )
        return self.path.worth

    def select(
        self,
        threshold: float | None = None,
        *,
        share: float | None = None,
        dims: int | None = None,
        cost: float | None = None,
        worth: float | None = None,
        tolerance: float | str | None = None,
    ) -> Selection:
        """Return the fields to keep by one rule; see `torchleap.selection.select`.

        Args:
            threshold: Keep gates of at least this; of a path those at its best point.
            share: Keep this fraction of the fields.
            dims: Keep at most this many dimensions.
            cost: Keep fields of at most this cost together.
            worth: Keep fields that are worth at least this many nats.
            tolerance: Keep the fewest fields whose metric on the path is within this of the best;
                "1se" is one standard error, the default of a search with a path.
        """
        limits = Limits(
            threshold=threshold,
            share=share,
            dims=dims,
            cost=cost,
            worth=worth,
            tolerance=tolerance,
        )
        if all(limit is None for limit in limits.values()):
            return self.select_by(self.default_rule)
        return self.select_by(Rule.of(**limits))

    @property
    def default_rule(self) -> Rule:
        """Return the rule without a choice: one standard error on a path, else gates above 0.5."""
        if self.path is not None and self.path.points:
            return Tolerance(ONE_ERROR)
        return Rule.of()

    def select_by(self, rule: Rule) -> Selection:
        """Return the fields to keep by a rule."""
        kind = type(self.method)
        names = {known: name for name, known in METHODS.items()}
        settings: dict[str, Any] = {}
        if is_dataclass(self.method):
            settings = asdict(self.method)
        return select(
            self.fields,
            self.scores,
            rule,
            path=self.path,
            method=names.get(kind, kind.__name__),
            settings=settings,
        )


def search(
    task: Task,
    *,
    model: str | Backbone = "wide_deep",
    method: str | Method = "leap",
    training: Training | None = None,
    seed: int = 0,
    path: bool = False,
    callbacks: Sequence[Hook] = (),
    checkpoint: str | os.PathLike[str] | None = None,
    keep_checkpoint: bool = False,
) -> SearchResult:
    """Score all fields of a task.

    >>> result = search(task, method="leap", seed=0)  # doctest: +SKIP
    >>> after = retrain(task, result.select(share=0.5), seed=0)  # doctest: +SKIP

    Args:
        task: The data.
        model: The backbone, or its name.
        method: The method, or its name.
        training: The settings of the training; None is the default with a suitable batch.
        seed: The seed of the weights, of the order of the rows and of the method.
        path: Whether a method that does not close fields has a path too: in the plain model of
            all fields that it has trained, fields become their means one after the other, the
            lowest score first, without adaptation. "leap" always has a path, of adapted models.
        callbacks: Hooks that watch the training, as in `torchleap.callbacks`.
        checkpoint: A folder to save the training to and, if it exists, to resume from; it is
            removed at the end. None saves nothing.
        keep_checkpoint: Keep that folder: the same call then loads the finished search.
    """
    started = time.monotonic()
    chosen = method_named(method)
    if path and not isinstance(chosen, LeAPMethod):
        refuse_unmaskable(chosen)
    work = Search(
        task,
        backbone_named(model),
        seeded(training, task, seed),
        seed,
        callbacks,
        checkpoints=None if checkpoint is None else Path(checkpoint),
    )
    with _folder_for(chosen, work, keep=keep_checkpoint):
        scores = chosen.score(work)
        if path and (work.path is None or not work.path.points):
            work.path = masked_path(work, scores)
    return SearchResult(
        fields=task.fields,
        method=chosen,
        scores=scores,
        seconds=time.monotonic() - started,
        memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        history=work.history,
        model=work.trained,
        run=work.last_run,
        path=work.path,
        plain=work.plain,
        plain_history=work.plain_history,
        snapshots=work.snapshots,
    )


@contextmanager
def _folder_for(method: Method, work: Search, *, keep: bool) -> Iterator[None]:
    """Make the folder of a search's checkpoints, and remove it when the search is done."""
    folder = work.checkpoints
    if folder is None:
        yield
        return
    with ranks.first_before_others():
        if ranks.is_first():
            _claim(folder, method)
    yield
    if not keep and ranks.is_first():
        _clear(folder, work.runs)


def _claim(folder: Path, method: Method) -> None:
    """Write the method into the folder; refuse the checkpoints of another one."""
    make_folder(folder)
    note = folder / NOTE
    found = repr(method)
    if note.exists():
        found = note.read_text(encoding="utf-8")
    if found != repr(method):
        raise TrainingError(
            f"{folder} is of another search: {found}, not {method!r}. "
            "Remove it to start from scratch."
        )
    write_atomically(note, found)


def _clear(folder: Path, runs: int) -> None:
    """Remove the checkpoints of a search, and the folder if nothing else is in it."""
    for number in range(runs):
        (folder / f"{number}.pt").unlink(missing_ok=True)
    (folder / NOTE).unlink(missing_ok=True)
    with suppress(OSError):  # it is not empty
        folder.rmdir()
