"""Cross-fitting: the complete procedure once per fold, and all rows are evidence."""

import polars as pl
import pytest

import torchleap as tl
from torchleap.pipeline.decide import decide
from torchleap.training.fit import Hook

from .test_decide import COLUMNS, KillIn, Stop, rows
from .test_repeat import ONCE
from .test_search import KilledError


@pytest.fixture(scope="module")
def task():
    return tl.data.read(rows(1200), label="click", columns=COLUMNS)


def go(task, folds=3, **settings):
    given = {"method": "permutation", "training": ONCE, "share": 0.5, "margin": 0.05, **settings}
    return decide(task, model="mlp", folds=folds, **given)


@pytest.fixture(scope="module")
def crossed(task):
    return go(task)


def test_folds_change_the_certificate_but_not_what_ships(task, crossed):
    alone = go(task, folds=None)
    assert crossed.selection == alone.selection
    assert crossed.record["metrics"] == alone.record["metrics"]
    assert crossed.task is task


def test_the_certificate_rests_on_all_rows(task, crossed):
    found = crossed.certificate
    assert (found.folds, found.repeats, found.rows, found.units) == (3, 1, 1200, 1200)
    total = positives(task)
    assert found.support == min(total, 1200 - total)
    assert found.change == pytest.approx(sum(crossed.record["reruns"]["changes"]) / 3)
    assert "on 1,200 untouched rows, each scored by models" in found.evidence()
    assert "the 3 folds have a model each" in found.notes[0]
    assert crossed.record["certificate"]["folds"] == 3


def positives(task):
    return sum(int(getattr(task, part).label.sum()) for part in ("train", "valid", "test"))


def test_each_fold_searches_by_itself_and_their_agreement_is_reported(task, crossed):
    record = crossed.record["reruns"]
    assert (record["kind"], record["repeat_by"], record["selections"]) == ("folds", None, 3)
    assert list(record["kept"]) == list(task.fields.names)
    assert sum(record["kept"].values()) == 3 * 2
    assert all(0 <= count <= 3 for count in record["kept"].values())
    assert 0 < record["jaccard"] <= 1
    assert record["seeds"] == [1, 2, 3]


def test_stages_say_which_fold_runs(task):
    announced = []
    go(task, on_stage=announced.append)
    assert announced[-4:] == ["fold 1 of 3", "fold 2 of 3", "fold 3 of 3", "comparing"]


def test_no_training_of_a_fold_reads_the_inputs_of_its_test_rows(task):
    folds = []

    class Watch(Hook):
        def at_end(self, run):
            if run.task.division is not None:
                assert run.task.test._held is None
                folds.append(run.task)

    go(task, callbacks=[Watch()])
    assert len(folds) == 3 * 3
    assert all(fold.test._held is not None for fold in folds)


def test_groups_are_whole_in_each_fold_and_are_the_units():
    task = tl.data.read(rows(1200), label="click", columns=COLUMNS, group="user")
    found = go(task, method="random").certificate
    assert (found.metric, found.unit, found.rows) == ("gauc", "user", 1200)
    assert found.units <= rows(1200)["user"].n_unique() + 1


def test_a_killed_fold_resumes_to_the_same_certificate(task, crossed, tmp_path):
    folder = tmp_path / "state"
    with pytest.raises(KilledError):
        go(task, checkpoint=folder, callbacks=[KillIn(6, 5)])
    assert (folder / "fold-2" / "decision.json").exists()
    again = go(task, checkpoint=folder)
    assert again.certificate == crossed.certificate
    assert again.record["reruns"] == crossed.record["reruns"]
    assert not folder.exists()


def test_another_rule_fine_tunes_each_fold_again(task, tmp_path):
    settings = {"checkpoint": tmp_path, "keep_checkpoint": True}
    go(task, **settings)
    other = go(task, share=0.25, **settings)
    assert other.certificate == go(task, share=0.25).certificate


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"folds": 1}, "folds must be a whole number of at least 2, but is 1"),
        ({"folds": 2.5}, "folds must be a whole number"),
        ({"repeats": 0, "folds": None}, "repeats must be a whole number of at least 1, but is 0"),
        ({"repeat_by": "seed", "folds": None}, "repeat_by must be .*training.*, but is 'seed'"),
        (
            {"repeats": 2},
            "Expected repeats= or folds=, but found repeats=2 and folds=3. Give one of them",
        ),
        ({"folds": 600}, "the rarer class has .* rows for 600 folds. Give fewer folds"),
    ],
)
def test_bad_settings_are_refused_before_any_training(task, settings, sentence):
    with pytest.raises(tl.TorchleapError, match=sentence):
        go(task, **{"callbacks": [Stop()], **settings})


def test_rows_in_order_are_refused_before_any_training():
    task = tl.data.read(rows(), label="click", split="order", columns=COLUMNS)
    with pytest.raises(tl.DataError, match="split by order: folds would train on rows that come"):
        go(task, callbacks=[Stop()])


def test_a_fold_smaller_than_a_batch_is_refused_before_any_training():
    frame = rows(160).with_columns(click=pl.Series([1, 0] * 80))
    task = tl.data.read(frame, label="click", columns=COLUMNS)
    with pytest.raises(tl.TorchleapError, match="at least one batch of 96 train rows, but found"):
        go(task, folds=2, callbacks=[Stop()])
