"""Pace: when to save a checkpoint, so that a kill loses at most the chosen interval."""

import math
import time
from collections.abc import Sequence

STEPS, SECONDS = 0, 1  # units
Moment = tuple[float, float]  # in steps and in seconds


class Pace:
    """The moments at which the last checkpoint of a run began, and the last complete one did.

    A checkpoint that is written in the background counts once it is complete. So it begins
    earlier, by as long as the writing may take, and training waits for it rather than lose more
    than the interval.

    >>> pace = Pace(steps=10, minutes=None)
    >>> [step for step in range(1, 31) if pace.is_due(step) and not pace.begin(step)]
    [10, 20, 30]

    Args:
        steps: Steps between two checkpoints; None does not count steps.
        minutes: Minutes between two checkpoints; None does not count time.
        step: The step at which the run begins or is resumed.
        background: Whether training continues while a checkpoint is written.
    """

    def __init__(
        self, steps: int | None, minutes: float | None, *, step: int = 0, background: bool = False
    ) -> None:
        self.limits: Moment = (
            math.inf if steps is None else steps,
            math.inf if minutes is None else 60 * minutes,
        )
        self.background = background
        self.begun: Moment = (float(step), time.monotonic())
        self.complete = self.begun
        self.took: Moment | None = None  # steps and seconds of the last writing

    @property
    def writing(self) -> bool:
        """Return whether a checkpoint has begun that is not complete."""
        return self.complete != self.begun

    def is_due(self, step: int, *, by: Sequence[int] = (STEPS, SECONDS)) -> bool:
        """Return whether to begin a checkpoint after a step, or to wait for the one being written.

        Args:
            step: The step.
            by: The units that count. All ranks agree on steps; their clocks differ.
        """
        if self.writing:
            age = _since(self.complete, step)
            lead = (0.0, 0.0)
        else:
            age = _since(self.begun, step)
            lead = self._lead()
        return any(age[unit] >= self.limits[unit] - lead[unit] for unit in by)

    def begin(self, step: int) -> None:
        """Note that a checkpoint of this step begins; in the foreground it is complete at once."""
        self.begun = (float(step), time.monotonic())
        if not self.background:
            self.complete = self.begun

    def finish(self, step: int, waited: float = 0.0) -> None:
        """Note that the checkpoint is complete.

        Args:
            step: The step after which it is.
            waited: Seconds for which training waited for it; a kill cannot lose these.
        """
        if self.writing:
            self.took = _since(self.begun, step)
            self.begun = (self.begun[0], self.begun[1] + waited)
            self.complete = self.begun

    def _lead(self) -> Moment:
        """Return how much before the end of the interval to begin.

        It is half the interval until the duration of a writing is known, then twice the duration.
        """
        if not self.background:
            return 0.0, 0.0
        steps, seconds = (limit / 2 if limit < math.inf else 0.0 for limit in self.limits)
        if self.took is None:
            return steps, seconds
        return min(steps, 2 * self.took[STEPS] + 1), min(seconds, 2 * self.took[SECONDS])


def _since(moment: Moment, step: int) -> Moment:
    return step - moment[STEPS], time.monotonic() - moment[SECONDS]
