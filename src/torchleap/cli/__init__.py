"""The command `torchleap`: each command is one function; the only place that prints.

A new command is a function in one of these modules, with an example in its docstring, and a line
in `commands()`. A new option is a field of the group of its command in `options.py`; an option of
a small command without a group is a parameter of its function.
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

from .._common.checks import LARGEST_SEED, is_whole
from .._common.errors import TorchleapError
from .._common.optional import missing

_MISSING: str | None = None  # the package that the command line lacks
try:
    import rich  # noqa: F401
    import typer
except ImportError as error:
    _MISSING = error.name

GLOBAL = ("--quiet", "--debug")  # understood at any place, also behind the command
BUG = "This is a bug in torchleap; please report it with the lines above."
Commands = Mapping[str, "Callable[..., None] | Commands"]
HELP = {  # of the groups; a command's own help is its docstring, also that of a group's command
    "": "Find out which input fields a deep ranking model can do without.\n\n"
    "Example: torchleap select clicks.parquet --label click --out result",
    "data": "Inspect, convert and make data, and clear caches.\n\n"
    "Example: torchleap data inspect clicks.csv --label click",
    "make": "Make synthetic data with known ground truth.\n\n"
    "Example: torchleap data make industrial log.parquet",
}


def commands() -> Commands:
    """Return all commands by name; the one named "" is that of its group."""
    from . import bench, check, data, doctor, results, select

    return {
        "demo": select.demo,
        "select": select.select,
        "check": check.check,
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
    """Return the commands, ready to be called."""
    app = _group("", commands())
    app.callback()(_global_options)
    return app


def _group(name: str, commands: Commands) -> typer.Typer:
    settings: dict[str, Any] = {"no_args_is_help": True}
    if name in HELP:  # otherwise it is the docstring of the group's own command
        settings["help"] = HELP[name]
    app = typer.Typer(
        rich_markup_mode=None,
        add_completion=name == "",
        pretty_exceptions_enable=False,
        **settings,
    )
    for word, command in commands.items():
        if isinstance(command, Mapping):
            app.add_typer(_group(word, command), name=word)
        elif not word:
            app.callback(invoke_without_command=True, no_args_is_help=True)(_prepared(command))
        else:
            app.command(word)(_prepared(command))
    return app


def _prepared(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command as typer takes it, whose messages name its options."""
    from .messages import in_own_words
    from .options import flat

    return in_own_words(_bounded(flat(command)))


def _bounded(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that refuses numbers that the libraries below could not hold."""

    @wraps(command)
    def run(**options: Any) -> None:
        for name, value in options.items():
            option = f"--{name.replace('_', '-')}"
            if is_whole(value) and abs(value) > LARGEST_SEED:
                raise TorchleapError(
                    f"Expected a number of at most {LARGEST_SEED:,} as {option}, "
                    f"but found {str(value)[:40]}."
                )
            if isinstance(value, float) and not isfinite(value):
                raise TorchleapError(f"Expected a finite number as {option}, but found {value}.")
        command(**options)

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
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    context.obj = {
        "words": sys.argv[1:],
        **(context.obj or {}),
        "quiet": quiet or _is_another_rank(),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    It is 2 for bad input, 3 where `check` does not certify, and 130 after Ctrl-C.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if _MISSING:
        sys.stderr.write(missing(_MISSING, "cli", "The command line") + "\n")
        return 2
    first = [word for word in words if word in GLOBAL]
    others = [word for word in words if word not in GLOBAL]
    app = build_app()
    try:
        code = app(
            [*first, *others], prog_name="torchleap", standalone_mode=False, obj={"words": words}
        )
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except Exception as error:
        return _report(error, debug="--debug" in words)
    return int(code or 0)


def _report(error: Exception, *, debug: bool) -> int:
    """Print the message of an error and return the exit code: 2 for bad input, 1 for a bug."""
    from .messages import bounded
    from .show import show_problem

    sentence = _sentence(error)
    if sentence is not None and _is_repeated(error):
        return 2
    if sentence is None or debug:
        traceback.print_exception(error)
    show_problem(bounded(sentence or BUG))
    return 1 if sentence is None else 2


def _is_repeated(error: Exception) -> bool:
    """Return whether the first rank of this machine reports the same error."""
    is_first = os.environ.get("LOCAL_RANK", "0") == "0"
    return not is_first and not hasattr(error, "__notes__")


def _is_another_rank() -> bool:
    """Return whether torchrun started this process beside the first, which alone prints."""
    return "LOCAL_RANK" in os.environ and os.environ.get("RANK", "0") != "0"


def _sentence(error: Exception) -> str | None:
    """Return the message for a mistake of the user; None for a bug."""
    if isinstance(error, TorchleapError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and error.name in ("polars", "pyarrow"):
        return missing(error.name, "data", "This command")
    if isinstance(error, OSError):
        return f"{error.filename or 'A file'} cannot be read or written: {error.strerror or error}."
    if hasattr(error, "format_message"):  # a wrong option
        return _usage(error, error.format_message())
    return None


def _usage(error: Exception, message: str) -> str:
    """Return the message about a wrong option with the command that explains it."""
    if "\n" in message:  # it is the help itself
        return message
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "torchleap")
    return f"{message.rstrip('.')} (see {path} --help)."
