"""Cross-fitting: the complete procedure once per fold, tested on rows that it has not seen.

Each fold trains, searches, selects and prunes on the rows of the others. What ships is the model
of the task's own split, as without folds: they say how well such models do on all rows.
"""

from collections.abc import Sequence
from dataclasses import replace

from ..data.folds import folds_of
from ..evidence.certify import measured
from .job import Job
from .pair import train_pair
from .repeat import Trained, again
from .stages import Stages


def fold_jobs(job: Job, count: int) -> list[Job]:
    """Return the settings of each fold: its rows, a seed and a folder of its own.

    Args:
        job: The settings of the run on the task's own split.
        count: The number of folds.
    """
    tasks = folds_of(job.task, count, seed=job.seed)
    jobs = []
    for number, task in enumerate(tasks, start=1):
        jobs.append(replace(again(job, number, f"fold-{number}"), task=task))
    return jobs


def cross_fit(jobs: Sequence[Job], stages: Stages) -> list[Trained]:
    """Do everything on the train rows of each fold, and measure the change on its test rows.

    Args:
        jobs: The settings of each fold, as `fold_jobs` returns them.
        stages: Announces each fold.
    """
    found = []
    for number, job in enumerate(jobs, start=1):
        with stages(f"fold {number} of {len(jobs)}"):
            pair = train_pair(job)
            change = measured(job.task.test, pair.full, pair.small, relative=job.tolerated)
        found.append(Trained(job.seed, change, pair.own))
    return found
