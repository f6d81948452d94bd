"""When to save a checkpoint, so that a kill loses at most the interval that was asked for."""

import math
import time
from collections.abc import Sequence

STEPS, SECONDS = 0, 1


class Pace:
    """Of one run: the step and the second at which its last checkpoint was begun, and of the last one that is whole.

    What is written in the background counts only when it is whole. So it begins earlier, by as long as the writing may take, and
    training waits for it rather than lose more than the interval.

    >>> pace = Pace(steps=10, minutes=None)
    >>> [step for step in range(1, 31) if pace.is_due(step) and not pace.begin(step)]
    [10, 20, 30]

    Args:
        steps, minutes: Between two checkpoints; None is any number.
        step: Where the run stands: it has just been loaded, or begins.
        background: Whether training goes on while a checkpoint is written.
    """

    def __init__(
        self, steps: int | None, minutes: float | None, *, step: int = 0, background: bool = False
    ) -> None:
        self.limits = (
            math.inf if steps is None else steps,
            math.inf if minutes is None else 60 * minutes,
        )
        self.background = background
        self.begun = self.whole = (float(step), time.monotonic())
        self.took: tuple[float, float] | None = None  # steps and seconds of the last writing

    @property
    def writing(self) -> bool:
        """Whether a checkpoint has been begun that is not whole."""
        return self.whole != self.begun

    def is_due(self, step: int, *, by: Sequence[int] = (STEPS, SECONDS)) -> bool:
        """Whether after this step a checkpoint has to be begun or, if one is being written, waited for.

        Args:
            by: What counts. By steps all ranks say the same; their clocks differ.
        """
        age, lead = (
            (_since(self.whole, step), (0.0, 0.0))
            if self.writing
            else (_since(self.begun, step), self._lead())
        )
        return any(age[unit] >= self.limits[unit] - lead[unit] for unit in by)

    def begin(self, step: int) -> None:
        """A checkpoint of this step is being written."""
        self.begun = (float(step), time.monotonic())
        if not self.background:
            self.whole = self.begun

    def finish(self, step: int, waited: float = 0.0) -> None:
        """It is whole, after this step, for which training has stood still for so many seconds: these cannot be lost."""
        if self.writing:
            self.took = _since(self.begun, step)
            self.whole = self.begun = (self.begun[0], self.begun[1] + waited)

    def _lead(self) -> tuple[float, float]:
        """How much earlier than at the end of the interval to begin: half of it, until it is known how long a writing takes."""
        if not self.background:
            return 0.0, 0.0
        steps, seconds = (limit / 2 if limit < math.inf else 0.0 for limit in self.limits)
        return (
            (steps, seconds)
            if self.took is None
            else (min(steps, 2 * self.took[0] + 1), min(seconds, 2 * self.took[1]))
        )


def _since(moment: tuple[float, float], step: int) -> tuple[float, float]:
    return step - moment[0], time.monotonic() - moment[1]
