"""The runner: trials in one process or several, each done once, its result kept in the store."""

import json
import multiprocessing
import os
import shutil
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .._common.checks import is_whole, refuse_settings
from .._common.errors import TorchleapError
from .._common.text import plural
from .sets import DataSet, Progress, Recipe
from .store import Store
from .trials import Trial

STORE = "trials.jsonl"
STATE = "state"  # checkpoints of trials that are not finished
MOST_THREADS = 1024
THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "POLARS_MAX_THREADS",
)  # what libraries look at


@dataclass(frozen=True)
class Standing:
    """Where a run stands: trials of this stage, which ones run now, and the seconds left, for later stages too."""

    done: int
    total: int
    running: tuple[str, ...]
    left: float | None


class Outcome(NamedTuple):
    """What became of a trial: its result, or a sentence about why there is none."""

    result: dict[str, Any] | None
    problem: str
    seconds: float


class Runner:
    """Does trials, unless the store has their results already.

    Args:
        folder: For the store, and for the checkpoints of unfinished trials.
        jobs: Trials at a time, each in a process of its own; 1 is in this one.
        threads: Of each trial; they belong to what determines a result, since sums in another order round otherwise.
        sets: Where the public data sets lie.
        on_progress: Is told where the run stands.
        reading: Is told about data that is read or made.
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
        rules = {"jobs": jobs, "threads": threads}
        refuse_settings(
            {
                f"{n} must be a whole number of at least 1, but is {v!r}": is_whole(v) and v >= 1
                for n, v in rules.items()
            }
        )
        if jobs * threads > max(cores(), min(threads, MOST_THREADS)):
            raise TorchleapError(
                f"{plural(jobs, 'job')} of {plural(threads, 'thread')} each are more than this machine's "
                f"{plural(cores(), 'core')}. Give fewer jobs or threads."
            )
        self.folder, self.jobs, self.threads = Path(folder), jobs, threads
        self.store = Store(self.folder / STORE)
        self.failures: dict[
            str, str
        ] = {}  # which and why, by the key of the trial: two may have the same title
        self._sets, self._on_progress, self._reading = sets, on_progress, reading
        self._data: dict[str, DataSet] = {}
        self._seconds: dict[type[Trial], list[float]] = defaultdict(
            list
        )  # of the trials of this run, by kind

    def data(self, recipe: Recipe) -> DataSet:
        """A data set; it is read once."""
        if recipe.name not in self._data:
            self._data[recipe.name] = recipe.load(self._sets, self._reading)
        return self._data[recipe.name]

    def key(self, trial: Trial) -> str:
        """The name of the training run behind a trial's result."""
        return trial.key(self.data(trial.data), self.threads)

    def run(self, trials: Sequence[Trial], *, to_come: int = 0) -> list[dict[str, Any] | None]:
        """The results of the trials, in their order; None for one that failed, about which `failures` tells.

        Args:
            to_come: Trials of later stages, about: for the time left.
        """
        keys = [self.key(trial) for trial in trials]
        missing = {
            key: trial for key, trial in zip(keys, trials, strict=True) if key not in self.store
        }
        for key in set(keys) - set(
            missing
        ):  # a kill may have come between the result and the removal of the state
            shutil.rmtree(self.folder / STATE / key, ignore_errors=True)
        if missing:
            with self.store.writing():
                missing = {
                    key: trial for key, trial in missing.items() if key not in self.store
                }  # another run may have done some
                self._do(missing, to_come)
        return [self.store[key]["result"] if key in self.store else None for key in keys]

    def _do(self, missing: Mapping[str, Trial], to_come: int) -> None:
        states = {key: self.folder / STATE / key for key in missing}
        left = dict(missing)
        self._show(left, len(missing), to_come)
        for key, outcome in (self._here if self.jobs == 1 else self._in_processes)(missing, states):
            trial = left.pop(key)
            if outcome.result is None:
                self.failures[key] = f"{trial.title}: {outcome.problem}"
            else:
                self.failures.pop(key, None)
                self._seconds[type(trial)].append(outcome.seconds)
                settings = trial.settings(self.data(trial.data), self.threads)
                finished = datetime.now().isoformat(timespec="seconds")
                self.store.add(
                    key, {"finished": finished, "settings": settings, "result": outcome.result}
                )
                shutil.rmtree(states[key], ignore_errors=True)
            self._show(left, len(missing), to_come)

    def _show(self, left: Mapping[str, Trial], total: int, to_come: int) -> None:
        running = tuple(trial.title for trial in list(left.values())[: self.jobs])
        self._on_progress(
            Standing(total - len(left), total, running, self._time_left(left, to_come))
        )

    def _time_left(self, left: Mapping[str, Trial], to_come: int) -> float | None:
        known = [seconds for own in self._seconds.values() for seconds in own]
        if not known:
            return None
        usual = statistics.mean(known)
        means = {kind: statistics.mean(own) for kind, own in self._seconds.items()}
        return (
            sum(means.get(type(trial), usual) for trial in left.values()) + to_come * usual
        ) / self.jobs

    def _here(
        self, trials: Mapping[str, Trial], states: Mapping[str, Path]
    ) -> Iterator[tuple[str, Outcome]]:
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            for key, trial in trials.items():
                yield key, attempt(trial, self.data(trial.data), states[key])
        finally:
            torch.set_num_threads(before)

    def _in_processes(
        self, trials: Mapping[str, Trial], states: Mapping[str, Path]
    ) -> Iterator[tuple[str, Outcome]]:
        context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
        with _environment(dict.fromkeys(THREADS, str(self.threads))):
            pool = ProcessPoolExecutor(
                min(self.jobs, len(trials)),
                mp_context=context,
                initializer=_prepare,
                initargs=(self.threads,),
            )
            try:
                queue, waiting = iter(trials.items()), {}
                for key, trial in islice(queue, self.jobs):
                    waiting[pool.submit(_attempt_there, trial, self._sets, states[key])] = key
                while waiting:
                    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                        yield waiting.pop(future), future.result()
                        for key, trial in islice(
                            queue, 1
                        ):  # no more than run now: after Ctrl-C nothing else is begun
                            waiting[pool.submit(_attempt_there, trial, self._sets, states[key])] = (
                                key
                            )
            except BrokenProcessPool as error:
                raise TorchleapError(
                    "A process ended abruptly, most likely for lack of memory. Finished trials are saved: give fewer --jobs."
                ) from error
            finally:
                pool.shutdown(cancel_futures=True)


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def attempt(trial: Trial, data: DataSet, state: Path) -> Outcome:
    """Do a trial; what the library refuses is told and does not end the others."""
    started = time.monotonic()
    try:
        return Outcome(_finite(trial.run(data, state)), "", time.monotonic() - started)
    except TorchleapError as error:
        return Outcome(None, str(error), time.monotonic() - started)


def _finite(result: dict[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(result, allow_nan=False)
    except ValueError as error:
        raise TorchleapError(
            "Expected finite numbers as a result, but found NaN or infinity."
        ) from error
    return result


_LOADED: dict[str, DataSet] = {}  # of a worker process


def _prepare(threads: int) -> None:
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_the_first_process, daemon=True).start()


def _end_with_the_first_process() -> None:
    """A killed run leaves no workers behind: they would go on beside the next run, and wait for ever after."""
    first = multiprocessing.parent_process()
    if first is not None:
        first.join()
        os._exit(1)


def _attempt_there(trial: Trial, sets: str | None, state: Path) -> Outcome:
    """In a worker, which reads each data set once: from the cache, since the first process has read it."""
    if trial.data.name not in _LOADED:
        _LOADED.clear()  # one at a time: the next trials are of the same set
        _LOADED[trial.data.name] = trial.data.load(sets)
    return attempt(trial, _LOADED[trial.data.name], state)


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
