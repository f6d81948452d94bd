"""A small data set that is drawn and learned at once, and trials that count their runs."""

from dataclasses import dataclass

import pytest

from torchleap.bench import Recipe
from torchleap.bench.trials import Trial
from torchleap.models import benchmark
from torchleap.training.fit import Training

pytest.importorskip("polars")
pytest.importorskip("scipy")

WORLD = {
    "rows": 600,
    "widths": (1, 4),
    "pair_widths": (1,),
}  # 14 fields of 36 dimensions, 6 of them useful
TINY = Recipe("tiny", "truth", WORLD)
MODEL = benchmark("wide_deep")
TRAINING = Training(batch=32, epochs=1)
ONCE = {"epochs": 1}
DONE = []  # the numbers of the counted trials, each time that one is done


@dataclass(frozen=True)
class Counted(Trial):
    """Doubles its number."""

    kind = "counted"

    number: int

    @property
    def title(self):
        return f"double {self.number}"

    def run(self, found, state):
        state.mkdir(parents=True, exist_ok=True)
        (state / "checkpoint").write_text("half way")
        DONE.append(self.number)
        return {"double": 2 * self.number}


def counted(*numbers):
    return [Counted(TINY, MODEL, TRAINING, number) for number in numbers]


def lines_of(folder):
    return (folder / "trials.jsonl").read_text().splitlines()
