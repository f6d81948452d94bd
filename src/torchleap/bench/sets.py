"""The data sets of a benchmark by name: public ones, synthetic ones, and a user's own files."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from .._common.checks import LARGEST_SEED
from .._common.errors import TorchleapError, nearest
from ..data import aliccp, avazu, census_income, criteo, movielens_1m
from ..data.files.read import read
from ..data.sets.options import Options
from ..data.synthetic.industrial import IndustrialLog, industrial
from ..data.synthetic.truth import KnownTruth, known_truth
from ..data.task import Task
from ..objectives import Metric
from ..pipeline.evidence import headline_of
from ..pipeline.retrain import suited_batch

VARIABLE = "TORCHLEAP_DATA"
MOST_SEEDS = 10_000
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class DataSet:
    """A task, with its ground truth where that is known.

    Attributes:
        name: The name in tables.
        task: The task.
        batch: Rows per step, as published where there is a published benchmark.
        role: The role of each field; empty where the ground truth is unknown, as are the others.
        useful: The fields that the label depends on.
        useless: The fields that carry no information about the label.
        source: The original field of each copy.
    """

    name: str
    task: Task
    batch: int
    role: Mapping[str, str] = field(default_factory=dict)
    useful: tuple[str, ...] = ()
    useless: tuple[str, ...] = ()
    source: Mapping[str, str] = field(default_factory=dict)

    @property
    def headline(self) -> Metric:
        """Return the metric that models of this data set are judged by."""
        return headline_of(self.task)


@dataclass(frozen=True)
class Recipe:
    """How to get a data set by name and settings, so that every process can get it by itself.

    Attributes:
        name: The name in tables.
        kind: The key in `KINDS`.
        settings: The settings of that kind, such as a seed, or a file and its label.
    """

    name: str
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def load(self, folder: str | None = None, progress: Progress | None = None) -> DataSet:
        """Read the data set, or make it.

        Args:
            folder: The folder with the public sets; the environment variable TORCHLEAP_DATA by
                default.
            progress: Called with the work, and how many rows are done of all.
        """
        place = folder or os.environ.get(VARIABLE)
        on_progress = progress or _ignore
        return KINDS[self.kind](self.name, place, on_progress, dict(self.settings))


def _ignore(work: str, done: int, total: int) -> None:
    """Show no progress."""


def named(word: str) -> list[Recipe]:
    """Return the data sets of a word; synthetic ones may have seeds.

    >>> [recipe.name for recipe in named("truth@0-2")], named("census")[0].kind
    (['truth@0', 'truth@1', 'truth@2'], 'census')
    """
    kind, at, seeds = word.partition("@")
    if kind not in KINDS or kind == "file":
        names = [name for name in KINDS if name != "file"]
        raise TorchleapError(
            f"There is no data set {kind!r}. {nearest(kind, names)} "
            "A file of yours needs --label, or a TOML grid."
        )
    if not at:
        return [Recipe(word, kind)]
    if kind not in SYNTHETIC:
        raise TorchleapError(
            f"{kind} is not synthetic, so it has no seed: expected {kind}, but found {word!r}."
        )
    found = _seeds(word, kind, seeds)
    return [Recipe(f"{kind}@{seed}", kind, {"seed": seed}) for seed in found]


def _seeds(word: str, kind: str, seeds: str) -> range:
    """Return the seeds of a word such as truth@3 or truth@0-9."""
    first, dash, last = seeds.partition("-")
    if not dash:
        last = first
    if not first.isdecimal() or not last.isdecimal() or int(last) < int(first):
        raise TorchleapError(
            f"Expected a seed or seeds such as {kind}@3 or {kind}@0-9, but found {word!r}."
        )
    if int(last) - int(first) >= MOST_SEEDS or int(last) > LARGEST_SEED:
        raise TorchleapError(
            f"Expected at most {MOST_SEEDS:,} seeds below {LARGEST_SEED + 1:,}, "
            f"but found {word[:60]!r}."
        )
    return range(int(first), int(last) + 1)


def described(name: str, settings: Mapping[str, Any]) -> Recipe:
    """Return a data set of a TOML grid: a file and how to read it, or a name as `kind`.

    Args:
        name: The name of the table, which is the kind if the settings name none.
        settings: The settings of the table.
    """
    given = dict(settings)
    kind = given.pop("kind", "file" if "file" in given else name)
    if kind not in KINDS:
        raise TorchleapError(
            f"data {name!r}: there is no kind {kind!r}. {nearest(str(kind), KINDS)}"
        )
    return Recipe(name, kind, given)


def file_recipe(path: str, label: str | None, group: str | None = None) -> Recipe:
    """Return a file of the user's, by the name of the file.

    Args:
        path: The file.
        label: The column to predict, which must be given.
        group: The column with the groups for GAUC; None without groups.
    """
    if label is None:
        raise TorchleapError(f"{path} needs a label: give --label COLUMN.")
    settings = {"file": path, "label": label}
    if group is not None:
        settings["group"] = group
    return Recipe(Path(path).stem, "file", settings)


def industrial_recipe(rows: int, fields: int, dims: int, seed: int = 0) -> Recipe:
    """Return the industrial log of a size."""
    settings = {"rows": rows, "fields": fields, "dims": dims, "seed": seed}
    return Recipe("industrial", "industrial", settings)


def _public(
    make: Callable[..., Task],
    place: str,
    batch: int | None,
    name: str,
    folder: str | None,
    progress: Progress,
    settings: dict[str, Any],
) -> DataSet:
    """Read a public set from its place below a folder.

    Args:
        make: Reads the task from a path.
        place: The folder of the set below `folder`.
        batch: The published rows per step; None if there are none.
        name: The name of the data set.
        folder: The folder with all public sets; None if it is unknown.
        progress: Called with the progress.
        settings: The settings of the recipe; `path` names the place of the set itself.
    """
    path = settings.pop("path", None)
    if not path and folder is not None:
        path = Path(folder) / place
    if not path:
        raise TorchleapError(
            f"{name} is read from files: give their folder by --folder or by the environment "
            f"variable {VARIABLE}."
        )
    task = make(path, progress=progress, **_accepted(make, settings, name))
    suited = suited_batch(task)
    return DataSet(name, task, min(batch or suited, suited))


def _industrial(
    name: str, folder: str | None, progress: Progress, settings: dict[str, Any]
) -> DataSet:
    given = _accepted(industrial, settings, name)
    task = industrial(progress=progress, **given)
    size: dict[str, Any] = {"fields": 64, "dims": 1_000}
    size |= {key: given[key] for key in ("fields", "dims", "seed") if key in given}
    return _synthetic(name, task, 1024, IndustrialLog(**size))


def _truth(name: str, folder: str | None, progress: Progress, settings: dict[str, Any]) -> DataSet:
    rows = settings.pop("rows", 60_000)
    for key, value in settings.items():
        if isinstance(value, list):
            settings[key] = tuple(value)
    truth = KnownTruth(**_accepted(KnownTruth, settings, name))
    return _synthetic(name, known_truth(truth, rows), 256, truth)


def _synthetic(name: str, task: Task, batch: int, truth: KnownTruth | IndustrialLog) -> DataSet:
    """Return a data set with its ground truth."""
    return DataSet(
        name,
        task,
        batch=min(batch, suited_batch(task)),
        role=dict(truth.role),
        useful=truth.useful,
        useless=truth.useless,
        source=truth.source,
    )


def _file(name: str, folder: str | None, progress: Progress, settings: dict[str, Any]) -> DataSet:
    if "file" not in settings or "label" not in settings:
        found = ", ".join(settings) or "nothing"
        raise TorchleapError(
            f"data {name!r}: expected file = ... and label = ..., but found {found}."
        )
    path = settings.pop("file")
    task = read(path, progress=progress, **_accepted(read, settings, name))
    return DataSet(name, task, suited_batch(task))


def _accepted(
    function: Callable[..., Any], settings: Mapping[str, Any], name: str
) -> dict[str, Any]:
    """Return the settings if a function takes them all; refuse any other with the nearest known."""
    parameters = signature(function).parameters
    known = list(parameters)
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values()):
        known += Options.__annotations__
    for setting in settings:
        if setting not in known:
            raise TorchleapError(
                f"data {name!r} has no setting {setting!r}. {nearest(str(setting), known)}"
            )
    return dict(settings)


SYNTHETIC = ("industrial", "truth")
KINDS: dict[str, Callable[[str, str | None, Progress, dict[str, Any]], DataSet]] = {
    "ml-1m": partial(_public, movielens_1m, "", 256),
    "criteo": partial(_public, criteo, "criteo", 4096),
    "avazu": partial(_public, avazu, "avazu", 4096),
    "aliccp": partial(_public, aliccp, "aliccp", 4096),
    "census": partial(_public, census_income, "census", None),
    "industrial": _industrial,
    "truth": _truth,
    "file": _file,
}
