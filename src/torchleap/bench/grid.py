"""The grid of a benchmark: data sets, methods, backbones, shares and seeds."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from .._common.checks import check_arguments, whole, with_settings
from .._common.errors import SelectionError, TorchleapError, nearest
from .._common.plain import read_toml
from ..methods import METHODS, Method, Permutation
from ..methods import named as method_named
from ..models import BACKBONES, Backbone, benchmark
from ..selection.rule import Share
from ..training.fit import Training
from . import sets
from .sets import DataSet, Recipe

PUBLISHED = (  # the methods of the paper's table, in its order
    "none",
    "lasso",
    "xgboost",
    "forest",
    "shark",
    "lpfs",
    "sfs",
    "autofield",
    "leap_base",
    "leap",
)
ALSO: dict[str, Method] = {
    # a tenth of the validation rows is 1 % of all rows, as in the paper
    "permutation_sample": Permutation(fraction=0.1)
}
REFERENCE = "none"  # all fields, without a search
LISTS = ("data", "methods", "models", "shares")
TABLES = ("set", "method", "model")


@dataclass(frozen=True)
class Grid:
    """The parts of a comparison, by the names that they have in tables.

    Args:
        data: How to get each data set.
        methods: Methods by name; the others are compared with "leap", or else with the first.
        models: Backbones by name.
        shares: Shares of the fields to keep.
        search_seeds: The number of seeds 0, 1, ... of each search.
        retrain_seeds: The number of seeds 0, 1, ... of each training on the kept fields.
        training: Settings of all trainings by name; the batch is that of the data set by default.
    """

    data: tuple[Recipe, ...]
    methods: Mapping[str, Method]
    models: Mapping[str, Backbone]
    shares: tuple[float, ...] = (0.5, 0.25)
    search_seeds: int = 2
    retrain_seeds: int = 2
    training: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        holds = {}
        for share in self.shares:
            problem = _problem_of(share)
            holds[problem] = not problem
        for name in LISTS:
            holds[f"expected at least one of {name}, but found none"] = bool(getattr(self, name))
        names = {recipe.name for recipe in self.data}
        are_different = len(names) == len(self.data)
        holds["expected a name for each data set, but found one twice"] = are_different
        counted = "the seeds of trainings are counted by search_seeds and retrain_seeds"
        holds[f"{counted}: leave out seed"] = "seed" not in self.training
        check_arguments(
            holds,
            search_seeds=whole(self.search_seeds, at_least=1),
            retrain_seeds=whole(self.retrain_seeds, at_least=1),
        )
        self.training_for(None, 0)

    @classmethod
    def of(
        cls,
        data: Iterable[str | Recipe],
        methods: str | Sequence[str] = "all",
        models: str | Sequence[str] = ("wide_deep",),
        **settings: Any,
    ) -> "Grid":
        """Return a grid by names.

        Args:
            data: Names of data sets, or recipes.
            methods: Names; "all" is every method, "paper" those of the paper's table.
            models: Names of backbones; "all" is every one.
            settings: Shares, seeds and settings of the trainings, as in `Grid`.
        """
        return cls(_recipes(data), _methods(methods), _models(models), **settings)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Grid":
        """Read a TOML file; an unknown key is refused with the nearest known one.

        `data`, `methods` and `models` are lists of names. Tables `[set.NAME]`, `[method.NAME]` and
        `[model.NAME]` add ones with settings of their own, where "none" is None; `data`
        may name them, too. `[training]` contains settings of the training.
        """
        content = read_toml(path)
        known = [*(entry.name for entry in fields(cls)), *TABLES]
        for key in content:
            if key not in known:
                raise TorchleapError(f"{path} has an unknown key {key!r}. {nearest(key, known)}")
        own = {name: _tables(path, name, content.pop(name, {})) for name in TABLES}
        training = _tables(path, "training", {"training": content.pop("training", {})})["training"]
        for name in LISTS:
            if name in content:
                content[name] = _listed(path, name, content[name])
        own_methods = {
            name: method_named(_kind(name, table), _without_kind(table))
            for name, table in own["method"].items()
        }
        own_models = {
            name: with_settings(benchmark(_kind(name, table)), _without_kind(table))
            for name, table in own["model"].items()
        }
        methods = content.pop("methods", None) or (() if own_methods else "all")
        models = content.pop("models", None) or (() if own_models else "wide_deep")
        return cls(
            data=_with_own(content.pop("data", ()), own["set"]),
            methods={**_methods(methods), **own_methods},
            models={**_models(models), **own_models},
            training=training,
            **content,
        )

    def training_for(self, data: DataSet | None, seed: int) -> Training:
        """Return the settings of a training.

        Args:
            data: The data set, whose batch and headline metric are the defaults; None for those
                of `Training`.
            seed: The seed of the training.
        """
        usual = {}
        if data is not None:
            usual = {"batch": data.batch, "metric": data.headline.name}
        return replace(with_settings(Training(), {**usual, **self.training}), seed=seed)

    @property
    def leap(self) -> str:
        """Return the name of the method that the others are compared with."""
        if "leap" in self.methods:
            return "leap"
        return next(iter(self.methods))


def _problem_of(share: Any) -> str:
    """Return the reason for which a rule refuses a share; "" if it does not."""
    try:
        Share(share)
    except SelectionError as error:
        return str(error).rstrip(".")
    return ""


def _recipes(data: Iterable[str | Recipe]) -> tuple[Recipe, ...]:
    found: list[Recipe] = []
    for one in data:
        if isinstance(one, Recipe):
            found.append(one)
        else:
            found += sets.named(one)
    return tuple(found)


def _with_own(names: Sequence[str], tables: Mapping[str, dict[str, Any]]) -> tuple[Recipe, ...]:
    """Return the named data sets, and then the file's own ones that are not among the names."""
    own = {name: sets.described(name, table) for name, table in tables.items()}
    named = [own.get(word, word) for word in names]
    unnamed = [recipe for recipe in own.values() if recipe not in named]
    return _recipes([*named, *unnamed])


def _methods(given: str | Sequence[str]) -> dict[str, Method]:
    words = _words(given, {"all": tuple(METHODS), "paper": PUBLISHED})
    return {name: ALSO.get(name) or method_named(name) for name in words}


def _models(given: str | Sequence[str]) -> dict[str, Backbone]:
    return {name: benchmark(name) for name in _words(given, {"all": tuple(BACKBONES)})}


def _words(given: str | Sequence[str], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """Return names, each once, with the members of groups in the places of these."""
    words = [given] if isinstance(given, str) else given
    found = [name for word in words for name in groups.get(word, [word])]
    return list(dict.fromkeys(found))


def _tables(path: str | os.PathLike[str], name: str, content: Any) -> dict[str, dict[str, Any]]:
    """Return tables of settings with Python's values."""
    are_tables = isinstance(content, Mapping) and all(
        isinstance(table, Mapping) for table in content.values()
    )
    if not are_tables:
        wanted = "a table [training]" if name == "training" else f"tables [{name}.SOME_NAME]"
        raise TorchleapError(f"{path}: expected {wanted}, but found {name} = {content!r}.")
    found = {}
    for key, table in content.items():
        found[key] = {setting: _value(value) for setting, value in table.items()}
    return found


def _listed(path: str | os.PathLike[str], key: str, value: Any) -> tuple[Any, ...]:
    """Return the words or numbers of a list; a single word may be given without a list."""
    wanted, kind = ("numbers", (int, float)) if key == "shares" else ("names", (str,))
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, kind) for word in words):
        raise TorchleapError(
            f"{path}: expected a list of {wanted}, {key} = [...], but found {key} = {value!r}."
        )
    return tuple(words)


def _value(value: Any) -> Any:
    """Return a value of TOML, which has neither None nor tuples, as Python's."""
    if value == "none":
        return None
    if isinstance(value, list):
        return tuple(value)
    return value


def _kind(name: str, table: Mapping[str, Any]) -> str:
    """Return the method or backbone of a table: `is = "leap"`, or its own name."""
    return str(table.get("is", name))


def _without_kind(table: Mapping[str, Any]) -> dict[str, Any]:
    return {setting: value for setting, value in table.items() if setting != "is"}
