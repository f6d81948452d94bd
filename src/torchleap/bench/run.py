"""The runner: trials in one process or several, each done once, its result kept in the store."""

import multiprocessing
import os
import shutil
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .._common.checks import check_arguments, whole
from .._common.errors import TorchleapError
from .._common.plain import plain
from .._common.text import plural
from .sets import DataSet, Progress, Recipe
from .store import Store
from .trials import Trial

STORE = "trials.jsonl"
STATE = "state"  # the folder with the checkpoints of trials that are not finished
MOST_THREADS = 1024
THREADS = (  # variables of the environment that libraries read
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "POLARS_MAX_THREADS",
)


@dataclass(frozen=True)
class Standing:
    """The progress of a run.

    Attributes:
        done: Trials of this stage that are done.
        total: Trials of this stage.
        running: Titles of the trials that are running.
        left: Seconds left, for later stages too; None until a trial is done.
    """

    done: int
    total: int
    running: tuple[str, ...]
    left: float | None


class Outcome(NamedTuple):
    """The outcome of a trial: its result, or a sentence about why there is none."""

    result: dict[str, Any] | None
    problem: str
    seconds: float


class Runner:
    """Runs trials whose results are not in the store.

    Args:
        folder: The folder for the store and for the checkpoints of unfinished trials.
        jobs: Trials that run at the same time, each in a process of its own; 1 is this process.
        threads: Threads per trial. They are a setting of a trial, since sums in another order
            round differently.
        sets: The folder with the public data sets; None is that of TORCHLEAP_DATA.
        on_progress: Called with the progress whenever it changes.
        reading: Called with the progress of data that is read or made.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        jobs: int = 1,
        threads: int = 1,
        sets: str | None = None,
        on_progress: Callable[[Standing], None] = lambda standing: None,
        reading: Progress | None = None,
    ) -> None:
        check_arguments(jobs=whole(jobs, at_least=1), threads=whole(threads, at_least=1))
        if jobs * threads > max(cores(), min(threads, MOST_THREADS)):
            raise TorchleapError(
                f"{plural(jobs, 'job')} of {plural(threads, 'thread')} each are more than "
                f"this machine's {plural(cores(), 'core')}. Give fewer jobs or threads."
            )
        self.folder = Path(folder)
        self.jobs = jobs
        self.threads = threads
        self.store = Store(self.folder / STORE)
        self.failures: dict[str, str] = {}  # by the key of the trial: two may have the same title
        self._sets = sets
        self._on_progress = on_progress
        self._reading = reading
        self._data: dict[str, DataSet] = {}
        self._seconds: dict[type[Trial], list[float]] = defaultdict(list)  # of the trials done

    def data(self, recipe: Recipe) -> DataSet:
        """Return a data set, which is read once."""
        if recipe.name not in self._data:
            self._data[recipe.name] = recipe.load(self._sets, self._reading)
        return self._data[recipe.name]

    def key(self, trial: Trial) -> str:
        """Return the key of a trial in the store."""
        return trial.key(self.data(trial.data), self.threads)

    def run(self, trials: Sequence[Trial], *, to_come: int = 0) -> list[dict[str, Any] | None]:
        """Return the results of the trials, in their order; None for one that is in `failures`.

        Args:
            trials: The trials; those in the store do not run again.
            to_come: About how many trials later stages have, for the time left.
        """
        keys = [self.key(trial) for trial in trials]
        wanted = dict(zip(keys, trials, strict=True))
        for key in wanted:
            if key in self.store:  # a kill may have left its state
                self._remove_state(key)
        if not all(key in self.store for key in wanted):
            with self.store.writing():  # which reads what another run has done since
                missing = {key: one for key, one in wanted.items() if key not in self.store}
                self._do(missing, to_come)
        return [self.store[key]["result"] if key in self.store else None for key in keys]

    def _state(self, key: str) -> Path:
        return self.folder / STATE / key

    def _remove_state(self, key: str) -> None:
        shutil.rmtree(self._state(key), ignore_errors=True)

    def _do(self, missing: Mapping[str, Trial], to_come: int) -> None:
        left = dict(missing)
        self._show(left, len(missing), to_come)
        do = self._here if self.jobs == 1 else self._in_processes
        for key, outcome in do(missing):
            trial = left.pop(key)
            if outcome.result is None:
                self.failures[key] = f"{trial.title}: {outcome.problem}"
            else:
                self._keep(key, trial, outcome)
            self._show(left, len(missing), to_come)

    def _keep(self, key: str, trial: Trial, outcome: Outcome) -> None:
        """Store the result of a trial."""
        self.failures.pop(key, None)
        self._seconds[type(trial)].append(outcome.seconds)
        record = {
            "finished": datetime.now().isoformat(timespec="seconds"),
            "settings": trial.settings(self.data(trial.data), self.threads),
            "result": outcome.result,
        }
        self.store.add(key, record)
        self._remove_state(key)

    def _show(self, left: Mapping[str, Trial], total: int, to_come: int) -> None:
        running = tuple(trial.title for trial in islice(left.values(), self.jobs))
        seconds = self._time_left(left, to_come)
        self._on_progress(Standing(total - len(left), total, running, seconds))

    def _time_left(self, left: Mapping[str, Trial], to_come: int) -> float | None:
        """Return about how many seconds are left, by the mean of each kind of trial."""
        known = [seconds for own in self._seconds.values() for seconds in own]
        if not known:
            return None
        usual = statistics.mean(known)
        means = {kind: statistics.mean(own) for kind, own in self._seconds.items()}
        total = sum(means.get(type(trial), usual) for trial in left.values()) + to_come * usual
        return total / self.jobs

    def _here(self, trials: Mapping[str, Trial]) -> Iterator[tuple[str, Outcome]]:
        """Run the trials in this process, and yield their outcomes by key."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            for key, trial in trials.items():
                yield key, attempt(trial, self.data(trial.data), self._state(key))
        finally:
            torch.set_num_threads(before)

    def _in_processes(self, trials: Mapping[str, Trial]) -> Iterator[tuple[str, Outcome]]:
        """Run the trials in processes of their own, and yield their outcomes by key."""
        with _environment(dict.fromkeys(THREADS, str(self.threads))):
            pool = ProcessPoolExecutor(
                min(self.jobs, len(trials)),
                mp_context=multiprocessing.get_context("spawn"),  # a fork ends torch's threads
                initializer=_prepare,
                initargs=(self.threads,),
            )
            try:
                yield from self._outcomes(pool, trials)
            except BrokenProcessPool as error:
                raise TorchleapError(
                    "A process ended abruptly, most likely for lack of memory. "
                    "Finished trials are saved: give fewer --jobs."
                ) from error
            finally:
                pool.shutdown(cancel_futures=True)

    def _outcomes(
        self, pool: ProcessPoolExecutor, trials: Mapping[str, Trial]
    ) -> Iterator[tuple[str, Outcome]]:
        """Keep as many trials running as there are jobs: after Ctrl-C no other begins."""
        queue = iter(trials.items())
        waiting: dict[Future[Outcome], str] = {}

        def begin(count: int) -> None:
            for key, trial in islice(queue, count):
                waiting[pool.submit(_attempt_there, trial, self._sets, self._state(key))] = key

        begin(self.jobs)
        while waiting:
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                yield waiting.pop(future), future.result()
                begin(1)


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def attempt(trial: Trial, data: DataSet, state: Path) -> Outcome:
    """Run a trial; an error of the library is its outcome and does not end the others.

    Args:
        trial: The trial.
        data: Its data set.
        state: The folder for its checkpoints.
    """
    started = time.monotonic()
    result: dict[str, Any] | None = None
    problem = ""
    try:
        result = plain(trial.run(data, state), "result")
    except TorchleapError as error:
        problem = str(error)
    return Outcome(result, problem, time.monotonic() - started)


_LOADED: dict[str, DataSet] = {}  # the data set of a worker process


def _prepare(threads: int) -> None:
    """Prepare a worker process."""
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_the_first_process, daemon=True).start()


def _end_with_the_first_process() -> None:
    """End this worker with the run: otherwise it would continue beside the next one."""
    first = multiprocessing.parent_process()
    if first is not None:
        first.join()
        os._exit(1)


def _attempt_there(trial: Trial, sets: str | None, state: Path) -> Outcome:
    """Run a trial in a worker, which reads its data set from the cache of the first process."""
    if trial.data.name not in _LOADED:
        _LOADED.clear()  # one at a time: the next trials are of the same set
        _LOADED[trial.data.name] = trial.data.load(sets)
    return attempt(trial, _LOADED[trial.data.name], state)


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment for this context."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
