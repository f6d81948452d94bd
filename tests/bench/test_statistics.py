import math
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import f1_score

from torchleap import TorchleapError
from torchleap.bench.statistics import (
    Sample,
    compare,
    f1,
    holm,
    mean_of,
    mean_ranks,
    polarisation,
    ranks,
)

VALUES = st.lists(
    st.integers(-1000, 1000).map(lambda number: number / 1000), min_size=2, max_size=8
)
REPEATED = st.lists(st.tuples(st.integers(-1000, 1000), st.integers(1, 5)), min_size=2, max_size=6)
P_VALUES = st.lists(st.floats(0, 1) | st.just(math.nan), max_size=10)
NAMES = [f"field {number}" for number in range(6)]
FIELDS = st.sets(st.sampled_from(NAMES))


def samples_of(values, start=0):
    return [Sample(f"run {place}", value) for place, value in enumerate(values, start)]


def by_seed(method, values):
    return {seed: Sample(f"{method} {seed}", value) for seed, value in enumerate(values)}


def half_width(mean):
    return (mean.high - mean.low) / 2


def error_by_loops(values, weights):
    """Return the weighted mean and its squared standard error, in exact fractions."""
    runs, total = len(values), Fraction(sum(weights))
    mean = (
        sum(weight * Fraction(value) for value, weight in zip(values, weights, strict=True)) / total
    )
    spread = (
        sum(
            weight * (Fraction(value) - mean) ** 2
            for value, weight in zip(values, weights, strict=True)
        )
        / total
    )
    return mean, spread * runs / (runs - 1) * sum(
        Fraction(weight) ** 2 for weight in weights
    ) / total**2


@given(VALUES)
def test_without_repeats_the_interval_is_student_s(values):
    found = mean_of(samples_of(values))
    assert (found.value, found.runs) == (pytest.approx(np.mean(values)), len(values))
    if len(set(values)) == 1:
        assert found.low == found.value == found.high == values[0]
        return
    low, high = stats.t.interval(
        0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values)
    )
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-9), pytest.approx(high, abs=1e-9))


@given(REPEATED)
def test_repeats_weigh_in_the_mean_and_the_interval_counts_distinct_runs(rows):
    samples = [
        Sample(f"run {place}", value)
        for place, (value, weight) in enumerate(rows)
        for _ in range(weight)
    ]
    found = mean_of(samples[::2] + samples[1::2])  # the order of samples does not matter
    values, weights = zip(*rows, strict=True)
    mean, squared_error = error_by_loops(values, weights)
    assert found.runs == len(rows)
    assert found.value == pytest.approx(float(mean), abs=1e-9)
    assert half_width(found) == pytest.approx(
        stats.t.ppf(0.975, len(rows) - 1) * math.sqrt(squared_error), abs=1e-6
    )


@given(VALUES, st.integers(2, 5))
def test_repeating_every_run_changes_nothing(values, times):
    once, often = mean_of(samples_of(values)), mean_of(samples_of(values) * times)
    assert often == pytest.approx(once, abs=1e-12)


@given(REPEATED)
def test_a_repeated_run_gives_a_wider_interval_than_a_fresh_run_of_the_same_value(rows):
    repeated = [
        Sample(f"run {place}", value)
        for place, (value, weight) in enumerate(rows)
        for _ in range(weight)
    ]
    fresh = samples_of([sample.value for sample in repeated])
    wide, narrow = half_width(mean_of(repeated)), half_width(mean_of(fresh))
    assert wide >= narrow * (1 - 1e-12)
    if len(fresh) > len(rows) and narrow:
        assert wide > narrow


def test_the_interval_covers_the_truth_as_often_as_it_says_despite_repeats():
    """Two of three searches agree: six distinct retrained runs stand for nine."""
    rng = np.random.default_rng(0)
    weights = (2, 2, 2, 1, 1, 1)
    hits = []
    for values in rng.normal(size=(3000, 6)):
        samples = [
            sample
            for sample, weight in zip(samples_of(values), weights, strict=True)
            for _ in range(weight)
        ]
        found = mean_of(samples)
        hits.append(found.low < 0 < found.high)
    assert np.mean(hits) == pytest.approx(0.95, abs=0.015)


def test_one_run_has_no_interval_however_often_it_stands_there():
    found = mean_of([Sample("a", 0.1)] * 3)
    assert found.value == 0.1
    assert found.runs == 1
    assert math.isnan(found.low)
    assert math.isnan(found.high)


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=2, max_size=8))
def test_without_repeats_p_is_the_paired_t_test_s(rows):
    a, b = (np.array(column) for column in zip(*rows, strict=True))
    found = compare({"a": by_seed("a", a), "b": by_seed("b", b)}, reference="b")["a"]
    assert found.difference.value == pytest.approx(np.mean(a - b), abs=1e-9)
    if len(set(a - b)) == 1:
        assert found.p == (0 if a[0] != b[0] else 1)
    else:
        assert found.p == pytest.approx(stats.ttest_rel(a, b).pvalue, abs=1e-9)
    assert found.adjusted == found.p


@given(VALUES)
def test_the_raw_p_is_below_five_per_cent_where_the_interval_leaves_out_zero(values):
    found = compare(
        {"a": by_seed("a", values), "b": by_seed("b", [0.0] * len(values))}, reference="b"
    )["a"]
    if min(abs(found.difference.low), abs(found.difference.high)) > 1e-9:
        assert (found.p < 0.05) == (found.difference.low > 0 or found.difference.high < 0)


def test_a_pair_of_runs_that_stands_for_two_search_seeds_is_one_observation():
    a = {
        (search, retrain): Sample(f"a {retrain}", 0.8 + 0.01 * retrain)
        for search in range(3)
        for retrain in range(3)
    }
    b = {
        (search, retrain): Sample(f"b {retrain}", 0.79 + 0.012 * retrain)
        for search in range(3)
        for retrain in range(3)
    }
    found = compare({"a": a, "b": b}, reference="b")["a"]
    assert found.difference.runs == 3
    first_search = [[own[0, retrain].value for retrain in range(3)] for own in (a, b)]
    assert found.p == pytest.approx(stats.ttest_rel(*first_search).pvalue)


def test_one_run_against_several_others_is_several_observations():
    a = {search: Sample("the same", 0.8) for search in range(3)}
    b = by_seed("b", [0.79, 0.78, 0.80])
    assert compare({"a": a, "b": b}, reference="b")["a"].difference.runs == 3
    assert compare({"a": a, "b": b}, reference="a")["b"].difference.runs == 3


def test_a_run_that_both_methods_share_is_an_observation_of_no_difference():
    shared = Sample("shared", 0.8)
    a = {1: shared, 2: Sample("a 2", 0.83), 3: Sample("a 3", 0.82)}
    b = {1: shared, 2: Sample("b 2", 0.80), 3: Sample("b 3", 0.81)}
    found = compare({"a": a, "b": b}, reference="b")["a"]
    assert found.difference.runs == 3
    assert found.difference.value == pytest.approx(0.04 / 3)
    same = compare({"a": {1: shared, 2: a[2]}, "b": {1: shared, 2: a[2]}}, reference="b")["a"]
    assert (same.difference.value, same.difference.runs, same.p, same.verdict) == (0, 2, 1, "tie")


def test_only_the_pairs_that_both_have_are_compared():
    a, b = by_seed("a", [0.9, 0.8, 0.7, 0.1]), by_seed("b", [0.5, 0.6, 0.6])
    del a[0]
    found = compare({"a": a, "b": b}, reference="b")["a"]
    assert found.difference.runs == 2
    assert found.difference.value == pytest.approx(0.15)


def test_one_observation_is_a_tie_without_p_and_is_no_test_to_adjust_for():
    many = [0.80, 0.81, 0.79, 0.80]
    samples = {
        "reference": by_seed("reference", many),
        "once": by_seed("once", [0.99]),
        "far": by_seed("far", [value + 0.02 + 0.001 * place for place, value in enumerate(many)]),
        "low": by_seed("low", [value - 0.02 - 0.001 * place for place, value in enumerate(many)]),
    }
    found = compare(samples, reference="reference")
    assert list(found) == ["once", "far", "low"]
    assert {method: row.verdict for method, row in found.items()} == {
        "once": "tie",
        "far": "better",
        "low": "worse",
    }
    assert math.isnan(found["once"].p)
    assert math.isnan(found["once"].adjusted)
    assert math.isnan(found["once"].difference.low)
    assert found["far"].adjusted == pytest.approx(2 * found["far"].p)


def test_the_adjusted_p_decides_the_verdict():
    reference = [0.80, 0.81, 0.79, 0.80]
    lifts = [0.012, 0.002, 0.013, 0.008]
    good = by_seed("good", [value + lift for value, lift in zip(reference, lifts, strict=True)])
    noise = {
        f"noise {number}": by_seed(f"noise {number}", [0.80, 0.79, 0.80, 0.81])
        for number in range(3)
    }
    alone = compare({"good": good, "r": by_seed("r", reference)}, reference="r")["good"]
    among = compare({"good": good, "r": by_seed("r", reference), **noise}, reference="r")["good"]
    assert alone.p == among.p < 0.05 < among.adjusted == pytest.approx(4 * among.p)
    assert (alone.verdict, among.verdict) == ("better", "tie")
    assert (
        compare({"good": good, "r": by_seed("r", reference), **noise}, reference="r", alpha=0.2)[
            "good"
        ].verdict
        == "better"
    )


def holm_by_definition(p):
    """Return the greatest of (tests left) * p over the tests that are at least as clear."""
    known = sorted(value for value in p if not math.isnan(value))
    return [
        max(
            min(1.0, (len(known) - place) * known[place]) for place in range(known.index(value) + 1)
        )
        if not math.isnan(value)
        else value
        for value in p
    ]


@given(P_VALUES)
def test_holm_equals_its_definition(p):
    assert holm(p) == pytest.approx(holm_by_definition(p), nan_ok=True)


@given(P_VALUES)
def test_holm_keeps_the_order_never_lowers_and_stays_between_bonferroni_and_one(p):
    adjusted = holm(p)
    pairs = [(raw, new) for raw, new in zip(p, adjusted, strict=True) if not math.isnan(raw)]
    assert [math.isnan(value) for value in adjusted] == [math.isnan(value) for value in p]
    assert all(raw <= new <= min(1.0, len(pairs) * raw) for raw, new in pairs)
    assert [new for _, new in sorted(pairs)] == sorted(new for _, new in pairs)


def test_holm_of_a_worked_example():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


@given(st.dictionaries(st.text(), st.sampled_from([0.1, 0.2, 0.5, 0.8, -math.inf]), max_size=8))
def test_ranks_equal_scipy_s_and_sum_to_those_of_all_places(values):
    found = ranks(values)
    assert sum(found.values()) == len(values) * (len(values) + 1) / 2
    assert list(found.values()) == stats.rankdata([-value for value in values.values()]).tolist()


def test_mean_ranks_average_over_data_sets_in_any_order():
    table = {
        "leap": {"a": 0.9, "b": 0.7},
        "shark": {"b": 0.8, "a": 0.8},
        "lasso": {"a": 0.7, "b": 0.7},
    }
    assert mean_ranks(table) == {"leap": 1.75, "shark": 1.5, "lasso": 2.75}


@given(FIELDS, FIELDS, FIELDS)
def test_f1_equals_scikit_learn_s_over_the_fields_that_count(kept, useful, ignored):
    names = [name for name in NAMES if name not in ignored]
    truth, found = [name in useful for name in names], [name in kept for name in names]
    expected = f1_score(truth, found) if any(truth) or any(found) else 1.0
    assert f1(list(kept), useful, ignored) == pytest.approx(expected)


def test_polarisation_counts_its_borders():
    assert polarisation([0.05, 0.95]) == 1
    assert polarisation([0.051, 0.949]) == 0
    assert polarisation([0.0, 1.0, 0.3, 0.31], within=0.3) == 0.75
    assert polarisation(np.array([0.0, 0.5]), within=0) == 0.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean_of([]), "at least one sample"),
        (lambda: mean_of([Sample("a", 0.1), Sample("a", 0.2)]), "'a' has 0.1 and 0.2"),
        (lambda: mean_of([Sample("a", math.nan)]), "'a' has nan"),
        (
            lambda: compare({"leap": by_seed("leap", [0.1])}, reference="lep"),
            "reference 'lep'.*Did you mean 'leap'",
        ),
        (
            lambda: compare(
                {
                    "a": {1: Sample("a", 0.1)},
                    "b": {2: Sample("b", 0.1)},
                    "c": {},
                    "d": {2: Sample("d", 0.1)},
                },
                "b",
            ),
            "have none: 'a', 'c'. Run",
        ),
        (
            lambda: compare({"a": {1: Sample("same", 0.1)}, "b": {1: Sample("same", 0.2)}}, "b"),
            "'same' has 0.1 and 0.2",
        ),
        (
            lambda: compare({"a": by_seed("a", [0.1])}, "a", alpha=5),
            "alpha must be a number above 0 and below 1, but is 5",
        ),
        (lambda: holm([0.5, 1.5]), "found 1.5"),
        (lambda: ranks({"a": 0.1, "b": math.nan}), "NaN: 'b'"),
        (lambda: mean_ranks({}), "empty"),
        (lambda: mean_ranks({"a": {"x": 1.0}, "b": {"y": 1.0}}), "every method on"),
        (lambda: polarisation([]), "at least one gate"),
        (lambda: polarisation([0.5, 1.2]), "found 1.2"),
        (
            lambda: polarisation([0.5], within=0.6),
            "within must be a number from 0 to 0.5, but is 0.6",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(TorchleapError, match=message):
        call()


def test_a_missing_scipy_is_named_with_its_cure(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(TorchleapError, match=r"scipy.*torchleap\[bench\]"):
        mean_of(samples_of([0.1, 0.2]))
