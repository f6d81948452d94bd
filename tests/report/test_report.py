import builtins
import html
import json

import numpy as np
import pytest

from torchleap.errors import TorchleapError
from torchleap.report import Report

from .records import UGLY, bench_record, select_record

SMALL = {"format": 1, "kind": "select", "fields": [{"name": "a", "score": 0.5, "kept": True}, {"name": "b"}]}


def test_the_page_is_one_file_under_two_megabytes_that_asks_for_nothing():
    page = Report(select_record(500, steps=400)).html()
    assert len(page.encode()) < 2_000_000
    assert page.startswith("<!doctype html>")
    head = page.split('<script type="application/json"')[0]
    assert "http" not in head.replace("http-equiv", "")
    assert "default-src 'none'" in head
    assert 'src="' not in head


def test_names_cannot_leave_the_script_they_stand_in():
    record = select_record(30) | {"title": UGLY[1], "command": UGLY[0]}
    page = Report(record).html()
    assert UGLY[0] not in page
    assert UGLY[1] not in page
    data = page.split('id="data">')[1].split("</script>")[0]
    assert not set("<>&\u2028\u2029") & set(data)
    assert {f["values"][0] for f in json.loads(data)["fields"]} == {f["name"] for f in record["fields"]}
    assert f"<h1>{html.escape(UGLY[1]).replace('&quot;', '&#34;').replace('&#x27;', '&#39;')}</h1>" in page


@pytest.mark.parametrize("missing", sorted(select_record(12).keys() - {"format", "kind", "fields"}))
def test_any_part_of_a_record_may_be_missing(missing):
    record = select_record(12)
    for lacking in ({key: value for key, value in record.items() if key != missing}, record | {missing: None}):
        assert "</html>" in Report(lacking).html()


@pytest.mark.parametrize("missing", sorted(select_record(12)["fields"][0].keys() - {"name"}))
def test_any_part_of_a_field_may_be_missing(missing):
    record = select_record(12)
    for field in record["fields"]:
        field[missing] = None
    assert "</html>" in Report(record).html()


def test_a_record_survives_json_and_nan_becomes_none(tmp_path):
    record = SMALL | {
        "metrics": {"before": {"auc": float("nan"), "gauc": np.float32(0.5)}},
        "seed": np.int64(3),
        "rule": {"dims": (1, 2)},
    }
    report = Report(record)
    report.write(tmp_path / "report.json")
    again = Report.load(tmp_path / "report.json")
    assert again.record == report.record
    assert again.record["metrics"]["before"] == {"auc": None, "gauc": 0.5}
    assert again.record["rule"] == {"dims": [1, 2]}


def test_a_report_keeps_its_own_copy_of_the_record():
    record = json.loads(json.dumps(SMALL))
    report = Report(record)
    record["fields"].clear()
    assert len(report.record["fields"]) == 2


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ([], "as a dict, but found list"),
        ({"kind": "select"}, "expected format 1, but found None"),
        ({"format": 1, "kind": "selct"}, "Did you mean 'select'"),
        ({"format": 1, "kind": "select"}, "expected a list of fields"),
        ({"format": 1, "kind": "select", "fields": [{"width": 3}]}, "field 0 is {'width': 3}"),
        (SMALL | {"model": object()}, "record.model holds object"),
    ],
)
def test_what_is_no_record_is_refused(record, message):
    with pytest.raises(TorchleapError, match=message):
        Report(record)


def test_a_file_that_is_no_json_is_refused(tmp_path):
    (tmp_path / "report.json").write_text("<html>")
    with pytest.raises(TorchleapError, match="expected JSON"):
        Report.load(tmp_path / "report.json")


def test_a_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("what was there")

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(OSError, match="disk full"):
        Report(SMALL).write(path)
    assert [item.name for item in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text() == "what was there"


def test_pictures_of_every_chart(tmp_path):
    report = Report(select_record(12))
    names = {
        "ladder",
        "ranks",
        "width",
        "sparsity",
        "divergence",
        "price",
        "trajectories",
        "polarisation",
        "return",
        "difference",
    }
    drawings = report.svg(tmp_path / "new")
    assert names <= {path.stem for path in drawings}
    for path in drawings:
        assert path.read_text().startswith("<svg")
        assert "var(--" not in path.read_text()
        assert "<script" not in path.read_text()
        assert path.stat().st_size > 2_000
    (picture,) = Report(bench_record()).png(tmp_path)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000


@pytest.mark.parametrize("package", ["jinja2", "vl_convert"])
def test_a_missing_package_is_named_with_the_cure(monkeypatch, package, tmp_path):
    usual = builtins.__import__

    def without(name, *rest, **named):
        if name == package:
            raise ImportError(name)
        return usual(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(TorchleapError, match=rf"needs the package {package}. Install it: pip install 'torchleap\[report\]'"):
        Report(SMALL).html() if package == "jinja2" else Report(SMALL).png(tmp_path)


def test_a_benchmark_shows_its_tables_and_curves():
    page = Report(bench_record()).html()
    assert "0.950 ± 0.0004" in page
    assert 'data-chart="curve-0"' in page
    assert "</html>" in Report({"format": 1, "kind": "bench"}).html()
