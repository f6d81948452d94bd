"""The data sets of the benchmark by name: public ones, made ones of which the truth is known, and a user's own files."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from .._common.errors import TorchleapError, nearest
from ..data import aliccp, avazu, census_income, criteo, movielens_1m
from ..data.files.read import read
from ..data.sets.options import Options
from ..data.synthetic.industrial import IndustrialLog, industrial
from ..data.synthetic.truth import KnownTruth, known_truth
from ..data.task import Task
from ..pipeline.search import suited_batch

VARIABLE = "TORCHLEAP_DATA"
MOST_SEEDS = 10_000
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class DataSet:
    """A task, with what is known of it.

    Attributes:
        batch: Rows a step, as published where there is a published benchmark.
        role: What each field is for, where the truth is known.
        useful: The fields that the label depends on, where that is known; likewise those that say nothing.
    """

    name: str
    task: Task
    batch: int
    role: Mapping[str, str] = field(default_factory=dict)
    useful: tuple[str, ...] = ()
    useless: tuple[str, ...] = ()
    source: Mapping[str, str] = field(
        default_factory=dict
    )  # of each copy, the field that it is a copy of


@dataclass(frozen=True)
class Recipe:
    """How to get a data set: by name and settings, so that every process can get it by itself."""

    name: str
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def load(self, folder: str | None = None, progress: Progress | None = None) -> DataSet:
        """Read it, or make it.

        Args:
            folder: Where the public sets lie; the environment variable TORCHLEAP_DATA if left out.
        """
        tell = progress or (lambda *_: None)
        return KINDS[self.kind](
            self.name, folder or os.environ.get(VARIABLE), tell, dict(self.settings)
        )


def named(word: str) -> list[Recipe]:
    """The data sets that a word stands for; made ones may carry seeds.

    >>> [recipe.name for recipe in named("truth@0-2")], named("census")[0].kind
    (['truth@0', 'truth@1', 'truth@2'], 'census')
    """
    kind, at, seeds = word.partition("@")
    if kind not in KINDS or kind == "file":
        names = [name for name in KINDS if name != "file"]
        raise TorchleapError(
            f"There is no data set {kind!r}. {nearest(kind, names)} A file of yours needs --label, or a TOML grid."
        )
    if not at:
        return [Recipe(word, kind)]
    if kind not in MADE:
        raise TorchleapError(
            f"{kind} is not made, so it has no seed: expected {kind}, but found {word!r}."
        )
    first, dash, last = seeds.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()) or int(last or first) < int(first):
        raise TorchleapError(
            f"Expected a seed or seeds such as {kind}@3 or {kind}@0-9, but found {word!r}."
        )
    if int(last or first) - int(first) >= MOST_SEEDS or int(last or first) >= 1 << 32:
        raise TorchleapError(
            f"Expected at most {MOST_SEEDS:,} seeds below 4,294,967,296, but found {word[:60]!r}."
        )
    return [
        Recipe(f"{kind}@{seed}", kind, {"seed": seed})
        for seed in range(int(first), int(last or first) + 1)
    ]


def described(name: str, settings: Mapping[str, Any]) -> Recipe:
    """A data set with settings of its own, as a TOML grid has them: a file and how to read it, or a name as `kind`."""
    given = dict(settings)
    kind = given.pop("kind", "file" if "file" in given else name)
    if kind not in KINDS:
        raise TorchleapError(
            f"data {name!r}: there is no kind {kind!r}. {nearest(str(kind), KINDS)}"
        )
    return Recipe(name, kind, given)


def file_recipe(path: str, label: str | None, group: str | None = None) -> Recipe:
    """A file of the user's, under its own name."""
    if label is None:
        raise TorchleapError(f"{path} needs a label: give --label COLUMN.")
    return Recipe(
        Path(path).stem,
        "file",
        {"file": path, "label": label} | ({} if group is None else {"group": group}),
    )


def industrial_recipe(rows: int, fields: int, dims: int, seed: int = 0) -> Recipe:
    """The industrial log of a certain size."""
    return Recipe(
        "industrial", "industrial", {"rows": rows, "fields": fields, "dims": dims, "seed": seed}
    )


def _public(
    make: Callable[..., Task],
    place: str,
    batch: int | None,
    name: str,
    folder: str | None,
    tell: Progress,
    settings: dict[str, Any],
) -> DataSet:
    path = settings.pop("path", None) or (None if folder is None else Path(folder) / place)
    if path is None:
        told = f"{name} is not made but read: say where it lies, with --folder or the environment variable {VARIABLE}."
        raise TorchleapError(told)
    task = make(path, progress=tell, **_accepted(make, settings, name))
    return DataSet(name, task, min(batch or suited_batch(task), suited_batch(task)))


def _industrial(name: str, folder: str | None, tell: Progress, settings: dict[str, Any]) -> DataSet:
    given = _accepted(industrial, settings, name)
    task = industrial(progress=tell, **given)
    log = IndustrialLog(
        **{"fields": 64, "dims": 1_000}
        | {key: given[key] for key in ("fields", "dims", "seed") if key in given}
    )
    return DataSet(
        name,
        task,
        min(1024, suited_batch(task)),
        dict(log.role),
        log.useful,
        log.useless,
        log.source,
    )


def _truth(name: str, folder: str | None, tell: Progress, settings: dict[str, Any]) -> DataSet:
    rows, cut = (
        settings.pop("rows", 60_000),
        {key: tuple(v) if isinstance(v, list) else v for key, v in settings.items()},
    )
    truth = KnownTruth(**_accepted(KnownTruth, cut, name))
    task = known_truth(truth, rows)
    return DataSet(
        name,
        task,
        min(256, suited_batch(task)),
        dict(truth.role),
        truth.useful,
        truth.useless,
        truth.source,
    )


def _file(name: str, folder: str | None, tell: Progress, settings: dict[str, Any]) -> DataSet:
    if "file" not in settings or "label" not in settings:
        raise TorchleapError(
            f"data {name!r}: expected file = ... and label = ..., but found {', '.join(settings) or 'nothing'}."
        )
    path = settings.pop("file")
    task = read(path, progress=tell, **_accepted(read, settings, name))
    return DataSet(name, task, suited_batch(task))


def _accepted(
    function: Callable[..., Any], settings: Mapping[str, Any], whose: str
) -> dict[str, Any]:
    """The settings, if a function takes them all by name; else an unknown one is refused with the nearest known."""
    parameters = signature(function).parameters
    open_ended = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values())
    known = [*parameters, *(Options.__annotations__ if open_ended else ())]
    for name in settings:
        if name not in known:
            raise TorchleapError(
                f"data {whose!r} has no setting {name!r}. {nearest(str(name), known)}"
            )
    return dict(settings)


MADE = ("industrial", "truth")
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
