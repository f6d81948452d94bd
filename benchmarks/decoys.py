"""False discoveries: how many useless fields the rule `fdr` keeps where the ground truth is known.

    python benchmarks/decoys.py --runs 20 --rates 0.1 0.2

Each run is another world of `tl.data.KnownTruth` with another seed of the search: dense and sparse
useful fields, pairs, noise of the same widths, noisy copies and constants. A kept field is false if
the label does not depend on it; a copy of a useful field is not. "false" is the share of false ones
among the kept fields (0 where nothing can be kept), whose mean over the runs should be at most the
rate. "power" is the share of useful fields that are kept, where a copy stands for its original.
"""

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from _truth import with_originals

import torchleap as tl
from torchleap import SelectionError
from torchleap._common.text import table
from torchleap.data.synthetic.truth import KnownTruth, known_truth
from torchleap.pipeline.search import SearchResult
from torchleap.training.fit import Training

TRAINING = Training(batch=256, epochs=12, patience=2)
WIDTHS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Outcome:
    """The fields that a rate keeps in one run.

    Attributes:
        kept: How many fields are kept.
        false: The share of useless ones among them.
        power: The share of useful fields that are kept.
    """

    kept: int
    false: float
    power: float


def world(seed: int, widths: Sequence[int] = WIDTHS) -> KnownTruth:
    """Return a small world; by default it has 29 fields, 12 of them useful and 12 useless."""
    return KnownTruth(widths=tuple(widths), pair_widths=(1,), active=0.05, seed=seed)


def outcome(kept: Sequence[str], truth: KnownTruth) -> Outcome:
    """Return how many of the kept fields are useless, and how many useful ones are kept."""
    useless = set(kept) & set(truth.useless)
    found = with_originals(kept, truth.source) & set(truth.useful)
    return Outcome(
        kept=len(kept),
        false=len(useless) / max(1, len(kept)),
        power=len(found) / len(truth.useful),
    )


def kept_by(result: SearchResult, rate: float) -> tuple[str, ...]:
    """Return the fields that a rate keeps; none where not enough fields beat their decoys."""
    try:
        return result.select(fdr=rate).kept
    except SelectionError:
        return ()


def interval(values: Sequence[float]) -> str:
    """Return a mean and 1.96 standard errors of it.

    >>> interval([0.1, 0.3])
    '0.200 ± 0.196'
    """
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{statistics.mean(values):.3f} ± {1.96 * error:.3f}"


def run(given: argparse.Namespace) -> dict[float, list[Outcome]]:
    """Return the outcomes of all runs by rate; each run prints a line."""
    found: dict[float, list[Outcome]] = {rate: [] for rate in given.rates}
    for seed in range(given.first, given.first + given.runs):
        truth = world(seed, given.widths)
        task = known_truth(truth, given.rows)
        result = tl.search(
            task,
            model=given.model,
            method=given.method,
            training=TRAINING,
            seed=seed,
            fdr=min(given.rates),
            decoys=given.decoys,
        )
        words = []
        for rate in given.rates:
            own = outcome(kept_by(result, rate), truth)
            found[rate].append(own)
            words.append(f"{rate:g}: {own.kept} kept, {own.false:.2f} false, {own.power:.2f} power")
        print(f"world {seed}, {result.seconds:.0f} s: {'; '.join(words)}", flush=True)
    return found


def summary(found: Mapping[float, Sequence[Outcome]]) -> str:
    """Return the table of the means over all runs."""
    rows = []
    for rate, outcomes in found.items():
        rows.append(
            [
                f"{rate:g}",
                interval([one.false for one in outcomes]),
                interval([one.power for one in outcomes]),
                f"{statistics.mean(one.kept for one in outcomes):.1f}",
                str(sum(one.kept == 0 for one in outcomes)),
            ]
        )
    return table(["rate", "false", "power", "kept", "runs without any"], rows)


def main() -> None:
    """Run all worlds and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20, help="worlds")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first world")
    parser.add_argument("--rows", type=int, default=12_000, help="rows of each world")
    parser.add_argument("--widths", type=int, nargs="+", default=list(WIDTHS))
    parser.add_argument("--rates", type=float, nargs="+", default=[0.1, 0.2])
    parser.add_argument("--decoys", type=int, default=None, help="decoys of each field")
    parser.add_argument("--method", default="leap")
    parser.add_argument("--model", default="mlp")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(summary(run(given)))


if __name__ == "__main__":
    main()
