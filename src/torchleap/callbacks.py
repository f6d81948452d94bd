"""Callbacks: hooks that watch `fit` and tell a terminal, a file, TensorBoard or MLflow; none changes the training.

They stand behind the hooks that add to a record (a method's gates), so that they see all of it.
"""

import csv
import io
import json
import math
import os
import re
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ._common.errors import TorchleapError
from ._common.files import append, make_folder, write_atomically
from ._common.text import plural
from .plugin import attached
from .sites.site import sites_of
from .training.fit import Hook, Run

if TYPE_CHECKING:
    from rich.console import Console

Record = Mapping[str, float]
DRAW_EVERY = 0.1  # seconds
LARGEST_BATCH = 1000  # metrics that MLflow takes at once


class Watcher(Hook):
    """What watches, and tells; of several ranks only the first does."""

    first_rank_only = True


class Display(Watcher):
    """What is drawn on a terminal; as a context manager it is also closed when the training breaks off."""

    def __init__(self, console: "Console | None" = None) -> None:
        self._console = console or _need("rich.console", "cli").Console(stderr=True)
        self._drawn = -math.inf
        self._close: Callable[[], object] = lambda: None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self._close()


class Progress(Display):
    """A bar with the time left on a terminal; elsewhere one line a look.

    As a context manager it also closes the bar when the training breaks off; without, that waits until the program ends.

    >>> with Progress() as bar:  # doctest: +SKIP
    ...     fit(model, task, hooks=[bar])

    Args:
        console: Where to; None is standard error.
    """

    def __init__(self, console: "Console | None" = None) -> None:
        super().__init__(console)
        self._rich = _need("rich.progress", "cli")
        self._bar: Any = None

    def at_start(self, run: Run) -> None:
        """Show the bar, from the step that a checkpoint was at."""
        self._close()  # of a run that broke off
        if not self._console.is_terminal:
            return
        columns = (
            self._rich.TextColumn("{task.description}"),
            self._rich.BarColumn(bar_width=None),
            self._rich.TextColumn("{task.fields[told]}"),
            self._rich.TimeElapsedColumn(),
            self._rich.TimeRemainingColumn(compact=True),
        )
        self._bar = self._rich.Progress(
            *columns, console=self._console, auto_refresh=False, expand=True
        )
        self._bar.add_task("", total=run.steps, completed=run.step, told="")
        self._close = weakref.finalize(
            run, self._bar.stop
        )  # also when the program ends; only the first call counts
        self._bar.start()
        self._console.show_cursor(True)
        self._draw(run)

    def after_step(self, run: Run) -> None:
        """Move the bar, ten times a second at most."""
        if self._bar is not None and time.monotonic() - self._drawn >= DRAW_EVERY:
            self._draw(run)

    def after_eval(self, run: Run, record: Record) -> None:
        """Print a line, unless there is a bar."""
        if self._bar is None:
            metric = run.training.metric
            found = f"{metric} {record[f'valid_{metric}']:.4f}"
            self._print(
                f"{_epoch(run)} step {_place(run)} {found} {_standing(run)} {record['seconds']:.0f} s"
            )

    def at_end(self, run: Run) -> None:
        """Close the bar, and say why the training ended."""
        if self._bar is not None:
            self._draw(run)
        self._close()
        self._bar = None
        self._print(
            f"Ended after {plural(run.step, 'step')} and {run.seconds:.0f} s: {run.stopped}."
        )

    def _draw(self, run: Run) -> None:
        told = f"{_place(run)} {_standing(run)}"
        self._bar.update(
            self._bar.task_ids[0],
            completed=run.step,
            description=_epoch(run),
            told=told,
            refresh=True,
        )
        self._drawn = time.monotonic()

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)


class LiveGates(Display):
    """A table of the gates on a terminal while they learn: the most open and the most closed ones; elsewhere nothing.

    Args:
        rows: How many of each.
        console: Where to; None is standard error.
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
            self._live = _need("rich.live", "cli").Live(
                console=self._console, auto_refresh=False, transient=True
            )
            self._close = weakref.finalize(run, self._live.stop)
            self._live.start()

    def after_step(self, run: Run) -> None:
        """Draw it anew, twice a second at most."""
        if self._live is not None and time.monotonic() - self._drawn >= 5 * DRAW_EVERY:
            self._live.update(self._table(run), refresh=True)
            self._drawn = time.monotonic()

    def at_end(self, run: Run) -> None:
        """Take it away."""
        self._close()

    def _table(self, run: Run) -> Any:
        scores = sorted(attached(run.model).scores().items(), key=lambda item: -item[1])
        shown = (
            scores
            if len(scores) <= 2 * self._rows
            else [*scores[: self._rows], ("...", math.nan), *scores[-self._rows :]]
        )
        drawn = _need("rich.table", "cli").Table(
            "field", "gate", "", box=None, title=f"gates at step {run.step}"
        )
        for name, score in shown:
            cells = (
                ("", "") if math.isnan(score) else (f"{score:.2f}", "\u2588" * round(30 * score))
            )
            drawn.add_row(_need("rich.text", "cli").Text(name[:40]), *cells)
        return drawn


class HistoryFile(Watcher):
    """The history as a file that grows by a line a look; after a resume it holds each look once.

    A new run overwrites it.

    Args:
        path: It ends in .csv or .jsonl.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._columns: list[str] = []
        if self._path.suffix not in (".csv", ".jsonl"):
            raise TorchleapError(
                f"A history is written to a file that ends in .csv or .jsonl, but path is {str(path)!r}."
            )

    def at_start(self, run: Run) -> None:
        """Write what the checkpoint knows: looks of a killed run that came after it will come again."""
        make_folder(self._path.parent)
        self._write(run)

    def after_eval(self, run: Run, record: Record) -> None:
        """Append a line."""
        if self._path.suffix == ".csv" and not record.keys() <= set(self._columns):
            self._write(run)  # with a new header
            return
        append(self._path, self._lines([record]).encode())

    def at_end(self, run: Run) -> None:
        """Write all again, with what later hooks added to the records."""
        self._write(run)

    def _write(self, run: Run) -> None:
        self._columns = list(dict.fromkeys(key for record in run.history for key in record))
        header = _csv_line(self._columns) if self._path.suffix == ".csv" and self._columns else ""
        write_atomically(self._path, header + self._lines(run.history))

    def _lines(self, records: Iterable[Record]) -> str:
        if self._path.suffix == ".csv":
            return "".join(
                _csv_line([record.get(name, "") for name in self._columns]) for record in records
            )
        return "".join(_json_line(record) for record in records)


class TensorBoard(Watcher):
    """Curves of the loss, the metrics and the gates, for `tensorboard --logdir`.

    Args:
        folder: Of this run alone; a new run hides what it finds there.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        _need("tensorboard", "tensorboard")
        self._folder = Path(folder)
        self._writer: Any = None

    def at_start(self, run: Run) -> None:
        """Hide the looks of a killed run after its checkpoint."""
        tensorboard = import_module("torch.utils.tensorboard")
        self._writer = tensorboard.SummaryWriter(os.fspath(self._folder), purge_step=run.step + 1)

    def after_eval(self, run: Run, record: Record) -> None:
        """Write the numbers, so that a kill loses none."""
        for name, clean in _clean_names(record).items():
            if name != "step":
                self._writer.add_scalar(_tag(clean), record[name], run.step)
        self._writer.flush()

    def at_end(self, run: Run) -> None:
        """Close the files."""
        self._writer.close()


class MLflow(Watcher):
    """A run in MLflow with the settings of the training, the numbers of fields and rows, and the metrics of each look.

    A training that goes on from a checkpoint goes on in the same MLflow run. One that breaks off stays "RUNNING" there.

    Args:
        experiment: Its name; made if it is not there. None is the one in MLFLOW_EXPERIMENT_NAME, or else "Default".
        run_name: None lets MLflow make one up.
        tracking_uri: None is the one in MLFLOW_TRACKING_URI, or else MLflow's default.
    """

    def __init__(
        self,
        experiment: str | None = None,
        run_name: str | None = None,
        tracking_uri: str | None = None,
    ) -> None:
        self._mlflow = _need("mlflow", "mlflow")
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        self._run_name, self._uri = run_name, tracking_uri
        self._client: Any = None
        self._id = ""
        self._logged = 0  # the last step that MLflow knows

    def state_dict(self) -> dict[str, Any]:
        """The id of the MLflow run."""
        return {"id": self._id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on in the same MLflow run."""
        self._id = state["id"]

    def at_start(self, run: Run) -> None:
        """Begin a run in MLflow, or find the one of the checkpoint."""
        try:
            self._client = self._mlflow.MlflowClient(tracking_uri=self._uri)
            self._logged = 0
            if run.step and self._id:
                known = self._client.get_metric_history(self._id, f"valid_{run.training.metric}")
                self._logged = max((metric.step for metric in known), default=0)
            else:
                self._begin(run)
        except (self._mlflow.MlflowException, ImportError) as error:
            reason = str(error).strip().splitlines()[0]
            raise TorchleapError(
                f"MLflow cannot begin a run: {reason} Give another tracking_uri=."
            ) from error

    def after_eval(self, run: Run, record: Record) -> None:
        """Log the numbers that MLflow does not know yet."""
        if run.step <= self._logged:
            return
        entity, now = self._mlflow.entities.Metric, time.time_ns() // 1_000_000
        found = [
            entity(key, float(record[name]), now, run.step)
            for name, key in _clean_names(record).items()
            if name != "step"
        ]
        with self._warn(f"the metrics of step {run.step}"):
            for first in range(0, len(found), LARGEST_BATCH):
                self._client.log_batch(self._id, metrics=found[first : first + LARGEST_BATCH])

    def at_end(self, run: Run) -> None:
        """End the run in MLflow."""
        with self._warn("the end of the run"):
            self._client.set_terminated(self._id, status="FINISHED")

    @contextmanager
    def _warn(self, what: str) -> Iterator[None]:
        """A server that goes away must not end the training."""
        try:
            yield
        except self._mlflow.MlflowException as error:
            warnings.warn(f"MLflow did not take {what}: {error}", stacklevel=4)

    def _begin(self, run: Run) -> None:
        experiment = self._client.get_experiment_by_name(self._experiment)
        place = (
            experiment.experiment_id
            if experiment
            else self._client.create_experiment(self._experiment)
        )
        self._id = self._client.create_run(place, run_name=self._run_name).info.run_id
        size = (
            {}
            if run.task is None
            else {"fields": len(run.task.fields), "train_rows": len(run.task.train)}
        )
        settings = {**asdict(run.training), **size}
        self._client.log_batch(
            self._id,
            params=[self._mlflow.entities.Param(name, str(v)) for name, v in settings.items()],
        )


def _need(module: str, extra: str) -> Any:
    """A module of an extra, imported where it is used."""
    try:
        return import_module(module)
    except ImportError as error:
        name = module.split(".")[0]
        raise TorchleapError(
            f"This callback needs the package {name}. Install it: pip install 'torchleap[{extra}]'."
        ) from error


def _place(run: Run) -> str:
    return f"{run.step:,}" if run.steps is None else f"{run.step}/{run.steps}"


def _epoch(run: Run) -> str:
    if run.task is None or run.steps is None:
        return "stream"
    an_epoch = run.steps // run.training.epochs
    return f"epoch {max(1, -(-run.step // an_epoch))}/{run.training.epochs}"


def _standing(run: Run) -> str:
    """Of the looks so far; from the history, because hooks are called before a look has counted."""
    if not run.history:
        return "no look yet"
    metric = run.training.metric
    found = [record[f"valid_{metric}"] for record in run.history]
    best = min(found) if metric == "log_loss" else max(found)
    waited = len(found) - 1 - found.index(best)
    since = f", {plural(waited, 'evaluation')} ago" if waited else ""
    return f"loss {run.history[-1]['train_loss']:.4f} best {best:.4f}{since}"


def _csv_line(cells: Sequence[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _json_line(record: Record) -> str:
    r"""JSON has no word for a value that is no number.

    >>> _json_line({"step": 8, "valid_auc": 0.75, "own": math.nan})
    '{"step": 8, "valid_auc": 0.75, "own": null}\n'
    """
    return (
        json.dumps(
            {name: value if math.isfinite(value) else None for name, value in record.items()},
            default=float,
        )
        + "\n"
    )


def _clean_names(names: Iterable[str]) -> dict[str, str]:
    """Names that both trackers take; two that differ still do.

    >>> _clean_names(["gate_a/b", "gate_a_b", "gate_price in €"])
    {'gate_a/b': 'gate_a_b', 'gate_a_b': 'gate_a_b_', 'gate_price in €': 'gate_price_in__'}
    """
    owners: dict[str, str] = {}
    for name in names:
        clean = re.sub(r"[^\w.-]", "_", name)[:200]
        while clean in owners:
            clean += "_"
        owners[clean] = name
    return {name: clean for clean, name in owners.items()}


def _tag(name: str) -> str:
    """The group of curves comes first.

    >>> [_tag(name) for name in ("valid_auc", "train_loss", "lr", "gate_user_id")]
    ['valid/auc', 'train/loss', 'train/lr', 'gates/user_id']
    """
    group, _, rest = name.partition("_")
    groups = {"valid": "valid", "train": "train", "gate": "gates"}
    return f"{groups[group]}/{rest}" if group in groups else f"train/{name}"
