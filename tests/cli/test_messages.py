"""Messages of the command line name its own options, are bounded, and are printable."""

import pytest

pl = pytest.importorskip("polars")
pytest.importorskip("typer")

from torchleap import cli  # noqa: E402
from torchleap.cli.messages import LONGEST, bounded, in_options  # noqa: E402

OPTIONS = {
    name: f"--{name.replace('_', '-')}"
    for name in ("positive", "label_threshold", "drop", "names", "columns", "lr", "batch")
}


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("say which one is 1: positive='yes'.", "say which one is 1: --positive yes."),
        ("positive='50000+.' is 1", "--positive 50000+. is 1"),
        ("positive='not this one'.", "--positive 'not this one'."),
        ("label_threshold=2.5 (above it is 1).", "--label-threshold 2.5 (above it is 1)."),
        ("Lower batch=.", "Lower --batch."),
        ("name the columns: names=[...].", "name the columns: --names A,B,C."),
        ("Leave it out: drop=['a b', 'c'].", "Leave it out: --drop 'a b,c'."),
        ("""Leave it out: drop=['a,b'].""", """Leave it out: --drop '"a,b"'."""),
        ("lr must be a number of at least 0", "--lr must be a number of at least 0"),
        (
            "columns={'zip': 'categorical'}.",
            '--columns FILE.toml, which has [columns.zip] kind = "categorical".',
        ),
        ("other=3 and x==y and /data/drop=1/rows", "other=3 and x==y and /data/drop=1/rows"),
        (
            "Name another folder: cache=..., or TORCHLEAP_CACHE.",
            "Name another folder: the environment variable TORCHLEAP_CACHE.",
        ),
    ],
)
def test_settings_become_options(text, spoken):
    assert in_options(text, OPTIONS) == spoken


def test_messages_are_bounded_and_printable():
    told = bounded("a\x00\x1b[31m" + "b" * 10_000)
    assert len(told) <= LONGEST
    assert "\x1b" not in told


def refused(capsys, *words):
    assert cli.main(list(map(str, words))) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return " ".join(err.split())


@pytest.fixture
def rows(tmp_path):
    def write(**columns):
        frame = pl.DataFrame({"x": range(200), "city": ["a", "b"] * 100, **columns})
        frame.write_csv(tmp_path / "rows.csv")
        return tmp_path / "rows.csv"

    return write


@pytest.mark.parametrize(
    ("label", "more", "words"),
    [
        (
            ["red", "blue"],
            [],
            "two values, 'red' (100 rows) and 'blue' (100 rows): say which one is 1: --positive",
        ),
        (
            [1, 2, 3, 4],
            [],
            "--label-threshold 2.5 (above it is 1); or count one value as 1: --positive 4.",
        ),
        (
            [0, 1],
            ["--label-threshold", "1", "--positive", "1"],
            "Expected --label-threshold or --positive, but found both.",
        ),
        (["yes", "no"], ["--positive", "Yes"], "No row has 'Yes' in 'y'. Did you mean 'yes'?"),
        ([0, 1], ["--lr", "-1"], "--lr must be a number"),
        ([0, 1], ["--seed", "-1"], "--seed must be a whole number"),
        ([0, 1], ["--batch", "5000"], "Lower --batch."),
        ([0, 1], ["--share", "0.001"], "--share 0.001 leaves no field at all. Give at least 0.5."),
        ([0, 1], ["--budget", "-1"], "--budget must be above 0, but is -1.0."),
        ([0, 1], ["--group", "users"], "There is no column 'users' for --group."),
    ],
)
def test_select_names_its_own_options(label, more, words, rows, tmp_path, capsys):
    path = rows(y=label * (200 // len(label)))
    assert words in refused(
        capsys, "select", path, "--label", "y", "--out", tmp_path / "out", *more
    )


def test_inspect_and_convert_name_theirs(rows, tmp_path, capsys):
    path = rows(y=[1, 2, 3, 4] * 50)
    assert "--threshold 2.5 (above it is 1)" in refused(
        capsys, "data", "inspect", path, "--label", "y"
    )
    assert "but there is none. Name its column: --label ..." in refused(
        capsys, "data", "inspect", path, "--threshold", "1"
    )
    told = refused(capsys, "data", "convert", path, path.with_suffix(".csv"))
    assert told.endswith("Name another file, or overwrite it: --force.")


def test_a_file_of_bytes_gets_one_short_sentence(tmp_path, capsys):
    (tmp_path / "rows.csv").write_bytes(bytes(range(256)) * 400)
    told = refused(
        capsys, "select", tmp_path / "rows.csv", "--label", "y", "--out", tmp_path / "out"
    )
    assert "it is binary data of an unknown format" in told
    assert len(told) < 400


def test_an_address_keeps_its_slashes(tmp_path, capsys):
    told = refused(
        capsys, "select", "https://host/rows.csv", "--label", "y", "--out", tmp_path / "out"
    )
    assert "curl -LO https://host/rows.csv" in told
