"""Slices: parts of the rows in which a metric loses, against a slow loop."""

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

import torchleap as tl
from tests.data.frames import log
from tests.slow import change_inside
from torchleap.evidence import certify, slices
from torchleap.evidence.certify import predictions
from torchleap.evidence.partitions import check_names, partitions
from torchleap.evidence.reads import unread
from torchleap.evidence.scan import scan_of
from torchleap.evidence.slices import examine, holm
from torchleap.objectives import METRICS

ROWS = 40_000  # a tenth of them are test rows
COLUMNS = {
    "city": {"kind": "categorical", "min_count": 1},
    "rare": {"kind": "categorical", "min_count": 1},
    "price": "numeric",
    "seldom": {"kind": "numeric", "scale": "none"},
    "same": {"kind": "categorical", "min_count": 1},
    "gone": "numeric",
    "signal": {"kind": "numeric", "scale": "none"},
}


class Reader(nn.Module):
    """A model of a few numbers by place: a weighted sum, with another sign in one city."""

    def __init__(self, task, weights, spoiled=None):
        super().__init__()
        self.places = task.slots(ids=False)
        self.weights = weights
        self.city = task.slots(ids=True)["city"]
        self.spoiled = spoiled

    def forward(self, ids, numbers):
        total = sum(w * numbers[:, self.places[name]][:, 0] for name, w in self.weights.items())
        if self.spoiled is not None:
            total = torch.where(ids[:, self.city][:, 0] == self.spoiled, -total, total)
        return total


@pytest.fixture(scope="module")
def task():
    rng = np.random.default_rng(0)
    signal = rng.normal(size=ROWS)
    seldom = np.where(rng.random(ROWS) < 0.1, rng.normal(size=ROWS), 0.0)
    city = rng.choice(list("abcdefgh"), ROWS, p=[0.4, 0.2, 0.1, 0.1, 0.08, 0.06, 0.04, 0.02])
    frame = pl.DataFrame(
        {
            "click": (rng.random(ROWS) < 1 / (1 + np.exp(-2 * signal - seldom))).astype(int),
            "user": rng.integers(0, 60, ROWS),
            "city": city,
            "rare": [f"r{number}" for number in rng.zipf(1.5, ROWS).clip(1, 500)],
            "price": [None if rng.random() < 0.1 else value for value in rng.normal(size=ROWS)],
            "seldom": seldom,
            "same": [f"{name}{name}" for name in city],
            "gone": rng.normal(size=ROWS),
            "signal": signal,
        }
    )
    return tl.data.read(frame, label="click", columns=COLUMNS, group="user")


@pytest.fixture(scope="module")
def models(task):
    full = Reader(task, {"signal": 2.0, "seldom": 1.0, "gone": 0.05})
    small = Reader(task, {"signal": 2.0})
    return full, small


def examined(task, full, small, name, margin=0.001, **settings):
    pair = predictions(full, task.test), predictions(small, task.test)
    return examine(task.test, [pair], METRICS[name], margin, **settings), pair


def test_fields_that_no_model_reads_are_found_by_changing_them(task, models):
    full, small = models
    assert unread([small], task.test) == (
        *("user", "city", "rare", "price", "seldom", "same", "gone"),
    )
    assert unread([full], task.test) == ("user", "city", "rare", "price", "same")
    assert unread([full, small], task.test) == ("user", "city", "rare", "price", "same")
    small.train()
    unread([small], task.test)
    assert small.training


def test_rows_are_divided_by_values_fifths_and_activity(task):
    found = list(partitions(task.test, dropped=("seldom",), by=("price",)))
    fields = [one.field for one in found]
    assert fields == ["city", "rare", "price", "seldom", "same"]
    count = len(task.test)
    by_name = {}
    for one in found:
        for code in one.examined:
            by_name[one.name(code)] = np.flatnonzero(one.codes == code)
        sizes = np.bincount(one.codes, minlength=one.count)
        assert sizes.sum() == count
    assert "city = a" in by_name
    assert "rare = r1" in by_name
    (rest,) = [name for name in by_name if name.startswith("rare has one of")]
    assert len(by_name[rest]) > 0
    fifths = [len(by_name[f"price is in its {word} fifth"]) for word in ("lowest", "middle")]
    missing = len(by_name["price is missing"])
    assert fifths == pytest.approx([(count - missing) / 5] * 2, abs=2)
    values = task.test.column("seldom")[:, 0]
    assert by_name["seldom is active"].tolist() == np.flatnonzero(values).tolist()


def test_a_named_category_has_all_its_values(task):
    names = []
    for one in partitions(task.test, by=("rare",)):
        names += [one.name(code) for code in one.examined if one.field == "rare"]
    assert len(names) > 30
    assert not [name for name in names if "rarer values" in name]


@pytest.mark.parametrize("name", ["auc", "gauc", "log_loss"])
def test_slices_equal_a_slow_loop(task, models, name):
    found, (before, after) = examined(task, *models, name, dropped=("seldom", "gone"))
    inside = {}
    for one in partitions(task.test, dropped=("seldom", "gone")):
        for code in one.examined:
            inside[one.name(code)] = np.flatnonzero(one.codes == code).tolist()
    for one in found.worst[:4]:
        rows = inside[one.name]
        gain, error = change_inside(METRICS[name], before, after, rows)
        assert one.rows == len(rows)
        assert METRICS[name].gain(one.change) == pytest.approx(gain, abs=1e-9)
        assert one.lowest < gain - 2 * error
    assert [one.p for one in found.worst] == sorted(one.p for one in found.worst)
    damaged = {one.name for one in found.worst if one.is_damaged}
    assert "seldom is active" in damaged or name == "gauc"  # the smaller model does not read it


def test_the_same_rows_count_once(task, models):
    found, _ = examined(task, *models, "auc")
    names = [one.field for one in found.worst]
    assert "same" not in names  # it has the rows of city
    both = examined(task, *models, "auc", dropped=("city",))[0]
    assert both.count == found.count + 1  # the rows of all other cities
    assert "city is active" in [one.name for one in both.worst] or both.count > 20


def test_a_slice_that_loses_is_found_and_makes_the_verdict_not_safe(task):
    full = Reader(task, {"signal": 2.0})
    number = 2 + task.vocabulary("city").index("c")
    small = Reader(task, {"signal": 2.0, "gone": 1e-6}, spoiled=number)
    found = certify(task, full, small, margin=0.5)
    assert found.verdict == "not safe"
    assert found.slices[0].name == "city = c"
    assert found.slices[0].is_damaged
    assert found.slices[0].p < 0.05
    assert found.slice_margin == 0.5
    assert "where city = c." in found.reasons[0]
    assert any("The rows were examined in" in note for note in found.notes)
    assert certify(task, full, small, margin=0.5, slices=False).verdict == "safe"
    lenient = certify(task, full, small, margin=0.5, slice_margin=0.99)
    assert (lenient.verdict, lenient.slice_margin) == ("safe", 0.99)


def test_a_sample_of_the_rows_finds_the_same_slice(task, monkeypatch):
    full = Reader(task, {"signal": 2.0})
    number = 2 + task.vocabulary("city").index("c")
    small = Reader(task, {"signal": 2.0}, spoiled=number)
    monkeypatch.setattr(
        slices, "SCANNED", {"auc": 8 * 2_000, "gauc": 8 * 2_000, "log_loss": 8 * 2_000}
    )
    for name in ("auc", "gauc", "log_loss"):
        found, _ = examined(task, full, small, name, margin=0.02)
        assert found.worst[0].name == "city = c"
        assert found.worst[0].is_damaged
        assert "in a sample of" in found.notes[0]


def test_slices_of_several_trainings_are_those_of_the_mean(task, models):
    full, small = models
    one = certify(task, [full, full], [small, small], margin=0.01)
    other = certify(task, full, small, margin=0.01)
    assert [s.change for s in one.slices] == pytest.approx([s.change for s in other.slices])


def test_slices_with_few_rows_of_a_class_are_counted(task, models):
    found, _ = examined(task, *models, "auc", by=("rare",))
    assert "more cannot be judged, with fewer than 10 rows of the rarer class" in found.notes[0]
    assert all(one.rows >= 20 for one in found.worst)


def test_holm_equals_its_definition():
    assert holm([0.001, 0.02, 0.03], tests=5) == pytest.approx([0.005, 0.08, 0.09])
    assert holm([0.04, 0.045], tests=2) == pytest.approx([0.08, 0.08])
    assert holm([0.9], tests=3) == [1.0]
    assert holm([], tests=3) == []


def test_a_task_without_categories_has_no_slices(task, models):
    numbers = task.only(["gone", "signal"])
    full = Reader(task, {})
    full.places, full.weights = numbers.slots(ids=False), {"signal": 2.0}
    found = certify(numbers, full, full, margin=0.01)
    assert (found.slices, found.slices_examined, found.verdict) == ((), 0, "safe")
    assert not [note for note in found.notes if "slice" in note]


@pytest.mark.parametrize("name", ["auc", "gauc", "log_loss"])
def test_the_scan_in_bins_is_nearly_exact(task, models, name):
    full, small = models
    pair = predictions(full, task.test), predictions(small, task.test)
    scan = scan_of(METRICS[name], [pair])
    for one in partitions(task.test):
        with np.errstate(invalid="ignore", divide="ignore"):
            found = scan(one.codes, one.count)
        for code in range(one.count):
            rows = np.flatnonzero(one.codes == code).tolist()
            if found.rarer[code] < 10:
                continue
            gain, _ = change_inside(METRICS[name], *pair, rows)
            assert found.gain[code] == pytest.approx(gain, abs=1e-3)
        break


def test_bad_settings_of_slices_are_refused(task, models):
    for value in (0, -0.1, float("nan"), "much"):
        with pytest.raises(tl.TorchleapError, match="slice_margin must be a number above 0"):
            certify(task, *models, slice_margin=value)
    with pytest.raises(tl.FieldError, match="no field 'ciy' to divide the rows by. Did you mean"):
        certify(task, *models, slice_by="ciy")


def test_a_field_with_several_values_per_row_divides_no_rows():
    listed = tl.data.read(log(), label="click", columns={"tags": "list", "vector": "vector"})
    for name, kind in (("tags", "list"), ("vector", "vector")):
        with pytest.raises(tl.DataError, match=f"'{name}', a {kind} with several values per row"):
            check_names(listed, [name])
    active = list(partitions(listed.test, dropped=("tags", "vector", "price")))
    names = {one.name(1) for one in active if one.examined == (1,)}
    assert names == {"tags is active", "price is active"}  # no vector occurs twice


def test_ids_are_named_by_what_they_stand_for():
    frame = log(3000).with_columns(city=pl.col("city").replace("c0", None))
    columns = {"city": {"kind": "categorical", "min_count": 150}}
    task = tl.data.read(frame, label="click", columns=columns)
    names = {one.name(code) for one in partitions(task.test) for code in one.examined}
    assert {"city is missing", "city is rare or new"} <= names
    hashed = {"city": {"kind": "categorical", "buckets": 4}}
    task = tl.data.read(frame, label="click", columns=hashed)
    names = {one.name(code) for one in partitions(task.test) for code in one.examined}
    assert "city is in bucket 3" in names
