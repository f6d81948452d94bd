"""Repetitions: both models trained again on the selected fields, to see how trainings differ.

A repetition is the recipe of the decision with another seed: the model of all fields is trained,
and the smaller one is made of it. It keeps the selection of the first training, because that is
what ships: the question is what another training on these fields would lose. Where the smaller
model comes out of the search (gates), the search is repeated, and what it would select is known
for free; otherwise it has no part in the models and is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from .._common.checks import LARGEST_SEED
from ..evidence.certify import measured
from ..evidence.change import Change
from ..selection import Selection
from .job import Job
from .pair import train_pair
from .stages import Stages

RepeatBy = Literal["training", "weights"]


@dataclass(frozen=True)
class Trained:
    """What one more training says; its models are not kept.

    Attributes:
        seed: Its seed.
        change: By how much the metric changes from its model of all fields to its smaller one.
        own: The fields that its own search selects; None if it had no search.
    """

    seed: int
    change: Change
    own: Selection | None


def repeated(job: Job, count: int, by: RepeatBy) -> list[Job]:
    """Return the settings of all repetitions but the first training, which is the job itself.

    Args:
        job: The settings of the first training.
        count: The number of trainings, the first one included.
        by: What differs: "training" is everything random, "weights" the initial weights alone,
            with the same order of the rows and the same dropout.
    """
    jobs = []
    for number in range(2, count + 1):
        other = again(job, number - 1, f"repeat-{number}")
        if by == "weights":
            other = replace(other, training=job.training)
        jobs.append(other)
    return jobs


def again(job: Job, number: int, name: str) -> Job:
    """Return the settings of a further training: another seed, and a folder of its own."""
    seed = (job.seed + number) % (LARGEST_SEED + 1)
    return replace(
        job,
        seed=seed,
        training=replace(job.training, seed=seed),
        folder=job.path(name),
    )


def repeat(jobs: Sequence[Job], selection: Selection, stages: Stages) -> list[Trained]:
    """Train both models again for each job, and measure the change on its test rows.

    Args:
        jobs: The settings of each training, as `repeated` returns them.
        selection: The fields that all smaller models keep.
        stages: Announces each training.
    """
    found = []
    for number, job in enumerate(jobs, start=2):
        with stages(f"repeating {number} of {len(jobs) + 1}"):
            pair = train_pair(job, selection)
            change = measured(job.task.test, pair.full, pair.small, relative=job.tolerated)
        found.append(Trained(job.seed, change, pair.own))
    return found
