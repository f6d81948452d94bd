"""Trials: pieces of work that their settings determine, so that each is done once and its result kept."""

import platform
from dataclasses import asdict, dataclass, fields, is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .._common.files import make_folder
from .._common.plain import key_of
from .._common.text import plural
from ..methods import Method
from ..models import Backbone
from ..pipeline.decide import trajectories
from ..pipeline.search import retrain, search
from ..training.fit import Training
from .sets import DataSet, Recipe


@dataclass(frozen=True)
class Trial:
    """A piece of work on a data set; its fields, the data and the software determine the result."""

    data: Recipe
    model: Backbone
    training: Training  # with the seed of the trial

    def settings(self, found: DataSet, threads: int) -> dict[str, Any]:
        """Everything that determines the result, as plain JSON."""
        own = {
            field.name: _plain(getattr(self, field.name))
            for field in fields(self)
            if field.name != "data"
        }
        software = {
            "torchleap": version("torchleap"),
            "torch": version("torch"),
            "machine": platform.machine(),
        }
        data = {"name": found.name, "fingerprint": found.task.fingerprint}
        return {"trial": type(self).__name__, "data": data, **own, "threads": threads, **software}

    def key(self, found: DataSet, threads: int) -> str:
        """A short name for all of that; what a data set is called plays no part."""
        settings = self.settings(found, threads)
        return key_of({**settings, "data": settings["data"]["fingerprint"]})

    @property
    def title(self) -> str:
        """What is shown while it runs."""
        raise NotImplementedError

    def run(self, found: DataSet, state: Path) -> dict[str, Any]:
        """Do it; the result as plain JSON.

        Args:
            state: A folder of its own for checkpoints; a trial that was killed goes on from there.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class SearchTrial(Trial):
    """The scores that a method gives to all fields."""

    method: Method

    @property
    def title(self) -> str:
        """Which search it is."""
        return (
            f"{self.data.name}: search by {type(self.method).__name__}, seed {self.training.seed}"
        )

    def run(self, found: DataSet, state: Path) -> dict[str, Any]:
        """Search; gates over the training are kept too."""
        seed = self.training.seed
        result = search(
            found.task,
            model=self.model,
            method=self.method,
            training=self.training,
            seed=seed,
            checkpoint=state / "search",
        )
        gates = trajectories(result.history, result.fields)
        return {
            "scores": result.scores,
            "seconds": result.seconds,
            "memory": result.memory,
            "gates": gates,
        }


@dataclass(frozen=True)
class RetrainTrial(Trial):
    """A fresh plain model on some fields, in the order of the task; None is all of them."""

    kept: tuple[str, ...] | None

    @property
    def title(self) -> str:
        """Which training it is."""
        what = "all fields" if self.kept is None else plural(len(self.kept), "field")
        return f"{self.data.name}: train on {what}, seed {self.training.seed}"

    def run(self, found: DataSet, state: Path) -> dict[str, Any]:
        """Train, and measure on the validation and the test rows."""
        task = found.task if self.kept is None else found.task.only(self.kept)
        make_folder(state)
        result = retrain(
            task,
            model=self.model,
            training=self.training,
            seed=self.training.seed,
            checkpoint=state / "retrain.pt",
        )
        return {
            "metrics": result.metrics,
            "seconds": result.seconds,
            "looks": len(result.run.history),
        }


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {"is": type(value).__name__, **asdict(value)}
    return list(value) if isinstance(value, tuple) else value
