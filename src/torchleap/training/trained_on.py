"""The rows that a model has seen in training, which may not certify it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from .._common.errors import DataError
from ..data.rows import Rows
from ..data.sketch import Sketch
from ..data.task import Task

ATTRIBUTE = "torchleap_trained_on"  # of a model; copies and pruned models keep it
CURE = "Give test rows that nothing was trained or chosen on: the same split for all, or new rows"


@dataclass(frozen=True)
class TrainedOn:
    """The rows of a task that a model was trained on, and chosen by: the train and valid rows.

    Attributes:
        label: The name of the label of that task, for messages.
        rows: The number of these rows.
        sketch: A sample of their contents.
    """

    label: str
    rows: int
    sketch: Sketch

    def __deepcopy__(self, memo: dict[int, Any]) -> "TrainedOn":
        return self  # it never changes


def note_training(model: nn.Module, task: Task) -> None:
    """Note on a model that it was trained on a task; what it was trained on before stays.

    Nothing is noted of data that an earlier version encoded.

    Args:
        model: The model.
        task: The task, whose train and valid rows the model has seen.
    """
    sketch = task.seen
    if sketch is None:
        return
    before = trained_on(model)
    if not any(np.array_equal(one.sketch.hashes, sketch.hashes) for one in before):
        new = TrainedOn(task.roles["label"], sketch.rows, sketch)
        setattr(model, ATTRIBUTE, (*before, new))


def trained_on(model: nn.Module) -> tuple[TrainedOn, ...]:
    """Return what `fit` noted on a model, the first training first; nothing of other models."""
    found = getattr(model, ATTRIBUTE, ())
    return tuple(one for one in found if isinstance(one, TrainedOn))


def refuse_seen(model: nn.Module, rows: Rows, name: str) -> None:
    """Raise a DataError if a model was trained on rows that are to test it.

    Rows that are equal by chance, as many as the task's own test rows have among its train rows,
    are no reason.

    Args:
        model: The model.
        rows: The test rows of a task.
        name: What the message calls the model, such as "full".
    """
    contents = rows.contents
    own = rows.task.seen
    if contents is None or own is None:
        return
    for before in trained_on(model):
        natural = own.share([contents])
        found = before.sketch.share([contents])
        seen = found.seen_beyond(natural)
        if seen:
            raise DataError(
                f"Expected {rows.part} rows that the {name} model has not seen, but about "
                f"{seen:.0%} of them are among the {before.rows:,} rows that it was trained on "
                f"and chosen by, of another split of the same rows. {CURE}."
            )


def refuse_same_part(rows: Rows) -> None:
    """Raise a DataError if the test rows of a task are its train or valid rows once more."""
    contents = rows.contents
    if contents is None or len(np.unique(contents)) < 2:
        return
    for other in (rows.task.train, rows.task.valid):
        theirs = other.contents
        if theirs is not None and np.array_equal(contents, theirs):
            raise DataError(
                f"Expected {rows.part} rows that are used for nothing else, but they are the "
                f"{other.part} rows once more. {CURE}."
            )
