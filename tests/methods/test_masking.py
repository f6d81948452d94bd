"""A path by masking: the trained model while fields become their means, without adaptation."""

import json
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
import torch

import torchleap as tl
from tests.data.frames import USEFUL
from tests.methods.tasks import QUICK, TRAINING
from torchleap import models
from torchleap.methods import LeAPMethod, Method, Search, Shark, masking
from torchleap.methods.masking import (
    falling_counts,
    masked_outputs,
    masked_path,
    names_to_mask,
)
from torchleap.selection import Path, rank
from torchleap.training.evaluate import evaluate

MODEL = models.benchmark("wide_deep")


def by_a_full_pass(model, task, names):
    """Return the outputs with some fields at their means, by one pass of the complete model."""
    rows = task.valid.all()
    with torch.no_grad():
        x = model.inputs(*rows.inputs).clone()
        mean = x.double().mean(0).float()
        for name in names:
            columns = task.fields.columns(name)
            x[:, columns] = mean[columns]
        return model.eval().net(x).view(-1)


@pytest.mark.parametrize("backbone", ["wide_deep", "dcn", "fibinet", "mlp"])
def test_masked_outputs_are_those_of_full_passes(mixed, backbone, monkeypatch):
    monkeypatch.setattr(masking, "rows_at_once", lambda width: 37)  # several batches, one shorter
    search = Search(mixed, models.benchmark(backbone), QUICK)
    model = search.fit_plain()
    steps = [("price",), ("tags", "shop"), ("picture",)]
    found = masked_outputs(search, model, steps)
    masked = []
    assert found.shape == (4, len(mixed.valid))
    assert torch.allclose(found[0], by_a_full_pass(model, mixed, []), atol=1e-5)
    for names, outputs in zip(steps, found[1:], strict=True):
        masked += names
        assert torch.allclose(outputs, by_a_full_pass(model, mixed, masked), atol=1e-5)
    assert not torch.allclose(found[1], found[3], atol=1e-3)


def test_rows_that_differ_only_in_masked_fields_are_ties(task, found):
    """Rounding would break the ties, and the AUC of an id alone would depend on it."""
    search = Search(task, MODEL, TRAINING)
    others = [(name,) for name in task.fields.names if name != "item"]
    outputs = masked_outputs(search, found.plain, others)
    assert len(outputs[-1].unique()) == 20  # items
    assert len(outputs[0].unique()) > 500


def test_masking_changes_no_row_of_the_data():
    """Numbers alone reach the network as they lie in memory."""
    rng = np.random.default_rng(0)
    values = {name: rng.normal(size=600) for name in "abc"}
    frame = pl.DataFrame({"click": rng.integers(0, 2, 600), **values})
    task = tl.data.read(frame, label="click", split="order")
    search = Search(task, models.benchmark("dcn"), QUICK)
    model = search.fit_plain()
    before = task.valid.all().numbers.clone()
    masked_outputs(search, model, [("a",), ("c",)])
    assert torch.equal(task.valid.all().numbers, before)


@pytest.fixture(scope="module")
def found(task):
    return tl.search(task, model=MODEL, method="permutation", training=TRAINING, path=True)


def test_fields_are_masked_in_the_order_of_their_scores(task, found):
    order = sorted(found.scores, key=lambda name: found.scores[name])
    points = found.path.points
    assert [len(point.kept) for point in points] == [7, 6, 5, 4, 3, 2, 1]
    assert [point.closed for point in points] == [(), *((name,) for name in order[:-1])]
    for before, after in pairwise(points):
        assert after.kept == tuple(name for name in before.kept if name not in after.closed)
        assert after.dims == sum(task.fields[name].width for name in after.kept)
        assert after.cost == sum(task.fields[name].cost for name in after.kept)
    assert {(point.price, point.step) for point in points} == {(None, None)}


def test_the_points_are_measured_on_the_validation_rows_of_the_plain_model(task, found):
    label = task.valid.label
    points = found.path.points
    assert points[0].metric == pytest.approx(evaluate(found.plain, task.valid)["auc"], abs=1e-6)
    masked = []
    for point in points:
        masked += point.closed
        outputs = by_a_full_pass(found.plain, task, masked)
        assert point.metric == pytest.approx(tl.auc(label, outputs), abs=1e-4)
        assert point.loss == pytest.approx(tl.log_loss(label, outputs.sigmoid()), abs=1e-5)
        assert point.low <= point.metric <= point.high
    last = points[-1]
    best = max(points, key=lambda point: point.metric)
    assert found.path.best == best
    assert last.behind == pytest.approx(best.metric - last.metric)
    assert last.behind > 4 * last.error > 0


def test_rules_read_a_path_by_masking(found):
    assert found.select(tolerance=0.01).kept == tuple(USEFUL)
    assert found.select() == found.select(tolerance="1se")
    assert found.select(tolerance=0.5).kept == found.path.points[-1].kept
    assert found.select(worth=0.1).kept == tuple(USEFUL)  # as without the path
    assert not found.path.is_adapted
    content = json.loads(json.dumps(found.path.to_json(), allow_nan=False))
    assert Path.from_json(content).points == found.path.points
    lines = str(found.path).splitlines()
    assert lines[0].split() == (
        ["fields", "dims", "auc", "95", "%", "interval", "masked,", "without", "adaptation"]
    )
    assert lines[-1].split()[-1] == found.path.points[-1].closed[0]


def test_without_the_question_there_is_no_path(task):
    quick = tl.search(task, model=MODEL, method="permutation", training=QUICK)
    assert quick.path.points == ()
    with pytest.raises(tl.TorchleapError, match="this one has none.*or with path=True"):
        quick.select(tolerance=0.1)


def test_sfs_has_a_path_but_no_worth(task):
    found = tl.search(task, model=MODEL, method="sfs", training=TRAINING, path=True)
    assert set(found.select(tolerance=0.01).kept) == set(USEFUL)
    with pytest.raises(tl.TorchleapError, match="SFS gives only scores"):
        _ = found.worth
    with pytest.raises(tl.TorchleapError, match="this one has only scores"):
        found.select(worth=1e-4)


def test_shark_in_rounds_is_masked_in_the_model_before_its_rounds(task):
    found = tl.search(task, model=MODEL, method=Shark(rounds=2), training=QUICK, path=True)
    alone = tl.search(task, model=MODEL, method="permutation", training=QUICK, path=True)
    assert found.path.points[0] == alone.path.points[0]
    assert list(found.worth) == list(task.fields.names)


def test_protected_fields_are_never_masked(task):
    kept = task.priced(protect=["noise", "constant"])
    search = Search(kept, MODEL, QUICK)
    search.fit_plain()
    scores = {name: float(place) for place, name in enumerate(kept.fields.names)}
    points = masked_path(search, scores).points
    assert [point.closed for point in points] == [(), *((name,) for name in (
        "item", "user", "price", "taste", "blur"))]  # fmt: skip
    assert points[-1].kept == ("noise", "constant")


def test_fields_of_a_group_are_masked_together():
    fields = tl.Fields(
        [
            tl.Field("a", 1),
            tl.Field("b", 1, group="g"),
            tl.Field("c", 1),
            tl.Field("d", 1, group="g"),
        ]
    )
    groups = rank(fields, {"a": 3.0, "b": 0.0, "c": 1.0, "d": 2.0})
    assert names_to_mask(groups, 3, 2) == ("c",)
    assert names_to_mask(groups, 2, 1) == ("d", "b")
    assert names_to_mask(groups, 3, 1) == ("c", "d", "b")


@pytest.mark.parametrize(("groups", "protected"), [(31, 0), (512, 0), (12_000, 0), (600, 500)])
def test_many_fields_have_at_most_thirty_points(groups, protected):
    counts = falling_counts(groups, protected)
    assert (counts[0], counts[-1]) == (groups, max(1, protected))
    assert len(counts) <= 30
    ratios = [more / fewer for more, fewer in pairwise(counts)]
    assert min(ratios) > 1
    widest = (counts[0] / counts[-1]) ** (1 / 29)
    assert max(ratios) <= max(2.0, 1.1 * widest)


def test_up_to_thirty_groups_have_all_points():
    assert falling_counts(30, 0) == list(range(30, 0, -1))
    assert falling_counts(500, 471) == list(range(500, 470, -1))
    assert falling_counts(3, 3) == [3]


@pytest.mark.parametrize("name", ["random", "none", "lasso", "leap_pressure", "stg"])
def test_a_method_without_a_plain_model_is_refused_before_any_training(task, name):
    kind = type(tl.methods.named(name)).__name__
    with pytest.raises(tl.TorchleapError, match=f"but {kind} trains none. Search with method="):
        tl.search(task, method=name, training=QUICK, path=True, callbacks=[Stop()])


class Stop(tl.callbacks.Watcher):
    def at_start(self, run):
        raise AssertionError("nothing should be trained")


@dataclass(frozen=True)
class Forgetful(Method):
    """A method that says it trains a plain model, and does not."""

    uses_trained_model = True

    def score(self, search):
        return dict.fromkeys(search.task.fields.names, 1.0)


def test_a_method_that_has_not_trained_its_plain_model_is_told_how(task):
    with pytest.raises(tl.TorchleapError, match=r"it has trained none. .* search.fit_plain\(\)"):
        tl.search(task, method=Forgetful(), training=QUICK, path=True)


def test_leap_keeps_the_path_of_its_adapted_models(task):
    settings = {"model": MODEL, "method": LeAPMethod(steps=80), "training": QUICK}
    found = tl.search(task, **settings, path=True)
    assert found.path.is_adapted
    assert found.path == tl.search(task, **settings).path


def test_the_metric_is_that_of_the_training(task):
    training = replace(QUICK, metric="log_loss")
    found = tl.search(task, model=MODEL, method="permutation", training=training, path=True)
    assert found.path.metric == "log_loss"
    assert found.path.points[0].metric == pytest.approx(found.path.points[0].loss, rel=1e-4)
