"""torchleap check: the exit code, the sentences and the JSON; --ab and --no-full of select."""

import json

import polars as pl
import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from torchleap import cli
from torchleap.pipeline.serve import Served

from ..pipeline.test_decide import rows

FAST = ("--label", "click", "--method", "random", "--share", "0.5", "--epochs", "1")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a result and with new rows."""
    folder = tmp_path_factory.mktemp("place")
    rows(1200).write_parquet(folder / "past.parquet")
    rows(900, seed=5).write_parquet(folder / "new.parquet")
    words = ["select", folder / "past.parquet", *FAST, "--model", "mlp", "--quiet"]
    more = ["--cost", "size=3,item=1", "--ab", "--out", folder / "result"]
    assert cli.main([str(word) for word in (*words, *more)]) == 0
    return folder


def check(place, *words, file="new.parquet", result="result"):
    given = ("check", place / result, place / file, *words)
    return cli.main([str(word) for word in given])


def test_a_safe_model_is_exit_code_0(place, capsys):
    assert check(place, "--margin", "0.9") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "Safe: the AUC loses at most 0.9, at 95 % confidence."
    assert "95 % interval" in printed[1]


@pytest.mark.parametrize("more", [(), ("--relative",), ("--quiet",)])
def test_a_model_that_is_not_certified_is_exit_code_3(place, capsys, more):
    assert check(place, "--margin", "0.0000001", *more) == 3
    assert capsys.readouterr().out.startswith(("Undecided: ", "Not safe: "))


def test_json_is_the_certificate_and_nothing_else(place, capsys):
    code = check(place, "--margin", "0.9", "--json", "--ab")
    content = json.loads(capsys.readouterr().out)
    assert (code, content["verdict"], content["rows"]) == (0, "safe", 900)
    assert content["rehearsal"]["saved"] in (0, 1, 3, 4)


def test_ab_prints_the_size_of_an_online_test(place, capsys):
    check(place, "--ab")
    assert "An online A/B test needs" in capsys.readouterr().out


def test_select_records_and_prints_the_rehearsal(place, capsys):
    record = json.loads((place / "result" / "report.json").read_text())
    assert record["rehearsal"]["outcome"]["name"] == "positive rate"
    words = ["select", place / "past.parquet", *FAST, "--model", "mlp", "--ab", "--no-full"]
    out = place / "small"
    assert cli.main([str(word) for word in (*words, "--quiet", "--out", out)]) == 0
    assert "An online A/B test needs" in capsys.readouterr().out
    assert cli.main([str(word) for word in (*words, "--force", "--json", "--out", out)]) == 0
    assert json.loads(capsys.readouterr().out)["rehearsal"]["metric"]["name"] == "auc"
    assert not (out / "full").exists()
    assert check(place, result="small") == 2
    assert "saved without it, by --no-full" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda frame: frame.drop("size", "click"), "lacks the columns 'click', 'size':"),
        (lambda frame: frame.drop("click"), "lacks the column 'click', the label:"),
        (lambda frame: frame.filter(pl.col("click") == 0), "Models cannot be compared on"),
        (lambda frame: rows(1200), "are among the 1,080 rows that they were trained on"),
    ],
)
def test_bad_rows_are_exit_code_2_and_one_sentence(place, capsys, change, sentence):
    change(rows(900, seed=5)).write_parquet(place / "bad.parquet")
    assert check(place, file="bad.parquet") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert sentence in printed.err
    assert "Traceback" not in printed.err


@pytest.mark.parametrize("margin", ["0", "-1", "nan"])
def test_a_margin_has_to_be_above_0(place, capsys, margin):
    assert check(place, "--margin", margin) == 2
    assert "--margin" in capsys.readouterr().err


def test_relative_without_a_margin_names_the_option(place, capsys):
    assert check(place, "--relative") == 2
    assert "--relative needs the margin that is a fraction: --margin 0.002" in (
        capsys.readouterr().err
    )


def test_the_library_says_the_same(place, capsys):
    check(place, "--margin", "0.9", "--json")
    found = Served.load(place / "result").check(place / "new.parquet", margin=0.9)
    assert json.loads(capsys.readouterr().out) == found.to_json()
