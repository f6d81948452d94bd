"""The command `torchleap`: each command is one function and one library call; the only place that prints.

A new command is a function in one of these modules, with an example in its docstring, and a line in `commands()`.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib.metadata import version
from math import isfinite
from typing import Annotated, Any

from .._common.checks import is_whole
from .._common.errors import TorchleapError

_MISSING: str | None = None  # the package that the command line lacks
try:
    import typer
    from rich.console import Console
except ImportError as error:
    _MISSING = error.name

GLOBAL = ("--quiet", "--debug")  # understood at any place, also behind the command
LARGEST = (1 << 32) - 1  # of an option; no seed may be larger
Commands = Mapping[str, "Callable[..., None] | Commands"]
HELP = {  # of the groups; a command's own is its docstring, also where it stands for its group
    "": "Find out which input fields a deep ranking model can do without.\n\n"
    "Example: torchleap select clicks.parquet --label click --out result",
    "data": "Inspect data, convert it, make some, clear caches.\n\nExample: torchleap data inspect clicks.csv --label click",
    "make": "Make synthetic data with known ground truth.\n\nExample: torchleap data make industrial log.parquet",
}


def commands() -> Commands:
    """All of them, by name."""
    from . import bench, data, doctor, results, select

    return {
        "demo": select.demo,
        "select": select.select,
        "report": results.report,
        "predict": results.predict,
        "export": results.export,
        "compare": results.compare,
        "bench": {"": bench.bench, "stepwise": bench.bench_stepwise, "roi": bench.bench_roi},
        "data": {
            "inspect": data.data_inspect,
            "convert": data.data_convert,
            "make": {"industrial": data.data_make_industrial},
            "cache": data.data_cache,
        },
        "doctor": doctor.doctor,
    }


def build_app() -> typer.Typer:
    """The commands, ready to be called."""
    app = _group("", commands())
    app.callback()(_global_options)
    return app


def _group(name: str, commands: Commands) -> typer.Typer:
    from .messages import in_own_words

    plain = {
        "rich_markup_mode": None,
        "add_completion": name == "",
        "pretty_exceptions_enable": False,
        "no_args_is_help": True,
    }
    told = (
        {"help": HELP[name]} if name in HELP else {}
    )  # else the docstring of the group's own command
    app = typer.Typer(**told, **plain)  # type: ignore[arg-type]
    for word, command in commands.items():
        if isinstance(command, Mapping):
            app.add_typer(_group(word, command), name=word)
        elif not word:
            app.callback(invoke_without_command=True, no_args_is_help=True)(
                in_own_words(_bounded(command))
            )
        else:
            app.command(word)(in_own_words(_bounded(command)))
    return app


def _bounded(command: Callable[..., None]) -> Callable[..., None]:
    """Let no option take a number that the libraries below could not hold."""

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        for name, value in options.items():
            option = f"--{name.replace('_', '-')}"
            if is_whole(value) and abs(value) > LARGEST:
                raise TorchleapError(
                    f"Expected a number of at most {LARGEST:,} as {option}, but found {str(value)[:40]}."
                )
            if isinstance(value, float) and not isfinite(value):
                raise TorchleapError(f"Expected a finite number as {option}, but found {value}.")
        command(*arguments, **options)

    return run


def _print_version(wanted: bool) -> None:
    if wanted:
        from .show import show

        show(f"torchleap {version('torchleap')}")
        raise typer.Exit


def _global_options(
    context: typer.Context,
    number: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print results only.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    context.obj = {
        "words": sys.argv[1:],
        **(context.obj or {}),
        "quiet": quiet or _is_another_rank(),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 2 for bad input, 130 after Ctrl-C."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if _MISSING:
        sys.stderr.write(
            f"The command line needs the package {_MISSING}. Install it: pip install 'torchleap[cli]'\n"
        )
        return 2
    ordered = [word for word in words if word in GLOBAL] + [
        word for word in words if word not in GLOBAL
    ]
    try:
        return int(
            build_app()(ordered, prog_name="torchleap", standalone_mode=False, obj={"words": words})
            or 0
        )
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except Exception as error:
        sentence = _sentence(error)
        if (
            sentence is not None
            and _is_under_torchrun()
            and os.environ["LOCAL_RANK"] != "0"
            and not hasattr(error, "__notes__")
        ):
            return 2  # it is not alone in that: the first rank of its machine says the same
        if sentence is None or "--debug" in words:
            traceback.print_exc()
        from .messages import bounded

        told = bounded(
            sentence or "This is a mistake in torchleap; please report it with the lines above."
        )
        Console(stderr=True).print(
            told, style="red", markup=False, highlight=False, emoji=False, soft_wrap=True
        )
        return 1 if sentence is None else 2


def _is_another_rank() -> bool:
    """Whether torchrun has started this process beside the first, which talks to the user."""
    return _is_under_torchrun() and os.environ.get("RANK", "0") != "0"


def _is_under_torchrun() -> bool:
    return "LOCAL_RANK" in os.environ


def _sentence(error: Exception) -> str | None:
    """What to tell about a mistake of the user; None for a mistake of ours."""
    if isinstance(error, TorchleapError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and error.name in ("polars", "pyarrow"):
        return f"This command needs the package {error.name}. Install it: pip install 'torchleap[data]'"
    if isinstance(error, OSError):
        return f"{error.filename or 'A file'} cannot be read or written: {error.strerror or error}."
    if hasattr(error, "format_message"):  # a wrong option
        message, path = (
            error.format_message(),
            getattr(getattr(error, "ctx", None), "command_path", "torchleap"),
        )
        return (
            message if "\n" in message else f"{message.rstrip('.')} (see {path} --help)."
        )  # the help itself has many lines
    return None
