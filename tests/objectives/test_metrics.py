import math

import pytest
import torch

import torchleap as tl
from tests.slow import auc_by_pairs
from torchleap.objectives import (
    METRICS,
    Metric,
    Predictions,
    auc_difference,
    gauc_difference,
    log_loss_difference,
    metric_named,
    objective_named,
)

BINARY = objective_named("binary")


def rows_of_two_models(rows=200, seed=0):
    rng = torch.Generator().manual_seed(seed)
    label = torch.rand(rows, generator=rng).lt(0.4).float()
    before = torch.randn(rows, generator=rng) + label
    after = before + 0.5 * torch.randn(rows, generator=rng)
    group = torch.randint(0, 8, (rows,), generator=rng)
    return BINARY.predictions(label, before, group), BINARY.predictions(label, after, group)


def test_the_key_of_a_metric_is_its_name():
    assert {name: metric.name for name, metric in METRICS.items()} == {n: n for n in METRICS}
    assert [metric.title for metric in METRICS.values()] == ["AUC", "GAUC", "log loss"]


def test_only_the_log_loss_is_lower_the_better():
    falling = [name for name, metric in METRICS.items() if not metric.higher_is_better]
    assert falling == ["log_loss"]
    assert [metric.sign for metric in METRICS.values()] == [1, 1, -1]


@pytest.mark.parametrize("name", METRICS)
def test_a_perfect_model_is_better_than_a_wrong_one_by_every_metric(name):
    label = torch.tensor([0.0, 1.0, 0.0, 1.0])
    group = torch.tensor([0, 0, 1, 1])
    metric = METRICS[name]
    right = metric.compute(BINARY.predictions(label, 4 * label - 2, group))
    wrong = metric.compute(BINARY.predictions(label, 2 - 4 * label, group))
    assert metric.better(right, wrong)
    assert not metric.better(wrong, right)
    assert not metric.better(right, right)
    assert metric.best([wrong, right, wrong]) == right
    assert metric.gain(right) > metric.gain(wrong)
    assert metric.gain(right - wrong) > 0


def test_nan_is_never_better():
    for metric in METRICS.values():
        assert not metric.better(math.nan, 0.5)


def test_each_metric_equals_a_slow_version():
    rows, _ = rows_of_two_models()
    label, output = rows.label.tolist(), rows.output.tolist()
    assert METRICS["auc"].compute(rows) == pytest.approx(auc_by_pairs(label, output))
    losses = [math.log1p(math.exp(-o if y else o)) for y, o in zip(label, output, strict=True)]
    assert METRICS["log_loss"].compute(rows) == pytest.approx(sum(losses) / len(losses))
    total = weight = 0.0
    for number in range(8):
        members = [place for place in range(len(label)) if rows.group[place] == number]
        own = auc_by_pairs([label[m] for m in members], [output[m] for m in members])
        total += own * len(members)
        weight += len(members)
    assert METRICS["gauc"].compute(rows) == pytest.approx(total / weight)


@pytest.mark.parametrize("name", METRICS)
def test_a_difference_is_that_of_the_two_values_inside_its_interval(name):
    before, after = rows_of_two_models()
    metric = METRICS[name]
    found = metric.difference(before, after)
    assert found.value == metric.compute(after) - metric.compute(before)
    assert found.low < found.value < found.high


def test_differences_are_those_of_the_plain_functions():
    before, after = rows_of_two_models()
    label, group = before.label, before.group
    expected = {
        "auc": auc_difference(label, before.output, after.output),
        "gauc": gauc_difference(label, before.output, after.output, group),
        "log_loss": log_loss_difference(label, before.output.sigmoid(), after.output.sigmoid()),
    }
    for name, metric in METRICS.items():
        assert metric.difference(before, after) == pytest.approx(expected[name], abs=1e-6)


def test_auc_tells_outputs_apart_that_the_link_rounds_to_the_same_probability():
    rows = BINARY.predictions(torch.tensor([0.0, 1.0]), torch.tensor([60.0, 80.0]))
    assert rows.prediction[0] == rows.prediction[1]
    assert METRICS["auc"].compute(rows) == 1.0


def test_values_are_printed_with_the_digits_of_the_metric():
    seconds = Metric("seconds", "time", False, lambda rows: 0.0, lambda a, b: None, digits=1)
    assert METRICS["auc"].format(0.83125) == "0.8313"
    assert seconds.format(12.345) == "12.3"


def test_gauc_without_groups_names_the_cure():
    label = torch.tensor([0.0, 1.0])
    rows = Predictions(label, label, label)
    gauc = METRICS["gauc"]
    for call in (lambda: gauc.compute(rows), lambda: gauc.difference(rows, rows)):
        with pytest.raises(tl.MetricError, match="metric='gauc' needs groups. Read the data with"):
            call()
    gauc.check_group("user")
    METRICS["auc"].check_group(None)


def test_a_metric_is_found_by_name_or_is_itself():
    assert metric_named("gauc") is METRICS["gauc"]
    assert metric_named(METRICS["auc"]) is METRICS["auc"]


@pytest.mark.parametrize(
    ("name", "cure"),
    [("acu", "Did you mean 'auc'"), ("logloss", "'log_loss'"), ("xyz", "Known: 'auc', 'gauc'")],
)
def test_a_misspelt_metric_is_refused_with_the_nearest_name(name, cure):
    with pytest.raises(tl.MetricError, match=f"There is no metric '{name}'.*{cure}"):
        metric_named(name)
