"""Take a model of a zoo from attach to the loaded pruned model, and record how far it came."""

import contextlib
import io
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchleap as tl
from tests.zoos.loader import difference, tensors
from tests.zoos.log import BATCH, FIELDS, ROWS, USEFUL, Log, make_log

NOT_CUT = "Nothing behind the gates"
TOLERANCE = 1e-5  # between outputs of about 1, in float32
LONGEST_PLAN = 30  # seconds; a plan that takes longer counts as a hang
SIZES = (333, 1, 7)  # rows of the batches of the oracle; no batch of the training has so many


@dataclass(frozen=True)
class Combination:
    """A model of a zoo and its own way of training.

    Attributes:
        zoo: The name of the zoo.
        name: The name of the model and of its sites.
        build: It returns the model for the given fields: for all of them, and for the kept ones,
            to compare with what the zoo's own configuration would save.
        attach: It attaches to the model with the recipe; the second argument is a batch.
        fit: It trains a model for one pass over a log in the zoo's own loop.
        batch: It returns a log as one batch, as the model takes it: a tuple of arguments.
        fields: The fields of the model.
        useful: The fields that matter.
        fails: The stages that fail; docs/zoos.md names the reason.
    """

    zoo: str
    name: str
    build: Callable[[tuple[str, ...]], nn.Module]
    attach: Callable[[nn.Module, Any], "tl.Plugin"]
    fit: Callable[[nn.Module, Log], None]
    batch: Callable[[Log], tuple[Any, ...]]
    fields: tuple[str, ...] = FIELDS
    useful: tuple[str, ...] = USEFUL
    fails: tuple[str, ...] = ()


@dataclass
class Record:
    """How far a combination came.

    Attributes:
        zoo: The name of the zoo.
        name: The name of the combination.
        attached: Whether the gates were put into the model.
        trained: Whether the zoo's own loop ran.
        kept: The fields that the selection keeps.
        selected: "right", or what the selection has wrong.
        plan_seconds: How long the plan took.
        native: Whether operations behind the gates are cut.
        fed: Where constants are fed.
        difference: The largest difference between the pruned and the masked model.
        cut: The fraction of the parameters that pruning removed.
        configured: The fraction that removing the fields from the zoo's configuration removes.
        tuned: Whether the zoo's own loop trains the pruned model.
        loads: Whether a fresh process loads the saved model, without code, with the same output.
        notes: The notes of the plan.
        errors: The first error of each stage that failed.
    """

    zoo: str
    name: str
    attached: bool = False
    trained: bool = False
    kept: list[str] = field(default_factory=list)
    selected: str = ""
    plan_seconds: float | None = None
    native: bool = False
    fed: list[str] = field(default_factory=list)
    difference: float | None = None
    cut: float | None = None
    configured: float | None = None
    tuned: bool = False
    loads: bool = False
    notes: list[str] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        """Whether the pruned model computes what the masked one does."""
        return self.difference is not None and self.difference <= TOLERANCE

    @property
    def hangs(self) -> bool:
        """Whether the plan took too long."""
        return self.plan_seconds is not None and self.plan_seconds > LONGEST_PLAN


class Hang(BaseException):
    """A plan that took too long; no handler of errors catches it by mistake."""


class Loader:
    """A fresh process that loads saved models; it starts at the first request."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def load(self, folder: Path, args: tuple[Any, ...], expected: Any) -> dict[str, Any]:
        """Return the answer of the process, see `tests/zoos/loader.py`."""
        paths = {name: str(folder.with_suffix(f".{name}")) for name in ("batch", "expected")}
        if _is_plain(args):
            torch.save(args, paths["batch"])
        torch.save(tensors(expected), paths["expected"])
        if self._process is None:
            script = Path(__file__).with_name("loader.py")
            self._process = subprocess.Popen(
                [sys.executable, str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"folder": str(folder), **paths}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.communicate()
            self._process = None


def run(combination: Combination, loader: Loader, rows: int = ROWS, seed: int = 0) -> Record:
    """Take a combination through all stages: attach, train, select, prune, tune, save, load.

    Args:
        combination: The combination.
        loader: The process that loads the saved model.
        rows: The rows of the log.
        seed: The seed of the log and of the model.
    """
    record = Record(combination.zoo, combination.name)
    trial = Trial(combination, record, loader, make_log(rows, seed))
    torch.manual_seed(seed)
    with _quiet():
        if all(trial.passes(stage) for stage in ("attach", "train", "select", "plan", "prune")):
            trial.passes("tune")
            trial.passes("load")
    return record


class Trial:
    """The stages of one combination.

    Args:
        combination: The combination.
        record: Where the results go.
        loader: The process that loads the saved model.
        log: The rows.
    """

    def __init__(self, combination: Combination, record: Record, loader: Loader, log: Log) -> None:
        self.combination = combination
        self.record = record
        self.loader = loader
        self.log = log
        self.fresh = make_log(sum(SIZES), seed=99)

    def passes(self, stage: str) -> bool:
        """Run one stage, and record its error if it fails."""
        try:
            getattr(self, stage)()
        except Hang:
            self.record.errors[stage] = f"no plan within {2 * LONGEST_PLAN} s"
        except Exception as error:
            text = " ".join(str(error).split())
            self.record.errors[stage] = f"{type(error).__name__}: {text}"
        return stage not in self.record.errors

    def attach(self) -> None:
        """Build the model and put the gates into it."""
        combination = self.combination
        self.model = combination.build(combination.fields)
        example = combination.batch(self.log.rows(0, BATCH))
        self.plugin = combination.attach(self.model, example)
        self.record.attached = True

    def train(self) -> None:
        """Train the model in the loop of the zoo, with gates that learn by themselves."""
        self.plugin.learn(steps=-(-len(self.log) // BATCH))
        self.combination.fit(self.model, self.log)
        self.record.trained = True

    def select(self) -> None:
        """Select fields; where all or none have closed, half of them, so that some are pruned."""
        scores = self.plugin.gates.scores()
        is_open = [score >= 0.5 for score in scores.values()]
        if any(is_open) and not all(is_open):
            selection = self.plugin.select()
            wrong = _mistakes(selection.kept, self.combination)
        else:
            selection = self.plugin.select(share=0.5)
            wrong = "nothing closed" if all(is_open) else "everything closed"
        self.selection = selection
        self.record.kept = list(selection.kept)
        self.record.selected = wrong

    def plan(self) -> None:
        """Plan the cuts, in limited time."""
        started = time.perf_counter()
        try:
            with _time_limit(2 * LONGEST_PLAN):
                self.made = self.plugin.plan(self.selection)
        finally:
            self.record.plan_seconds = time.perf_counter() - started
        self.record.notes = list(self.made.notes)
        self.record.fed = _places_of_constants(self.made.notes)

    def prune(self) -> None:
        """Apply the plan, compare with the masked model, and count the parameters."""
        record = self.record
        self.small = self.made.apply()
        record.difference = self._largest_difference()
        before, after = self.made.parameters
        record.cut = 1 - after / before
        not_cut = any(note.startswith(NOT_CUT) for note in record.notes)
        record.native = record.cut > 0 and not not_cut
        full = _parameters(self.combination.build(self.combination.fields))
        dropped = self.selection.dropped
        kept = tuple(name for name in self.combination.fields if name not in dropped)
        with contextlib.suppress(Exception):  # some models need a field of each kind
            record.configured = 1 - _parameters(self.combination.build(kept)) / full

    def tune(self) -> None:
        """Train the pruned model in the loop of the zoo."""
        before = {name: value.clone() for name, value in self.small.state_dict().items()}
        self.combination.fit(self.small.train(), self.log.rows(0, 5 * BATCH))
        after = self.small.state_dict()
        moved = any(not torch.equal(value, after[name]) for name, value in before.items())
        if not moved:
            raise AssertionError("no weight of the pruned model has changed")
        self._output(self.small, next(self._fresh_batches()))
        self.record.tuned = True

    def load(self) -> None:
        """Save the pruned model, and load it in a process that lacks the code of the zoo."""
        args = next(self._fresh_batches())
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "small"
            tl.export.save(self.small, path)
            answer = self.loader.load(path, args, self._output(self.small, args))
        if "error" in answer:
            raise RuntimeError(answer["error"])
        if answer["difference"] > TOLERANCE:
            raise AssertionError(f"the loaded model differs by {answer['difference']:.2g}")
        self.record.loads = True

    def _largest_difference(self) -> float:
        """Return how far the pruned model is from the masked one on fresh batches."""
        apart = []
        for args in self._fresh_batches():
            try:
                expected = self._masked(args)
            except Exception:  # some models of zoos cannot take a single row
                continue
            apart.append(difference(self._output(self.small, args), expected))
        return max(apart)

    def _fresh_batches(self) -> Iterator[tuple[Any, ...]]:
        """Return batches that the model has not seen, with other numbers of rows."""
        start = 0
        for size in SIZES:
            yield self.combination.batch(self.fresh.rows(start, start + size))
            start += size

    def _masked(self, args: tuple[Any, ...]) -> Any:
        """Return the output of the model without the dropped fields."""
        with self.plugin.masked(self.selection):
            return self._output(self.model, args)

    @staticmethod
    def _output(model: nn.Module, args: tuple[Any, ...]) -> Any:
        with torch.no_grad():
            return model.eval()(*args)


def _mistakes(kept: tuple[str, ...], combination: Combination) -> str:
    """Return which fields are kept or dropped wrongly, or "right"."""
    useless = sorted(set(kept) - set(combination.useful))
    missing = sorted(set(combination.useful) - set(kept))
    parts = []
    if missing:
        parts.append("dropped useful " + ", ".join(missing))
    if useless:
        parts.append("kept useless " + ", ".join(useless))
    return "; ".join(parts) or "right"


def _places_of_constants(notes: tuple[str, ...]) -> list[str]:
    """Return the operations that are fed constants, from the notes of a plan."""
    found = []
    for note in notes:
        if re.search(r"constants? fed", note):
            found.append(note.split(" ")[0].removesuffix("()"))
    return list(dict.fromkeys(found))


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _is_plain(value: Any) -> bool:
    """Return whether a value consists of tensors, dicts, lists and tuples alone."""
    if type(value) is dict:
        return all(map(_is_plain, value.values()))
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    return type(value) is torch.Tensor


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Swallow what a zoo prints, and its warnings."""
    sink = io.StringIO()
    printed = contextlib.redirect_stdout(sink)
    with printed, contextlib.redirect_stderr(sink), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    """Raise `Hang` in the main thread after so many seconds."""

    def stop(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
