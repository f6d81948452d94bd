"""Make small wrong changes to copies of the source and report which of them no test notices.

    python -m tests.mutants            all of them
    python -m tests.mutants surgery    those of one package or module

The exit code is 1 if more than a tenth survive, and 2 if the catalogue or the unchanged source
fails.

mutmut and cosmic-ray mutate everything they can: thousands of mutants, many without any effect,
and no chosen change such as another default. This is a fixed list, run in processes that are forked
after torch was imported.
"""

import argparse
import compileall
import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from .catalogue import Catalogue, Mutant, load

ROOT = Path(__file__).parents[2]
LIMIT = 180  # seconds that the tests of a mutant may take
ALLOWED = 0.1  # share of survivors
COLUMNS = ("killed", "timed out", "survived", "error")  # of the table
OUTCOMES = {
    0: "survived",
    1: "killed",
    2: "killed",
}  # by pytest's exit code; 2 is an error while tests are collected


@dataclass
class Job:
    """A mutant that is being tested, or the unchanged source."""

    mutant: Mutant | None
    tests: tuple[str, ...]
    place: Path
    log: Path
    start: float
    outcome: str = ""

    @property
    def seconds(self) -> float:
        """Return how long it has been running."""
        return time.monotonic() - self.start


class Workshop:
    """Runs jobs, each in a forked process with a copy of the package that no other process uses."""

    def __init__(self, root: Path, package: str, folder: Path, processes: int) -> None:
        self.root = root
        self.package = package
        self.original = root / package
        self.free = [folder / str(number) for number in range(processes)]
        self.running: dict[int, Job] = {}
        for place in self.free:
            copy = place / Path(package).name
            shutil.copytree(self.original, copy, ignore=shutil.ignore_patterns("__pycache__"))
            compileall.compile_dir(copy, quiet=2)

    def run(self, jobs: Sequence[tuple[Mutant | None, tuple[str, ...]]]) -> Iterator[Job]:
        """Run all jobs, as many at a time as there are copies, and yield each when it has ended."""
        try:
            for mutant, tests in jobs:
                while not self.free:
                    yield from self._ended()
                self._start(mutant, tests)
            while self.running:
                yield from self._ended()
        finally:
            for process in self.running:  # after an error or Ctrl-C
                _kill(process)

    def _start(self, mutant: Mutant | None, tests: tuple[str, ...]) -> None:
        place = self.free.pop()
        job = Job(mutant, tests, place, place / "log.txt", time.monotonic())
        if mutant is not None:
            self._write(job, mutant.applied(self.original))
        sys.stdout.flush()
        process = os.fork()
        if process == 0:
            self._test(job)
        self.running[process] = job

    def _test(self, job: Job) -> None:
        """Run the tests on the copy; this is the child, and does not return."""
        code = 3
        try:
            os.setsid()
            output = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(self.root)
            sys.path.insert(0, str(job.place))
            os.environ["PYTHONPATH"] = str(job.place)  # for processes that tests start
            options = ["-x", "-q", "-p", "no:cacheprovider", "--basetemp", str(job.place / "tmp")]
            code = int(pytest.main([*options, *job.tests]))
            self._refuse_other(job)
        except BaseException:
            traceback.print_exc()
            code = 3
        finally:
            sys.stdout.flush()
            os._exit(code)

    def _refuse_other(self, job: Job) -> None:
        """Raise if the tests have imported the package from another place than the copy."""
        module = sys.modules.get(self.original.name)
        if (
            module is not None
            and job.place.resolve() not in Path(str(module.__file__)).resolve().parents
        ):
            raise ImportError(
                f"The tests have imported {module.__file__}, not the changed copy of it."
            )

    def _ended(self) -> Iterator[Job]:
        time.sleep(0.02)
        for process, job in list(self.running.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                job.outcome = "killed" if code < 0 else OUTCOMES.get(code, "error")
            elif job.seconds > LIMIT:
                _kill(process)
                job.outcome = "timed out"
            else:
                continue
            del self.running[process]
            if job.mutant is not None:
                self._write(job, (self.original / job.mutant.file).read_text(encoding="utf-8"))
            self.free.append(job.place)
            yield job

    def _write(self, job: Job, source: str) -> None:
        assert job.mutant is not None
        path = job.place / Path(self.package).name / job.mutant.file
        path.write_text(source, encoding="utf-8")
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()  # it may have the same size and time as the new source


def _kill(process: int) -> None:
    """End a child and everything that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Test the mutants, print a table, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "only",
        nargs="?",
        default="",
        help="a package or module such as surgery or gates; all if left out",
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    parser.add_argument(
        "--catalogue", type=Path, default=Path(__file__).parent, help="the folder of the TOML files"
    )
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="how many run at a time"
    )
    options = parser.parse_args(arguments)
    catalogue = load(options.catalogue)
    chosen = [
        mutant for mutant in catalogue.mutants if options.only in ("", mutant.module, mutant.file)
    ]
    problems = _problems(chosen, options.root / catalogue.package)
    if problems or not chosen:
        print("\n".join(problems) or f"There is no mutant of {options.only!r}.")
        return 2
    _preload(catalogue)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        workshop = Workshop(options.root, catalogue.package, Path(folder), options.processes)
        return _report(workshop, chosen) if _passes_unchanged(workshop, chosen) else 2


def _problems(chosen: Sequence[Mutant], package: Path) -> list[str]:
    """Return a line for each mutant that cannot be made."""
    found = []
    for mutant in chosen:
        reason = mutant.problem(package)
        if reason is None:
            try:
                mutant.applied(package)
            except SyntaxError as error:
                reason = f"the changed file is not valid Python: {error}"
        if reason is not None:
            found.append(f"{mutant.file}: {mutant.why}: {reason}")
    return found


def _preload(catalogue: Catalogue) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # one process per core
    for name in catalogue.preload:
        importlib.import_module(name)


def _passes_unchanged(workshop: Workshop, chosen: Sequence[Mutant]) -> bool:
    """Return whether all tests pass on an unchanged copy: else a failure would show nothing."""
    begin = time.monotonic()
    for job in workshop.run(
        [(None, tests) for tests in dict.fromkeys(mutant.tests for mutant in chosen)]
    ):
        if job.outcome != "survived":
            print(
                f"The tests fail on the unchanged source: {' '.join(job.tests)}\n"
                f"{job.log.read_text()[-3000:]}"
            )
            return False
    print(f"The tests pass on the unchanged source, {time.monotonic() - begin:.0f} s.")
    return True


def _report(workshop: Workshop, chosen: Sequence[Mutant]) -> int:
    """Test the mutants, print those that were not killed and a table, and return the exit code."""
    begin = time.monotonic()
    counts: dict[str, dict[str, int]] = {}
    for number, job in enumerate(
        workshop.run([(mutant, mutant.tests) for mutant in chosen]), start=1
    ):
        assert job.mutant is not None
        row = counts.setdefault(job.mutant.module, dict.fromkeys(COLUMNS, 0))
        row[job.outcome] += 1
        if job.outcome != "killed":
            print(
                f"{job.outcome}: {job.mutant.file}: {job.mutant.why}\n"
                f"  - {job.mutant.old}\n  + {job.mutant.new}"
            )
        if job.outcome == "error":
            print(job.log.read_text()[-2000:])
        if sys.stdout.isatty():
            print(f"\r{number} of {len(chosen)}, {job.seconds:.0f} s ", end="", flush=True)
    total = _print_table(counts)
    share = total["survived"] / len(chosen)
    print(
        f"{total['survived']} of {len(chosen)} survived, {share:.1%}; "
        f"{time.monotonic() - begin:.0f} s."
    )
    return 2 if total["error"] else int(share > ALLOWED)


def _print_table(counts: dict[str, dict[str, int]]) -> dict[str, int]:
    """Print a row for each module and one for all of them, which is returned."""
    print(f"\n{'module':<14}{'mutants':>9}" + "".join(f"{name:>11}" for name in COLUMNS))
    total = {name: sum(row[name] for row in counts.values()) for name in COLUMNS}
    for module, row in [*sorted(counts.items()), ("all", total)]:
        print(
            f"{module:<14}{sum(row.values()):>9}" + "".join(f"{row[name]:>11}" for name in COLUMNS)
        )
    return total


if __name__ == "__main__":
    sys.exit(main())
