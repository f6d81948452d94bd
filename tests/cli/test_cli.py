import json
import os
import subprocess
import sys

import pytest

pl = pytest.importorskip("polars")
pytest.importorskip("typer")
pytest.importorskip("rich")

from typer.testing import CliRunner  # noqa: E402

from torchleap import cli  # noqa: E402
from torchleap.data.files import convert as converting  # noqa: E402
from torchleap.data.files import inspection  # noqa: E402

CLICKS = "click,city,[red]x,price\n" + "".join(
    f"{i % 3 == 0:d},c{i % 7},{i % 5},{i}.5\n" for i in range(200)
)


@pytest.fixture
def clicks(tmp_path):
    path = tmp_path / "clicks.csv"
    path.write_text(CLICKS)
    return str(path)


def run(*words):
    return CliRunner().invoke(cli.build_app(), [str(word) for word in words])


def in_a_shell(*words):
    """The command in a process of its own, with its output in a pipe."""
    plain = {
        name: value
        for name, value in os.environ.items()
        if name not in ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS")
    }
    command = [sys.executable, "-m", "torchleap.cli", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=plain | {"TERM": "xterm-256color"}
    )


def test_inspect_shows_the_table_and_the_notes(clicks):
    result = run("data", "inspect", clicks, "--label", "click")
    assert result.exit_code == 0
    assert "200 rows, 4 columns; click is 1 in 33.5 % of rows" in result.stdout
    assert "No column looks wrong." in result.stdout


def test_inspect_as_json_prints_nothing_else(clicks):
    result = run("data", "inspect", clicks, "--json", "--rows", "50")
    content = json.loads(result.stdout)
    assert (content["rows"], content["all_rows"], len(content["columns"])) == (50, False, 4)


def test_a_name_in_brackets_is_printed_as_it_is(clicks):
    assert "[red]x" in run("data", "inspect", clicks).stdout


def test_a_pipe_gets_no_escape_codes_and_no_progress(clicks):
    result = in_a_shell("data", "inspect", clicks, "--label", "click")
    assert (result.returncode, result.stderr) == (0, "")
    assert "[red]x" in result.stdout
    assert "\x1b" not in result.stdout


def test_names_and_separator_are_for_files_without_a_header(tmp_path):
    path = tmp_path / "rows.txt"
    path.write_text("1\ta\n0\tb\n" * 30)
    result = run(
        "data",
        "inspect",
        path,
        "--names",
        "label,word",
        "--separator",
        "\\t",
        "--label",
        "label",
        "--json",
    )
    assert [column["name"] for column in json.loads(result.stdout)["columns"]] == ["label", "word"]


def test_a_name_of_a_column_may_hold_a_comma(tmp_path):
    path = tmp_path / "rows.txt"
    path.write_text("1\ta\n0\tb\n" * 30)
    result = run(
        "data", "inspect", path, "--names", '"label, or not",word', "--separator", "tab", "--json"
    )
    assert [column["name"] for column in json.loads(result.stdout)["columns"]] == [
        "label, or not",
        "word",
    ]


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["select"], ["--protect", "--drop", "--cost", "--names"]),
        (["predict"], ["--names"]),
        (["data", "inspect"], ["--names"]),
        (["data", "convert"], ["--names"]),
    ],
)
def test_the_help_of_every_list_explains_how_to_give_a_name_with_a_comma(words, options):
    told = " ".join(run(*words, "--help").stdout.split()).split(" --")
    for option in options:
        (own,) = [text for text in told if text.startswith(f"{option[2:]} <str>")]
        assert """'"a,b\"""" in own, option


def test_the_label_may_be_a_rating_or_a_word(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(
        "stars,mood\n" + "".join(f"{i % 5 + 1},{'good' if i % 4 else 'bad'}\n" for i in range(100))
    )
    rating = run("data", "inspect", path, "--label", "stars", "--threshold", "3", "--json")
    word = run("data", "inspect", path, "--label", "mood", "--positive", "good", "--json")
    assert (json.loads(rating.stdout)["base_rate"], json.loads(word.stdout)["base_rate"]) == (
        0.4,
        0.75,
    )


def test_convert_prints_the_file_and_its_size(clicks, tmp_path):
    result = run("data", "convert", clicks, tmp_path / "out.parquet")
    assert (result.exit_code, result.stdout) == (
        0,
        f"Wrote {tmp_path}/out.parquet: 200 rows, 4 columns, 0.0 MB.\n",
    )
    assert pl.read_parquet(tmp_path / "out.parquet").dtypes == [
        pl.Int64,
        pl.String,
        pl.String,
        pl.Float64,
    ]


def test_convert_overwrites_only_by_force(clicks, tmp_path, capsys):
    out = tmp_path / "out.csv"
    out.write_text("old")
    assert cli.main(["data", "convert", clicks, str(out)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert out.read_text() == "old"
    assert cli.main(["data", "convert", clicks, str(out), "--force"]) == 0
    assert out.read_text().splitlines()[0] == "click,city,[red]x,price"


def test_make_prints_the_file_and_the_next_command(tmp_path):
    out = tmp_path / "log.parquet"
    result = run(
        "data", "make", "industrial", out, "--rows", "500", "--fields", "40", "--dims", "400"
    )
    assert result.exit_code == 0, result.output
    assert f"Wrote {out}: 500 rows, 40 fields, 400 dims" in result.stdout
    assert "sparse noise" in result.stdout
    assert f"Next: torchleap data inspect {out} --label label" in result.stdout
    assert len(pl.read_parquet(out)) == 500
    next_command = result.stdout.strip().splitlines()[-1].removeprefix("Next: torchleap ")
    assert run(*next_command.split()).exit_code == 0


def test_make_does_not_overwrite(tmp_path, capsys):
    (tmp_path / "log.parquet").write_text("old")
    assert (
        cli.main(["data", "make", "industrial", str(tmp_path / "log.parquet"), "--rows", "10"]) == 2
    )
    assert "is there already" in capsys.readouterr().err
    assert (tmp_path / "log.parquet").read_text() == "old"


@pytest.mark.parametrize("place", [0, 2, 4])
def test_quiet_is_understood_at_any_place(place, clicks, tmp_path, capsys):
    words = ["data", "convert", clicks, str(tmp_path / "out.parquet")]
    assert cli.main([*words[:place], "--quiet", *words[place:]]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["data", "inspect", "FILE", "--label", "clik"],
            "There is no column 'clik' for --label. Did you mean 'click'",
        ),
        (["data", "inspect", "nothing.csv"], "There is no file nothing.csv."),
        (["data", "inspect", "FILE", "--labl", "x"], "No such option: --labl"),
        (["data", "inspect", "FILE", "--rows", "0"], "Invalid value for '--rows'"),
        (["data", "inspect"], "Missing argument"),
        (["data", "look"], "No such command 'look'"),
        (
            ["data", "convert", "FILE", "out.xlsx"],
            "Expected a new file that ends in .parquet or .arrow or .csv",
        ),
        (
            ["data", "make", "industrial", "x.parquet", "--fields", "3"],
            "fields must be a whole number from 37 to 100,000",
        ),
        (["data", "make", "industrial", "x.csv"], "Expected a new file that ends in .parquet"),
    ],
)
def test_bad_input_gives_one_sentence_and_exit_code_2(words, sentence, clicks, capsys):
    assert cli.main([clicks if word == "FILE" else word for word in words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert len(err.splitlines()) == 1


def test_bad_input_in_a_shell_shows_no_traceback_unless_asked(clicks):
    short = in_a_shell("data", "inspect", clicks, "--label", "clik")
    long = in_a_shell("data", "inspect", clicks, "--label", "clik", "--debug")
    assert (short.returncode, long.returncode) == (2, 2)
    assert len(short.stderr.splitlines()) == 1
    assert "Traceback" in long.stderr
    assert long.stderr.endswith(short.stderr)


def test_control_c_gives_130_and_no_traceback(clicks, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(inspection, "inspect", interrupted)
    assert cli.main(["data", "inspect", clicks]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_mistake_of_ours_shows_its_traceback(clicks, monkeypatch, capsys):
    monkeypatch.setattr(inspection, "inspect", lambda *_, **__: 1 / 0)
    assert cli.main(["data", "inspect", clicks]) == 1
    told = capsys.readouterr().err
    assert "ZeroDivisionError" in told
    assert told.endswith("please report it with the lines above.\n")


def test_a_folder_that_cannot_be_written_to_is_reported_in_one_sentence(
    clicks, monkeypatch, capsys
):
    def refused(*_, **__):
        raise PermissionError(13, "Permission denied", "/root/out.parquet")

    monkeypatch.setattr(converting, "convert", refused)
    assert cli.main(["data", "convert", clicks, "out.parquet"]) == 2
    assert (
        capsys.readouterr().err
        == "/root/out.parquet cannot be read or written: Permission denied.\n"
    )


def test_a_missing_package_of_data_gives_the_pip_line(clicks, monkeypatch, capsys):
    def missing(*_, **__):
        raise ModuleNotFoundError("No module named 'polars'", name="polars")

    monkeypatch.setattr(inspection, "inspect", missing)
    assert cli.main(["data", "inspect", clicks]) == 2
    assert "pip install 'torchleap[data]'" in capsys.readouterr().err


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_without_typer_or_rich_the_command_prints_the_line_that_installs_it(package):
    code = (
        f"import sys; sys.modules[{package!r}] = None; "
        "from torchleap.cli import main; sys.exit(main([]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("The command line needs the package")
    assert result.stderr.endswith("pip install 'torchleap[cli]'.\n")


def test_version():
    assert run("--version").stdout.startswith("torchleap 0.")


@pytest.mark.parametrize(
    "words",
    [
        *[
            (),
            ("data",),
            ("data", "inspect"),
            ("data", "convert"),
            ("data", "make"),
            ("data", "make", "industrial"),
        ],
        *[
            ("select",),
            ("check",),
            ("demo",),
            ("report",),
            ("predict",),
            ("export",),
            ("compare",),
            ("doctor",),
        ],
    ],
)
def test_every_help_has_an_example(words):
    result = run(*words, "--help")
    assert result.exit_code == 0
    assert f"Example: torchleap {words[0] if words else ''}" in result.stdout
