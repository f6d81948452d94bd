"""The options of the commands, each written once: its type, its default and its help.

A command takes groups of options: frozen dataclasses of this module, whose fields are options.
`flat` shows their fields to typer one by one. To add an option, add a field to the group that the
command takes, and use it in the command.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from .._common.errors import TorchleapError
from ..selection.rule import RULES, Rule
from .lists import listed, names_of, numbers_by_name, separator_of

if TYPE_CHECKING:
    from ..training.fit import Training

IN_QUOTES = """a name with a comma in double quotes: '"a,b",c'"""

Source = Annotated[
    str,
    typer.Argument(help="Parquet, CSV, TSV or Arrow; also a folder, or a pattern in quotes."),
]
Results = Annotated[Path, typer.Argument(help="The results of select.")]
Label = Annotated[str | None, typer.Option(help="The column to predict, for files.")]
Positive = Annotated[
    str | None, typer.Option(help="The value of the label column that counts as 1.")
]
ABOVE = "For ratings: the label is 1 above this value."
Batch = Annotated[
    int | None, typer.Option(min=2, help="Rows per step; chosen by the number of rows if left out.")
]
Epochs = Annotated[
    int,
    typer.Option(
        min=1,
        help="The largest number of epochs; training stops when the metric no longer improves.",
    ),
]
Seeds = Annotated[int, typer.Option(min=1, help="The number of seeds of each training.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]
Ab = Annotated[
    bool,
    typer.Option(
        "--ab", help="Also say how large an online A/B test for the same margin has to be."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Options:
    """A group of options; each field of the dataclass is an option of the command line."""

    @classmethod
    def parameters(cls) -> list[Parameter]:
        """Return the options as the parameters of a function."""
        kinds = get_type_hints(cls, include_extras=True)
        own = signature(cls).parameters.values()
        return [_parameter(one.name, kinds[one.name], one.default) for one in own]


def flat(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that takes the options of its groups one by one, as typer needs them."""
    kinds = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Options]] = {}
    parameters: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        kind = kinds[name]
        if isinstance(kind, type) and issubclass(kind, Options):
            groups[name] = kind
            parameters += kind.parameters()
        else:
            parameters.append(_parameter(name, kind, parameter.default))

    @wraps(command)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            own = {one.name: given.pop(one.name) for one in group.parameters()}
            given[name] = group(**own)
        command(**given)

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return run


def _parameter(name: str, kind: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=default)


def parameter_of(rule: type[Rule]) -> str:
    """Return the name under which a command takes the option of a rule.

    >>> parameter_of(RULES["cost"])
    'budget'
    """
    return rule.option.removeprefix("--").replace("-", "_")


class RuleOptions(Options):
    """One option for each rule of `selection.rule.RULES`; a user gives at most one of them."""

    def __init__(self, **limits: float | None) -> None:
        self._limits = limits

    @classmethod
    def parameters(cls) -> list[Parameter]:
        """Return the options in the order of `RULES`."""
        found = []
        for rule in RULES.values():
            option = typer.Option(None, rule.option, help=rule.help)
            found.append(_parameter(parameter_of(rule), rule.kind | None, option))
        return found

    def rule(self) -> Rule | None:
        """Return the rule that was given; None without one."""
        given = [rule for rule in RULES.values() if self._limits[parameter_of(rule)] is not None]
        if len(given) > 1:
            known = ", ".join(rule.option for rule in RULES.values())
            found = " and ".join(rule.option for rule in given)
            raise TorchleapError(f"Expected one of {known}, but found {found}. Give one of them.")
        if not given:
            return None
        limit: Any = self._limits[parameter_of(given[0])]
        return given[0](limit)


@dataclass(frozen=True)
class CsvOptions(Options):
    """How CSV is read."""

    separator: Annotated[
        str | None,
        typer.Option(help="The separator of CSV; detected in the first line if left out."),
    ] = None
    names: Annotated[
        str | None,
        typer.Option(help=f"Names of the columns of CSV without a header: a,b,c; {IN_QUOTES}."),
    ] = None

    def settings(self) -> dict[str, Any]:
        """Return the settings with which the library reads CSV."""
        return {"separator": separator_of(self.separator), "names": names_of(self.names)}


@dataclass(frozen=True)
class InspectOptions(Options):
    """Which rows of a file are inspected, and how its label is read."""

    label: Annotated[
        str | None,
        typer.Option(help="The column to predict; with it, columns that leak it are found, too."),
    ] = None
    threshold: Annotated[float | None, typer.Option(help=ABOVE)] = None
    positive: Positive = None
    rows: Annotated[int, typer.Option(min=1, help="The largest number of rows to read.")] = (
        1_000_000
    )


@dataclass(frozen=True)
class ReadOptions(Options):
    """How the columns of a file become a task."""

    label: Annotated[str, typer.Option(help="The column to predict, 0 or 1.")]
    label_threshold: Annotated[float | None, typer.Option(help=ABOVE)] = None
    positive: Positive = None
    group: Annotated[
        str | None, typer.Option(help="The column with the groups for GAUC, such as users.")
    ] = None
    time: Annotated[
        str | None, typer.Option(help="The column with the time of a row; rows are split by it.")
    ] = None
    drop: Annotated[str | None, typer.Option(help=f"Columns to leave out: a,b,c; {IN_QUOTES}.")] = (
        None
    )
    columns: Annotated[
        Path | None, typer.Option(help="A TOML file that declares the kinds of columns.")
    ] = None

    def label_settings(self) -> dict[str, Any]:
        """Return the settings of the label, with which a file is read and inspected."""
        threshold = self.label_threshold
        return {"label": self.label, "threshold": threshold, "positive": self.positive}

    def role_settings(self) -> dict[str, Any]:
        """Return the settings of the other columns, with which a file is read."""
        roles = {"group": self.group, "time": self.time, "drop": listed(self.drop)}
        return {**roles, "columns": self.columns}


@dataclass(frozen=True)
class FieldOptions(Options):
    """Costs and protection of fields."""

    cost: Annotated[
        str | None,
        typer.Option(
            help="The cost of keeping fields: name=2.5,other=1, or "
            """'"a,b"=2,c=1'; their width if left out."""
        ),
    ] = None
    protect: Annotated[
        str | None, typer.Option(help=f"Fields that are always kept: a,b,c; {IN_QUOTES}.")
    ] = None

    def settings(self) -> dict[str, Any]:
        """Return the settings of `Task.priced`."""
        return {"costs": numbers_by_name(self.cost, "--cost"), "protect": listed(self.protect)}


@dataclass(frozen=True)
class SearchOptions(Options):
    """How fields are scored and models trained."""

    method: Annotated[
        str, typer.Option(help="The method that scores fields: leap, permutation, shark, ...")
    ] = "leap"
    price_by: Annotated[
        str | None,
        typer.Option(
            help="What an open field pays for on leap's path: field (all the same), dims or cost."
        ),
    ] = None
    model: Annotated[
        str, typer.Option(help="The backbone: wide_deep, deepfm, dcn, fibinet, mlp, dlrm.")
    ] = "wide_deep"
    batch: Batch = None
    epochs: Epochs = 30
    lr: Annotated[float, typer.Option(help="The learning rate.")] = 1e-3
    seed: Annotated[
        int,
        typer.Option(
            help="The same seed gives the same selection, on the same machine and thread count."
        ),
    ] = 0
    time_limit: Annotated[
        float | None, typer.Option(help="About how many seconds the run may take.")
    ] = None

    def training(self) -> "Training":
        """Return the settings of the trainings, but for those that depend on the data."""
        from ..training.fit import Training

        return Training(epochs=self.epochs, lr=self.lr, checkpoint_minutes=1.0)


@dataclass(frozen=True)
class CertificateOptions(Options):
    """Which loss is acceptable when the smaller model is compared with the full one."""

    margin: Annotated[
        float,
        typer.Option(help="The loss of the metric that is acceptable; above it nothing is safe."),
    ] = 0.001
    relative: Annotated[
        bool, typer.Option("--relative", help="Take --margin as a fraction of the metric.")
    ] = False
    slice_margin: Annotated[
        float | None,
        typer.Option(
            help="The loss that is acceptable in a part of the rows, such as those of one country; "
            "--margin if left out."
        ),
    ] = None
    slice_by: Annotated[
        str | None,
        typer.Option(
            "--slice",
            help=f"Columns by all of whose values the rows are divided as well: a,b; {IN_QUOTES}.",
        ),
    ] = None

    def settings(self) -> dict[str, Any]:
        """Return the settings of `decide` for the certificate."""
        from ..evidence.certify import check_margin

        check_margin(self.margin)
        return {
            "margin": self.margin,
            "relative": self.relative,
            "slice_margin": self.slice_margin,
            "slice_by": listed(self.slice_by),
        }


@dataclass(frozen=True)
class RerunOptions(Options):
    """How often select trains again, so that the certificate covers the chance of training."""

    repeats: Annotated[
        int,
        typer.Option(help="Trainings of both models on the selected fields; 1 is a single one."),
    ] = 1
    repeat_by: Annotated[
        str,
        typer.Option(
            help="What differs between them: training (everything random) or weights (the "
            "initial weights alone)."
        ),
    ] = "training"
    folds: Annotated[
        int | None,
        typer.Option(help="Do everything once per fold, so that every row is a test row once."),
    ] = None

    def settings(self) -> dict[str, Any]:
        """Return the settings of `decide` for further trainings, checked."""
        from ..pipeline.reruns import Settings

        given = {"repeats": self.repeats, "repeat_by": self.repeat_by, "folds": self.folds}
        Settings(**given)  # type: ignore[arg-type]
        return given


@dataclass(frozen=True)
class ResultOptions(Options):
    """Where the results of select are written, and what is printed."""

    out: Annotated[Path, typer.Option(help="The folder for the results.")]
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue an interrupted run, or apply another rule to one that decided nothing.",
        ),
    ] = False
    force: Annotated[bool, typer.Option("--force", help="Replace existing results.")] = False
    no_full: Annotated[
        bool,
        typer.Option(
            "--no-full", help="Do not keep the full model, which torchleap check compares with."
        ),
    ] = False
    ab: Ab = False
    json: Json = False


@dataclass(frozen=True)
class GridOptions(Options):
    """The data sets, backbones and trainings of a benchmark."""

    grid: Annotated[
        Path | None,
        typer.Option(help="A TOML file with all of these settings; see docs/results.md."),
    ] = None
    data: Annotated[
        str | None,
        typer.Option(
            help="ml-1m, criteo, avazu, aliccp, census, industrial, truth@0-9, or files: a,b,c."
        ),
    ] = None
    models: Annotated[str, typer.Option(help="Backbones: all, or names: a,b,c.")] = "wide_deep"
    label: Label = None
    group: Annotated[
        str | None, typer.Option(help="The column with the groups for GAUC, for files.")
    ] = None
    batch: Annotated[
        int | None,
        typer.Option(
            min=2, help="Rows per step; as published, or chosen by the number of rows, if left out."
        ),
    ] = None
    epochs: Epochs = 100

    def training(self) -> dict[str, Any]:
        """Return the settings of the trainings by name, without those that were left out."""
        given = {"epochs": self.epochs, "batch": self.batch}
        return {name: value for name, value in given.items() if value is not None}


METHOD_NAMES = "Methods: all, paper, or names: a,b,c."


@dataclass(frozen=True)
class CompareOptions(GridOptions):
    """The grid of `torchleap bench`."""

    methods: Annotated[str, typer.Option(help=METHOD_NAMES)] = "all"
    shares: Annotated[str, typer.Option(help="Shares of the fields to keep: a,b,c.")] = "0.5,0.25"
    search_seeds: Annotated[
        int, typer.Option(min=1, help="The number of seeds of each search.")
    ] = 2
    retrain_seeds: Annotated[
        int, typer.Option(min=1, help="The number of seeds of each training on the kept fields.")
    ] = 2


@dataclass(frozen=True)
class StepwiseOptions(GridOptions):
    """The grid of `torchleap bench stepwise`."""

    seeds: Seeds = 3


@dataclass(frozen=True)
class RoiOptions(GridOptions):
    """The grid of `torchleap bench roi`, and how models are pruned."""

    methods: Annotated[str, typer.Option(help=METHOD_NAMES)] = (
        "permutation_sample,permutation,shark,autofield,leap_base,leap"
    )
    rows: Annotated[
        int, typer.Option(min=1_000, help="Rows of the log, unless --data names another set.")
    ] = 320_000
    fields: Annotated[int, typer.Option(help="Fields of the log.")] = 512
    dims: Annotated[int, typer.Option(help="Dimensions of the log.")] = 12_000
    pruned: Annotated[str, typer.Option(help="Fractions of the dimensions to prune: a,b,c.")] = (
        "0.04,0.15,0.2,0.3,0.35,0.4,0.5"
    )
    steps: Annotated[int, typer.Option(min=0, help="Steps of fine-tuning; 0 for none.")] = 50
    seeds: Seeds = 3
    epochs: Epochs = 1
    lr: Annotated[float, typer.Option(help="The initial learning rate.")] = 2e-3
    schedule: Annotated[
        str, typer.Option(help="The schedule of the learning rate: constant, cosine or linear.")
    ] = "linear"

    def training(self) -> dict[str, Any]:
        """Return the settings of the trainings by name, without those that were left out."""
        return {**super().training(), "lr": self.lr, "schedule": self.schedule}


@dataclass(frozen=True)
class RunnerOptions(Options):
    """Where a benchmark keeps its results, and how many trials run at the same time."""

    out: Annotated[
        Path | None,
        typer.Option(
            help="The folder for the results; give the same one to continue an interrupted run."
        ),
    ] = None
    folder: Annotated[
        str | None,
        typer.Option(help="The folder with the public data sets; $TORCHLEAP_DATA if left out."),
    ] = None
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Trials at the same time; as many as the cores allow if left out."
        ),
    ] = None
    threads: Annotated[
        int,
        typer.Option(
            min=1,
            help="Threads per trial; sums round differently with another number, "
            "so a seed repeats a result only with the same one.",
        ),
    ] = 1
    json: Json = False
