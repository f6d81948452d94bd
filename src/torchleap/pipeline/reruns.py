"""Reruns: what a decision trains beside its own models, so that chance in training is seen.

Either repetitions, on the same rows with other seeds, or the folds of a cross-fit. What ships are
the models of the first run in both cases, the same as without reruns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from .._common.checks import check_arguments, one_of, whole
from .._common.errors import TorchleapError
from ..evidence.agreement import Agreement, agreement_of
from ..evidence.certify import FoldChange
from ..selection import Selection
from .folds import cross_fit, fold_jobs
from .job import Job
from .record import RerunsRecord
from .repeat import RepeatBy, Trained, repeat, repeated
from .stages import Stages


@dataclass(frozen=True)
class Settings:
    """How often a decision trains again.

    Attributes:
        repeats: The number of trainings on the same rows, the first one included.
        repeat_by: What differs between them: see `repeated`.
        folds: The number of folds of a cross-fit; None does without.
    """

    repeats: int = 1
    repeat_by: RepeatBy = "training"
    folds: int | None = None

    def __post_init__(self) -> None:
        folds = "" if self.folds is None else whole(self.folds, at_least=2)
        wrong_way = one_of(self.repeat_by, get_args(RepeatBy))
        check_arguments(
            {f"repeat_by {wrong_way}": not wrong_way},
            repeats=whole(self.repeats, at_least=1),
            folds=folds,
        )
        if self.folds is not None and self.repeats > 1:
            raise TorchleapError(
                f"Expected repeats= or folds=, but found repeats={self.repeats} and "
                f"folds={self.folds}. Give one of them: each fold is a further training already."
            )

    @property
    def runs(self) -> int:
        """Return the number of runs, the first one included."""
        return self.repeats if self.folds is None else self.folds + 1

    def jobs(self, job: Job) -> list[Job]:
        """Return the settings of each further run.

        Args:
            job: The settings of the first run.
        """
        if self.folds is not None:
            return fold_jobs(job, self.folds)
        return repeated(job, self.repeats, self.repeat_by)


@dataclass(frozen=True)
class Reruns:
    """The further runs of a decision, once they are done.

    Attributes:
        settings: How often it trains again.
        jobs: The settings of each further run.
        trained: What each of them says; empty where no field is dropped.
    """

    settings: Settings
    jobs: Sequence[Job]
    trained: Sequence[Trained] = ()

    def run(self, selection: Selection, stages: Stages) -> "Reruns":
        """Return these runs done, one after the other.

        Where no field is dropped there is nothing to certify, and none is done.

        Args:
            selection: The fields that ship, which repetitions keep and folds do not know of.
            stages: Announces each run.
        """
        if not selection.dropped:
            return self
        if self.settings.folds is not None:
            return replace(self, trained=cross_fit(self.jobs, stages))
        return replace(self, trained=repeat(self.jobs, selection, stages))

    def evidence(self) -> dict[str, Any]:
        """Return the arguments that `certify` takes from these runs."""
        changes = [one.change for one in self.trained]
        if self.settings.folds is None:
            return {"repeated": changes}
        rows = [job.task.test for job in self.jobs]
        return {"folds": list(map(FoldChange, rows, changes))}

    def agreement(self, selection: Selection) -> Agreement | None:
        """Return how far the selections of all searches agree; None where only one was done.

        Args:
            selection: The fields that ship, which the first run has selected.
        """
        found = [one.own for one in self.trained if one.own is not None]
        if self.settings.folds is None:
            found = [selection, *found]
        return agreement_of(found) if len(found) > 1 else None

    def record(self, selection: Selection) -> RerunsRecord | None:
        """Return what a report shows of these runs; None where none was done."""
        if not self.trained:
            return None
        agreement = self.agreement(selection)
        return RerunsRecord(
            kind="repeats" if self.settings.folds is None else "folds",
            repeat_by=self.settings.repeat_by if self.settings.folds is None else None,
            seeds=[one.seed for one in self.trained],
            changes=[one.change.after - one.change.before for one in self.trained],
            selections=0 if agreement is None else agreement.selections,
            kept={} if agreement is None else agreement.kept,
            jaccard=None if agreement is None else agreement.jaccard,
        )
