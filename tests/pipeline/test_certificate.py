"""The certificate of a decision: from untouched rows, and forbidden by what the data are."""

import json
from dataclasses import replace

import polars as pl
import pytest

import torchleap as tl
from torchleap.data.rows import Rows
from torchleap.evidence.typical_training import typical_training
from torchleap.objectives import METRICS
from torchleap.pipeline.decide import decide
from torchleap.pipeline.record import CertificateRecord
from torchleap.training.fit import Hook, Training

from .test_decide import COLUMNS, GATES, TRAINING, rows

FAST = replace(TRAINING, epochs=1)


@pytest.fixture(scope="module")
def task():
    return tl.data.read(rows(), label="click", split="order", columns=COLUMNS)


@pytest.fixture(scope="module")
def certified(task):
    return decide(task, model="mlp", method="permutation", training=TRAINING, margin=0.2)


def test_a_decision_has_the_certificate_of_its_models(task, certified):
    certificate = certified.certificate
    assert isinstance(certificate, tl.Certificate)
    assert certificate.verdict == "safe"
    assert certificate.metric == "auc"
    assert certificate.margin == 0.2
    assert certificate.relative is None
    assert certificate.rows == len(task.test)
    assert certificate.reasons == ()
    metrics = certified.record["metrics"]
    assert certificate.before == metrics["before"]["auc"]
    assert certificate.after == metrics["after"]["auc"]
    assert [certificate.low, certificate.high] == metrics["difference"]["interval"]


def test_the_record_and_metrics_json_have_the_certificate(certified, tmp_path):
    expected = certified.certificate.to_json()
    assert certified.record["certificate"] == expected
    certified.save(tmp_path)
    assert json.loads((tmp_path / "metrics.json").read_text())["certificate"] == expected
    page = tl.Report.load(tmp_path / "report.json").html()
    assert "2 of 4 fields can go: the AUC loses at most 0.2, at 95\u00a0% confidence." in page


def test_the_record_of_a_certificate_has_its_keys(certified):
    needed = {"units": 9.0, "rows": 9.0, "support": 4.0}
    part = {"name": "country = NL", "field": "country", "dropped": True, "rows": 40}
    values = {"change": -0.1, "lowest": -0.2, "p": 0.01, "is_damaged": True}
    content = certified.certificate.to_json() | {"needed": needed, "slices": [part | values]}

    class Certificate:
        def to_json(self):
            return dict(content)

    record = CertificateRecord.of(Certificate())
    assert record.needed.rows == 9.0
    assert record.slices[0].name == "country = NL"


@pytest.mark.parametrize("method", ["permutation", GATES], ids=["permutation", "leap"])
def test_it_knows_the_typical_chance_of_another_training(task, method):
    """The plain training of both is the same, so that both see the same evaluations."""
    training = replace(TRAINING, epochs=6, patience=6)
    found = decide(task, model="mlp", method=method, training=training, share=0.5)
    plain = tl.retrain(task, model="mlp", training=training).run.history
    expected = typical_training(plain, METRICS["auc"])
    assert found.certificate.typical_training == expected
    note = "not that of another training"
    assert any(note in one for one in found.certificate.notes)


def test_groups_are_what_is_independent(task):
    grouped = tl.data.read(rows(), label="click", split="order", columns=COLUMNS, group="user")
    training = replace(FAST, metric="gauc")
    found = decide(grouped, model="mlp", method="random", training=training).certificate
    assert (found.metric, found.unit) == ("gauc", "user")
    assert found.units < found.rows


def test_a_relative_margin_is_a_fraction_of_the_metric(task):
    found = decide(
        task, model="mlp", method="random", training=FAST, margin=0.01, relative=True
    ).certificate
    assert found.margin == pytest.approx(0.01 * found.before)
    assert found.relative == 0.01


def test_where_nothing_is_dropped_there_is_nothing_to_certify(task, tmp_path):
    found = decide(task, model="mlp", method="random", training=FAST, share=1.0)
    assert found.certificate is None
    assert found.record["certificate"] is None
    found.save(tmp_path)
    assert json.loads((tmp_path / "metrics.json").read_text())["certificate"] is None
    assert "All 4 fields stay." in tl.Report(found.record).html()


class Stop(Hook):
    def at_start(self, run):
        raise AssertionError("nothing should be trained")


@pytest.mark.parametrize("margin", [0, -0.001, float("nan"), float("inf"), "0.001", None, True])
def test_a_margin_that_is_not_above_0_is_refused_before_any_training(task, margin):
    words = "margin must be a number above 0, but is .* Give the loss of the metric that is accept"
    with pytest.raises(tl.TorchleapError, match=words):
        decide(task, model="mlp", training=FAST, callbacks=[Stop()], margin=margin)


def test_a_single_test_group_is_refused_before_any_training():
    users = pl.Series([0, 1] * 1_080 + [0] * 240)
    one = tl.data.read(
        rows().with_columns(user=users),
        label="click",
        split="order",
        columns=COLUMNS,
        group="user",
    )
    with pytest.raises(tl.DataError, match="at least two groups among the test rows"):
        decide(one, model="mlp", training=FAST, callbacks=[Stop()])


def test_a_leak_in_the_task_forbids_the_word_safe():
    leaking = rows().with_columns(paid=pl.col("click") + 0.01 * pl.col("size"))
    found = decide(
        tl.data.read(leaking, label="click", split="order", columns=COLUMNS),
        model="mlp",
        method="random",
        training=FAST,
        margin=0.9,
        share=0.5,
    )
    assert found.certificate.verdict == "undecided"
    assert found.certificate.reasons[0].startswith("'paid' gives the label away: predicts the")
    assert [one["kind"] for one in found.record["findings"]] == ["leak"]
    page = tl.Report(found.record).html()
    assert "This result cannot be trusted" in page
    assert "can go" not in page


def test_the_given_findings_replace_an_inspection(task):
    misread = {"kind": "number", "column": "size", "text": "amounts", "cure": "Write numbers."}
    dropped = decide(
        task.priced(protect=["item", "price", "user"]),
        model="mlp",
        method="random",
        training=FAST,
        margin=0.9,
        dims=task.fields.dims - 1,
        findings=[misread],
    )
    assert dropped.selection.dropped == ("size",)
    assert dropped.record["findings"] == [misread]
    assert dropped.certificate.verdict == "undecided"
    assert "'size' would be dropped, but may have been misread" in dropped.certificate.reasons[0]


def test_copies_of_train_rows_among_the_test_rows_forbid_the_word_safe():
    copied = pl.concat([rows().head(2_160), rows().head(240)])
    found = decide(
        tl.data.read(copied, label="click", split="order", columns=COLUMNS),
        model="mlp",
        method="random",
        training=FAST,
        margin=0.9,
        findings=[],
    )
    assert [one["kind"] for one in found.record["findings"]] == ["copies"]
    assert found.certificate.verdict == "undecided"
    assert found.certificate.reasons[0].startswith("The test rows are not new: 240 of 240")


@pytest.mark.parametrize(
    "method",
    [GATES, "leap_pressure", "permutation", "shark", "sfs", "lasso", "gbdt", "random", "none"],
    ids=str,
)
def test_no_stage_before_the_comparison_reads_test_rows(monkeypatch, method):
    """The labels and groups are read once to refuse rows on which models cannot be compared."""
    fresh = tl.data.read(rows(), label="click", split="order", columns=COLUMNS)
    stages = []
    read_map = Rows._map

    def watched(part, name, *more):
        if part.part == "test" and name not in ("label.bin", "group.bin"):
            assert stages[-1:] == ["comparing"], f"{name} is read while {stages[-1:]}"
            stages.append("comparing")
        return read_map(part, name, *more)

    monkeypatch.setattr(Rows, "_map", watched)
    training = Training(batch=96, epochs=1, lr=1e-2)
    decide(fresh, model="mlp", method=method, training=training, share=0.5, on_stage=stages.append)
    assert stages.count("comparing") > 1, "the test rows are read in the end"


def test_slices_are_examined_with_their_own_margin(task, certified):
    found = certified.certificate
    assert found.slice_margin == found.margin == 0.2
    assert found.slices_examined > 0
    settings = {"model": "mlp", "method": "permutation", "training": FAST, "margin": 0.2}
    decided = decide(task, **settings, slice_margin=0.3, slice_by="size").certificate
    assert decided.slice_margin == 0.3
    fields = {one.field for one in decided.slices}
    assert "size" in fields
    assert {one.field for one in decided.slices if one.dropped} <= {"user", "size", "item", "price"}


def test_bad_settings_of_slices_are_refused_before_the_training(task):
    with pytest.raises(tl.TorchleapError, match="slice_margin must be a number above 0"):
        decide(task, slice_margin=0)
    with pytest.raises(tl.FieldError, match="no field 'itm' to divide the rows by. Did you mean"):
        decide(task, slice_by=["itm"])
