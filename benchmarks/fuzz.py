"""Try damaged files and random models for as long as you like, and count broken promises.

    python benchmarks/fuzz.py --minutes 5
    python benchmarks/fuzz.py --only feather --seed 18      # one file again
    python benchmarks/fuzz.py --only graphs --seed 7        # one graph again

A file is damaged (bytes flipped, cut, inserted, zeroed, repeated; values exchanged) and opened as
the library opens it: it is read, or refused in one sentence. A model is drawn at random, pruned,
and compared with the masked one on new batches. The exit code is 1 if anything was found, and the
command that shows it again is printed; nothing should be.
"""

import argparse
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.fuzz.formats import FORMATS
from tests.fuzz.trials import FINDINGS, Worker
from tests.surgery.trials import trial

GRAPHS = "graphs"
WRONG = (*FINDINGS, "inexact", "crash")
Outcome = Callable[[int], tuple[str, str]]


def try_graph(seed: int) -> tuple[str, str]:
    """Draw a model, prune it and compare; return the kind of the outcome and its detail."""
    found = trial(seed)
    return found.kind, found.detail


@contextmanager
def sources(only: str | None) -> Iterator[dict[str, Outcome]]:
    """Yield the functions that try a seed, by name: the formats of files, and graphs."""
    with Worker() as worker:
        known: dict[str, Outcome] = {
            name: lambda seed, name=name: worker.outcome(name, seed) for name in FORMATS
        }
        known[GRAPHS] = try_graph
        if only is not None and only not in known:
            raise SystemExit(f"There is no format {only!r}. Known: {', '.join(known)}.")
        if only is not None:
            known = {only: known[only]}
        yield known


def table(counts: dict[str, Counter[str]]) -> str:
    """Return the counts of each source as a table."""
    columns = ("tried", "refused", "read", "tracebacks", "aborts")
    widths = (7, 8, 7, 11, 7)
    titles = [f"{name:>{width}s}" for name, width in zip(columns, widths, strict=True)]
    lines = [" ".join([f"{'format':20s}", *titles])]
    for name, found in counts.items():
        if name == GRAPHS:
            continue
        aborts = found["abort"] + found["hang"] + found["panic"]
        wrong = found["traceback"] + found["unreadable"]
        numbers = (found.total(), found["refused"], found["read"], wrong, aborts)
        cells = [f"{number:{width},}" for number, width in zip(numbers, widths, strict=True)]
        lines.append(" ".join([f"{name:20s}", *cells]))
    graphs = counts.get(GRAPHS)
    if graphs is not None:
        kinds = ("exact", "fed", "refused", "inexact", "hang", "crash")
        found_kinds = ", ".join(f"{graphs[kind]:,} {kind}" for kind in kinds)
        lines.append(f"\n{graphs.total():,} graphs tried: {found_kinds}")
    return "\n".join(lines)


def run(
    minutes: float, seed: int, known: dict[str, Outcome]
) -> tuple[dict[str, Counter[str]], list[str]]:
    """Try one of each in turn until the time is over; return the counts and the findings."""
    counts = {name: Counter[str]() for name in known}
    findings: list[str] = []
    end = time.monotonic() + 60 * minutes
    columns = (
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=None, left="")
        for number in itertools.count(seed):
            for name, outcome in known.items():
                kind, detail = outcome(number)
                counts[name][kind] += 1
                if kind in WRONG:
                    command = f"python benchmarks/fuzz.py --only {name!r} --seed {number}"
                    findings.append(f"{kind}: {command}\n    {detail[:300]}")
                tried = sum(each.total() for each in counts.values())
                left = f"{max(0.0, end - time.monotonic()):.0f} s left"
                progress.update(
                    bar, description=f"{tried:,} tried, {len(findings)} found; {name}", left=left
                )
                if time.monotonic() > end:
                    return counts, findings
    raise AssertionError


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--minutes", type=float, default=5.0, help="how long to try (default: %(default)s)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        help="the seed of the first trial (default: at random); with --only, the only trial",
    )
    parser.add_argument("--only", help="one format, or graphs")
    options = parser.parse_args()
    with sources(options.only) as known:
        if options.only is not None and options.seed is not None:
            kind, detail = known[options.only](options.seed)
            print(f"{options.only}, seed {options.seed}: {kind} {detail}")
            return int(kind in WRONG)
        seed = random.randrange(1, 1 << 31) if options.seed is None else options.seed
        counts, findings = run(options.minutes, seed, known)
    print(f"seed {seed}\n\n{table(counts)}\n\n{len(findings)} findings")
    print("\n".join(findings[:40]))
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
