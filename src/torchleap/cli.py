"""The command `torchleap`: each command is one function and one library call; the only place that prints.

A new command is a function here, with an example in its docstring, and a line in `COMMANDS`.
"""

from __future__ import annotations  # so that typer is needed only when a command is run

import json
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

from .errors import TorchleapError
from .text import plural, table

_MISSING: str | None = None  # the package that the command line lacks
try:
    import typer
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
except ImportError as error:
    _MISSING = error.name

Tell = Callable[[str, int, int], None]  # what is being done, how many rows or columns are, of how many
GLOBAL = ("--quiet", "--debug")  # understood at any place, also behind the command


def data_inspect(
    context: typer.Context,
    file: Annotated[str, typer.Argument(help="Parquet, CSV, TSV or Arrow; also a folder, or a pattern in quotes.")],
    label: Annotated[str | None, typer.Option(help="The column to predict; then leaks are looked for, too.")] = None,
    threshold: Annotated[float | None, typer.Option(help="The label is 1 above this, for ratings.")] = None,
    positive: Annotated[str | None, typer.Option(help="The label is 1 where it has this value.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="Look at that many rows at most.")] = 1_000_000,
    separator: Annotated[str | None, typer.Option(help="Of CSV; found in its first line if left out.")] = None,
    names: Annotated[str | None, typer.Option(help="Of the columns of CSV without a header: a,b,c.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what each column holds, and which look wrong.

    Example: torchleap data inspect clicks.parquet --label click
    """
    from .data.inspection import inspect

    with _progress(context) as tell:
        found = inspect(
            file, label=label, threshold=threshold, positive=positive, rows=rows,
            separator=_separator(separator), names=_names(names), progress=tell,
        )  # fmt: skip
    if as_json:
        _show(json.dumps(found.to_json(), indent=1, allow_nan=False))
        return
    title, columns, notes = str(found).split("\n\n")
    _show(title, style="bold")
    _show(f"\n{columns}\n")
    _show(notes, style="yellow" if any(column.notes for column in found.columns) else "green")


def data_convert(
    context: typer.Context,
    source: Annotated[str, typer.Argument(help="Parquet, CSV, TSV or Arrow; also a folder, or a pattern in quotes.")],
    out: Annotated[Path, typer.Argument(help="The new file: .parquet, .arrow or .csv.")],
    separator: Annotated[str | None, typer.Option(help="Of CSV; found in its first line if left out.")] = None,
    names: Annotated[str | None, typer.Option(help="Of the columns of CSV without a header: a,b,c.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Write the rows of a file in another format, with numbers as numbers.

    Example: torchleap data convert clicks.csv clicks.parquet
    """
    from .data.converting import convert

    with _progress(context) as tell:
        rows, columns = convert(source, out, separator=_separator(separator), names=_names(names), overwrite=force, progress=tell)
    if not context.obj["quiet"]:
        _show(f"Wrote {out}: {plural(rows, 'row')}, {plural(columns, 'column')}, {out.stat().st_size / 1e6:,.1f} MB.")


def data_make_industrial(
    context: typer.Context,
    out: Annotated[Path, typer.Argument(help="The new file, which ends in .parquet.")],
    rows: Annotated[int, typer.Option(min=1, help="Rows to draw.")] = 100_000,
    fields: Annotated[int, typer.Option(help="Fields, of all roles.")] = 64,
    dims: Annotated[int, typer.Option(help="Dimensions of all fields in the model.")] = 1_000,
    seed: Annotated[int, typer.Option(help="Another seed gives other effects and rows.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Make a search-ranking log of which it is known what each field is for.

    Example: torchleap data make industrial log.parquet --rows 100000 --fields 64 --dims 1000
    """
    import polars as pl

    from .data.converting import check_free
    from .data.industrial import IndustrialLog

    log = IndustrialLog(fields=fields, dims=dims, seed=seed)
    check_free(out, [".parquet"], overwrite=force)
    with _progress(context) as tell:
        log.write(out, rows, progress=lambda done: tell("writing", done, rows))
    if not context.obj["quiet"]:
        _show(f"Wrote {out}: {plural(rows, 'row')}, {fields} fields, {dims:,} dims, {out.stat().st_size / 1e6:,.1f} MB.")
        share = pl.read_parquet(out, columns=["label"])["label"].to_numpy().mean()
        _show(f"The label is 1 in {100 * share:.1f} % of rows.\n\n{_by_role(log.role, log.widths)}\n")
        _show(f"Next: torchleap data inspect {shlex.quote(str(out))} --label label")


Commands = Mapping[str, "Callable[..., None] | Commands"]
COMMANDS: Commands = {"data": {"inspect": data_inspect, "convert": data_convert, "make": {"industrial": data_make_industrial}}}
HELP = {  # of the groups; a command's own is its docstring
    "": "Find out which input fields a deep ranking model can do without.\n\nExample: torchleap data inspect clicks.csv",
    "data": "Look at data, convert it, make some.\n\nExample: torchleap data inspect clicks.csv --label click",
    "make": "Make data whose truth is known.\n\nExample: torchleap data make industrial log.parquet",
}


def build_app() -> typer.Typer:
    """The commands, ready to be called."""
    app = _group("", COMMANDS)
    app.callback()(_global_options)
    return app


def _group(name: str, commands: Commands) -> typer.Typer:
    plain = {"rich_markup_mode": None, "add_completion": name == "", "pretty_exceptions_enable": False, "no_args_is_help": True}
    app = typer.Typer(help=HELP[name], **plain)  # type: ignore[arg-type]
    for word, command in commands.items():
        if isinstance(command, Mapping):
            app.add_typer(_group(word, command), name=word)
        else:
            app.command(word)(command)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        _show(f"torchleap {version('torchleap')}")
        raise typer.Exit


def _global_options(
    context: typer.Context,
    number: Annotated[bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print results only.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    context.obj = {"quiet": quiet}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 2 for bad input, 130 after Ctrl-C."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if _MISSING:
        sys.stderr.write(f"The command line needs the package {_MISSING}. Install it: pip install 'torchleap[cli]'\n")
        return 2
    ordered = [word for word in words if word in GLOBAL] + [word for word in words if word not in GLOBAL]
    try:
        return int(build_app()(ordered, prog_name="torchleap", standalone_mode=False) or 0)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except Exception as error:
        sentence = _sentence(error)
        if sentence is None or "--debug" in words:
            traceback.print_exc()
        told = sentence or "This is a mistake in torchleap; please report it with the lines above."
        Console(stderr=True).print(told, style="red", markup=False, highlight=False, emoji=False, soft_wrap=True)
        return 1 if sentence is None else 2


def _sentence(error: Exception) -> str | None:
    """What to tell about a mistake of the user; None for a mistake of ours."""
    if isinstance(error, TorchleapError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and error.name in ("polars", "pyarrow"):
        return f"This command needs the package {error.name}. Install it: pip install 'torchleap[data]'"
    if isinstance(error, OSError):
        return f"{error.filename or 'A file'} cannot be read or written: {error.strerror or error}."
    if hasattr(error, "format_message"):  # a wrong option
        message, path = error.format_message(), getattr(getattr(error, "ctx", None), "command_path", "torchleap")
        return message if "\n" in message else f"{message.rstrip('.')} (see {path} --help)."  # the help itself has many lines
    return None


def _show(text: str, style: str = "") -> None:
    """Print as it is: names may hold brackets, and lines may be longer than the terminal."""
    Console().print(text, style=style, markup=False, highlight=False, emoji=False, soft_wrap=True)


@contextmanager
def _progress(context: typer.Context) -> Iterator[Tell]:
    """A bar with the time left, on a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    hidden = context.obj["quiet"] or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def _separator(given: str | None) -> str | None:
    return "\t" if given in ("\\t", "tab") else given


def _names(given: str | None) -> list[str] | None:
    return None if given is None else given.split(",")


def _by_role(roles: Mapping[str, str], widths: Mapping[str, int]) -> str:
    """How many fields and dimensions each role has."""
    members = {role: [widths[name] for name in roles if roles[name] == role] for role in sorted(set(roles.values()))}
    return table(["role", "fields", "dims"], [[role, str(len(own)), f"{sum(own):,}"] for role, own in members.items()])


if __name__ == "__main__":
    sys.exit(main())
