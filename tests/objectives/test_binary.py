import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss as sklearn_log_loss
from sklearn.metrics import roc_auc_score

from tests.slow import auc_by_pairs, jackknife
from torchleap import MetricError, auc, gauc, log_loss, s_auc
from torchleap.objectives import auc_difference, gauc_difference, log_loss_difference

ROWS = st.lists(
    st.tuples(
        st.integers(0, 1), st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]), st.integers(0, 3)
    ),
    min_size=1,
    max_size=40,
)


@given(ROWS)
def test_auc_equals_counting_pairs_and_scikit_learn(rows):
    labels, scores, _ = zip(*rows, strict=True)
    if len(set(labels)) < 2:
        with pytest.raises(MetricError, match="both classes"):
            auc(labels, scores)
        return
    assert auc(labels, scores) == pytest.approx(auc_by_pairs(labels, scores), abs=1e-12)
    assert auc(labels, scores) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


@given(ROWS)
def test_gauc_equals_a_loop_over_groups(rows):
    total = weight = 0.0
    for group in {row[2] for row in rows}:
        members = [row for row in rows if row[2] == group]
        value = auc_by_pairs([row[0] for row in members], [row[1] for row in members])
        if value is not None:
            total += value * len(members)
            weight += len(members)
    labels, scores, groups = zip(*rows, strict=True)
    if not weight:
        with pytest.raises(MetricError, match="one class"):
            gauc(labels, scores, groups)
        return
    assert gauc(labels, scores, groups) == pytest.approx(total / weight, abs=1e-12)


def test_gauc_of_one_group_is_auc_and_groups_may_be_strings():
    labels, scores = torch.tensor([0, 1, 0, 1]), torch.tensor([0.2, 0.9, 0.3, 0.1])
    assert gauc(labels, scores, ["u"] * 4) == auc(labels, scores)
    assert gauc(labels, scores, torch.tensor([5, 5, 5, 5])) == auc(labels, scores)


@given(st.lists(st.tuples(st.integers(0, 1), st.floats(0, 1)), min_size=1, max_size=30))
def test_log_loss_equals_scikit_learn(rows):
    labels, probabilities = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    assert log_loss(labels, probabilities) == pytest.approx(
        sklearn_log_loss(labels, probabilities, labels=[0, 1]), rel=1e-9, abs=1e-12
    )


def test_large_ids_stay_apart_as_groups():
    ids = torch.tensor([2**53, 2**53, 2**53 + 1, 2**53 + 1])
    assert gauc([0, 1, 0, 1], [0.1, 0.2, 0.8, 0.9], ids) == 1.0


def test_log_loss_of_float32_certainties_is_bounded_as_scikit_learn_does():
    labels, probabilities = np.array([0, 1, 1]), np.array([1.0, 0.0, 1.0], dtype=np.float32)
    assert log_loss(labels, probabilities) == pytest.approx(
        sklearn_log_loss(labels, probabilities), rel=1e-5
    )
    assert log_loss(torch.tensor(labels), torch.tensor(probabilities)) == pytest.approx(
        log_loss(labels, probabilities)
    )


def test_metrics_take_tensors_arrays_and_lists_alike():
    labels, scores = [0, 1, 1, 0], [0.5, 0.25, 0.75, 0.125]
    expected = auc(labels, scores)
    assert auc(np.array(labels), np.array(scores)) == expected
    assert (
        auc(torch.tensor(labels), torch.tensor(scores, dtype=torch.bfloat16, requires_grad=True))
        == expected
    )
    assert auc(torch.tensor(labels)[:, None], torch.tensor(scores)[:, None]) == expected


def test_s_auc_reproduces_the_paper_s_table():
    """Table 1 of the paper at 50 %: the published S_AUC from the published AUCs, as rounded."""
    columns = ("criteo", "avazu", "aliccp", "ml-1m")
    rows = {
        "none": (0.8014, 0.7882, 0.6598, 0.7950),
        "lasso": (0.7462, 0.7088, 0.6054, 0.6484),
        "shark": (0.7974, 0.7870, 0.6582, 0.8097),
        "leap": (0.7984, 0.7870, 0.6583, 0.8097),
    }
    found = s_auc(
        {method: dict(zip(columns, values, strict=True)) for method, values in rows.items()}
    )
    for method, published in {
        "none": 0.9954,
        "lasso": 0.8872,
        "shark": 0.9977,
        "leap": 0.9981,
    }.items():
        assert found[method] == pytest.approx(published, abs=1.5e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: auc([0, 1], [0.1]), "2 labels and 1 scores"),
        (lambda: auc([], []), "at least one row"),
        (lambda: auc([0, 2], [0.1, 0.2]), "labels 0 and 1"),
        (lambda: auc([0, 1], [0.1, float("nan")]), "NaN or infinite"),
        (lambda: gauc([0, 1], [0.1, 0.2], ["u"]), "2 rows and 1 groups"),
        (lambda: gauc([0, 1], [0.1, 0.2], np.array(["u", None], dtype=object)), "can be sorted"),
        (lambda: log_loss_difference([0, 1], [0.1, 0.2], [0.1, 2.0]), "Apply a sigmoid"),
        (lambda: log_loss_difference([0, 1], [0.1], [0.1, 0.2]), "2 labels and 1 scores"),
        (lambda: s_auc({"a": {"x": 0.0}}), "above 0"),
        (lambda: log_loss([0, 1], [-0.1, 2.0]), "Apply a sigmoid"),
        (lambda: s_auc({}), "empty"),
        (lambda: s_auc({"a": {"x": 1.0}, "b": {"y": 1.0}}), "every method on"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(MetricError, match=message):
        call()


def rows_of_two_models(rows=4000, seed=0, groups=60):
    rng = np.random.default_rng(seed)
    label = (rng.random(rows) < 0.3).astype(int)
    before = label + rng.normal(scale=1.5, size=rows)
    after = np.round(before + 0.2 * label + rng.normal(scale=0.7, size=rows), 1)  # with ties
    return label, before, after, rng.integers(0, groups, rows)


def test_the_interval_of_an_auc_difference_is_what_redrawn_rows_show():
    label, before, after, _ = rows_of_two_models()
    found = auc_difference(label, before, after)
    assert found.value == pytest.approx(auc(label, after) - auc(label, before))
    rng = np.random.default_rng(1)
    drawn = [rng.integers(0, len(label), len(label)) for _ in range(600)]
    redrawn = [auc(label[rows], after[rows]) - auc(label[rows], before[rows]) for rows in drawn]
    assert (found.high - found.low) / 3.92 == pytest.approx(np.std(redrawn), rel=0.12)
    assert (found.low + found.high) / 2 == pytest.approx(found.value)


def test_the_interval_of_a_gauc_difference_is_what_redrawn_groups_show():
    label, before, after, group = rows_of_two_models()
    found = gauc_difference(label, before, after, group)
    assert found.value == pytest.approx(gauc(label, after, group) - gauc(label, before, group))
    rng = np.random.default_rng(1)
    members = [np.flatnonzero(group == number) for number in range(60)]
    redrawn = []
    for _ in range(300):
        chosen = rng.integers(0, 60, 60)
        rows = np.concatenate([members[number] for number in chosen])
        fresh = np.concatenate(
            [np.full(len(members[number]), place) for place, number in enumerate(chosen)]
        )
        redrawn.append(
            gauc(label[rows], after[rows], fresh) - gauc(label[rows], before[rows], fresh)
        )
    assert (found.high - found.low) / 3.92 == pytest.approx(np.std(redrawn), rel=0.2)


def test_the_same_scores_differ_by_nothing():
    label, before, _, group = rows_of_two_models(rows=200)
    assert auc_difference(label, before, before) == (0, 0, 0)
    assert gauc_difference(label, before, before, group) == (0, 0, 0)
    chance = np.exp(-np.exp(before))
    assert log_loss_difference(label, chance, chance) == (0, 0, 0)


def interval_by_pairs(labels, before, after):
    """DeLong's interval of the difference, pair by pair; one row of a class has no spread."""
    positives = [row for row in range(len(labels)) if labels[row]]
    negatives = [row for row in range(len(labels)) if not labels[row]]

    def wins(scores, one, other):
        return 1.0 if scores[one] > scores[other] else 0.5 if scores[one] == scores[other] else 0.0

    def gain(one, other):
        return wins(after, one, other) - wins(before, one, other)

    ups = [sum(gain(one, other) for other in negatives) / len(negatives) for one in positives]
    downs = [sum(gain(one, other) for one in positives) / len(positives) for other in negatives]
    variance = 0.0
    for changes in (ups, downs):
        mean = sum(changes) / len(changes)
        squares = sum((change - mean) ** 2 for change in changes)
        variance += squares / (len(changes) - 1) / len(changes) if len(changes) > 1 else 0.0
    value = sum(ups) / len(ups)
    return value, value - 1.96 * variance**0.5, value + 1.96 * variance**0.5


@pytest.mark.parametrize(("positives", "negatives"), [(1, 5), (5, 1), (1, 1), (2, 3), (3, 7)])
def test_the_interval_of_few_rows_equals_counting_pairs(positives, negatives):
    labels = np.array([1] * positives + [0] * negatives)
    for seed in range(5):
        before, after = np.random.default_rng(seed).integers(0, 6, (2, len(labels)))
        found = auc_difference(labels, before, after)
        assert found == pytest.approx(interval_by_pairs(labels, before, after))
        assert np.isfinite(found).all()


def test_the_interval_of_a_gauc_difference_is_that_of_leaving_out_one_group_after_the_other():
    label, before, after, _ = rows_of_two_models(rows=60)
    group = np.repeat([0, 1, 2], [8, 12, 40])

    def change(rows):
        own = label[rows], after[rows], group[rows]
        return gauc(*own) - gauc(label[rows], before[rows], group[rows])

    value, deviation = jackknife(change, group)
    expected = (value, value - 1.96 * deviation, value + 1.96 * deviation)
    assert gauc_difference(label, before, after, group) == pytest.approx(expected)


def log_losses_row_by_row(labels, probabilities):
    return [
        -math.log(probability if label else 1 - probability)
        for label, probability in zip(labels, probabilities, strict=True)
    ]


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.floats(0.01, 0.99), st.floats(0.01, 0.99)),
        min_size=2,
        max_size=30,
    )
)
def test_the_interval_of_a_log_loss_difference_equals_the_paired_one_of_the_rows(rows):
    labels, before, after = zip(*rows, strict=True)
    pairs = zip(
        log_losses_row_by_row(labels, before), log_losses_row_by_row(labels, after), strict=True
    )
    changes = [new - old for old, new in pairs]
    value = statistics.mean(changes)
    error = statistics.stdev(changes) / math.sqrt(len(changes))
    expected = (value, value - 1.96 * error, value + 1.96 * error)
    assert log_loss_difference(labels, before, after) == pytest.approx(expected, abs=1e-9)


def test_the_interval_of_a_log_loss_difference_is_what_redrawn_rows_show():
    label, before, after, _ = rows_of_two_models()
    before, after = 1 / (1 + np.exp(-before)), 1 / (1 + np.exp(-after))
    found = log_loss_difference(label, before, after)
    assert found.value == pytest.approx(log_loss(label, after) - log_loss(label, before))
    rng = np.random.default_rng(1)
    redrawn = []
    for _ in range(600):
        rows = rng.integers(0, len(label), len(label))
        redrawn.append(log_loss(label[rows], after[rows]) - log_loss(label[rows], before[rows]))
    assert (found.high - found.low) / 3.92 == pytest.approx(np.std(redrawn), rel=0.12)


def test_the_log_loss_difference_of_one_row_has_no_spread():
    found = log_loss_difference([1], [0.5], [0.25])
    assert found == pytest.approx((math.log(2),) * 3)
