"""One epoch of training and its measures, which benchmarks/training.py and its peers share."""

import importlib.util
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import torchleap as tl
from torchleap.data.task import Rows, Task
from torchleap.methods import Method
from torchleap.models import Backbone, build
from torchleap.training.fit import Hook, Run, Training, evaluate, fit


@dataclass(frozen=True)
class Epoch:
    """The time of one epoch, and the AUC of the model after it."""

    seconds: float
    valid_auc: float
    test_auc: float


Call = Callable[[int], Epoch]  # from a seed


def take_turns(calls: dict[str, Call], repeats: int) -> dict[str, list[Epoch]]:
    """Return the epochs of each call, one after the other in every round."""
    found: dict[str, list[Epoch]] = {name: [] for name in calls}
    for seed in range(repeats):
        for name, call in calls.items():
            found[name].append(call(seed))
    return found


def show(calls: dict[str, Call], rows: int, repeats: int, *, warm_up: bool = False) -> None:
    """Run all of them and print a line for each."""
    if warm_up:
        take_turns(calls, 1)
    times = f"{'seconds':>9}{'time':>8}{'rows/s':>12}"
    print(f"  {'':<34}{times}{'valid AUC':>11}{'test AUC':>10}{'spread':>8}", flush=True)
    found = take_turns(calls, repeats)
    first = next(iter(found.values()))
    for name, epochs in found.items():
        seconds = statistics.median(epoch.seconds for epoch in epochs)
        pairs = zip(epochs, first, strict=True)
        ratio = statistics.median(own.seconds / other.seconds for own, other in pairs)
        valid = statistics.mean(epoch.valid_auc for epoch in epochs)
        test_aucs = [epoch.test_auc for epoch in epochs]
        test = statistics.mean(test_aucs)
        spread = max(test_aucs) - min(test_aucs)
        speed = f"{seconds:>9.2f}{ratio:>7.2f}x{rows / seconds:>12,.0f}"
        print(f"  {name:<34}{speed}{valid:>11.4f}{test:>10.4f}{spread:>8.4f}", flush=True)


class Watch(Hook):
    """Keep the run of a search."""

    run: Run

    def at_end(self, run: Run) -> None:
        """Keep the run."""
        self.run = run


def searched(task: Task, backbone: Backbone, batch: int, method: Method, seed: int) -> Epoch:
    """Return an epoch of a search."""
    watch = Watch()
    tl.search(
        task,
        model=backbone,
        method=method,
        training=Training(batch=batch, epochs=1),
        seed=seed,
        callbacks=[watch],
    )
    return epoch_of(watch.run)


def trained(
    task: Task, backbone: Backbone, batch: int, seed: int, sparse: bool | None = None
) -> Epoch:
    """Return an epoch of plain training."""
    torch.manual_seed(seed)
    model = build(backbone, task, sparse=sparse)
    return epoch_of(fit(model, task, Training(batch=batch, epochs=1, seed=seed)))


def epoch_of(run: Run) -> Epoch:
    """Return the time and the AUCs of a run."""
    test = evaluate(run.model, run.task.test)
    return Epoch(run.seconds, run.history[-1]["valid_auc"], test["auc"])


class FirstRows(Rows):
    """The first rows of a part."""

    def __init__(self, rows: Rows, count: int) -> None:
        super().__init__(rows.task, rows.part)
        self.count = min(count, len(rows))

    def __len__(self) -> int:
        return self.count


def shortened(task: Task, **counts: int) -> Task:
    """Return the task with the first rows of some parts; its tables keep their size."""
    short = replace(task)
    for part, count in counts.items():
        # where a cached property keeps its value
        vars(short)[part] = FirstRows(getattr(short, part), count)
    return short


def in_memory(task: Task) -> Task:
    """Read the rows of a task now instead of within the first epoch, and return it."""
    for rows in (task.train, task.valid, task.test):
        rows.all()
    return task


def stand_in(name: str, **content: Any) -> None:
    """Put an empty module in place of one that is imported but not used."""
    if name not in sys.modules and (content or importlib.util.find_spec(name) is None):
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(content)


@contextmanager
def silent() -> Iterator[None]:
    """Print nothing within this context."""
    with (
        Path(os.devnull).open("w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),
    ):
        yield
