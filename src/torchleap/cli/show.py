"""Printing, for all commands: text, problems, JSON, and a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from .._common.plain import as_json
from .._common.text import table

OnProgress = Callable[[str, int, int], None]  # the work, how many rows or columns are done, of all


def show(text: str, style: str = "") -> None:
    """Print text unchanged: names may contain brackets, and lines may exceed the terminal."""
    _print(Console(), text, style)


def show_problem(text: str, style: str = "red") -> None:
    """Print text unchanged to the standard error."""
    _print(Console(stderr=True), text, style)


def _print(console: Console, text: str, style: str) -> None:
    console.print(text, style=style, markup=False, highlight=False, emoji=False, soft_wrap=True)


def show_json(content: Any) -> None:
    """Print a plain value as JSON, for scripts."""
    show(as_json(content, indent=1).rstrip("\n"))


def megabytes(count: int) -> str:
    """Return a number of bytes in megabytes.

    >>> megabytes(2_340_000)
    '2.3 MB'
    """
    return f"{count / 1e6:,.1f} MB"


def by_role(roles: Mapping[str, str], widths: Mapping[str, int]) -> str:
    """Return a table with the number of fields and of dimensions of each role."""
    members: dict[str, list[int]] = {}
    for name, role in roles.items():
        members.setdefault(role, []).append(widths[name])
    rows = [[role, str(len(own)), f"{sum(own):,}"] for role, own in sorted(members.items())]
    return table(["role", "fields", "dims"], rows)


@contextmanager
def progress(context: typer.Context) -> Iterator[OnProgress]:
    """Show a bar with the time left on a terminal; yield the function that moves it."""
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

        def move(work: str, done: int, total: int) -> None:
            bar.update(task, description=work, completed=done, total=total)

        yield move
