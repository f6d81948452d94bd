"""check: the saved full and smaller model are compared on new labelled rows."""

import json
import shutil
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

import torchleap as tl
from torchleap import export
from torchleap.evidence import certify
from torchleap.pipeline import check as checking
from torchleap.pipeline.check import MARGIN
from torchleap.pipeline.decide import decide
from torchleap.pipeline.full import without_gates
from torchleap.pipeline.serve import Served
from torchleap.training.evaluate import predict

from .test_decide import COLUMNS, TRAINING, rows

QUICK = replace(TRAINING, epochs=1)
SETTINGS = {"model": "deepfm", "method": "permutation", "training": QUICK, "share": 0.5}


def grouped(count=1200, seed=0):
    """Rows with words as label, and users as groups."""
    frame = rows(count, seed)
    word = pl.when(pl.col("click") == 1).then(pl.lit("yes")).otherwise(pl.lit("no"))
    return frame.with_columns(click=word, who=pl.format("u{}", pl.int_range(count) % 60))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checked")
    task = tl.data.read(rows(1200), label="click", split="order", columns=COLUMNS).priced(
        costs={"size": 3.0, "item": 1.5}, protect=["item", "price"]
    )
    decision = decide(task, **SETTINGS)
    decision.save(folder)
    return folder, decision


@pytest.fixture(scope="module")
def by_user(tmp_path_factory):
    folder = tmp_path_factory.mktemp("by_user")
    task = tl.data.read(
        grouped(), label="click", split="order", columns=COLUMNS, group="who", drop=["who"]
    )
    decision = decide(task, **SETTINGS)
    decision.save(folder)
    return folder, decision


@pytest.fixture(scope="module")
def new():
    return rows(900, seed=5)


def check(folder, data, **settings):
    return Served.load(folder).check(data, **settings)


@pytest.mark.parametrize("model", ["wide_deep", "deepfm", "dcn", "fibinet", "mlp", "dlrm"])
def test_the_full_model_is_saved_exactly(tmp_path, model):
    task = tl.data.read(rows(600), label="click", columns=COLUMNS)
    full = tl.retrain(task, model=model, training=QUICK).model
    before = {name: tensor.clone() for name, tensor in full.state_dict().items()}
    export.save(without_gates(full, task), tmp_path / "full")
    back = export.load(tmp_path / "full")
    assert torch.equal(predict(back, task.test), predict(full, task.test))
    assert before.keys() == full.state_dict().keys()


def test_the_test_rows_of_a_result_give_the_certificate_of_both_models(saved):
    folder, decision = saved
    assert decision.selection.dropped
    test = rows(1200).tail(120)
    found = check(folder, test, margin=0.02).certificate
    expected = certify(decision.task, decision.full, decision.model, 0.02)
    for name in ("metric", "verdict", "rows", "support", "unit", "units", "margin"):
        assert getattr(found, name) == getattr(expected, name)
    for name in ("before", "after", "low", "high", "largest_loss"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), abs=1e-9)


def test_groups_and_words_of_the_label_are_read_as_in_training(by_user):
    folder, decision = by_user
    found = check(folder, grouped().tail(120), margin=0.02, ab=True)
    expected = certify(decision.task, decision.full, decision.model, 0.02)
    assert (found.certificate.metric, found.certificate.unit) == ("gauc", "who")
    assert found.certificate.before == pytest.approx(expected.before, abs=1e-9)
    assert found.certificate.low == pytest.approx(expected.low, abs=1e-9)
    assert (found.rehearsal.unit, found.rehearsal.units) == ("who", 60)


def test_files_are_checked_as_frames_are_block_by_block(saved, new, tmp_path, monkeypatch):
    folder, _ = saved
    new.write_parquet(tmp_path / "new.parquet")
    new.write_csv(tmp_path / "new.csv", separator="|")
    expected = check(folder, new).certificate
    monkeypatch.setattr("torchleap.data.files.encoding.BLOCK", 128)
    reported = []
    by_file = check(
        folder, tmp_path / "new.parquet", progress=lambda *done: reported.append(done)
    ).certificate
    by_text = check(folder, tmp_path / "new.csv", separator="|").certificate
    for found in (by_file, by_text):
        assert found.low == pytest.approx(expected.low, abs=1e-6)
        assert found.rows == 900
    assert reported[-1] == ("reading", 900, 900)
    assert len(reported) > 3


def test_the_margin_is_that_of_the_result_unless_another_is_given(saved, new, tmp_path):
    folder, decision = saved
    assert check(folder, new).certificate.margin == MARGIN
    assert check(folder, new, margin=0.5).certificate.verdict == "safe"
    relative = check(folder, new, margin=0.01, relative=True).certificate
    assert relative.relative == 0.01
    assert relative.margin == pytest.approx(0.01 * relative.before)
    certified = {"margin": 0.017, "relative": 0.02, "typical_training": 0.004}
    other = replace(decision, record={**decision.record, "certificate": certified})
    other.save(tmp_path / "result")
    found = check(tmp_path / "result", new).certificate
    assert found.relative == 0.02
    assert found.typical_training == 0.004


def test_the_check_prints_and_is_plain_json(saved, new):
    found = check(saved[0], new, margin=0.02, ab=True)
    content = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert content["verdict"] == found.certificate.verdict
    assert content["rehearsal"]["outcome"]["units"] > 1
    assert str(found).startswith(found.certificate.headline())
    assert "An online A/B test needs" in str(found)
    assert str(found).endswith(
        "saves 3 of the 4.5 that the fields with a given cost cost together."
    )
    without = check(saved[0], new, margin=0.02)
    assert "rehearsal" not in without.to_json()
    assert str(without) == str(without.certificate)


def test_rows_that_the_models_have_seen_are_refused(saved, new):
    folder, _ = saved
    sentence = (
        r"about \d+% of those in the frame are among the 1,080 rows that they were trained on "
        r"and chosen by\. Give newer rows\."
    )
    for seen in (rows(1200), rows(1200).head(960), rows(1200)[960:1080]):
        with pytest.raises(tl.DataError, match=sentence):
            check(folder, seen)
    half = pl.concat([new, rows(1200).head(900)])
    with pytest.raises(tl.DataError, match="about 50%"):
        check(folder, half)
    assert check(folder, rows(1200).tail(120)).certificate.rows == 120
    assert check(folder, pl.concat([new, new])).certificate.rows == 1800


def test_a_few_rows_are_not_compared_with_the_train_rows_and_it_says_so(saved, new):
    assert not any("Too few rows" in note for note in check(saved[0], new).certificate.notes)
    few = check(saved[0], new.head(40)).certificate
    assert "Too few rows were compared with the train rows" in few.notes[-1]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda frame: frame.drop("click"), "lacks the column 'click', the label: the full model"),
        (lambda frame: frame.drop("size"), "lacks the column 'size': the full model is compared"),
        (lambda frame: frame.drop("size", "item", "click"), "the columns 'click', 'item', 'size':"),
        (lambda frame: frame.rename({"price": "prize"}), "'price'.*Did you mean 'prize'"),
        (
            lambda frame: frame.filter(pl.col("click") == 1),
            "Models cannot be compared on the frame",
        ),
        (lambda frame: frame.with_columns(click=pl.lit(3)), "expected the label 0 or 1"),
        (lambda frame: frame.with_columns(click=pl.lit(None)), "expected the label 0 or 1"),
        (lambda frame: frame.head(0), "no rows"),
        (
            lambda frame: frame.with_columns(click=pl.concat_list("click")),
            "expected numbers, text or dates in column 'click', but it holds List",
        ),
    ],
)
def test_rows_that_cannot_be_compared_are_one_clear_sentence(saved, new, change, sentence):
    with pytest.raises(tl.DataError, match=sentence):
        check(saved[0], change(new))


def test_a_single_group_and_a_missing_group_are_refused(by_user):
    new = grouped(900, seed=5)
    with pytest.raises(tl.DataError, match="lacks the column 'who'"):
        check(by_user[0], new.drop("who"))
    with pytest.raises(tl.DataError, match="at least two groups in the frame"):
        check(by_user[0], new.with_columns(who=pl.lit("u1")))


def test_text_without_a_header_names_the_cure(saved, new, tmp_path):
    new.write_csv(tmp_path / "new.csv", include_header=False)
    with pytest.raises(tl.DataError, match="name the columns: names="):
        check(saved[0], tmp_path / "new.csv")


@pytest.mark.parametrize("margin", [0, -0.1, float("nan"), "0.1"])
def test_a_margin_has_to_be_above_0(saved, new, margin):
    with pytest.raises(tl.TorchleapError, match="margin must be"):
        check(saved[0], new, margin=margin)


def test_a_fraction_needs_a_margin(saved, new):
    with pytest.raises(tl.DataError, match="relative=True needs the margin"):
        check(saved[0], new, relative=True)


def test_rows_that_change_while_they_are_read_are_refused(saved, new, monkeypatch):
    labels = checking.read_labels

    def more(source, rule, group):
        found, groups = labels(source, rule, group)
        return torch.cat([found, found]), groups

    monkeypatch.setattr(checking, "read_labels", more)
    with pytest.raises(tl.DataError, match="Expected 1,800 rows in the frame, but found 900"):
        check(saved[0], new)
    monkeypatch.setattr(checking, "read_labels", lambda *given: (labels(*given)[0][:500], None))
    with pytest.raises(tl.DataError, match="Expected 500 rows in the frame, but found 900"):
        check(saved[0], new)


def test_a_result_without_its_full_model_says_so(saved, new, tmp_path):
    decision = saved[1]
    decision.save(tmp_path)
    assert (tmp_path / "full" / "manifest.json").exists()
    decision.save(tmp_path, full=False)
    assert not (tmp_path / "full").exists()
    with pytest.raises(tl.DataError, match="was saved without it, by --no-full. Select again"):
        check(tmp_path, new)
    assert len(list(Served.load(tmp_path).probabilities(new)))


def test_a_result_of_an_earlier_version_and_one_that_was_not_loaded_say_so(saved, new):
    served = Served.load(saved[0])
    for other in (replace(served, knows_full=False), replace(served, folder=None)):
        with pytest.raises(tl.DataError, match="Expected a result that was loaded from a folder"):
            other.check(new)


def test_a_folder_named_full_that_is_not_a_result_is_not_replaced(saved, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    with pytest.raises(tl.DataError, match="full exists and is not a result"):
        saved[1].save(tmp_path)


@pytest.fixture
def copied(saved, tmp_path):
    return shutil.copytree(saved[0], tmp_path / "result")


@pytest.mark.parametrize(
    "name", ["manifest.json", "model.safetensors", "check.json", "rows.sketch", "encoding"]
)
def test_a_full_model_with_a_part_missing_is_refused(copied, new, name):
    path = copied / "full" / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(tl.TorchleapError, match="elect again|Save the model again"):
        check(copied, new)


def test_the_full_model_of_another_result_is_refused(copied, saved, new, tmp_path):
    other = replace(saved[1], task=saved[1].task.priced(costs={"size": 9.0}))
    other.save(tmp_path / "other")
    shutil.rmtree(copied / "full")
    shutil.copytree(tmp_path / "other" / "full", copied / "full")
    with pytest.raises(tl.DataError, match="mixes several results: its full was not written"):
        check(copied, new)


def test_interval_width_halves_with_four_times_the_rows(saved):
    few, many = (check(saved[0], rows(count, seed=7)).certificate for count in (1000, 4000))
    ratio = (few.high - few.low) / (many.high - many.low)
    assert ratio == pytest.approx(2, rel=0.25)
    assert np.isfinite(ratio)
