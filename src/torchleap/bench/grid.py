"""The grid of a benchmark: which data sets, methods, backbones, shares and seeds; from Python, options or a TOML file."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from .._common.checks import is_number, is_whole, refuse_settings, with_settings
from .._common.errors import TorchleapError, nearest
from .._common.plain import read_toml
from ..methods import METHODS, Method, Permutation
from ..methods import named as method_named
from ..models import MODELS, Backbone, benchmark
from ..training.fit import Training
from . import sets
from .sets import DataSet, Recipe

PUBLISHED = (
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
)  # the paper's rows
ALSO: dict[str, Method] = {
    "permutation_sample": Permutation(fraction=0.1)
}  # of the validation rows: 1 % of all, as the paper has it
REFERENCE = "none"  # all fields: not searched for


@dataclass(frozen=True)
class Grid:
    """What to compare, by the names under which it appears in tables.

    Args:
        data: How to get each data set.
        methods: By name; the first one called "leap", or the first, is what the others are compared with.
        models: Backbones by name.
        shares: Of the fields that are kept.
        search_seeds: Seeds 0, 1, ... of each search, and likewise retrain_seeds.
        training: Settings of all trainings by name; the batch is the data set's own if left out.
    """

    data: tuple[Recipe, ...]
    methods: Mapping[str, Method]
    models: Mapping[str, Backbone]
    shares: tuple[float, ...] = (0.5, 0.25)
    search_seeds: int = 2
    retrain_seeds: int = 2
    training: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        whole = {"search_seeds": self.search_seeds, "retrain_seeds": self.retrain_seeds}
        rules = {
            f"{n} must be a whole number of at least 1, but is {v!r}": is_whole(v) and v >= 1
            for n, v in whole.items()
        }
        for share in self.shares:
            rules[f"a share must be above 0 and up to 1, but is {share!r}"] = (
                is_number(share) and 0 < share <= 1
            )
        for name in ("data", "methods", "models", "shares"):
            rules[f"expected at least one of {name}, but found none"] = bool(getattr(self, name))
        rules["expected a name for each data set, but found one twice"] = len(
            {r.name for r in self.data}
        ) == len(self.data)
        rules[
            "the seeds of trainings are counted by search_seeds and retrain_seeds: leave out seed"
        ] = "seed" not in self.training
        refuse_settings(rules)
        self.training_for(None, 0)

    @classmethod
    def of(
        cls,
        data: Iterable[str | Recipe],
        methods: str | Sequence[str] = "all",
        models: str | Sequence[str] = ("wide_deep",),
        **settings: Any,
    ) -> "Grid":
        """A grid by names: "all" are all methods or backbones, "paper" the methods of the paper's table."""
        return cls(_recipes(data), _methods(methods), _models(models), **settings)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Grid":
        """Read a TOML file; an unknown key is refused with the nearest known one.

        `data`, `methods` and `models` are lists of names; tables `[set.NAME]`, `[method.NAME]` and `[model.NAME]` add ones with
        settings of their own, where "none" stands for None; `data` may name them, too. `[training]` holds settings of the
        training.
        """
        content = read_toml(path)
        known = [entry.name for entry in fields(cls)] + ["set", "method", "model"]
        for key in content:
            if key not in known:
                raise TorchleapError(f"{path} has an unknown key {key!r}. {nearest(key, known)}")
        own = {
            name: _tables(path, name, content.pop(name, {})) for name in ("set", "method", "model")
        }
        training = _tables(path, "training", {"training": content.pop("training", {})})["training"]
        lists = ("data", "methods", "models", "shares")
        given: dict[str, Any] = {
            key: _listed(path, key, value) if key in lists else value
            for key, value in content.items()
        }
        data, methods, models = (given.pop(name, None) for name in ("data", "methods", "models"))
        own_data = {name: sets.described(name, table) for name, table in own["set"].items()}
        named = [own_data.get(word, word) for word in data or ()]
        unnamed = [recipe for recipe in own_data.values() if recipe not in named]
        own_methods = {
            name: method_named(*_named(name, table)) for name, table in own["method"].items()
        }
        own_models = {
            name: with_settings(benchmark(kind), table)
            for name, (kind, table) in _all_named(own["model"])
        }
        return cls(
            data=_recipes([*named, *unnamed]),
            methods={**_methods(methods or (() if own_methods else "all")), **own_methods},
            models={**_models(models or (() if own_models else "wide_deep")), **own_models},
            training=training,
            **given,
        )

    def training_for(self, data: DataSet | None, seed: int) -> Training:
        """The settings of a training on a data set; GAUC chooses the best weights where rows have groups."""
        usual = (
            {}
            if data is None
            else {
                "batch": data.batch,
                "metric": "auc" if data.task.roles.get("group") is None else "gauc",
            }
        )
        return replace(with_settings(Training(), {**usual, **self.training}), seed=seed)

    @property
    def leap(self) -> str:
        """The method that the others are compared with."""
        return "leap" if "leap" in self.methods else next(iter(self.methods))


def _recipes(data: Iterable[str | Recipe]) -> tuple[Recipe, ...]:
    return tuple(
        found for one in data for found in ([one] if isinstance(one, Recipe) else sets.named(one))
    )


def _methods(given: str | Sequence[str]) -> dict[str, Method]:
    return {
        name: ALSO.get(name) or method_named(name)
        for name in _words(given, {"all": list(METHODS), "paper": list(PUBLISHED)})
    }


def _models(given: str | Sequence[str]) -> dict[str, Backbone]:
    return {name: benchmark(name) for name in _words(given, {"all": list(MODELS)})}


def _words(given: str | Sequence[str], groups: Mapping[str, list[str]]) -> list[str]:
    words = [given] if isinstance(given, str) else given
    return list(dict.fromkeys(name for word in words for name in groups.get(word, [word])))


def _tables(path: str | os.PathLike[str], name: str, content: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(content, Mapping) or not all(
        isinstance(table, Mapping) for table in content.values()
    ):
        wanted = "a table [training]" if name == "training" else f"tables [{name}.SOME_NAME]"
        raise TorchleapError(f"{path}: expected {wanted}, but found {name} = {content!r}.")
    return {key: {k: _value(v) for k, v in table.items()} for key, table in content.items()}


def _listed(path: str | os.PathLike[str], key: str, value: Any) -> tuple[Any, ...]:
    """The words or numbers of a list; a word may stand alone."""
    words, kind = (
        [value] if isinstance(value, str) else value,
        (int, float) if key == "shares" else str,
    )
    if not isinstance(words, list) or not all(isinstance(word, kind) for word in words):
        wanted = "numbers" if key == "shares" else "names"
        raise TorchleapError(
            f"{path}: expected a list of {wanted}, {key} = [...], but found {key} = {value!r}."
        )
    return tuple(words)


def _value(value: Any) -> Any:
    """TOML has no None, and no tuples."""
    return None if value == "none" else tuple(value) if isinstance(value, list) else value


def _named(name: str, table: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """What a table is of, and its settings: `is = "leap"`, else its own name."""
    settings = dict(table)
    return str(settings.pop("is", name)), settings


def _all_named(
    tables: Mapping[str, Mapping[str, Any]],
) -> list[tuple[str, tuple[str, dict[str, Any]]]]:
    return [(name, _named(name, table)) for name, table in tables.items()]
