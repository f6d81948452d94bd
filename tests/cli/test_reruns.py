"""torchleap select --repeats and --folds."""

import json

import pytest

pytest.importorskip("polars")
pytest.importorskip("typer")
pytest.importorskip("rich")

from ..pipeline.test_decide import rows
from .test_select import in_a_shell

SETTINGS = (
    *("--label", "click", "--lr", "0.01", "--epochs", "1", "--model", "mlp"),
    *("--method", "permutation", "--share", "0.5", "--margin", "0.05"),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    rows(1200).write_parquet(folder / "clicks.parquet")
    return folder


def test_repetitions_are_announced_and_their_changes_printed(place):
    words = ("select", "clicks.parquet", *SETTINGS, "--repeats", "2", "--out", "repeats")
    code, out, err = in_a_shell(place, *words)
    assert code == 0, err
    assert "repeating 2 of 2 ..." in err
    assert "In 2 trainings on the same fields the AUC changes by " in out
    metrics = json.loads((place / "repeats" / "metrics.json").read_text())
    assert metrics["certificate"]["repeats"] == 2
    assert not (place / "repeats" / ".state").exists()
    assert "In 2 trainings on the same fields" in (place / "repeats" / "report.html").read_text()


def test_folds_are_announced_and_their_agreement_printed(place):
    words = ("select", "clicks.parquet", *SETTINGS, "--folds", "2", "--json", "--out", "folds")
    code, out, err = in_a_shell(place, *words)
    assert code == 0, err
    found = json.loads(out)
    assert found["certificate"]["folds"] == 2
    assert found["certificate"]["rows"] == 1200
    assert found["reruns"]["selections"] == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--repeats", "0"), "repeats must be a whole number of at least 1, but is 0"),
        (("--folds", "1"), "folds must be a whole number of at least 2, but is 1"),
        (("--folds", "3", "--repeats", "2"), "Expected --repeats or --folds, but found"),
        (("--repeat-by", "seed"), "--repeat-by must be one of training, weights"),
    ],
)
def test_bad_numbers_are_refused_before_the_data_is_read(place, words, sentence):
    code, _, err = in_a_shell(place, "select", "no.csv", *SETTINGS, *words, "--out", "bad")
    assert code == 2
    assert sentence in " ".join(err.split())
    assert not (place / "bad").exists()
