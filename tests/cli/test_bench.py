"""torchleap bench, by running it: from options and from a file, killed and continued."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

pl = pytest.importorskip("polars")
pytest.importorskip("typer")
pytest.importorskip("rich")
pytest.importorskip("scipy")

from torchleap import TorchleapError, cli  # noqa: E402
from torchleap.bench import run as running  # noqa: E402
from torchleap.bench.trials import RetrainTrial  # noqa: E402
from torchleap.cli.bench import _duration  # noqa: E402
from torchleap.methods import Random  # noqa: E402

GRID = """
methods = ["random", "leap", "none"]
shares = [0.5, 0.25]
search_seeds = 2
retrain_seeds = 3

[set.tiny]
kind = "truth"
rows = 1000
widths = [1, 4]
pair_widths = [1]

[training]
epochs = 2
"""
FILES = {
    "tables.txt",
    "tables.md",
    "tables.tex",
    "report.html",
    "report.json",
    "trials.jsonl",
    "state",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a grid and a file of clicks."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "grid.toml").write_text(GRID)
    (folder / "small.toml").write_text(
        GRID.replace("retrain_seeds = 3", "retrain_seeds = 2").replace("rows = 1000", "rows = 600")
    )
    rows = {
        "item": [n * n % 11 for n in range(600)],
        "user": [n % 7 for n in range(600)],
        "price": [n % 5 / 5 for n in range(600)],
    }
    frame = pl.DataFrame(rows).with_columns(click=(pl.col("item") + pl.col("user")) % 2)
    frame.write_csv(folder / "clicks.csv")
    return folder


ALONE = (
    "--jobs",
    "1",
)  # in this process, where a test can see and change things; processes are tested in tests/bench


def printed(capsys, *words, code=0):
    found = cli.main([str(word) for word in words])
    out, err = capsys.readouterr()
    assert found == code, err
    return out, err


def refused(capsys, *words):
    """The one sentence that bad input gives."""
    out, err = printed(capsys, *words, code=2)
    assert (out, len(err.splitlines())) == ("", 1), (out, err)
    return err.strip()


@pytest.mark.parametrize(
    ("words", "example"),
    [
        (
            ["bench"],
            "Example: torchleap bench --data ml-1m --methods all --shares 0.5,0.25 --out bench",
        ),
        (["bench", "stepwise"], "Example: torchleap bench stepwise --data ml-1m --out bench"),
        (
            ["bench", "roi"],
            "Example: torchleap bench roi --rows 320000 --fields 512 --dims 12000 --out bench",
        ),
    ],
)
def test_help_shows_an_example(capsys, words, example):
    out, _ = printed(capsys, *words, "--help")
    assert example in " ".join(out.split())
    assert "--jobs" in out
    if words == ["bench"]:
        assert "stepwise" in out
        assert "roi" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["bench", "--data", "truth@0"], "Expected a folder for the results: give --out DIR."),
        (
            ["bench", "stepwise", "--data", "truth@0"],
            "Expected a folder for the results: give --out DIR.",
        ),
        (["bench", "roi"], "Expected a folder for the results: give --out DIR."),
        (["bench", "--out", "OUT"], "Expected data sets: give --data ml-1m, or --grid GRID.toml."),
        (
            ["bench", "--data", "truht@0", "--out", "OUT"],
            "There is no data set 'truht'. Did you mean 'truth'",
        ),
        (
            ["bench", "--data", "truth@0", "--methods", "laso", "--out", "OUT"],
            "There is no method 'laso'. Did you mean 'lasso'",
        ),
        (
            ["bench", "--data", "truth@0", "--models", "dnc", "--out", "OUT"],
            "There is no backbone 'dnc'. Did you mean 'dcn'",
        ),
        (
            ["bench", "--data", "truth@0", "--shares", "half", "--out", "OUT"],
            "--shares must be numbers such as 0.5,0.25, but is",
        ),
        (
            ["bench", "--data", "truth@0", "--shares", "2", "--out", "OUT"],
            "share must lie above 0 and not above 1, but is 2.0",
        ),
        (
            ["bench", "--data", "truth@0", "--shares", "", "--out", "OUT"],
            "expected at least one of shares, but found none",
        ),
        (
            ["bench", "--data", "truth@0", "--search-seeds", "0", "--out", "OUT"],
            "Invalid value for '--search-seeds'",
        ),
        (
            ["bench", "--data", "clicks.csv", "--out", "OUT"],
            "clicks.csv needs a label: give --label COLUMN.",
        ),
        (
            ["bench", "--data", "no.csv", "--label", "click", "--out", "OUT"],
            "There is no file no.csv.",
        ),
        (
            ["bench", "--grid", "no.toml", "--out", "OUT"],
            "no.toml cannot be read or written: No such file or directory.",
        ),
        (
            ["bench", "--data", "truth@0", "--jobs", "9999", "--out", "OUT"],
            "9,999 jobs of 1 thread each are more than",
        ),
        (
            ["bench", "--data", "census", "--out", "OUT"],
            "census is read from files: give their folder by --folder",
        ),
        (
            ["bench", "roi", "--pruned", "1.5", "--out", "OUT"],
            "--pruned must be a tuple (each a number of at least 0 and below 1), but is (1.5,)",
        ),
        (
            ["bench", "roi", "--schedule", "steep", "--out", "OUT"],
            "schedule must be one of constant, cosine, linear, but is 'steep'",
        ),
        (["bench", "roi", "--lr", "0", "--out", "OUT"], "lr must be a number above 0, but is 0.0"),
        (["bench", "roi", "--pruned", "some", "--out", "OUT"], "--pruned must be numbers"),
        (["bench", "stpwise"], "No such command 'stpwise'"),
        (
            ["bench", "--data", "ml-1m", "stepwise", "--out", "OUT"],
            "Expected --data behind stepwise, but found it before",
        ),
        (
            [
                "bench",
                "roi",
                "--data",
                "truth@0",
                "--rows",
                "1000",
                "--dims",
                "300",
                "--out",
                "OUT",
            ],
            "Expected --data without --rows, --dims, but found both. The log is made only without",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    capsys, tmp_path, monkeypatch, words, sentence
):
    monkeypatch.delenv("TORCHLEAP_DATA", raising=False)
    assert sentence in refused(
        capsys, *(str(tmp_path / "out") if word == "OUT" else word for word in words)
    )
    assert not (tmp_path / "out").exists()


def test_a_run_prints_the_tables_and_writes_them_four_ways(place, capsys):
    out, err = printed(
        capsys, "bench", "--grid", place / "small.toml", "--out", place / "new" / "out", *ALONE
    )
    folder = place / "new" / "out"
    assert {path.name for path in folder.iterdir()} == FILES
    text = (folder / "tables.txt").read_text()
    assert out.startswith("Test AUC, 50% of the fields kept, wide_deep\n\nmethod")
    assert " ".join(out.split()).startswith(" ".join(text.split()))
    assert out.splitlines()[-1] == f"Wrote {folder}: tables.txt, .md, .tex, and report.html."
    assert "| random |" in (folder / "tables.md").read_text()
    assert r"\toprule" in (folder / "tables.tex").read_text()
    html = (folder / "report.html").read_text()
    assert "Test AUC, 25% of the fields kept, wide_deep" in html
    record = json.loads((folder / "report.json").read_text())
    assert record["command"] == f"torchleap bench --grid {place}/small.toml --out {folder} --jobs 1"
    assert record["settings"]["data"] == {
        "tiny": {"kind": "truth", "rows": 600, "widths": [1, 4], "pair_widths": [1]}
    }
    assert record["settings"]["training"] == {"epochs": 2}
    assert len(record["tables"]) == 6
    lines = err.splitlines()
    assert lines[0].split(maxsplit=1) == ["0/4", "tiny: search by random, seed 0"]
    assert (
        sum(" s left " in line for line in lines) == len(lines) - 1
    )  # known from the first trial on
    assert (text.count("±") > 4, "\x1b" in out + err) == (True, False)


def test_json_can_be_parsed_and_is_all_that_is_printed(place, capsys):
    words = ("bench", "--grid", place / "small.toml", "--out", place / "json", "--json", *ALONE)
    out, err = printed(capsys, *words)
    content = json.loads(out)
    assert (content.keys(), content["failures"], err) == ({"tables", "curves", "failures"}, [], "")
    assert content["tables"] == json.loads((place / "json" / "report.json").read_text())["tables"]


def test_own_files_and_options(place, capsys):
    words = [
        "--label",
        "click",
        "--group",
        "user",
        "--methods",
        "random,none",
        "--models",
        "mlp",
        "--shares",
        "0.7",
    ]
    words += [
        "--search-seeds",
        "1",
        "--retrain-seeds",
        "2",
        "--epochs",
        "1",
        "--batch",
        "64",
        "--out",
        place / "own",
        "--quiet",
        *ALONE,
    ]
    out, err = printed(capsys, "bench", "--data", place / "clicks.csv", *words)
    assert err == ""
    assert out.startswith("Test AUC, 70% of the fields kept, mlp\n\nmethod")
    assert "Test GAUC, 70% of the fields kept, mlp" in out
    assert "Wrote" not in out
    settings = [
        json.loads(line)["settings"]
        for line in (place / "own" / "trials.jsonl").read_text().splitlines()
    ]
    assert [s["trial"] for s in settings] == ["search"] + ["retrain"] * 4
    assert {
        (s["training"]["batch"], s["training"]["epochs"], s["training"]["metric"]) for s in settings
    } == {(64, 1, "gauc")}


def test_a_failure_is_reported_beside_the_table(place, capsys, monkeypatch):
    def refuse(*_):
        raise TorchleapError("Not today.")

    monkeypatch.setattr(Random, "score", refuse)
    words = ("bench", "--grid", place / "small.toml", "--out", place / "failed", *ALONE)
    out, err = printed(capsys, *words, "--quiet", code=1)
    assert err.splitlines() == [
        *(f"Failed: tiny: search by random, seed {seed}: Not today." for seed in range(2)),
        "2 trials failed, so the tables have gaps; the same command tries again.",
    ]
    assert {path.name for path in (place / "failed").iterdir()} == FILES
    assert len(json.loads(printed(capsys, *words, "--json", code=1)[0])["failures"]) == 2
    assert next(line.split() for line in out.splitlines() if line.startswith("random")) == [
        "random",
        "-",
        "-",
        "-",
    ]


@pytest.mark.parametrize(
    ("command", "options", "refused_ones"),
    [
        ([], ["--data", "truth@0"], "--data"),
        (
            [],
            ["--epochs", "100", "--shares", "0.5", "--label", "y"],
            "--shares, --label, --epochs",
        ),  # also what is the default
        ([], ["--retrain-seeds", "5", "--methods", "leap"], "--methods, --retrain-seeds"),
        (["stepwise"], ["--seeds", "5", "--models", "dcn"], "--models, --seeds"),
        (["roi"], ["--rows", "5000", "--batch", "64"], "--rows, --batch"),
    ],
)
def test_a_grid_and_options_that_it_would_pass_over_are_refused(
    place, capsys, command, options, refused_ones
):
    words = ("bench", *command, "--grid", place / "small.toml", "--out", place / "never", *options)
    told = refused(capsys, *words)
    assert sorted(told.split(" without ")[1].split(", but ")[0].split(", ")) == sorted(
        refused_ones.split(", ")
    )
    assert told.endswith("but found both. Write that into the grid, or leave --grid out.")
    assert not (place / "never").exists()


def test_options_that_a_grid_does_not_contain_can_be_given_with_it(place, capsys):
    words = (
        "--grid",
        place / "small.toml",
        "--out",
        place / "beside",
        "--pruned",
        "0.3",
        "--steps",
        "0",
        "--threads",
        "1",
    )
    out, _ = printed(capsys, "bench", "roi", *words, "--folder", place, "--json", *ALONE)
    assert [row[0] for row in json.loads(out)["tables"][0]["rows"]] == ["30%"]


def test_control_c_prints_how_to_continue(place, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    words = ("bench", "--grid", place / "small.toml", "--out", place / "broken", "--quiet", *ALONE)
    with monkeypatch.context() as patch:
        patch.setattr(RetrainTrial, "run", interrupted)
        out, err = printed(capsys, *words, code=130)
    assert (out, err) == ("", "Finished trials are saved; the same command continues.\n")
    assert len((place / "broken" / "trials.jsonl").read_text().splitlines()) == 4
    assert "Test AUC" in printed(capsys, *words)[0]


def start(place, *words):
    command = [sys.executable, "-m", "torchleap.cli", *map(str, words)]
    environment = {
        name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "COLUMNS")
    }
    quiet = subprocess.DEVNULL
    options = {
        "env": environment | {"OMP_NUM_THREADS": "1"},
        "stdout": quiet,
        "stderr": quiet,
        "start_new_session": True,
    }
    return subprocess.Popen(command, cwd=place, **options)


def killed_after(lines, place, *words):
    """What the store holds after a run was killed as soon as it had so many lines."""
    store, end = place / "killed" / "trials.jsonl", time.monotonic() + 120
    process = start(place, *words)
    while process.poll() is None and time.monotonic() < end:
        if store.exists() and store.read_bytes().count(b"\n") >= lines:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.005)
    assert process.wait(30) == -signal.SIGKILL
    return store.read_bytes()


def without_seconds(text):
    tables, mark, _ = text.partition("Seconds of a search")
    assert mark
    return tables


def test_a_killed_run_resumes_and_comes_to_the_same_end(place, capsys):
    words = ("bench", "--grid", "grid.toml", "--out", "killed", *ALONE)
    first = killed_after(2, place, *words)  # among the searches
    second = killed_after(10, place, *words)  # among the trainings
    whole = [content[: content.rfind(b"\n") + 1] for content in (first, second)]
    assert start(place, *words).wait(120) == 0
    printed(
        capsys,
        "bench",
        "--grid",
        place / "grid.toml",
        "--out",
        place / "undisturbed",
        "--quiet",
        *ALONE,
    )

    content = (place / "killed" / "trials.jsonl").read_bytes()
    undisturbed = [
        json.loads(line)
        for line in (place / "undisturbed" / "trials.jsonl").read_text().splitlines()
    ]
    found = [json.loads(line) for line in content.splitlines()]
    assert second.startswith(whole[0])
    assert content.startswith(whole[1])
    assert (
        2 <= whole[0].count(b"\n") < whole[1].count(b"\n") < len(found)
    )  # it was killed in the middle, twice
    assert [record["key"] for record in found] == [record["key"] for record in undisturbed]
    assert len({record["key"] for record in found}) == len(found)
    tables = [
        without_seconds((place / name / "tables.txt").read_text())
        for name in ("killed", "undisturbed")
    ]
    assert tables[0] == tables[1]
    assert list((place / "killed" / "state").iterdir()) == []


def lives(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def soon(condition):
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


@pytest.mark.skipif(running.cores() < 2, reason="two jobs need two cores")
def test_ctrl_c_ends_all_processes_and_begins_no_more_trials(place):
    words = ("bench", "--grid", "grid.toml", "--out", "stopped", "--jobs", "2")
    store, end = place / "stopped" / "trials.jsonl", time.monotonic() + 120
    process = start(place, *words)
    while (
        process.poll() is None
        and time.monotonic() < end
        and not (store.exists() and store.stat().st_size)
    ):
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all of them
    assert process.wait(60) == 130
    before = store.read_bytes()
    assert 1 <= before.count(b"\n") < 20  # of the grid's searches and trainings
    assert soon(lambda: not lives(process.pid))  # no worker is left
    assert start(place, *words).wait(120) == 0
    assert store.read_bytes().startswith(before)


def test_stepwise_from_the_command_line(place, capsys):
    words = [
        "--label",
        "click",
        "--seeds",
        "2",
        "--epochs",
        "1",
        "--out",
        place / "steps",
        "--quiet",
        *ALONE,
    ]
    out, _ = printed(capsys, "bench", "stepwise", "--data", place / "clicks.csv", *words)
    assert out.startswith("Stepwise validation of the gates: clicks, wide_deep\n\nstep")
    assert out.count("retained") + out.count("suppressed") == 3
    assert {path.name for path in (place / "steps").iterdir()} == FILES
    record = json.loads((place / "steps" / "report.json").read_text())
    assert record["settings"]["retrain_seeds"] == 2
    assert not {"shares", "search_seeds"} & record["settings"].keys()
    assert [curve["title"] for curve in record["curves"]] == [
        "Gates over the training: clicks",
        "Polarisation: clicks",
    ]


@pytest.mark.parametrize("seeds", [1, 2])
def test_roi_from_the_command_line(place, capsys, monkeypatch, seeds):
    monkeypatch.setenv("TORCHLEAP_CACHE", str(place / "cache"))
    words = [
        "--rows",
        "1000",
        "--fields",
        "40",
        "--dims",
        "300",
        "--methods",
        "random,permutation",
        "--pruned",
        "0.1,0.5",
    ]
    words += [
        "--steps",
        "2",
        "--seeds",
        seeds,
        "--epochs",
        "1",
        "--out",
        place / f"roi{seeds}",
        *ALONE,
    ]
    out, err = printed(capsys, "bench", "roi", *words, "--json")
    content = json.loads(out)
    assert (err, content["failures"]) == ("", [])
    assert [table["columns"][2:] for table in content["tables"][:2]] == [
        ["random", "permutation"]
    ] * 2
    assert [row[0] for row in content["tables"][0]["rows"]] == ["10%", "50%"]
    bands = [
        point[2:]
        for curve in content["curves"]
        for series in curve["series"]
        for point in series["points"]
    ]
    assert all((low is None) == (high is None) == (seeds == 1) for low, high in bands)
    assert {path.name for path in (place / f"roi{seeds}").iterdir()} == FILES
    settings = json.loads((place / f"roi{seeds}" / "report.json").read_text())["settings"]
    assert (settings["pruned"], settings["steps"], settings["search_seeds"]) == (
        [0.1, 0.5],
        2,
        seeds,
    )
    assert settings["training"] == {"epochs": 1, "lr": 2e-3, "schedule": "linear"}
    assert not {"shares", "retrain_seeds"} & settings.keys()  # of the grid, but not of this table


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (89.4, "89 s"),
        (90, "2 min"),
        (5000, "83 min"),
        (5400, "1 h 30 min"),
        (7260, "2 h 01 min"),
    ],
)
def test_the_time_left_in_words(seconds, text):
    assert _duration(seconds) == text


def test_two_jobs_share_the_cores(place, capsys, monkeypatch):
    monkeypatch.setattr(running, "cores", lambda: 2)
    told = refused(
        capsys,
        "bench",
        "--grid",
        place / "small.toml",
        "--out",
        place / "many",
        "--jobs",
        "2",
        "--threads",
        "2",
    )
    assert (
        told == "2 jobs of 2 threads each are more than this machine's 2 cores. "
        "Give fewer jobs or threads."
    )


@pytest.mark.parametrize(("threads", "jobs"), [(1, 6), (2, 3), (4, 1), (8, 1)])
def test_without_a_number_there_are_as_many_jobs_as_the_cores_allow(
    place, capsys, monkeypatch, threads, jobs
):
    seen = []

    def runner(out, **settings):
        seen.append((settings["jobs"], settings["threads"]))
        raise TorchleapError("Seen.")

    monkeypatch.setattr("torchleap.bench.cores", lambda: 6)
    monkeypatch.setattr("torchleap.bench.Runner", runner)
    words = ("--grid", place / "small.toml", "--out", place / "seen", "--threads", threads)
    assert refused(capsys, "bench", *words) == "Seen."
    assert seen == [(jobs, threads)]
