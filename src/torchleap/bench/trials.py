"""Trials: pieces of work that their settings determine, so that each runs once and is stored."""

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from .._common.files import make_folder
from .._common.plain import key_of, plain
from .._common.text import plural
from ..methods import METHODS, Method
from ..models import BACKBONES, Backbone
from ..pipeline.evidence import trajectories
from ..pipeline.retrain import retrain
from ..pipeline.search import SearchResult, search
from ..selection import Path as FieldPath
from ..training.fit import Training
from .sets import DataSet, Recipe

# Version of the settings in a key. A store of an earlier version stays readable, but its trials
# have other keys, so they run again.
FORMAT = 3
OPEN = 0.5  # a gate above this is open


@dataclass(frozen=True)
class Trial:
    """A piece of work on a data set, whose fields, data and software determine the result.

    Attributes:
        kind: The name of the kind of trial in keys and in the store.
        data: How to get the data set.
        model: The backbone.
        training: The settings of the training, with the seed of the trial.
    """

    kind: ClassVar[str]

    data: Recipe
    model: Backbone
    training: Training

    def settings(self, found: DataSet, threads: int) -> dict[str, Any]:
        """Return everything that determines the result, as plain JSON.

        Args:
            found: The data set.
            threads: The number of threads of the trial.
        """
        own = [one.name for one in fields(self) if one.name != "data"]
        return {
            "format": FORMAT,
            "trial": self.kind,
            "data": {"name": found.name, "fingerprint": found.task.fingerprint},
            **{name: _plain(getattr(self, name)) for name in own},
            "threads": threads,
            "torchleap": version("torchleap"),
            "torch": version("torch"),
            "machine": platform.machine(),
        }

    def key(self, found: DataSet, threads: int) -> str:
        """Return a short name of the settings, in which the name of the data set plays no part."""
        settings = self.settings(found, threads)
        return key_of({**settings, "data": settings["data"]["fingerprint"]})

    @property
    def title(self) -> str:
        """Return the words that are shown while it runs."""
        raise NotImplementedError

    def run(self, found: DataSet, state: Path) -> dict[str, Any]:
        """Do the work and return the result as plain JSON.

        Args:
            found: The data set.
            state: A folder of its own for checkpoints, from which a killed trial resumes.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class SearchTrial(Trial):
    """Scores all fields by a method."""

    kind = "search"

    method: Method

    @property
    def title(self) -> str:
        """Return the data set, the method and the seed."""
        method = registered_name(self.method)
        return f"{self.data.name}: search by {method}, seed {self.training.seed}"

    def run(self, found: DataSet, state: Path) -> dict[str, Any]:
        """Search, and return the scores with the gates over the training."""
        result = search(
            found.task,
            model=self.model,
            method=self.method,
            training=self.training,
            seed=self.training.seed,
            checkpoint=state / "search",
        )
        gates = trajectories(result.history, result.fields)
        return {
            "scores": result.scores,
            "seconds": result.seconds,
            "memory": result.memory,
            "gates": None if gates is None else asdict(gates),
            "open": _open_fields(result),
            "path": None if result.path is None else result.path.to_json(),
        }


@dataclass(frozen=True)
class RetrainTrial(Trial):
    """Trains a new plain model on some fields, in the order of the task; None is all of them."""

    kind = "retrain"

    kept: tuple[str, ...] | None

    @property
    def title(self) -> str:
        """Return the data set, the number of fields and the seed."""
        count = "all fields" if self.kept is None else plural(len(self.kept), "field")
        return f"{self.data.name}: train on {count}, seed {self.training.seed}"

    def run(self, found: DataSet, state: Path) -> dict[str, Any]:
        """Train, and return the metrics on the validation and the test rows."""
        task = found.task
        if self.kept is not None:
            task = task.only(self.kept)
        make_folder(state)
        result = retrain(
            task,
            model=self.model,
            training=self.training,
            seed=self.training.seed,
            checkpoint=state / "retrain.pt",
        )
        evaluations = len(result.run.history)
        return {"metrics": result.metrics, "seconds": result.seconds, "evaluations": evaluations}


def path_of(result: Mapping[str, Any]) -> FieldPath | None:
    """Return the path in the stored result of a search; None if the method has none."""
    if result.get("path") is None:
        return None
    return FieldPath.from_json(result["path"])


def _open_fields(result: SearchResult) -> list[str]:
    """Return the fields that a search keeps without a budget: on a path, or by their gates."""
    if result.path is not None and result.path.points:
        return list(result.path.smallest_within().kept)
    return [name for name, score in result.scores.items() if score > OPEN]


def registered_name(chosen: Method | Backbone) -> str:
    """Return the name of a method or backbone in its registry; the class of one outside of it.

    Keys contain this name, so that they survive the renaming of a class.

    >>> registered_name(METHODS["leap"]())
    'leap'
    """
    registry: dict[str, Any] = {**METHODS, **BACKBONES}
    for name, kind in registry.items():
        if type(chosen) is kind:
            return name
    return type(chosen).__name__


def _plain(value: Any) -> Any:
    """Return a field of a trial as plain JSON."""
    if isinstance(value, Method | Backbone):
        return plain({"is": registered_name(value), **asdict(value)}, "settings")
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value), "settings")
    return plain(value, "settings")
