"""What a benchmark may claim: means with intervals, paired comparisons, ranks, and how well known fields were found."""

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from importlib import import_module
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from .._common.checks import refuse_settings
from .._common.errors import TorchleapError, nearest

Pair = TypeVar(
    "Pair", bound=Hashable
)  # what two methods have in common, such as (search seed, retrain seed)
Floats = npt.NDArray[np.float64]
Verdict = Literal["better", "worse", "tie"]


class Sample(NamedTuple):
    """A number, and the training run that it comes from."""

    run: str
    value: float


class Mean(NamedTuple):
    """A mean with its 95 % interval, which is NaN where there is one run only."""

    value: float
    low: float
    high: float
    runs: int


class Comparison(NamedTuple):
    """A method against the reference on the same pairs."""

    difference: Mean
    p: float
    adjusted: float  # Holm's, over all methods
    verdict: Verdict


class _Weighed(NamedTuple):
    mean: float
    error: float  # the standard error of the mean
    runs: int


def mean_of(samples: Sequence[Sample]) -> Mean:
    """The mean and its interval by Student's t, in which a repeated run is no new evidence.

    Two search seeds may choose the same fields; the retrained model is then one run that stands for both. It weighs twice
    in the mean, but the interval counts distinct runs.

    >>> found = mean_of([Sample("a", 0.80), Sample("b", 0.82), Sample("b", 0.82), Sample("a", 0.80)])
    >>> found.runs, round(found.value, 4), round(found.low, 4), round(found.high, 4)
    (2, 0.81, 0.6829, 0.9371)
    >>> mean_of([Sample("a", 0.8), Sample("a", 0.8)])
    Mean(value=0.8, low=nan, high=nan, runs=1)
    """
    mean, error, runs = _weighed(samples)
    if runs == 1:
        return Mean(mean, math.nan, math.nan, runs)
    margin = float(_students_t().ppf(0.975, runs - 1)) * error
    return Mean(mean, mean - margin, mean + margin, runs)


def compare(
    samples: Mapping[str, Mapping[Pair, Sample]], reference: str, alpha: float = 0.05
) -> dict[str, Comparison]:
    """Each other method minus the reference over the pairs that both have: a paired t-test, adjusted by Holm.

    Args:
        samples: method -> pair -> sample.
        alpha: the chance, over all methods together, to call one better or worse that is not.

    >>> runs = {"all": [0.80, 0.81, 0.80], "leap": [0.82, 0.83, 0.83], "lasso": [0.79, 0.82, 0.80]}
    >>> samples = {m: {seed: Sample(f"{m}-{seed}", v) for seed, v in enumerate(values)} for m, values in runs.items()}
    >>> {method: found.verdict for method, found in compare(samples, reference="all").items()}
    {'leap': 'better', 'lasso': 'tie'}
    """
    refuse_settings({f"alpha must be between 0 and 1, but is {alpha!r}": 0 < alpha < 1})
    if reference not in samples:
        raise TorchleapError(
            f"Expected samples of the reference {reference!r}, but it has none. {nearest(reference, samples)}"
        )
    _distinct(
        [sample for own in samples.values() for sample in own.values()]
    )  # a run is the same one in every method
    others = [method for method in samples if method != reference]
    differences = {method: _differences(samples[method], samples[reference]) for method in others}
    alone = [method for method in others if not differences[method]]
    if alone:
        raise TorchleapError(
            f"Expected pairs that a method shares with the reference {reference!r}, but these methods share none: "
            f"{', '.join(map(repr, alone))}. Run them on the same seeds."
        )
    means = {method: mean_of(differences[method]) for method in others}
    p = [_paired_p(differences[method]) for method in others]
    return {
        method: Comparison(
            means[method], raw, adjusted, _verdict(means[method].value, adjusted, alpha)
        )
        for method, raw, adjusted in zip(others, p, holm(p), strict=True)
    }


def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjustment for many tests: step-down and never above 1; NaN stays NaN and is no test.

    >>> holm([0.01, 0.04, 0.03, math.nan])
    [0.03, 0.06, 0.06, nan]
    """
    outside = [value for value in p if value < 0 or value > 1]
    if outside:
        raise TorchleapError(f"Expected p-values between 0 and 1, but found {outside[0]!r}.")
    tests = sorted((value, place) for place, value in enumerate(p) if not math.isnan(value))
    adjusted = [math.nan] * len(p)
    highest = 0.0
    for passed, (value, place) in enumerate(tests):
        highest = max(highest, min(1.0, (len(tests) - passed) * value))
        adjusted[place] = highest
    return adjusted


def ranks(values: Mapping[str, float]) -> dict[str, float]:
    """The rank of each name: 1 is the highest value, and a tie shares the mean of its ranks.

    >>> ranks({"leap": 0.8, "lasso": 0.7, "shark": 0.8})
    {'leap': 1.5, 'lasso': 3.0, 'shark': 1.5}
    """
    unknown = [name for name, value in values.items() if math.isnan(value)]
    if unknown:
        raise TorchleapError(
            f"Expected a value to rank for every name, but these are NaN: {', '.join(map(repr, unknown))}."
        )
    found = list(values.values())
    return {
        name: 1
        + sum(other > value for other in found)
        + (sum(other == value for other in found) - 1) / 2
        for name, value in values.items()
    }


def mean_ranks(table: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Each method's rank, averaged over data sets.

    Args:
        table: method -> data set -> value, every method on the same data sets.

    >>> mean_ranks({"leap": {"a": 0.8, "b": 0.6}, "lasso": {"a": 0.7, "b": 0.6}})
    {'leap': 1.25, 'lasso': 1.75}
    """
    sets = list(next(iter(table.values()), {}))
    if not sets:
        raise TorchleapError(
            "Mean ranks need at least one method with one data set, but the table is empty."
        )
    for method, row in table.items():
        if set(row) != set(sets):
            raise TorchleapError(
                f"Mean ranks need every method on {sets}, but {method!r} has {list(row)}."
            )
    by_set = [ranks({method: row[name] for method, row in table.items()}) for name in sets]
    return {method: sum(ranked[method] for ranked in by_set) / len(sets) for method in table}


def f1(kept: Collection[str], useful: Collection[str], ignored: Collection[str] = ()) -> float:
    """F1 of the kept fields against the useful ones; ignored fields, such as redundant ones, count neither way.

    Nothing kept where nothing is useful is right: 1.

    >>> f1(["age", "city", "copy of age"], ["age", "zip"], ignored=["copy of age"])
    0.5
    """
    found, wanted = set(kept) - set(ignored), set(useful) - set(ignored)
    if not found and not wanted:
        return 1.0
    return 2 * len(found & wanted) / (len(found) + len(wanted))


def polarisation(gates: Sequence[float], within: float = 0.05) -> float:
    """The share of gates that have decided: at most `within` away from 0 or from 1.

    >>> polarisation([0.0, 0.04, 0.5, 0.95])
    0.75
    """
    refuse_settings({f"within must be between 0 and 0.5, but is {within!r}": 0 <= within <= 0.5})
    if not len(gates):
        raise TorchleapError("Expected at least one gate, but there is none.")
    outside = [gate for gate in gates if not 0 <= gate <= 1]
    if outside:
        raise TorchleapError(f"Expected gates between 0 and 1, but found {outside[0]!r}.")
    return sum(gate <= within or gate >= 1 - within for gate in gates) / len(gates)


def _weighed(samples: Sequence[Sample]) -> _Weighed:
    values, repeats = _distinct(samples)  # (runs,), (runs,)
    runs = len(values)
    share = repeats / repeats.sum()
    mean = float(
        values[0] + share @ (values - values[0])
    )  # from a value on, so that equal values have no spread at all
    if runs == 1:
        return _Weighed(mean, math.nan, runs)
    variance = float(share @ (values - mean) ** 2) * runs / (runs - 1)
    return _Weighed(mean, math.sqrt(variance * float(share @ share)), runs)


def _distinct(samples: Sequence[Sample]) -> tuple[Floats, Floats]:
    """The value of each run, and how often it stands in the samples."""
    if not samples:
        raise TorchleapError("Expected at least one sample, but there is none.")
    values: dict[str, float] = {}
    repeats: dict[str, int] = {}
    for run, value in samples:
        if not math.isfinite(value):
            raise TorchleapError(f"Expected finite values, but the run {run!r} has {value!r}.")
        if values.setdefault(run, value) != value:
            raise TorchleapError(
                f"A run has one value, but {run!r} has {values[run]!r} and {value!r}. Name each run differently."
            )
        repeats[run] = repeats.get(run, 0) + 1
    return np.array(list(values.values()), dtype=np.float64), np.array(
        list(repeats.values()), dtype=np.float64
    )


def _differences(own: Mapping[Pair, Sample], other: Mapping[Pair, Sample]) -> list[Sample]:
    """Own minus other over the pairs that both have; the same two runs are the same observation."""
    common = [(sample, other[pair]) for pair, sample in own.items() if pair in other]
    return [Sample(f"{a.run} {b.run}", a.value - b.value) for a, b in common]


def _paired_p(differences: Sequence[Sample]) -> float:
    """Two-sided, from the same error and the same number of observations as the interval."""
    mean, error, runs = _weighed(differences)
    if runs == 1:
        return math.nan
    if error == 0:
        return 0.0 if mean else 1.0
    return float(2 * _students_t().sf(abs(mean) / error, runs - 1))


def _verdict(difference: float, adjusted: float, alpha: float) -> Verdict:
    if not adjusted < alpha:  # NaN is a tie
        return "tie"
    return "better" if difference > 0 else "worse"


def _students_t() -> Any:
    """Scipy's distribution, imported where it is used: scipy belongs to an extra."""
    try:
        return import_module("scipy.stats").t
    except ImportError as error:
        raise TorchleapError(
            "Intervals need the package scipy. Install it: pip install 'torchleap[bench]'."
        ) from error
