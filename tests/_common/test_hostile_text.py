"""JSON, TOML and options with values that nobody would write: one sentence each."""

import json

import polars as pl
import pytest

import torchleap as tl
from tests.report.records import select_record
from torchleap._common.errors import TorchleapError
from torchleap.bench.grid import Grid
from torchleap.bench.sets import named
from torchleap.bench.store import Store
from torchleap.cli import main
from torchleap.distributed.ranks import _timeout_setting
from torchleap.selection import select

FIELDS = tl.Fields({"age": 1, "zip": 8})
HUGE = "1" + "0" * 400
NASTY = {
    HUGE: "found the number 1000.*, which is too large",
    "1" * 5000: "found the number 1111.*, which is too large",
    "NaN": "found NaN, which is not a number",
    "-Infinity": "found -Infinity, which is not a number",
    "[" * 100_000: "it is nested too deeply",
    '"\\ud800"': "surrogates not allowed",
}


@pytest.mark.parametrize("value", NASTY, ids=[name[:9] for name in NASTY])
def test_a_selection_a_report_and_a_store_refuse_values_that_json_should_not_have(tmp_path, value):
    selection = select(FIELDS, {"age": 123.75, "zip": 0.1}).to_json()
    record = select_record(6, steps=4)
    record["seed"] = 123.75
    for content, load in ((selection, tl.Selection.load), (record, tl.Report.load)):
        path = tmp_path / "file.json"
        path.write_text(json.dumps(content).replace("123.75", value))
        with pytest.raises(
            TorchleapError, match=f"file.json is not a .*: expected JSON, but .*{NASTY[value]}"
        ):
            load(path)
    (tmp_path / "trials.jsonl").write_text(f'{{"key": "a", "result": {value}}}\n')
    with pytest.raises(
        TorchleapError, match=r"trials.jsonl, line 1 is damaged: .* Remove that line"
    ) as found:
        Store(tmp_path / "trials.jsonl")
    assert str(found.value).isprintable()


@pytest.mark.parametrize(
    ("keys", "value", "told"),
    [
        (
            ("fields", 0, "width"),
            "wide",
            "expected a whole number of at least 1 as record.fields[0].width, but found 'wide'",
        ),
        (("fields", 1, "score"), [1], "expected a number as record.fields[1].score, but found [1]"),
        (("history",), {"step": 1}, "expected a list as record.history"),
        (
            ("trajectories", "gates"),
            [0.1],
            "expected a dict as record.trajectories.gates, but found [0.1]",
        ),
        (("savings", "bytes"), [1], "expected two numbers as record.savings.bytes, but found [1]"),
        (("title",), 3, "expected text as record.title, but found 3"),
        (
            ("task", "positives"),
            "many",
            "expected a dict as record.task.positives, but found 'many'",
        ),
        (
            ("findings",),
            [{"text": ["x"]}],
            "expected text as record.findings[0].text, but found ['x']",
        ),
        (("undecided",), {"a": 1}, "expected text as record.undecided, but found {'a': 1}"),
    ],
)
def test_a_record_of_another_shape_is_refused_before_it_is_rendered(tmp_path, keys, value, told):
    record = select_record(6, steps=4)
    place = record
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    (tmp_path / "report.json").write_text(json.dumps(record))
    with pytest.raises(TorchleapError) as found:
        tl.Report.load(tmp_path / "report.json")
    assert str(found.value).startswith(f"{tmp_path}/report.json: This record cannot be reported: ")
    assert told in str(found.value)


def test_a_record_with_a_number_beyond_all_floats_is_refused():
    with pytest.raises(TorchleapError, match="expected a number as record.fields"):
        tl.Report({**select_record(6, steps=4), "fields": [{"name": "a", "score": 10**400}]})


@pytest.mark.parametrize("value", ["1" * 5000, "9" * 30, "[" * 100_000])
def test_a_grid_and_a_schema_refuse_values_that_toml_should_not_have(tmp_path, value):
    (tmp_path / "grid.toml").write_text(f'data = ["census"]\nsearch_seeds = {value}\n')
    with pytest.raises(TorchleapError, match="grid.toml is not TOML: "):
        Grid.load(tmp_path / "grid.toml")
    (tmp_path / "columns.toml").write_text(f"[columns.a]\nwidth = {value}\n")
    with pytest.raises(tl.DataError, match="columns.toml is not TOML: "):
        tl.data.read(
            pl.DataFrame({"click": [0, 1], "a": [1, 2]}),
            label="click",
            columns=tmp_path / "columns.toml",
        )


BIG = "99999999999999999999"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["select", "x.csv", "--label", "y", "--out", "OUT", "--seed", BIG],
            f"4,294,967,295 as --seed, but found {BIG}.",
        ),
        (
            ["select", "x.csv", "--label", "y", "--out", "OUT", "--batch", BIG],
            f"4,294,967,295 as --batch, but found {BIG}.",
        ),
        (
            ["select", "x.csv", "--label", "y", "--out", "OUT", "--lr", "nan"],
            "Expected a finite number as --lr, but found nan.",
        ),
        (
            ["select", "x.csv", "--label", "y", "--out", "OUT", "--budget", "1e999"],
            "a finite number as --budget, but found inf.",
        ),
        (["demo", "--seed", BIG, "--out", "OUT"], f"as --seed, but found {BIG}."),
        (
            ["data", "make", "industrial", "OUT.parquet", "--fields", "4294967295"],
            "from 37 to 100,000, but is 4294967295",
        ),
        (["data", "inspect", "x.csv", "--rows", BIG], f"as --rows, but found {BIG}."),
        (
            ["bench", "--data", "truth@0-999999999999", "--out", "OUT"],
            "Expected at most 10,000 seeds below 4,294,967,296",
        ),
        (
            ["bench", "--data", "truth@0", "--threads", "4294967295", "--out", "OUT"],
            "Give fewer jobs or threads.",
        ),
    ],
)
def test_numbers_out_of_range_are_one_sentence_and_exit_2(tmp_path, capsys, words, sentence):
    given = [word.replace("OUT", str(tmp_path / "out")) for word in words]
    assert main(given) == 2
    told = capsys.readouterr().err.strip()
    assert sentence in told
    assert "\n" not in told
    assert not list(tmp_path.iterdir())


def test_more_rows_than_polars_counts_are_all_rows(tmp_path, capsys):
    (tmp_path / "x.csv").write_text("click,a\n0,1\n1,2\n")
    assert main(["data", "inspect", str(tmp_path / "x.csv"), "--rows", "4294967295"]) == 0
    assert "2 rows" in capsys.readouterr().out


def test_seeds_that_no_generator_takes_are_refused():
    for seed in (-1, 1 << 32, 10**30, 1.5, True):
        with pytest.raises(
            TorchleapError, match="seed must be a whole number from 0 to 4,294,967,295"
        ):
            tl.Training(seed=seed)
    assert len(named("truth@4294967290-4294967295")) == 6


@pytest.mark.parametrize("value", ["1e300", "nan", "inf", "-3", "0", "soon", ""])
def test_a_time_out_that_is_none_is_told(monkeypatch, value):
    monkeypatch.setenv("TORCHLEAP_TIMEOUT", value)
    with pytest.raises(
        TorchleapError, match="TORCHLEAP_TIMEOUT must be a number of seconds above 0 and below 1e9"
    ):
        _timeout_setting()
