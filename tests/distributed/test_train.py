"""fit and search on several ranks: real processes, gloo."""

from pathlib import Path
from typing import Any

import torch

import torchleap as tl
from torchleap.models import build
from torchleap.train import Run, Training, fit

from ..test_train import KINDS, clicks

SETTINGS: Any = {"batch": 256, "epochs": 2, "patience": 5}


def task_in(folder: Path) -> tl.data.Task:
    """The same small task on every rank."""
    return tl.data.read(clicks(rows=2_000), label="click", columns=KINDS, cache=folder / "cache")


def trained(task: tl.data.Task, training: Training, **settings: Any) -> Run:
    torch.manual_seed(1)
    model = build(tl.models.WideDeep(dropout=0.0), task)
    return fit(model, task, training, **settings)
