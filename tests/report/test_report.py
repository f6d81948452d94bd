import html
import json
import sys

import numpy as np
import pytest

from torchleap._common.errors import TorchleapError
from torchleap.report import Report
from torchleap.report.bench import bench_context
from torchleap.report.charts import charts_of

from .records import UGLY, bench_record, large_bench_record, path_record, select_record

SMALL = {
    "format": 1,
    "kind": "select",
    "fields": [{"name": "a", "score": 0.5, "kept": True}, {"name": "b"}],
}


def test_the_page_is_one_file_under_two_megabytes_without_other_files():
    page = Report(select_record(500, steps=400)).html()
    assert len(page.encode()) < 2_000_000
    assert page.startswith("<!doctype html>")
    head = page.split('<script type="application/json"')[0]
    assert "http" not in head.replace("http-equiv", "")
    assert "default-src 'none'" in head
    assert 'src="' not in head


def test_names_cannot_leave_their_script_element():
    record = select_record(30) | {"title": UGLY[1], "command": UGLY[0]}
    page = Report(record).html()
    assert UGLY[0] not in page
    assert UGLY[1] not in page
    data = page.split('id="data">')[1].split("</script>")[0]
    assert not set("<>&\u2028\u2029") & set(data)
    assert {f["values"][0] for f in json.loads(data)["fields"]} == {
        f["name"] for f in record["fields"]
    }
    assert (
        f"<h1>{html.escape(UGLY[1]).replace('&quot;', '&#34;').replace('&#x27;', '&#39;')}</h1>"
        in page
    )


@pytest.mark.parametrize("missing", sorted(select_record(12).keys() - {"format", "kind", "fields"}))
def test_any_part_of_a_record_may_be_missing(missing):
    record = select_record(12)
    for lacking in (
        {key: value for key, value in record.items() if key != missing},
        record | {missing: None},
    ):
        assert "</html>" in Report(lacking).html()


@pytest.mark.parametrize("missing", sorted(path_record(12).keys() - {"format", "kind", "fields"}))
def test_any_part_of_a_record_with_a_path_may_be_missing(missing):
    record = path_record(12)
    for lacking in (
        {key: value for key, value in record.items() if key != missing},
        record | {missing: None},
    ):
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
        (SMALL | {"model": object()}, "record.model is <object.*of type object"),
    ],
)
def test_a_record_that_cannot_be_shown_is_refused(record, message):
    with pytest.raises(TorchleapError, match=message):
        Report(record)


def test_a_file_that_is_not_json_is_refused(tmp_path):
    (tmp_path / "report.json").write_text("<html>")
    with pytest.raises(TorchleapError, match="expected JSON"):
        Report.load(tmp_path / "report.json")


def test_a_page_is_written_atomically(tmp_path, monkeypatch):
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


def test_pictures_of_a_path_have_worth_on_their_axes(tmp_path):
    record = path_record(12)
    drawings = {path.stem: path.read_text() for path in Report(record).svg(tmp_path)}
    assert {"path", "ladder", "ranks", "width"} <= drawings.keys()
    assert "return" not in drawings
    assert "fields kept" in drawings["path"]
    assert "best: " in drawings["path"]
    for name in ("ladder", "ranks", "width"):
        assert "worth in nats" in drawings[name]
    for drawing in drawings.values():
        assert "var(--" not in drawing


@pytest.mark.parametrize("package", ["jinja2", "vl_convert"])
def test_a_missing_package_is_named_with_the_cure(monkeypatch, package, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        TorchleapError,
        match=rf"needs the package {package}. Install it: pip install 'torchleap\[report\]'",
    ):
        Report(SMALL).html() if package == "jinja2" else Report(SMALL).png(tmp_path)


def test_a_benchmark_shows_its_tables_and_curves():
    page = Report(bench_record()).html()
    assert "0.950 ± 0.0004" in page
    assert 'data-chart="curve-0"' in page
    assert "</html>" in Report({"format": 1, "kind": "bench"}).html()


def test_a_benchmark_shows_its_summary_first_and_its_settings_last():
    record = large_bench_record()
    page = Report(record).html()
    words = (
        record["summary"][0],
        record["tables"][0]["title"],
        record["tables"][0]["notes"][1],
        record["curves"][1]["title"],
    )
    places = [
        page.index(html.escape(text))
        for text in (*words, record["curves"][1]["notes"][0], "bench methods --rows", "wide_deep")
    ]
    assert places == sorted(places)
    assert page.count("Bands are intervals.") == 1  # the gates have none
    assert UGLY[0] not in page
    assert UGLY[1] not in page


def test_the_cells_of_a_benchmark_are_written_by_their_size():
    table = bench_context(
        {
            "tables": [
                {
                    "columns": ["a", "b"],
                    "rows": [[0.80972, 12.5], [-0.00304, True], [3, None], ["x"]],
                }
            ]
        }
    )
    (shown,) = table["tables"]
    assert [[cell["text"] for cell in row] for row in shown["rows"]] == [
        *(["0.8097", "12.5"], ["−0.0030", "yes"], ["3", "–"], ["x", "–"]),  # noqa: RUF001
    ]


def test_a_row_that_is_longer_than_the_heading_is_shown_completely():
    (shown,) = bench_context({"tables": [{"columns": ["a"], "rows": [["x", 1], ["y", 2]]}]})[
        "tables"
    ]
    assert [column["title"] for column in shown["columns"]] == ["a", ""]
    assert [cell["text"] for cell in shown["rows"][1]] == ["y", "2"]


def test_a_column_of_numbers_with_gaps_is_one_of_numbers_but_dates_and_versions_are_words():
    columns = {
        "number": ["0.8 ± 0.1", "-", None],
        "time": ["2 min 5 s", "59.9 s", "–"],  # noqa: RUF001
        "date": ["2026-11-17", "2026-11-18", "-"],
        "version": ["2.13.0", "2.9.0", "2.9.1"],
        "mixed": ["0.8", "leap", "-"],
        "nothing": ["-", None, ""],
    }
    table = {"columns": list(columns), "rows": list(zip(*columns.values(), strict=True))}
    (shown,) = bench_context({"tables": [table]})["tables"]
    assert [column["title"] for column in shown["columns"] if column["number"]] == [
        "number",
        "time",
    ]
    assert [cell["by"] for cell in shown["rows"][0]] == [
        0.8,
        125.0,
        "2026-11-17",
        "2.13.0",
        "0.8",
        None,
    ]
    assert [cell["by"] for cell in shown["rows"][2]] == [None, None, None, "2.9.1", None, None]


def test_pictures_of_a_benchmark_have_a_title_and_a_legend_and_the_page_has_its_own(tmp_path):
    record = large_bench_record()
    record["curves"][0]["series"][0]["name"] = "用户最近点击的商品类目"
    drawing = Report(record).svg(tmp_path)[0].read_text()
    assert "AUC by share of fields" in drawing
    assert "用户最近点击的商品类目" in drawing
    assert "PingFang SC" in drawing
    assert all(
        layer["encoding"]["color"].get("legend") is None
        for layer in charts_of(record).specs["curve-0"]["layer"]
    )


def test_a_ninth_series_differs_from_the_others():
    _, gates = bench_context(large_bench_record())["curves"]
    assert len({(series["hue"], series["dash"]) for series in gates["legend"]}) == 9


def test_findings_stand_at_the_top_with_the_option_that_helps():
    leak = {
        "kind": "leak",
        "column": "<b>refunded",
        "text": "gives the label away: AUC 1.000",
        "cure": "Leave it out: --drop refunded.",
    }
    record = select_record(12) | {
        "findings": [
            leak,
            {"kind": "rows", "column": None, "text": "9 rows repeat", "cure": "Remove them."},
        ]
    }
    page = Report(record).html()
    assert "<b>&lt;b&gt;refunded</b>: gives the label away: AUC 1.000. Leave it out: " in page
    assert "<code>--drop refunded</code>." in page
    assert page.index("Read this first") < page.index('class="tiles"')
    assert "9 rows repeat. Remove them." in page


@pytest.mark.parametrize("findings", ["x", 3, [3, None, {}], {"a": 1}, [{"text": 3}]])
def test_damaged_findings_are_refused(findings):
    with pytest.raises(TorchleapError, match=r"expected .* as record\.findings"):
        Report(select_record(12) | {"findings": findings})


@pytest.mark.parametrize("findings", [None, [], [None, {}]])
def test_without_findings_there_is_no_warning(findings):
    assert "Read this first" not in Report(select_record(12) | {"findings": findings}).html()
