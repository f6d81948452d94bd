"""The statistics of a benchmark: means with intervals, paired comparisons, ranks and F1."""

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from .._common.checks import check_arguments, number
from .._common.errors import TorchleapError, nearest
from .._common.optional import need

# something that two methods have in common, such as (search seed, retrain seed)
Pair = TypeVar("Pair", bound=Hashable)
Floats = npt.NDArray[np.float64]
Verdict = Literal["better", "worse", "tie"]


class Sample(NamedTuple):
    """A number, and the training run that it comes from."""

    run: str
    value: float


class Mean(NamedTuple):
    """A mean with its 95 % interval, which is NaN where there is only one run."""

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
    """Return the mean and its interval by Student's t, in which a repeated run is not new evidence.

    Two search seeds may choose the same fields; the retrained model is then one run for both. It
    counts twice in the mean, but the interval counts distinct runs.

    >>> twice = [Sample("a", 0.80), Sample("b", 0.82), Sample("b", 0.82), Sample("a", 0.80)]
    >>> found = mean_of(twice)
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
    """Return each other method minus the reference: a paired t-test, adjusted by Holm.

    Args:
        samples: The samples of each method by pair; pairs that both have are compared.
        reference: The name of the method that the others are compared with.
        alpha: The probability, over all methods together, of calling one better or worse that is
            not.

    >>> runs = {"all": [0.80, 0.81, 0.80], "leap": [0.82, 0.83, 0.83], "lasso": [0.79, 0.82, 0.80]}
    >>> samples = {}
    >>> for method, values in runs.items():
    ...     samples[method] = {n: Sample(f"{method}-{n}", v) for n, v in enumerate(values)}
    >>> {method: found.verdict for method, found in compare(samples, reference="all").items()}
    {'leap': 'better', 'lasso': 'tie'}
    """
    check_arguments(alpha=number(alpha, above=0, below=1))
    if reference not in samples:
        raise TorchleapError(
            f"Expected samples of the reference {reference!r}, but it has none. "
            f"{nearest(reference, samples)}"
        )
    # a run has the same value in every method
    _distinct([sample for own in samples.values() for sample in own.values()])
    others = [method for method in samples if method != reference]
    differences = {method: _differences(samples[method], samples[reference]) for method in others}
    alone = [repr(method) for method in others if not differences[method]]
    if alone:
        raise TorchleapError(
            f"Expected pairs that a method has in common with the reference {reference!r}, "
            f"but these methods have none: {', '.join(alone)}. Run them on the same seeds."
        )
    raw = [_paired_p(differences[method]) for method in others]
    found = {}
    for method, p, adjusted in zip(others, raw, holm(raw), strict=True):
        mean = mean_of(differences[method])
        found[method] = Comparison(mean, p, adjusted, _verdict(mean.value, adjusted, alpha))
    return found


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm for many tests: never above 1; NaN is not a test.

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
    """Return the rank of each name: 1 is the highest value; a tie has the mean of its ranks.

    >>> ranks({"leap": 0.8, "lasso": 0.7, "shark": 0.8})
    {'leap': 1.5, 'lasso': 3.0, 'shark': 1.5}
    """
    unknown = [repr(name) for name, value in values.items() if math.isnan(value)]
    if unknown:
        raise TorchleapError(
            "Expected a value to rank for every name, but these are NaN: "
            + ", ".join(unknown)
            + "."
        )
    found = {}
    for name, value in values.items():
        higher = sum(other > value for other in values.values())
        equal = sum(other == value for other in values.values())
        found[name] = 1 + higher + (equal - 1) / 2
    return found


def mean_ranks(table: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return each method's rank, averaged over data sets.

    Args:
        table: The value by method and data set, with every method on the same data sets.

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
    """Return the F1 score of the kept fields against the useful ones.

    It is 1 if nothing is kept where nothing is useful.

    Args:
        kept: The kept fields.
        useful: The useful fields.
        ignored: Fields that count neither way, such as redundant ones.

    >>> f1(["age", "city", "copy of age"], ["age", "zip"], ignored=["copy of age"])
    0.5
    """
    found = set(kept) - set(ignored)
    wanted = set(useful) - set(ignored)
    if not found and not wanted:
        return 1.0
    return 2 * len(found & wanted) / (len(found) + len(wanted))


def polarisation(gates: Sequence[float], within: float = 0.05) -> float:
    """Return the fraction of gates that have decided: at most `within` away from 0 or from 1.

    >>> polarisation([0.0, 0.04, 0.5, 0.95])
    0.75
    """
    check_arguments(within=number(within, at_least=0, at_most=0.5))
    if not len(gates):
        raise TorchleapError("Expected at least one gate, but there is none.")
    outside = [gate for gate in gates if not 0 <= gate <= 1]
    if outside:
        raise TorchleapError(f"Expected gates between 0 and 1, but found {outside[0]!r}.")
    return sum(gate <= within or gate >= 1 - within for gate in gates) / len(gates)


def _weighed(samples: Sequence[Sample]) -> _Weighed:
    """Return the mean of samples and its standard error over distinct runs."""
    values, repeats = _distinct(samples)  # (runs,), (runs,)
    runs = len(values)
    weight = repeats / repeats.sum()
    # relative to a value, so that equal values have no spread at all
    mean = float(values[0] + weight @ (values - values[0]))
    if runs == 1:
        return _Weighed(mean, math.nan, runs)
    variance = float(weight @ (values - mean) ** 2) * runs / (runs - 1)
    return _Weighed(mean, math.sqrt(variance * float(weight @ weight)), runs)


def _distinct(samples: Sequence[Sample]) -> tuple[Floats, Floats]:
    """Return the value of each run, and how often it occurs in the samples."""
    if not samples:
        raise TorchleapError("Expected at least one sample, but there is none.")
    values: dict[str, float] = {}
    repeats: dict[str, int] = {}
    for run, value in samples:
        if not math.isfinite(value):
            raise TorchleapError(f"Expected finite values, but the run {run!r} has {value!r}.")
        if values.setdefault(run, value) != value:
            raise TorchleapError(
                f"A run has one value, but {run!r} has {values[run]!r} and {value!r}. "
                "Name each run differently."
            )
        repeats[run] = repeats.get(run, 0) + 1
    counts = np.array(list(repeats.values()), dtype=np.float64)
    return np.array(list(values.values()), dtype=np.float64), counts


def _differences(own: Mapping[Pair, Sample], other: Mapping[Pair, Sample]) -> list[Sample]:
    """Return own minus other over the pairs that both have; the same two runs are one sample."""
    found = []
    for pair, sample in own.items():
        if pair in other:
            base = other[pair]
            found.append(Sample(f"{sample.run} {base.run}", sample.value - base.value))
    return found


def _paired_p(differences: Sequence[Sample]) -> float:
    """Return the two-sided p-value, from the same error and number of runs as the interval."""
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
    """Return scipy's distribution, which is imported where it is used."""
    return need("scipy.stats", extra="bench", purpose="An interval").t
