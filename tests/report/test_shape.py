"""The check of a record against the dataclasses that describe it."""

import pytest

from torchleap._common.errors import TorchleapError
from torchleap.pipeline.record import BenchRecord, SelectRecord
from torchleap.report import Report
from torchleap.report.shape import misfits

from .records import large_bench_record, select_record


def test_complete_records_fit_their_schema():
    assert list(misfits(select_record(12), SelectRecord, "record")) == []
    assert list(misfits(large_bench_record(), BenchRecord, "record")) == []


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        ({"title": 3}, "expected text as record.title, but found 3"),
        ({"seed": "0"}, "expected a number as record.seed, but found '0'"),
        ({"versions": []}, "expected a dict as record.versions, but found []"),
        ({"task": "clicks"}, "expected a dict as record.task, but found 'clicks'"),
        ({"task": {"rows": {"train": True}}}, "expected a number as record.task.rows.train"),
        ({"fields": [{"width": 0}]}, "expected a whole number of at least 1 as record.fields[0]"),
        ({"fields": [{"kept": 1}]}, "expected true or false as record.fields[0].kept"),
        ({"notes": "one"}, "expected a list as record.notes, but found 'one'"),
        ({"savings": {"bytes": [1]}}, "expected two numbers as record.savings.bytes"),
        ({"curve": {"retrained": [{"interval": ["a", 1]}]}}, "record.curve.retrained[0].interval"),
        ({"trajectories": {"gates": {"a": [1, None, "x"]}}}, "as record.trajectories.gates.a[2]"),
        ({"known_metrics": {"auc": {"title": 1}}}, "as record.known_metrics.auc.title"),
    ],
)
def test_a_value_of_another_type_is_named_with_its_path(part, sentence):
    (problem,) = misfits(part, SelectRecord, "record")
    assert sentence in problem


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        (
            {"tables": [{"rows": [[{}]]}]},
            "expected text or a number as record.tables[0].rows[0][0]",
        ),
        ({"summary": 3}, "expected text or a list of it as record.summary"),
        ({"curves": [{"series": [{"points": [[1, "2"]]}]}]}, "series[0].points[0][1]"),
    ],
)
def test_benchmarks_are_checked_as_well(part, sentence):
    (problem,) = misfits(part, BenchRecord, "record")
    assert sentence in problem


def test_none_fits_everywhere_and_unknown_keys_are_left_alone():
    empty = dict.fromkeys(select_record(12))
    assert list(misfits({**empty, "of a later version": object()}, SelectRecord, "record")) == []


def test_a_record_without_descriptions_of_its_metrics_still_opens():
    record = select_record(12)
    assert "known_metrics" not in record
    assert "the AUC loses at most 0.001" in Report(record).html()


def test_a_metric_is_shown_as_the_record_describes_it():
    record = select_record(12)
    record["metrics"]["difference"] |= {
        "metric": "ndcg",
        "value": -0.02,
        "interval": [-0.03, -0.01],
    }
    record["certificate"]["metric"] = "ndcg"
    record["known_metrics"] = {"ndcg": {"title": "NDCG@10", "higher_is_better": True}}
    assert "the NDCG@10 loses at most 0.001" in Report(record).html()
    record["known_metrics"]["ndcg"]["higher_is_better"] = False
    assert "the NDCG@10 rises by at most 0.001" in Report(record).html()


def test_a_verdict_is_one_of_three():
    record = select_record(12)
    record["certificate"]["verdict"] = "probably fine"
    words = "expected one of safe, not safe, undecided as record.certificate.verdict, but found"
    with pytest.raises(TorchleapError, match=words):
        Report(record)


def test_a_record_of_another_format_is_refused_in_one_sentence():
    with pytest.raises(TorchleapError, match="expected format 1, but found 2: make it again with"):
        Report(select_record(12) | {"format": 2})
