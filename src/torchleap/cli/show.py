"""What the commands share: printing, progress, and options that stand for lists."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from .._common.errors import TorchleapError
from .._common.text import table

IN_QUOTES = (
    """a name with a comma in double quotes: '"a,b",c'"""  # for the help of options that are lists
)
Tell = Callable[
    [str, int, int], None
]  # what is being done, how many rows or columns are, of how many


def show(text: str, style: str = "") -> None:
    """Print as it is: names may hold brackets, and lines may be longer than the terminal."""
    Console().print(text, style=style, markup=False, highlight=False, emoji=False, soft_wrap=True)


@contextmanager
def progress(context: typer.Context) -> Iterator[Tell]:
    """A bar with the time left, on a terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    hidden = context.obj["quiet"] or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda what, done, total: bar.update(
            task, description=what, completed=done, total=total
        )


def separator_of(given: str | None) -> str | None:
    """A tab may be given in words."""
    return "\t" if given in ("\\t", "tab") else given


def names_of(given: str | None) -> list[str] | None:
    """The names of columns: one for each, so that an empty one is not passed over."""
    return None if given is None else _words(given)


def by_role(roles: Mapping[str, str], widths: Mapping[str, int]) -> str:
    """How many fields and dimensions each role has."""
    members = {
        role: [widths[name] for name in roles if roles[name] == role]
        for role in sorted(set(roles.values()))
    }
    return table(
        ["role", "fields", "dims"],
        [[role, str(len(own)), f"{sum(own):,}"] for role, own in members.items()],
    )


def as_json(content: Any) -> None:
    """Print JSON, for scripts."""
    show(json.dumps(content, indent=1, allow_nan=False))


def listed(given: str | None) -> list[str]:
    """The words of a list; one that holds a comma stands in double quotes, as in CSV.

    >>> listed('a, b,"c,d"')
    ['a', 'b', 'c,d']
    """
    return [word for word in _words(given or "") if word]


def joined(names: Iterable[str]) -> str:
    """The list that `listed` reads as these names.

    >>> joined(["a", "b", "c,d"])
    'a, b, "c,d"'
    """
    return ", ".join(
        '"{}"'.format(n.replace('"', '""')) if "," in n or n.startswith('"') else n for n in names
    )


def _words(given: str) -> list[str]:
    try:
        *words, rest = next(csv.reader([f"{given},"], skipinitialspace=True))
    except csv.Error as error:
        raise TorchleapError(
            f"Expected words with commas between them, but found {given!r}: {error}."
        ) from error
    if rest:  # the comma that was put behind the last word became part of it
        raise TorchleapError(
            f'Expected a,b or "a,b",c with every double quote closed, but found {given!r}.'
        )
    return [word.strip() for word in words]


def numbers_by_name(given: str | None, option: str) -> dict[str, float]:
    """What an option such as name=2.5,"other,one"=1 says."""
    found = {}
    for word in listed(given):
        name, equals, number = word.rpartition("=")
        try:
            found[name] = float(number)
        except ValueError:
            equals = ""
        if not equals or not name:
            raise TorchleapError(f"{option} must be NAME=NUMBER,..., but has {word!r}.")
    return found
