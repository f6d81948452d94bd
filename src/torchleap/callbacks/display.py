"""Displays: a progress bar and a table of the gates on a terminal."""

import math
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from .._common.optional import need
from .._common.text import plural
from ..objectives import METRICS
from ..plugin import attached
from ..sites.model import sites_of
from ..training.fit import Run
from .watcher import PURPOSE, Record, Watcher

if TYPE_CHECKING:
    from rich.console import Console

DRAW_EVERY = 0.1  # seconds
BAR_WIDTH = 30  # characters of an open gate
LONGEST_NAME = 40  # characters of a field in a table


class Display(Watcher):
    """A hook that draws on a terminal; as a context manager it also ends with a failed training.

    Args:
        console: The console to draw on; None is standard error.
    """

    def __init__(self, console: "Console | None" = None) -> None:
        rich = need("rich.console", "cli", PURPOSE)
        self._console = console or rich.Console(stderr=True)
        self._drawn = -math.inf
        self._close: Callable[[], object] = lambda: None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self._close()

    def _start(self, run: Run, display: Any) -> None:
        """Start a display of rich, which is stopped by `_close` or when the program ends."""
        self._close = weakref.finalize(run, display.stop)  # only its first call has an effect
        display.start()

    def _is_time_to_draw(self, every: float) -> bool:
        """Return whether the last drawing is some seconds old, and note the time if so."""
        now = time.monotonic()
        if now - self._drawn < every:
            return False
        self._drawn = now
        return True


class Progress(Display):
    """A bar with the time left on a terminal; elsewhere one line per evaluation.

    As a context manager it also closes the bar when the training fails; without, the bar is closed
    when the program ends.

    >>> with Progress() as bar:  # doctest: +SKIP
    ...     fit(model, task, hooks=[bar])

    Args:
        console: The console to draw on; None is standard error.
    """

    def __init__(self, console: "Console | None" = None) -> None:
        super().__init__(console)
        self._rich = need("rich.progress", "cli", PURPOSE)
        self._bar: Any = None

    def at_start(self, run: Run) -> None:
        """Show the bar, from the step of the checkpoint if the run is resumed."""
        self._close()  # of a run that failed
        if not self._console.is_terminal:
            return
        self._bar = self._rich.Progress(
            self._rich.TextColumn("{task.description}"),
            self._rich.BarColumn(bar_width=None),
            self._rich.TextColumn("{task.fields[status]}"),
            self._rich.TimeElapsedColumn(),
            self._rich.TimeRemainingColumn(compact=True),
            console=self._console,
            auto_refresh=False,
            expand=True,
        )
        self._bar.add_task("", total=run.steps, completed=run.step, status="")
        self._start(run, self._bar)
        self._console.show_cursor(True)
        self._drawn = time.monotonic()
        self._draw(run)

    def after_step(self, run: Run) -> None:
        """Move the bar, ten times per second at most."""
        if self._bar is not None and self._is_time_to_draw(DRAW_EVERY):
            self._draw(run)

    def after_eval(self, run: Run, record: Record) -> None:
        """Print a line, unless there is a bar."""
        if self._bar is None:
            metric = METRICS[run.training.metric]
            value = metric.format(record.get(f"valid_{metric.name}", math.nan))
            found = f"step {_place(run)} {metric.name} {value}"
            self._print(f"{_epoch(run)} {found} {_status(run)} {record['seconds']:.0f} s")

    def at_end(self, run: Run) -> None:
        """Close the bar, and print why the training ended."""
        if self._bar is not None:
            self._draw(run)
        self._close()
        self._bar = None
        steps = plural(run.step, "step")
        self._print(f"Ended after {steps} and {run.seconds:.0f} s: {run.stopped}.")

    def _draw(self, run: Run) -> None:
        self._bar.update(
            self._bar.task_ids[0],
            completed=run.step,
            description=_epoch(run),
            status=f"{_place(run)} {_status(run)}",
            refresh=True,
        )

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)


class LiveGates(Display):
    """A table of the most open and the most closed gates on a terminal; elsewhere nothing.

    Args:
        rows: The number of open gates, and of closed ones.
        console: The console to draw on; None is standard error.
    """

    def __init__(self, rows: int = 8, console: "Console | None" = None) -> None:
        super().__init__(console)
        self._rows = rows
        self._live: Any = None

    def at_start(self, run: Run) -> None:
        """Show the table, if the model has gates."""
        self._close()
        self._live = None
        if self._console.is_terminal and next(iter(sites_of(run.model)), None) is not None:
            rich = need("rich.live", "cli", PURPOSE)
            self._live = rich.Live(console=self._console, auto_refresh=False, transient=True)
            self._start(run, self._live)

    def after_step(self, run: Run) -> None:
        """Draw the table again, twice per second at most."""
        if self._live is not None and self._is_time_to_draw(5 * DRAW_EVERY):
            self._live.update(self._table(run), refresh=True)

    def at_end(self, run: Run) -> None:
        """Remove the table."""
        self._close()

    def _table(self, run: Run) -> Any:
        text = need("rich.text", "cli", PURPOSE)
        title = f"gates at step {run.step}"
        drawn = need("rich.table", "cli", PURPOSE).Table("field", "gate", "", box=None, title=title)
        scores = sorted(attached(run.model).scores().items(), key=lambda item: -item[1])
        for place, (name, score) in enumerate(scores):
            if self._rows <= place < len(scores) - self._rows:
                if place == self._rows:
                    drawn.add_row("...", "", "")
                continue
            bar = "\u2588" * round(BAR_WIDTH * score)
            drawn.add_row(text.Text(name[:LONGEST_NAME]), f"{score:.2f}", bar)
        return drawn


def _place(run: Run) -> str:
    """Return the step of a run, and the last one if there is one."""
    if run.steps is None:
        return f"{run.step:,}"
    return f"{run.step}/{run.steps}"


def _epoch(run: Run) -> str:
    """Return the epoch of a run, and the last one that its steps can reach."""
    if run.task is None or run.steps is None:
        return "stream"
    per_epoch = run.training.steps_per_epoch(len(run.task.train))
    epoch = max(1, -(-run.step // per_epoch))
    last = -(-run.steps // per_epoch)
    return f"epoch {epoch}/{last}"


def _status(run: Run) -> str:
    """Return the loss, the best metric and its age in evaluations.

    They come from the history, because hooks are called before an evaluation has counted.
    """
    if not run.history:
        return "no evaluation yet"
    metric = METRICS[run.training.metric]
    loss = f"loss {run.history[-1]['train_loss']:.4f}"
    key = f"valid_{metric.name}"
    values = [record[key] for record in run.history if key in record]
    if not values:  # of a stream with a loss of its own
        return loss
    best = metric.best(values)
    age = len(values) - 1 - values.index(best)
    since = f", {plural(age, 'evaluation')} ago" if age else ""
    return f"{loss} best {metric.format(best)}{since}"
