"""When to save a checkpoint, so that a kill loses at most the interval that was asked for."""

import math
import time


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

    def __init__(self, steps: int | None, minutes: float | None, *, step: int = 0, background: bool = False) -> None:
        self.limits = (math.inf if steps is None else steps, math.inf if minutes is None else 60 * minutes)
        self.background = background
        self.begun = self.whole = (float(step), time.monotonic())
        self.took: tuple[float, float] | None = None  # steps and seconds of the last writing

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint has to be begun after this step."""
        return any(
            age >= limit - lead for age, limit, lead in zip(_since(self.begun, step), self.limits, self._lead(), strict=True)
        )

    def must_wait(self, step: int) -> bool:
        """Whether another step without a whole checkpoint could lose more than the interval."""
        age = _since(self.whole, step)
        return self.whole != self.begun and any(age[unit] >= self.limits[unit] for unit in (0, 1))

    def begin(self, step: int) -> None:
        """A checkpoint of this step is being written."""
        self.begun = (float(step), time.monotonic())
        if not self.background:
            self.whole = self.begun

    def finish(self, step: int) -> None:
        """It is whole, after this step."""
        if self.whole != self.begun:
            self.took = _since(self.begun, step)
            self.whole = self.begun

    def _lead(self) -> tuple[float, float]:
        """How much earlier than at the end of the interval to begin: half of it, until it is known how long a writing takes."""
        if not self.background:
            return 0.0, 0.0
        steps, seconds = (limit // 2 if limit < math.inf else 0.0 for limit in self.limits)
        return (steps, seconds) if self.took is None else (min(steps, 2 * self.took[0] + 1), min(seconds, 2 * self.took[1]))


def _since(moment: tuple[float, float], step: int) -> tuple[float, float]:
    return step - moment[0], time.monotonic() - moment[1]
