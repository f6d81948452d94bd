"""certify: models on the test rows of a task, and all that it refuses."""

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

import torchleap as tl
from torchleap.evidence import certify
from torchleap.evidence.certify import check_comparable, unit_of


class Weighted(nn.Module):
    """The log odds are a multiple of one number, and a bit of another."""

    def __init__(self, signal=2.0, noise=0.0):
        super().__init__()
        self.weights = torch.tensor([signal, noise])

    def forward(self, ids, numbers):
        return numbers[:, :2] @ self.weights


def frame(rows=4000, seed=0, groups=200):
    rng = np.random.default_rng(seed)
    signal = rng.normal(size=rows)
    return pl.DataFrame(
        {
            "click": (rng.random(rows) < 1 / (1 + np.exp(-2 * signal))).astype(int),
            "signal": signal,
            "noise": rng.normal(size=rows),
            "user": rng.integers(0, groups, rows),
        }
    )


COLUMNS = {
    "signal": {"kind": "numeric", "scale": "none"},
    "noise": {"kind": "numeric", "scale": "none"},
}


def read(data, **settings):
    drop = [] if "group" in settings else ["user"]
    return tl.data.read(data.drop(drop), label="click", split="order", columns=COLUMNS, **settings)


@pytest.fixture(scope="module")
def task():
    return read(frame())


def test_a_model_of_the_same_order_is_safe(task):
    found = certify(task, Weighted(), Weighted(4.0))
    assert found.verdict == "safe"
    assert (found.metric, found.unit, found.rows, found.units) == ("auc", "rows", 400, 400)
    assert found.support == min(int(task.test.label.sum()), 400 - int(task.test.label.sum()))
    assert found.slice_margin == found.margin == 0.001


def test_a_model_of_noise_is_not_safe_by_any_metric(task):
    for metric in ("auc", "log_loss", None):
        found = certify(task, Weighted(), Weighted(0.0, 1.0), metric=metric, slices=False)
        assert found.verdict == "not safe"
        assert found.slice_margin is None
    assert found.largest_loss > 0.2


def test_a_little_noise_is_undecided_in_so_few_rows(task):
    found = certify(task, Weighted(), Weighted(2.0, 0.3), slices=False)
    assert found.verdict == "undecided"
    assert found.needed.rows > 400
    wide = certify(task, Weighted(), Weighted(2.0, 0.3), margin=0.2)
    assert wide.verdict == "safe"


def test_a_relative_margin_is_a_fraction_of_the_metric(task):
    found = certify(task, Weighted(), Weighted(2.0, 0.3), margin=0.1, relative=True)
    assert found.relative == 0.1
    assert found.margin == pytest.approx(0.1 * found.before)
    assert found.slice_margin == found.margin


def test_several_trainings_are_compared_pair_by_pair(task):
    full = [Weighted(), Weighted(2.0, 0.05)]
    small = [Weighted(2.0, 0.1), Weighted(2.0, 0.3)]
    found = certify(task, full, small, slices=False)
    alone = [certify(task, *pair, slices=False) for pair in zip(full, small, strict=True)]
    assert found.repeats == 2
    assert found.change == pytest.approx(np.mean([one.change for one in alone]))
    assert found.training_deviation == pytest.approx(np.std([o.change for o in alone], ddof=1))


def test_groups_are_what_is_independent():
    task = read(frame(groups=20), group="user")
    assert unit_of(task) == "user"
    found = certify(task, Weighted(), Weighted(2.0, 0.3), slices=False)
    assert (found.metric, found.unit, found.units) == ("gauc", "user", 20)
    rows = certify(task, Weighted(), Weighted(2.0, 0.3), metric="auc", slices=False)
    assert (rows.metric, rows.units) == ("auc", 20)


def test_few_rows_of_a_class_have_no_verdict_and_no_slices():
    data = frame()
    last = pl.int_range(pl.len()) >= 3600
    data = data.with_columns(
        click=pl.when(last)
        .then(pl.int_range(pl.len()) % 80 == 0)
        .otherwise(pl.col("click") == 1)
        .cast(pl.Int64)
    )
    found = certify(read(data), Weighted(), Weighted(0.0, 1.0))
    assert (found.verdict, found.slices_examined) == ("undecided", 0)
    assert "the rarer class has 5." in found.reasons[0]


def test_bad_margins_and_metrics_are_refused(task):
    for margin in (0, -0.001, float("nan"), None, "0.1"):
        with pytest.raises(tl.TorchleapError, match="margin must be a number above 0"):
            certify(task, Weighted(), Weighted(), margin)
    with pytest.raises(tl.MetricError, match="no metric 'acu' for the binary objective. Did you"):
        certify(task, Weighted(), Weighted(), metric="acu")
    with pytest.raises(tl.MetricError, match="'gauc' needs groups"):
        certify(task, Weighted(), Weighted(), metric="gauc")


def test_models_without_a_partner_are_refused(task):
    with pytest.raises(
        tl.DataError, match="as many smaller models as full ones, but found 1 and 2"
    ):
        certify(task, [Weighted(), Weighted()], Weighted())
    with pytest.raises(tl.DataError, match="found 0 and 0"):
        certify(task, [], [])


def test_rows_of_one_class_are_refused():
    data = frame()
    is_last = pl.int_range(pl.len()) >= 3600
    data = data.with_columns(click=pl.when(is_last).then(1).otherwise(pl.col("click")))
    with pytest.raises(tl.DataError, match="cannot be compared on these test rows.*400 test rows"):
        certify(read(data), Weighted(), Weighted())


def test_rows_of_one_group_are_refused():
    data = frame().with_columns(user=pl.when(pl.int_range(pl.len()) < 3600).then(1).otherwise(2))
    with pytest.raises(
        tl.DataError, match="at least two groups among the test rows.*without group="
    ):
        check_comparable(read(data, group="user").test)


def test_a_class_in_one_group_is_refused():
    place = pl.int_range(pl.len())
    data = frame().with_columns(
        user=pl.when(place % 2 == 0).then(1).otherwise(2),
        click=pl.when(place < 3600)
        .then(pl.col("click"))
        .otherwise((place % 4 == 0).cast(pl.Int64)),
    )
    with pytest.raises(tl.DataError, match="of each class in at least two groups"):
        certify(read(data, group="user"), Weighted(), Weighted())
