import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import torchleap as tl
from torchleap.objectives import METRICS, OBJECTIVES, objective_named

BINARY = OBJECTIVES["binary"]


def some_rows(rows=300, seed=0):
    rng = torch.Generator().manual_seed(seed)
    label = torch.rand(rows, generator=rng).lt(0.4).float()
    output = torch.randn(rows, generator=rng) + label
    return label, output, torch.randint(0, 8, (rows,), generator=rng)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_binary_loss_and_its_gradient_are_pytorch_s_bit_for_bit(reduction):
    label, output, _ = some_rows()
    ours, theirs = output.clone().requires_grad_(), output.clone().requires_grad_()
    found = BINARY.loss(ours, label, reduction=reduction)
    expected = binary_cross_entropy_with_logits(theirs, label, reduction=reduction)
    found.backward()
    expected.backward()
    assert torch.equal(found, expected)
    assert torch.equal(ours.grad, theirs.grad)


def test_the_binary_loss_equals_the_sum_over_rows_of_minus_log_p():
    label, output, _ = some_rows(rows=50)
    total = 0.0
    for y, o in zip(label.tolist(), output.tolist(), strict=True):
        probability = 1 / (1 + math.exp(-o))
        total -= math.log(probability if y else 1 - probability)
    assert float(BINARY.loss(output, label, reduction="sum")) == pytest.approx(total, rel=1e-5)
    assert float(BINARY.loss(output, label)) == pytest.approx(total / 50, rel=1e-5)


def test_the_loss_of_mixed_precision_is_computed_in_float32():
    label, output, _ = some_rows(rows=8)
    rounded = output.bfloat16()
    assert torch.equal(BINARY.loss(rounded, label), BINARY.loss(rounded.float(), label))


def test_predictions_are_probabilities_in_float64():
    label, output, group = some_rows(rows=20)
    found = BINARY.predictions(label, output, group)
    expected = [1 / (1 + math.exp(-o)) for o in output.tolist()]
    assert found.prediction.tolist() == pytest.approx(expected, abs=1e-15)
    assert torch.equal(found.output, output)
    assert torch.equal(found.label, label)
    assert torch.equal(found.group, group)


def test_a_column_of_outputs_is_one_output_per_row():
    label, output, _ = some_rows(rows=20)
    column = output.clone().requires_grad_()[:, None]
    found = BINARY.predictions(label[:, None], column)
    assert torch.equal(found.output, output)
    assert torch.equal(found.label, label)


@pytest.mark.parametrize("shape", [(2,), (3, 2), (1, 3), ()])
def test_outputs_of_another_shape_are_refused(shape):
    with pytest.raises(tl.MetricError, match=r"shape \(3,\) for 3 labels of the binary objective"):
        BINARY.predictions(torch.zeros(3), torch.zeros(shape))


def test_an_objective_of_several_outputs_keeps_their_columns():
    softmax = replace(BINARY, name="multi", output_width=3, link=lambda output: output.softmax(1))
    output = torch.randn(5, 3)
    assert torch.equal(softmax.predictions(torch.zeros(5), output).output, output)
    with pytest.raises(tl.MetricError, match=r"shape \(5, 3\) for 5 labels of the multi"):
        softmax.predictions(torch.zeros(5), torch.zeros(5))


def test_an_evaluation_has_every_metric_that_the_rows_allow_in_the_order_of_records():
    label, output, group = some_rows()
    expected = {
        "auc": tl.auc(label, output),
        "log_loss": tl.log_loss(label, torch.sigmoid(output.double())),
    }
    found = BINARY.evaluate(label, output)
    assert list(found.items()) == list(expected.items())
    found = BINARY.evaluate(label, output, group)
    expected["gauc"] = tl.gauc(label, output, group)
    assert list(found.items()) == list(expected.items())


def test_the_headline_is_the_metric_within_groups_where_there_are_groups():
    assert BINARY.headline(None) is METRICS["auc"]
    assert BINARY.headline("user") is METRICS["gauc"]
    assert BINARY.headline(torch.zeros(2)) is METRICS["gauc"]


@pytest.mark.parametrize("objective", OBJECTIVES.values())
def test_the_metrics_of_an_objective_exist_and_have_its_headlines(objective):
    assert set(objective.metrics) <= set(METRICS)
    assert {objective.headline_name, objective.group_headline_name} <= set(objective.metrics)
    assert not METRICS[objective.headline_name].needs_group
    assert OBJECTIVES[objective.name] is objective


@pytest.mark.parametrize("name", BINARY.metrics)
def test_a_scorer_returns_the_same_as_computing_the_metric(name):
    label, output, group = some_rows()
    metric = METRICS[name]
    score = BINARY.scorer(metric, label, group)
    for factor in (1.0, -0.5, 0.0):
        expected = metric.compute(BINARY.predictions(label, factor * output, group))
        assert score(factor * output) == pytest.approx(expected, rel=1e-12)


def test_a_scorer_refuses_rows_without_groups_or_of_one_class_at_once():
    with pytest.raises(tl.MetricError, match="needs groups"):
        BINARY.scorer(METRICS["gauc"], torch.tensor([0.0, 1.0]))
    with pytest.raises(tl.MetricError, match="both classes"):
        BINARY.scorer(METRICS["auc"], torch.ones(3))


def test_labels_other_than_0_and_1_are_refused():
    BINARY.check_labels(torch.tensor([0.0, 1.0]))
    with pytest.raises(tl.MetricError, match=r"labels 0 or 1 for the binary.*found \[-1.0, 2.0\]"):
        BINARY.check_labels(torch.tensor([0.0, 2.0, -1.0, 2.0]))
    with pytest.raises(tl.MetricError, match="found \\[nan\\]"):
        BINARY.check_labels(torch.tensor([0.0, math.nan]))


def test_rows_on_which_models_cannot_be_compared_are_refused():
    label = torch.tensor([0.0, 0.0, 1.0, 1.0])
    BINARY.check_comparable(label)
    BINARY.check_comparable(label, torch.tensor([0, 1, 0, 1]))
    with pytest.raises(tl.MetricError, match="every group has one class"):
        BINARY.check_comparable(label, torch.tensor([0, 0, 1, 1]))
    with pytest.raises(tl.MetricError, match="both classes"):
        BINARY.check_comparable(torch.zeros(4))
    with pytest.raises(tl.MetricError, match="labels 0 or 1"):
        BINARY.check_comparable(torch.tensor([0.0, 3.0]))


def test_a_comparison_rests_on_the_rows_of_the_rarer_class():
    assert BINARY.support(torch.tensor([0.0, 1.0, 0.0])) == 1
    assert BINARY.support(torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0])) == 2
    label = torch.zeros(2_000).index_fill(0, torch.arange(1_200), 1.0)
    assert BINARY.describe(label, "test") == "2,000 test rows, 1,200 of them positive"


def test_an_objective_is_found_by_name_or_is_itself():
    assert objective_named("binary") is BINARY
    assert objective_named(BINARY) is BINARY
    with pytest.raises(tl.MetricError, match="no objective 'binray'. Did you mean 'binary'"):
        objective_named("binray")


def test_a_metric_of_another_objective_is_refused_with_the_nearest_name():
    assert BINARY.metric("auc") is METRICS["auc"]
    with pytest.raises(tl.MetricError, match="'acu' for the binary objective. Did you mean 'auc'"):
        BINARY.metric("acu")
