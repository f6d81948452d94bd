"""torchleap bench: methods, data sets, backbones, shares and seeds compared under one protocol; killed runs resume."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from .._common.errors import TorchleapError
from .._common.text import plural
from .show import as_json, listed, show

if TYPE_CHECKING:
    from ..bench import Grid, Recipe, Runner, Standing, Table

GridFile = Annotated[
    Path | None,
    typer.Option("--grid", help="A TOML file that says all of this; see docs/results.md."),
]
Data = Annotated[
    str | None,
    typer.Option(
        help="ml-1m, criteo, avazu, aliccp, census, industrial, truth@0-9, or files: a,b,c."
    ),
]
Label = Annotated[str | None, typer.Option(help="The column to predict, for files.")]
Group = Annotated[str | None, typer.Option(help="The column of GAUC's groups, for files.")]
Methods = Annotated[str, typer.Option(help="all, paper, or names: a,b,c.")]
Models = Annotated[str, typer.Option(help="Backbones: all, or names: a,b,c.")]
Out = Annotated[
    Path | None,
    typer.Option(help="The folder for results; the same one continues a run that was interrupted."),
]
Folder = Annotated[
    str | None, typer.Option(help="Where the public sets lie; else $TORCHLEAP_DATA.")
]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Trials at a time; as many as the cores allow if left out."),
]
Threads = Annotated[
    int,
    typer.Option(
        min=1,
        help="Of each trial; another number rounds otherwise, so a seed repeats with the same one only.",
    ),
]
Batch = Annotated[
    int | None, typer.Option(min=2, help="Rows per step; as published, or by the number of rows.")
]
Epochs = Annotated[
    int, typer.Option(min=1, help="At most so many; it stops when nothing gets better.")
]
Seeds = Annotated[int, typer.Option(min=1, help="Seeds of each training.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
BESIDE_A_GRID = (
    "grid",
    "out",
    "folder",
    "jobs",
    "threads",
    "pruned",
    "steps",
    "json",
)  # options that a grid does not say
OF_THE_LOG = ("rows", "fields", "dims")


def bench(
    context: typer.Context,
    grid: GridFile = None,
    data: Data = None,
    methods: Methods = "all",
    models: Models = "wide_deep",
    shares: Annotated[str, typer.Option(help="Of the fields that are kept: a,b,c.")] = "0.5,0.25",
    search_seeds: Annotated[int, typer.Option(min=1, help="Seeds of each search.")] = 2,
    retrain_seeds: Annotated[
        int, typer.Option(min=1, help="Seeds of each training on the fields that were kept.")
    ] = 2,
    out: Out = None,
    label: Label = None,
    group: Group = None,
    folder: Folder = None,
    jobs: Jobs = None,
    threads: Threads = 1,
    batch: Batch = None,
    epochs: Epochs = 100,
    json: Json = False,
) -> None:
    """Compare methods: search, keep the best fields, train a fresh model on them; the paper's Table 1.

    Example: torchleap bench --data ml-1m --methods all --shares 0.5,0.25 --out bench --jobs 2
    """
    if context.invoked_subcommand is not None:
        _refuse_before(context, context.invoked_subcommand)
        return
    from ..bench import search_retrain

    seeds: dict[str, Any] = {
        "search_seeds": search_seeds,
        "retrain_seeds": retrain_seeds,
        "shares": tuple(_numbers(shares, "--shares")),
    }
    _check_options(context, grid, data)
    chosen = _grid(grid, data, methods, models, label, group, batch, epochs, **seeds)
    with _runner(context, out, jobs, threads, folder, json) as runner:
        tables = search_retrain(chosen, runner).tables()
    _finish(context, runner, "Methods that select fields, compared", tables, [], chosen, json)


def bench_stepwise(
    context: typer.Context,
    data: Data = None,
    models: Models = "wide_deep",
    seeds: Seeds = 3,
    out: Out = None,
    grid: GridFile = None,
    label: Label = None,
    group: Group = None,
    folder: Folder = None,
    jobs: Jobs = None,
    threads: Threads = 1,
    batch: Batch = None,
    epochs: Epochs = 100,
    json: Json = False,
) -> None:
    """Do gates tell what fields are worth? Add retained fields one by one, then each suppressed one; the paper's Table 2.

    Example: torchleap bench stepwise --data ml-1m --out bench
    """
    from ..bench import stepwise

    _check_options(context, grid, data)
    chosen = _grid(
        grid, data or "ml-1m", "leap", models, label, group, batch, epochs, retrain_seeds=seeds
    )
    with _runner(context, out, jobs, threads, folder, json) as runner:
        found = stepwise(chosen, runner)
    tables, curves = (
        [t for one in found for t in one.tables()],
        [c for one in found for c in one.curves()],
    )
    unused = {"shares": None, "search_seeds": None}
    _finish(context, runner, "What gates tell about fields", tables, curves, chosen, json, unused)


def bench_roi(
    context: typer.Context,
    data: Data = None,
    methods: Methods = "permutation_sample,permutation,shark,autofield,leap_base,leap",
    models: Models = "wide_deep",
    rows: Annotated[
        int, typer.Option(min=1_000, help="Rows of the log, unless --data names another set.")
    ] = 320_000,
    fields: Annotated[int, typer.Option(help="Fields of the log.")] = 512,
    dims: Annotated[int, typer.Option(help="Dimensions of the log.")] = 12_000,
    pruned: Annotated[
        str, typer.Option(help="Shares of the dimensions that go: a,b,c.")
    ] = "0.04,0.15,0.2,0.3,0.35,0.4,0.5",
    steps: Annotated[int, typer.Option(min=0, help="Of fine-tuning; 0 is none.")] = 50,
    seeds: Seeds = 3,
    out: Out = None,
    grid: GridFile = None,
    label: Label = None,
    group: Group = None,
    folder: Folder = None,
    jobs: Jobs = None,
    threads: Threads = 1,
    batch: Batch = None,
    epochs: Epochs = 1,
    lr: Annotated[float, typer.Option(help="Learning rate, at first.")] = 2e-3,
    schedule: Annotated[
        str, typer.Option(help="How it falls: constant, cosine or linear.")
    ] = "linear",
    json: Json = False,
) -> None:
    """What pruning shares of the dimensions costs, by method; on the industrial log, seen once, it is the paper's Table 3.

    Example: torchleap bench roi --rows 320000 --fields 512 --dims 12000 --out bench
    """
    from ..bench import Prunings, industrial_recipe, roi

    _check_options(context, grid, data)
    own = (
        [industrial_recipe(rows=rows, fields=fields, dims=dims)]
        if data is None and grid is None
        else []
    )
    chosen = _grid(
        grid,
        data,
        methods,
        models,
        label,
        group,
        batch,
        epochs,
        lr,
        schedule,
        search_seeds=seeds,
        more=own,
    )
    prunings = Prunings(shares=tuple(_numbers(pruned, "--pruned")), steps=steps)
    with _runner(context, out, jobs, threads, folder, json) as runner:
        found = roi(chosen, runner, prunings)
    tables, curves = (
        [t for one in found for t in one.tables()],
        [c for one in found for c in one.curves()],
    )
    settings = {
        "shares": None,
        "retrain_seeds": None,
        "pruned": list(prunings.shares),
        "steps": prunings.steps,
    }
    _finish(
        context, runner, "What pruning costs, by method", tables, curves, chosen, json, settings
    )


def _refuse_before(context: typer.Context, command: str) -> None:
    given = _options(_given(context))
    if given:
        raise TorchleapError(
            f"Expected {given} behind {command}, but found it before: torchleap bench {command} {given} ..."
        )


def _check_options(context: typer.Context, grid: Path | None, data: str | None) -> None:
    """Refuse what would be passed over in silence: what a grid says itself, and the size of a log that is not made."""
    given = _given(context)
    if grid is not None:
        instead, refused = "--grid", [name for name in given if name not in BESIDE_A_GRID]
        cure = "Write that into the grid, or leave --grid out."
    else:
        instead, refused = (
            "--data",
            [name for name in given if data is not None and name in OF_THE_LOG],
        )
        cure = "The log is made only without --data: leave one of them out."
    if refused:
        raise TorchleapError(
            f"Expected {instead} without {_options(refused)}, but found both. {cure}"
        )


def _given(context: typer.Context) -> list[str]:
    """The names of the options that stand on the command line."""
    return [
        name
        for name in context.params
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    ]


def _options(names: Sequence[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def _grid(
    file: Path | None,
    data: str | None,
    methods: str,
    models: str,
    label: str | None,
    group: str | None,
    batch: int | None,
    epochs: int,
    lr: float | None = None,
    schedule: str | None = None,
    more: Sequence[Recipe] = (),
    **settings: Any,
) -> Grid:
    from ..bench import Grid, file_recipe

    if file is not None:
        return Grid.load(file)
    words = listed(data)
    if not words and not more:
        raise TorchleapError("Expected data sets: give --data ml-1m, or --grid GRID.toml.")
    recipes = [file_recipe(word, label, group) if Path(word).suffix else word for word in words]
    given = {"epochs": epochs, "batch": batch, "lr": lr, "schedule": schedule}
    training = {name: value for name, value in given.items() if value is not None}
    return Grid.of(
        [*recipes, *more], listed(methods), listed(models), training=training, **settings
    )


@contextmanager
def _runner(
    context: typer.Context,
    out: Path | None,
    jobs: int | None,
    threads: int,
    folder: str | None,
    as_json_too: bool,
) -> Iterator[Runner]:
    """A runner with a bar and the time left; Ctrl-C says how to go on."""
    from ..bench import Runner, cores

    if out is None:
        raise TorchleapError("Expected a folder for the results: give --out DIR.")
    console = Console(stderr=True)
    hidden = context.obj["quiet"] or as_json_too
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}", markup=False),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(
        *columns, console=console, transient=True, disable=hidden or not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=None, left="")

        def tell(standing: Standing) -> None:
            left = "" if standing.left is None else f"{_duration(standing.left)} left"
            names = "; ".join(standing.running)
            bar.update(
                task, completed=standing.done, total=standing.total, description=names, left=left
            )
            if (
                not hidden and not console.is_terminal and standing.running
            ):  # a log file: a line for each trial
                console.print(
                    f"{standing.done}/{standing.total} {left} {names}",
                    markup=False,
                    highlight=False,
                    soft_wrap=True,
                )

        def reading(what: str, done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, description=what)

        try:
            yield Runner(
                out,
                jobs=jobs or max(1, cores() // threads),
                threads=threads,
                sets=folder,
                on_progress=tell,
                reading=reading,
            )
        except KeyboardInterrupt:
            console.print(
                "Finished trials are saved; the same command continues.",
                markup=False,
                highlight=False,
            )
            raise


def _finish(
    context: typer.Context,
    runner: Runner,
    title: str,
    tables: Sequence[Table],
    curves: Sequence[dict[str, Any]],
    grid: Grid,
    as_json_too: bool,
    settings: Mapping[str, Any]
    | None = None,  # in place of the grid's own; None for those that play no part
) -> None:
    from ..bench import record_of, write_tables
    from ..report import Report

    record = record_of(title, tables, curves, grid, runner)
    record["command"] = shlex.join(["torchleap", *context.obj["words"]])
    shown = record["settings"] | (settings or {})
    record["settings"] = {name: value for name, value in shown.items() if value is not None}
    write_tables(tables, runner.folder, "tables")
    report = Report(record)
    report.write(runner.folder / "report.json")
    report.write(runner.folder / "report.html")
    if as_json_too:
        as_json(
            {
                "tables": record["tables"],
                "curves": record["curves"],
                "failures": list(runner.failures.values()),
            }
        )
    else:
        show("\n\n".join(table.text() for table in tables))
    if not context.obj["quiet"] and not as_json_too:
        show(f"\nWrote {runner.folder}: tables.txt, .md, .tex, and report.html.")
    if runner.failures:
        failed = f"{plural(len(runner.failures), 'trial')} failed, so the tables have gaps; the same command tries again."
        told = "\n".join([*(f"Failed: {problem}" for problem in runner.failures.values()), failed])
        Console(stderr=True).print(
            told, style="red", markup=False, highlight=False, emoji=False, soft_wrap=True
        )
        raise typer.Exit(1)


def _numbers(given: str, option: str) -> list[float]:
    try:
        return [float(word) for word in listed(given)]
    except ValueError as error:
        raise TorchleapError(
            f"{option} must be numbers such as 0.5,0.25, but is {given!r}."
        ) from error


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return (
        f"{seconds:.0f} s"
        if seconds < 90
        else f"{minutes} min"
        if minutes < 90
        else f"{minutes // 60} h {minutes % 60:02d} min"
    )
