"""torchleap bench: compare methods under one protocol; an interrupted run can be continued."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from .._common.errors import TorchleapError
from .._common.text import plural
from .lists import listed, numbers_of
from .options import CompareOptions, GridOptions, RoiOptions, RunnerOptions, StepwiseOptions
from .show import show, show_json, show_problem

if TYPE_CHECKING:
    from ..bench import Grid, Recipe, Runner, Standing, Table

# options that a grid does not contain
BESIDE_A_GRID = ("grid", "out", "folder", "jobs", "threads", "pruned", "steps", "json")
OF_THE_LOG = ("rows", "fields", "dims")


def bench(context: typer.Context, chosen: CompareOptions, running: RunnerOptions) -> None:
    """Compare methods: search, keep the best fields, train a new model; the paper's Table 1.

    Example: torchleap bench --data ml-1m --methods all --shares 0.5,0.25 --out bench --jobs 2
    """
    if context.invoked_subcommand is not None:
        _refuse_before(context, context.invoked_subcommand)
        return
    from ..bench import search_retrain

    _check_options(context, chosen)
    grid = _grid(
        chosen,
        chosen.methods,
        shares=numbers_of(chosen.shares, "--shares"),
        search_seeds=chosen.search_seeds,
        retrain_seeds=chosen.retrain_seeds,
    )
    with _runner(context, running) as runner:
        tables = search_retrain(grid, runner).tables()
    output = Output(context, runner, grid, running.json)
    output.finish("Comparison of methods that select fields", tables)


def bench_stepwise(context: typer.Context, chosen: StepwiseOptions, running: RunnerOptions) -> None:
    """Validate gates: add retained fields one by one, then suppressed ones; the paper's Table 2.

    Example: torchleap bench stepwise --data ml-1m --out bench
    """
    from ..bench import stepwise

    _check_options(context, chosen)
    grid = _grid(chosen, "leap", usual="ml-1m", retrain_seeds=chosen.seeds)
    with _runner(context, running) as runner:
        found = stepwise(grid, runner)
    tables = [table for one in found for table in one.tables()]
    curves = [curve for one in found for curve in one.curves()]
    output = Output(context, runner, grid, running.json)
    unused = {"shares": None, "search_seeds": None}
    output.finish("Stepwise validation of the gates", tables, curves, unused)


def bench_roi(context: typer.Context, chosen: RoiOptions, running: RunnerOptions) -> None:
    """Measure what pruning costs, by method and by fraction of the dimensions.

    On the industrial log, seen once, it is the paper's Table 3.

    Example: torchleap bench roi --rows 320000 --fields 512 --dims 12000 --out bench
    """
    from ..bench import Prunings, industrial_recipe, roi

    _check_options(context, chosen)
    logs = []
    if chosen.data is None and chosen.grid is None:
        logs = [industrial_recipe(rows=chosen.rows, fields=chosen.fields, dims=chosen.dims)]
    grid = _grid(chosen, chosen.methods, more=logs, search_seeds=chosen.seeds)
    prunings = Prunings(fractions=numbers_of(chosen.pruned, "--pruned"), steps=chosen.steps)
    with _runner(context, running) as runner:
        found = roi(grid, runner, prunings)
    tables = [table for one in found for table in one.tables()]
    curves = [curve for one in found for curve in one.curves()]
    unused = {"shares": None, "retrain_seeds": None}
    own = {"pruned": list(prunings.fractions), "steps": prunings.steps}
    output = Output(context, runner, grid, running.json)
    output.finish("The cost of pruning, by method", tables, curves, {**unused, **own})


def _refuse_before(context: typer.Context, command: str) -> None:
    """Refuse options that come before the name of a command of bench."""
    given = _written(_given(context))
    if given:
        raise TorchleapError(
            f"Expected {given} behind {command}, but found it before: "
            f"torchleap bench {command} {given} ..."
        )


def _check_options(context: typer.Context, chosen: GridOptions) -> None:
    """Refuse options without effect: those that a grid contains, and the size of an unused log."""
    given = _given(context)
    if chosen.grid is not None:
        instead = "--grid"
        refused = [name for name in given if name not in BESIDE_A_GRID]
        cure = "Write that into the grid, or leave --grid out."
    elif chosen.data is not None:
        instead = "--data"
        refused = [name for name in given if name in OF_THE_LOG]
        cure = "The log is made only without --data: leave one of them out."
    else:
        return
    if refused:
        raise TorchleapError(
            f"Expected {instead} without {_written(refused)}, but found both. {cure}"
        )


def _given(context: typer.Context) -> list[str]:
    """Return the names of the options that were given on the command line."""
    found = []
    for name in context.params:
        source = context.get_parameter_source(name)
        if getattr(source, "name", "") == "COMMANDLINE":
            found.append(name)
    return found


def _written(names: Sequence[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def _grid(
    chosen: GridOptions,
    methods: str,
    *,
    usual: str | None = None,
    more: Sequence[Recipe] = (),
    **settings: Any,
) -> Grid:
    """Return the grid of the options, or that of a file.

    Args:
        chosen: The options.
        methods: The names of the methods.
        usual: The data set without --data; None if it has to be given.
        more: Further data sets.
        settings: Shares and seeds, as in `Grid`.
    """
    from ..bench import Grid, file_recipe

    if chosen.grid is not None:
        return Grid.load(chosen.grid)
    recipes: list[str | Recipe] = []
    for word in listed(chosen.data or usual):
        if Path(word).suffix:
            recipes.append(file_recipe(word, chosen.label, chosen.group))
        else:
            recipes.append(word)
    recipes += more
    if not recipes:
        raise TorchleapError("Expected data sets: give --data ml-1m, or --grid GRID.toml.")
    models = listed(chosen.models)
    return Grid.of(recipes, listed(methods), models, training=chosen.training(), **settings)


@contextmanager
def _runner(context: typer.Context, running: RunnerOptions) -> Iterator[Runner]:
    """Yield a runner with a bar and the time left; after Ctrl-C, print how to continue."""
    from ..bench import Runner, cores

    if running.out is None:
        raise TorchleapError("Expected a folder for the results: give --out DIR.")
    jobs = running.jobs or max(1, cores() // running.threads)
    with Display(hidden=context.obj["quiet"] or running.json) as display:
        try:
            yield Runner(
                running.out,
                jobs=jobs,
                threads=running.threads,
                sets=running.folder,
                on_progress=display.move,
                reading=display.read,
            )
        except KeyboardInterrupt:
            show_problem("Finished trials are saved; the same command continues.", style="")
            raise


class Display:
    """The progress of a benchmark: a bar on a terminal, and a line per trial in a log file.

    Args:
        hidden: Show nothing.
    """

    def __init__(self, *, hidden: bool) -> None:
        self._console = Console(stderr=True)
        self._prints_lines = not hidden and not self._console.is_terminal
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            TextColumn("{task.description}", markup=False),
        )
        disabled = hidden or not self._console.is_terminal
        self._bar = Progress(*columns, console=self._console, transient=True, disable=disabled)
        self._task = self._bar.add_task("", total=None, left="")

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._bar.stop()

    def move(self, standing: Standing) -> None:
        """Show how many trials are done, which ones are running, and the time left."""
        left = "" if standing.left is None else f"{_duration(standing.left)} left"
        names = "; ".join(standing.running)
        done, total = standing.done, standing.total
        self._bar.update(self._task, completed=done, total=total, description=names, left=left)
        if self._prints_lines and standing.running:
            show_problem(f"{done}/{total} {left} {names}", style="")

    def read(self, work: str, done: int, total: int) -> None:
        """Show how many rows of a data set have been read."""
        self._bar.update(self._task, completed=done, total=total, description=work)


class Output:
    """The tables and the report of a benchmark, written and printed.

    Args:
        context: The context of the command.
        runner: The runner that did the trials.
        grid: The settings of the benchmark.
        json: Print JSON in place of the tables.
    """

    def __init__(self, context: typer.Context, runner: Runner, grid: Grid, json: bool) -> None:
        self._context = context
        self._runner = runner
        self._grid = grid
        self._json = json

    def finish(
        self,
        title: str,
        tables: Sequence[Table],
        curves: Sequence[dict[str, Any]] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Write and print the tables; exit with code 1 if trials failed.

        Args:
            title: The heading of the report.
            tables: The tables.
            curves: The charts of the report.
            settings: Settings to show in place of the grid's own; None for those without effect.
        """
        record = self._write(title, tables, curves, settings or {})
        failures = list(self._runner.failures.values())
        if self._json:
            shown = {"tables": record["tables"], "curves": record["curves"]}
            show_json({**shown, "failures": failures})
        else:
            show("\n\n".join(table.text() for table in tables))
            if not self._context.obj["quiet"]:
                folder = self._runner.folder
                show(f"\nWrote {folder}: tables.txt, .md, .tex, and report.html.")
        if failures:
            _show_failures(failures)
            raise typer.Exit(1)

    def _write(
        self,
        title: str,
        tables: Sequence[Table],
        curves: Sequence[dict[str, Any]],
        settings: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Write the tables and the report; return its record."""
        from ..bench import record_of, write_tables
        from ..report import Report

        folder = self._runner.folder
        command = shlex.join(["torchleap", *self._context.obj["words"]])
        record = record_of(
            title, tables, curves, self._grid, self._runner, command=command, settings=settings
        )
        write_tables(tables, folder, "tables")
        report = Report(record)
        report.write(folder / "report.json")
        report.write(folder / "report.html")
        return record


def _show_failures(failures: Sequence[str]) -> None:
    lines = [f"Failed: {problem}" for problem in failures]
    lines.append(
        f"{plural(len(failures), 'trial')} failed, so the tables have gaps; "
        "the same command tries again."
    )
    show_problem("\n".join(lines))


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min"
