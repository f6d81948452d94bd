"""The time of a search and of a complete decision, against one plain training of the same model."""

import math
import statistics
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from training_epochs import Call, Epoch, in_memory, shortened, take_turns

import torchleap as tl
from torchleap._common.text import table
from torchleap.bench.sets import DataSet, Recipe, named
from torchleap.data.task import Task
from torchleap.models import Backbone
from torchleap.training.fit import Training

WANTED = {"plain training": 1.0, "search": 2.0, "select": 3.0}  # at most so many plain trainings
EPOCHS = 60  # at most; trainings stop early
QUICK_EPOCHS = 2
QUICK_ROWS = {"train": 8_000, "valid": 4_000}


def plain_training(task: Task, backbone: Backbone, training: Training, seed: int) -> Epoch:
    """Train a model of all fields until it stops early."""
    start = time.perf_counter()
    result = tl.retrain(task, model=backbone, training=training, seed=seed)
    seconds = time.perf_counter() - start
    return Epoch(seconds, result.metrics["valid_auc"], result.metrics["test_auc"])


def searching(task: Task, backbone: Backbone, training: Training, seed: int) -> Epoch:
    """Score all fields by LeAP."""
    start = time.perf_counter()
    tl.search(task, model=backbone, method="leap", training=training, seed=seed)
    seconds = time.perf_counter() - start
    return Epoch(seconds, math.nan, math.nan)


def selecting(task: Task, backbone: Backbone, training: Training, folder: Path, seed: int) -> Epoch:
    """Decide and save the result, as `torchleap select` does once it has read the file."""
    start = time.perf_counter()
    decision = tl.decide(task, model=backbone, method="leap", training=training, seed=seed)
    decision.save(folder)
    seconds = time.perf_counter() - start
    return Epoch(seconds, math.nan, decision.record["metrics"]["after"]["auc"])


def sets_of(movielens: Path | None) -> list[Recipe]:
    """Return how to get Census-Income, MovieLens-1M and the industrial log.

    Args:
        movielens: The file of MovieLens-1M; without it, its place below TORCHLEAP_DATA.
    """
    path = {} if movielens is None else {"path": str(movielens)}
    return [*named("census"), Recipe("ml-1m", "ml-1m", path), *named("industrial@0")]


def training_of(data: DataSet, *, quick: bool) -> Training:
    """Return the settings of all trainings on a data set."""
    epochs = QUICK_EPOCHS if quick else EPOCHS
    return Training(batch=data.batch, metric=data.headline.name, epochs=epochs)


def calls_of(data: DataSet, backbone: Backbone, folder: Path, *, quick: bool) -> dict[str, Call]:
    """Return what takes turns: the plain training, the search and the decision."""
    task = shortened(data.task, **QUICK_ROWS) if quick else data.task
    training = training_of(data, quick=quick)
    return {
        "plain training": partial(plain_training, in_memory(task), backbone, training),
        "search": partial(searching, task, backbone, training),
        "select": partial(selecting, task, backbone, training, folder / f"select-{data.name}"),
    }


def times_table(found: dict[str, Sequence[Epoch]]) -> str:
    """Return the median seconds, and the median ratio to the plain training of the same round."""
    plain = found["plain training"]
    rows = []
    for name, own in found.items():
        pairs = zip(own, plain, strict=True)
        ratios = [one.seconds / base.seconds for one, base in pairs]
        ratio = statistics.median(ratios)
        auc = statistics.mean(one.test_auc for one in own)
        rows.append(
            [
                name,
                f"{statistics.median(one.seconds for one in own):.1f}",
                f"{ratio:.2f}",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
                f"{WANTED[name]:.1f}",
                "yes" if ratio <= WANTED[name] else "no",
                "-" if math.isnan(auc) else f"{auc:.4f}",
            ]
        )
    head = ["", "seconds", "ratio", "of rounds", "wanted", "reached", "test AUC"]
    return table(head, rows)


def show_search(
    recipe: Recipe, backbone: Backbone, folder: Path, *, repeats: int, quick: bool
) -> None:
    """Measure a data set and print its table."""
    data = recipe.load()
    calls = calls_of(data, backbone, folder, quick=quick)
    count = len(data.task.fields)
    print(f"\n  {data.name}: {count} fields, batch {data.batch}, {repeats} rounds", flush=True)
    lines = times_table(take_turns(calls, repeats)).splitlines()
    print("\n".join(f"  {line}" for line in lines), flush=True)
