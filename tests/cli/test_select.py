"""torchleap select and the commands for its results: in a pipe, on a terminal, with Ctrl-C."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from importlib.util import find_spec

import pytest

pl = pytest.importorskip("polars")
pytest.importorskip("typer")
pytest.importorskip("rich")

import torchleap as tl  # noqa: E402
from torchleap import cli  # noqa: E402
from torchleap._common.locks import held  # noqa: E402
from torchleap.cli.folder import RESULTS  # noqa: E402
from torchleap.cli.summary import against_truth, close_calls, shortened  # noqa: E402
from torchleap.selection import Selection  # noqa: E402

from ..pipeline.test_decide import rows  # noqa: E402

FRAME = rows().with_columns(
    pl.format("i{}", "item").alias("item"), pl.format("u{}", "user").alias("user")
)
SETTINGS = (
    "--label",
    "click",
    "--lr",
    "0.005",
    "--epochs",
    "6",
    "--batch",
    "32",
    "--model",
    "mlp",
    "--share",
    "0.5",
)
FAST = ("--label", "click", "--lr", "0.01", "--epochs", "2", "--model", "mlp")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with data, as a new user has it."""
    folder = tmp_path_factory.mktemp("place")
    FRAME.write_csv(folder / "clicks.csv")
    FRAME.write_parquet(folder / "clicks.parquet")
    return folder


def environment():
    hidden = ("FORCE_COLOR", "NO_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "COLUMNS")
    return {name: value for name, value in os.environ.items() if name not in hidden} | {
        **{"TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}
    }


def start(place, *words):
    command = [sys.executable, "-m", "torchleap.cli", *map(str, words)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=place, env=environment(), stdout=pipe, stderr=pipe, text=True
    )


def in_a_shell(place, *words):
    process = start(place, *words)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def result(place):
    """A finished run, in a folder below one that was not there."""
    code, out, err = in_a_shell(place, "select", "clicks.csv", *SETTINGS, "--out", "deep/result")
    assert code == 0, err
    return place / "deep" / "result", out, err


def test_all_files_are_written_and_the_state_is_removed(result):
    folder, *_ = result
    assert {path.name for path in folder.iterdir()} == set(RESULTS)
    record = json.loads((folder / "report.json").read_text())
    assert (
        record["command"] == f"torchleap select clicks.csv {' '.join(SETTINGS)} --out deep/result"
    )
    assert record["task"]["source"] == "clicks.csv"
    assert Selection.load(folder / "selection.json").kept == ("item", "price")
    assert "<html" in (folder / "report.html").read_text()[:1000]


def test_the_summary_names_the_fields_the_cost_and_the_next_command(result):
    _, out, _ = result
    before, verdict = (part.splitlines() for part in out.split("\n\n")[:2])
    assert (
        before[0]
        == "Task on 'click': 4 fields, 27 dimensions; 1,920 train, 240 valid, 240 test rows"
    )
    assert re.match(
        r"1,\d{3} positive rows of 2,400 \(\d\d\.\d %\): \d+ train, \d+ valid, \d+ test\.$",
        before[1],
    )
    assert "encoded rows are kept in" in before[-1]
    assert re.match(
        r"2 of 4 fields (can go: the AUC loses at most 0\.001, at 95 % confidence\.|"
        r"would be dropped, but (that is not safe: the AUC loses more than 0\.001|"
        r"240 test rows, \d+ of them positive, cannot exclude that the AUC loses more than 0))",
        verdict[0],
    )
    assert re.match(
        r"AUC on 240 test rows: 0\.\d{4} with all fields, 0\.\d{4} with those kept. The AUC",
        verdict[1],
    )
    assert "95 % interval" in verdict[1]
    assert "the margin is 0.001." in verdict[1]
    assert any("not that of another training" in line for line in verdict[2:4])
    *_, saved, kept, dropped = verdict
    assert saved.startswith("Pruning saves")
    assert [kept, dropped] == ["Keep: item, price.", "Drop: user, size."]
    *_, wrote, following = out.splitlines()
    assert (
        wrote
        == "Wrote deep/result: the report is deep/result/report.html, the model deep/result/model."
    )
    assert (
        following == "Next: torchleap predict deep/result NEW_FILE --out deep/result/scores.parquet"
    )


def test_a_pipe_gets_a_line_per_evaluation_and_no_escape_codes(result):
    _, out, err = result
    assert "\x1b" not in out + err
    assert "searching ...\nepoch 1/6 step" in err  # leap trains the model of all fields first
    assert "all fields but the last are closed." in err
    assert [line for line in err.splitlines() if line.endswith("...")] == [
        f"{stage} ..."
        for stage in (
            "searching",
            "preparing",
            "masking",
            "fine-tuning",
            "comparing",
        )
    ]


def test_json_and_parquet_and_quiet(place):
    code, out, err = in_a_shell(
        place,
        "select",
        "clicks.parquet",
        *FAST,
        "--share",
        "0.5",
        "--out",
        "of_parquet",
        "--margin",
        "0.2",
        "--relative",
        "--json",
        "--quiet",
    )
    assert (code, err) == (0, "")
    content = json.loads(out)
    assert content["kept"] == ["item", "price"]
    assert content["out"] == "of_parquet"
    assert content.keys() == {
        "kept",
        "dropped",
        "rule",
        "metrics",
        "savings",
        "seconds",
        "findings",
        "undecided",
        "certificate",
        "reruns",
        "out",
    }
    assert content["certificate"]["relative"] == 0.2
    assert content["certificate"]["verdict"] == "safe"
    assert {path.name for path in (place / "of_parquet").iterdir()} == set(RESULTS)


def test_quiet_prints_the_verdict_alone(place, capsys):
    words = (
        "select",
        str(place / "clicks.parquet"),
        *FAST,
        "--epochs",
        "1",
        "--method",
        "random",
        "--group",
        "user",
    )
    assert cli.main([*words, "--out", str(place / "quiet"), "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert re.match(r"\d of 4 fields (can go|would be dropped)", out)
    assert "GAUC on 240 test rows" in out
    assert "Wrote" not in out


def test_when_all_fields_stay_the_summary_claims_nothing(place, capsys):
    words = (
        "select",
        str(place / "clicks.parquet"),
        *FAST,
        "--epochs",
        "1",
        "--protect",
        "item,price,user,size",
        "--quiet",
    )
    assert cli.main([*words, "--out", str(place / "all")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "All 4 fields stay.",
        "Every smaller model on the path is worse than the best by more than one standard error. "
        "Another rule drops some: torchleap select ... --share 0.5.",
    ]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--dims", "1000"], "This rule leaves room for all of them. Another rule drops some"),
        (
            ["--protect", "item,price,user,size", "--threshold", "0.5"],
            "No unprotected field scores low enough for this rule. Another rule drops some",
        ),
        (
            ["--time-limit", "600", "--threshold", "0"],
            "within 600 seconds they may have had too few steps. Another rule drops some",
        ),
    ],
)
def test_when_all_fields_stay_the_summary_gives_the_reason(place, tmp_path, capsys, more, told):
    words = ("select", str(place / "clicks.parquet"), *FAST, "--epochs", "1", *more, "--quiet")
    assert cli.main([*words, "--out", str(tmp_path / "out")]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "All 4 fields stay."
    assert told in second


def on_a_terminal(place, *words):
    """What a terminal of 120 columns gets."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    command = [sys.executable, "-m", "torchleap.cli", *map(str, words)]
    process = subprocess.Popen(
        command, cwd=place, env=environment(), stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    found, end = b"", time.monotonic() + 120
    while time.monotonic() < end:
        if select.select([ours], [], [], 0.2)[0]:
            try:
                found += os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
        elif process.poll() is not None:
            break
    os.close(ours)
    return process.wait(10), found.decode()


def test_a_terminal_gets_a_bar_and_the_table_of_gates(place):
    code, told = on_a_terminal(
        place, "select", "clicks.csv", *FAST, "--share", "0.5", "--out", "on_terminal"
    )
    assert code == 0
    assert "━━━" in told
    assert "epoch 2/2" in told
    assert re.search(r"gates at step \d+", told)
    assert re.search(r"price +\d\.\d\d +█+", told)
    assert told.count("\x1b[?25l") <= told.count("\x1b[?25h")  # the cursor is back
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", told)
    assert re.search(r"2 of 4 fields (can go|would be dropped)", plain)


@pytest.mark.parametrize(
    ("more", "rule", "words"),
    [
        ([], {"tolerance": "1se"}, "at most one standard error worse than the best."),
        (["--tolerance", "1se"], {"tolerance": "1se"}, "at most one standard error worse"),
        (["--tolerance", "0.02"], {"tolerance": 0.02}, "whose AUC is at most 0.02 worse than"),
        (["--worth", "0.02"], {"worth": 0.02}, "worth at least 0.02 nats are kept."),
        (["--price-by", "dims", "--dims", "12"], {"dims": 12}, "Keep: item, price."),
    ],
)
def test_leap_has_rules_of_its_path(place, tmp_path, capsys, more, rule, words):
    out = tmp_path / "out"
    command = ["select", str(place / "clicks.parquet"), *FAST, *more, "--quiet", "--out", str(out)]
    assert cli.main(command) == 0
    assert words in capsys.readouterr().out
    record = json.loads((out / "report.json").read_text())
    assert record["rule"] == rule
    assert record["settings"]["price_by"] == ("dims" if "--price-by" in more else "field")
    assert [len(point["kept"]) for point in record["path"]["points"]][-1] == 1
    selection = Selection.load(out / "selection.json")
    assert {"item", "price"} <= set(selection.kept)
    assert "user" in selection.dropped


def test_a_rate_of_false_discoveries_leaves_no_decoy_in_the_folder(place, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["select", str(place / "clicks.parquet"), *FAST, "--fdr", "0.4", "--quiet"]
    assert cli.main([*command, "--out", str(out)]) == 0
    record = json.loads((out / "report.json").read_text())
    assert record["rule"] == {"fdr": 0.4}
    assert record["decoys"]["per_field"] == 3
    assert len(record["fields"]) == 4
    for name in ("selection.json", "layout.json", "report.json"):
        assert "(decoy" not in (out / name).read_text()


def test_a_tolerance_masks_fields_for_another_method(place, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["select", str(place / "clicks.parquet"), *FAST, "--method", "permutation"]
    assert cli.main([*command, "--tolerance", "0.001", "--quiet", "--out", str(out)]) == 0
    words = "whose AUC, with the others masked and without adaptation, is at most 0.001 worse"
    assert words in capsys.readouterr().out
    path = json.loads((out / "report.json").read_text())["path"]
    assert [point["price"] for point in path["points"]] == [None] * 4
    kept = [set(point["kept"]) for point in path["points"] if point["behind"] <= 0.001]
    assert set(Selection.load(out / "selection.json").kept) == kept[-1]


def interrupted_in(place, stage, *words):
    """Ctrl-C after the first evaluation that follows a line of the output."""
    process = start(place, *words)
    err = ""
    for line in process.stderr:
        err += line
        if stage in err and line.startswith("epoch"):
            process.send_signal(signal.SIGINT)
            break
    out, rest = process.communicate(timeout=60)
    return process.returncode, out, err + rest


def test_control_c_saves_and_resume_comes_to_the_same_end(place, result, capsys):
    words = ("select", "clicks.csv", *SETTINGS, "--out")
    code, out, err = interrupted_in(place, "searching ...", *words, "broken")
    assert code == 130, err
    told = (
        "Saved; continue with: torchleap select clicks.csv "
        + " ".join(SETTINGS)
        + " --out broken --resume"
    )
    assert err.splitlines()[-1] == told or err.splitlines()[-2:] == [told, ""]
    assert "Traceback" not in err
    assert "can go" not in out
    assert [path.name for path in (place / "broken").iterdir()] == [".state"]

    told = refused(capsys, "select", place / "clicks.csv", *SETTINGS, "--out", place / "broken")
    assert told.endswith(
        "broken has a run that was not finished. "
        "Give --resume to continue it, or --force to start again."
    )
    told = refused(
        capsys,
        "select",
        place / "clicks.csv",
        *SETTINGS,
        "--out",
        place / "broken",
        "--resume",
        "--lr",
        "0.5",
    )
    assert (
        "broken/.state is of another run: its lr is 0.005, not 0.5. Resume with the same settings"
        in told
    )
    code, _, err = in_a_shell(place, *words, "broken", "--resume")
    assert code == 0, err
    assert (place / "broken" / "selection.json").read_text() == (
        result[0] / "selection.json"
    ).read_text()
    assert (place / "broken" / "metrics.json").read_text() == (
        result[0] / "metrics.json"
    ).read_text()
    assert {path.name for path in (place / "broken").iterdir()} == set(RESULTS)
    assert "--resume" not in json.loads((place / "broken" / "report.json").read_text())["command"]


def refused(capsys, *words):
    """The one sentence that bad input gives."""
    code = cli.main([str(word) for word in words])
    out, err = capsys.readouterr()
    assert (code, out, len(err.splitlines())) == (2, "", 1), (code, out, err)
    return err.strip()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--label", "clik"], "There is no column 'clik' for --label. Did you mean 'click'?"),
        (["--method", "laep"], "There is no method 'laep'. Did you mean 'leap'"),
        (["--model", "dcm"], "There is no backbone 'dcm'. Did you mean 'dcn'"),
        (
            ["--share", "0.5", "--dims", "3"],
            "Expected one of --threshold, --share, --dims, --budget, --worth, --tolerance, "
            "--fdr, but found --share and --dims",
        ),
        (
            ["--tolerance", "1se", "--worth", "1e-4"],
            "but found --worth and --tolerance. Give one of them.",
        ),
        (["--tolerance", "-1"], "--tolerance must be at least 0, but is -1.0."),
        (["--tolerance", "x"], "--tolerance must be a number or '1se', but is 'x'."),
        (["--tolerance", "nan"], "--tolerance must be a number, but is nan."),
        (["--fdr", "1"], "--fdr must lie between 0 and 1, but is 1.0."),
        (["--worth", "-1"], "--worth must be at least 0, but is -1.0."),
        (["--worth", "much"], "Invalid value for '--worth'"),
        (["--price-by", "bytes"], "--price-by must be one of field, dims, cost, but is 'bytes'."),
        (
            ["--worth", "1e-4", "--method", "random"],
            "--worth needs a search that measures worth, but Random gives only scores. "
            "Use --method leap or --method permutation, or --share.",
        ),
        (
            ["--tolerance", "1se", "--method", "leap_pressure"],
            "--tolerance needs a search with a path, but PressureMethod closes no fields and "
            "trains no plain model to mask them in. Use --method leap or --method permutation, "
            "or --share.",
        ),
        (["--price-by", "dims", "--method", "random"], "Random has no setting 'price_by'."),
        (
            ["--price-by", "cost", "--cost", "item=0"],
            "Expected costs above 0 for a path by cost, but that of 'item' is 0.0. "
            "Give it a small cost, or --price-by field.",
        ),
        (["--share", "2"], "--share must lie above 0 and not above 1, but is 2.0."),
        (["--protect", "itm"], "There is no field 'itm'. Did you mean 'item'?"),
        (["--protect", "item", "--dims", "3"], "The protected fields alone take 11 of --dims 3."),
        (["--cost", "garbage"], "--cost must be NAME=NUMBER,..., but has 'garbage'."),
        (["--cost", "item=many"], "--cost must be NAME=NUMBER,..., but has 'item=many'."),
        (["--cost", "item=-1"], "the cost of 'item' must be a finite number of at least 0"),
        (["--cost", '"item=1'], "with every double quote closed, but found '\"item=1'."),
        (["--protect", '"item,pr'], "with every double quote closed, but found '\"item,pr'."),
        (["--protect", '"item,pr"'], "There is no field 'item,pr'."),
        (["--cost", "itm=1"], "There is no field 'itm'. Did you mean 'item'?"),
        (["--slice", "itm"], "There is no field 'itm' to divide the rows by. Did you mean 'item'?"),
        (["--slice-margin", "0"], "--slice-margin must be a number above 0, but is 0.0."),
        (["--drop", "itm"], "There is no column 'itm'. Did you mean 'item'?"),
        (["--group", "usr"], "There is no column 'usr' for --group. Did you mean 'user'"),
        (["--seed", "-1"], "--seed must be a whole number from 0 to 4,294,967,295, but is -1"),
        (["--lr", "0"], "--lr must be a number above 0"),
        (
            ["--margin", "0"],
            "--margin must be a number above 0, but is 0.0. Give the loss of the metric that is "
            "acceptable: --margin 0.001.",
        ),
        (["--margin", "-0.1"], "--margin must be a number above 0, but is -0.1."),
        (["--margin", "nan"], "Expected a finite number as --margin, but found nan."),
        (["--time-limit", "0"], "--time-limit must be a number above 0"),
        (["--batch", "5000"], "at least one batch of 5,000 train rows, but found 1,920 rows."),
        (["--epochs", "0"], "Invalid value for '--epochs'"),
        (["--resume"], "has no run to resume. Leave --resume out."),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(place, tmp_path, capsys, more, sentence):
    words = ["--label", "click", *more]
    assert sentence in refused(
        capsys, "select", place / "clicks.csv", *words, "--out", tmp_path / "out"
    )
    assert list(tmp_path.rglob("*.pt")) == []


def test_names_that_hold_commas_are_given_in_quotes(tmp_path):
    FRAME.rename({"item": "item, new", "user": "user,id", "size": "size,cm"}).write_csv(
        tmp_path / "clicks.csv"
    )
    words = [
        "--protect",
        '"item, new",price',
        "--drop",
        '"user,id"',
        "--cost",
        '"size,cm"=7.5,price=2',
    ]
    words = [
        "select",
        str(tmp_path / "clicks.csv"),
        *FAST,
        "--epochs",
        "1",
        "--method",
        "random",
        *words,
    ]
    assert cli.main([*words, "--out", str(tmp_path / "out"), "--quiet"]) == 0
    fields = json.loads((tmp_path / "out" / "report.json").read_text())["fields"]
    assert {f["name"]: f["protected"] for f in fields} == {
        "item, new": True,
        "price": True,
        "size,cm": False,
    }
    assert {f["name"]: f["cost"] for f in fields if f["name"] != "item, new"} == {
        "price": 2.0,
        "size,cm": 7.5,
    }


def test_bad_files_and_labels(place, tmp_path, capsys):
    def told(frame, *more):
        frame.write_csv(tmp_path / "rows.csv")
        return refused(
            capsys,
            "select",
            tmp_path / "rows.csv",
            "--label",
            "click",
            "--out",
            tmp_path / "out",
            *more,
        )

    assert (
        refused(capsys, "select", "nothing.csv", "--label", "click", "--out", tmp_path / "o")
        == "There is no file nothing.csv."
    )
    assert "is 0 in all 1,920 train rows: expected both 0 and 1" in told(
        FRAME.with_columns(click=pl.lit(0))
    )
    assert "expected the label 0 or 1" in told(FRAME.with_columns(click=pl.col("item")))
    assert "No row is left for valid" in told(FRAME.head(3))
    assert "cannot be compared on these valid rows: AUC needs rows of both classes" in told(
        FRAME.head(12)
    )
    assert "Missing option '--label'" in refused(
        capsys, "select", place / "clicks.csv", "--out", tmp_path / "o"
    )


def test_a_folder_that_cannot_be_written_to_is_refused_before_any_work(place, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "deep"):
        told = refused(capsys, "select", place / "clicks.csv", "--label", "click", "--out", out)
        assert (
            told == f"The results cannot be written to {out}: {tmp_path}/file is a file. "
            "Give another --out."
        )
    if os.geteuid():
        (tmp_path / "closed").mkdir(mode=0o500)
        told = refused(
            capsys,
            "select",
            place / "clicks.csv",
            "--label",
            "click",
            "--out",
            tmp_path / "closed" / "out",
        )
        assert "is not writable" in told


def test_results_are_replaced_only_by_force(place, capsys):
    words = [
        "select",
        place / "clicks.csv",
        *FAST,
        "--epochs",
        "1",
        "--method",
        "random",
        "--out",
        place / "twice",
    ]
    assert cli.main([*map(str, words), "--quiet"]) == 0
    capsys.readouterr()
    told = refused(capsys, *words)
    assert (
        "has results already: selection.json, model, encoding. "
        "Give another --out, or --force to replace them." in told
    )
    assert "is done already. Leave --resume out." in refused(capsys, *words, "--resume")
    assert cli.main([*map(str, words), "--quiet", "--force", "--seed", "3"]) == 0
    record = json.loads((place / "twice" / "report.json").read_text())
    assert record["seed"] == 3
    assert "--force" not in record["command"]
    assert record["command"].startswith("torchleap select ")


def test_two_runs_into_one_folder_at_a_time_are_refused(place, tmp_path, capsys):
    words = ["select", str(place / "clicks.csv"), *FAST, "--epochs", "1", "--quiet"]
    (tmp_path / "busy").mkdir()
    (tmp_path / "busy" / ".result-killed").mkdir()
    with held(tmp_path / "busy"):
        assert not (tmp_path / "busy" / ".result-killed").exists()  # what a killed run has left
        told = refused(capsys, *words, "--out", str(tmp_path / "busy"), "--force")
    assert (
        told
        == f"Another run is writing to {tmp_path / 'busy'}. Wait for it, or give another folder."
    )
    assert list((tmp_path / "busy").iterdir()) == []
    with pytest.raises(ZeroDivisionError), held(tmp_path / "new" / "below"):
        raise ZeroDivisionError
    assert not (tmp_path / "new").exists()


def test_a_run_that_is_killed_holds_nothing(tmp_path):
    code = (
        "import os, sys; from torchleap._common.locks import held\n"
        "with held(sys.argv[1]): os._exit(7)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "out")], check=False)
    assert killed.returncode == 7
    with held(tmp_path / "out"):
        assert (tmp_path / "out").is_dir()


def test_when_no_field_is_left_the_scores_are_used_again(place, capsys):
    words = ["select", str(place / "clicks.csv"), *FAST, "--out", str(place / "none"), "--quiet"]
    assert cli.main([*words, "--threshold", "1.5"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert re.match(
        r"All 4 fields stay: no field scores 1.5 or more, the best is '\w+' with 0.\d\d.$", first
    )
    assert second.endswith("without training again: --resume --share 0.5 in place of another rule.")
    assert cli.main([*words, "--resume", "--share", "0.25"]) == 0
    assert re.search(r"3 of 4 fields (can go|would be dropped)", capsys.readouterr().out)


def test_a_worth_that_no_field_has_is_refused_and_the_path_is_used_again(place, tmp_path, capsys):
    words = ["select", place / "clicks.csv", *FAST, "--out", tmp_path / "out", "--quiet"]
    told = refused(capsys, *words, "--worth", "100")
    assert re.match(r"No field is worth 100 or more; the best one is worth 0\.\d+\. Lower", told)
    assert "has a run that was not finished. Give --resume" in refused(capsys, *words)
    saved = {path.name for path in tmp_path.rglob("*.pt")}
    assert saved == {"0.pt", "1.pt"}  # the model of all fields, and the path
    assert cli.main([*map(str, words), "--resume", "--worth", "0.02"]) == 0
    assert "worth at least 0.02 nats are kept." in capsys.readouterr().out


def test_a_failed_save_does_not_lose_the_run(place, capsys, monkeypatch):
    from torchleap.pipeline.decide import Decision

    def full_disk(*_, **__):
        raise OSError(28, "No space left on device", "selection.json")

    words = [
        "select",
        str(place / "clicks.csv"),
        *FAST,
        "--epochs",
        "1",
        "--out",
        str(place / "full"),
        "--quiet",
    ]
    with monkeypatch.context() as patch:
        patch.setattr(Decision, "save", full_disk)
        assert (
            refused(capsys, *words)
            == "selection.json cannot be read or written: No space left on device."
        )
    assert cli.main([*words, "--resume"]) == 0


def test_predict_needs_the_kept_columns_alone(result, place, tmp_path, capsys):
    folder, *_ = result
    FRAME.select("price", "item").write_parquet(tmp_path / "new.parquet")
    out = tmp_path / "scores.csv"
    assert cli.main(["predict", str(folder), str(tmp_path / "new.parquet"), "--out", str(out)]) == 0
    assert re.match(rf"Wrote {out}: 2,400 scores, mean 0\.\d+\.\n", capsys.readouterr().out)
    scores = pl.read_csv(out)
    assert scores.columns == ["score"]
    assert tl.auc(FRAME["click"].to_numpy(), scores["score"].to_numpy()) > 0.75
    assert "is there already" in refused(
        capsys, "predict", folder, tmp_path / "new.parquet", "--out", out
    )
    assert "There is no folder" in refused(
        capsys, "predict", folder, tmp_path / "new.parquet", "--out", tmp_path / "no" / "s.csv"
    )
    assert "holds no complete result" in refused(
        capsys, "predict", tmp_path, tmp_path / "new.parquet", "--out", tmp_path / "s.csv"
    )
    FRAME.select("price").write_parquet(tmp_path / "new.parquet")
    told = refused(capsys, "predict", folder, tmp_path / "new.parquet", "--out", tmp_path / "s.csv")
    assert "lacks the column 'item', which the model reads" in told


def test_export_writes_a_program(result, tmp_path, capsys):
    folder, *_ = result
    out = tmp_path / "model.pt2"
    assert cli.main(["export", str(folder), "--program", str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"Wrote {out}, 0.")
    assert "is there already" in refused(capsys, "export", folder, "--program", out)
    assert (
        refused(capsys, "export", folder)
        == "Expected --program FILE or --onnx FILE, but found neither."
    )
    assert "ends in .onnx" in refused(capsys, "export", folder, "--onnx", tmp_path / "model.txt")
    assert "There is no folder" in refused(
        capsys, "export", folder, "--program", tmp_path / "no" / "model.pt2"
    )


@pytest.mark.skipif(
    not all(map(find_spec, ("onnx", "onnxruntime", "onnxscript"))), reason="ONNX is not installed"
)
def test_export_writes_onnx(result, tmp_path):
    assert (
        cli.main(["export", str(result[0]), "--onnx", str(tmp_path / "model.onnx"), "--quiet"]) == 0
    )
    assert (tmp_path / "model.onnx").stat().st_size > 1000


def test_report_is_rendered_again_with_pictures(result, tmp_path, capsys):
    folder, *_ = result
    (tmp_path / "report.json").write_text((folder / "report.json").read_text())
    assert cli.main(["report", str(tmp_path), "--png"]) == 0
    written = [line.removeprefix("Wrote ") for line in capsys.readouterr().out.splitlines()]
    assert written[0] == str(tmp_path / "report.html")
    assert len(written) > 3
    assert all(open(path, "rb").read(4) == b"\x89PNG" for path in written[1:])  # noqa: SIM115, PTH123
    assert "contains no results: expected report.json in it" in refused(
        capsys, "report", tmp_path / "charts"
    )


def test_compare_prints_the_differences(result, place, tmp_path, capsys):
    folder, *_ = result
    first = Selection.load(folder / "selection.json")
    tl.selection.select(first.fields, {**first.scores, "user": 9.0}, share=0.5).save(
        tmp_path / "other.json"
    )
    assert cli.main(["compare", str(folder), str(tmp_path / "other.json")]) == 0
    told = capsys.readouterr().out
    assert "Of 3 fields that one of them keeps, both keep 1." in told
    assert "9.000 kept" in told
    assert cli.main(["compare", str(folder), str(tmp_path / "other.json"), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (len(content["kept_by_both"]), len(content["only_first"]), content["only_second"]) == (
        1,
        1,
        ["user"],
    )
    assert cli.main(["compare", str(folder), str(folder)]) == 0
    assert "They keep the same fields." in capsys.readouterr().out
    assert "No such file" in refused(capsys, "compare", folder, tmp_path / "nothing.json")


def test_doctor_prints_versions_and_the_kernel(capsys, monkeypatch):
    monkeypatch.setenv("TORCHLEAP_DATA", "/some/where")
    monkeypatch.delenv("TORCHLEAP_CACHE", raising=False)
    assert cli.main(["doctor", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content.keys() == {"versions", "speed", "devices", "folders"}
    assert content["folders"]["TORCHLEAP_DATA"] == "/some/where"
    assert content["folders"]["TORCHLEAP_CACHE"] == "not set: beside the data"
    assert cli.main(["doctor"]) == 0
    assert re.search(r"torchleap +\d", capsys.readouterr().out)


def test_help_is_quick_because_torch_is_not_imported():
    code = (
        "import sys; from torchleap.cli import main; main(['--help']); main(['select', '--help']);"
        "sys.exit(any(name in sys.modules for name in ('torch', 'polars', 'numpy')))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert "--install-completion" in found.stdout
    assert "--show-completion" in found.stdout


def test_the_shell_completes_commands(place):
    asked = {
        "_TORCHLEAP_COMPLETE": "complete_bash",
        "COMP_WORDS": "torchleap sel",
        "COMP_CWORD": "1",
    }
    command = [sys.executable, "-m", "torchleap.cli"]
    found = subprocess.run(
        command, env=environment() | asked, capture_output=True, text=True, check=False
    )
    assert found.stdout.split() == ["select"]


def test_only_close_calls_are_listed():
    def record(**scores):
        fields = [
            {"name": name, "score": score, "kept": score >= 0.5, "protected": name == "p"}
            for name, score in scores.items()
        ]
        return {"method": "leap", "rule": {"threshold": 0.5}, "fields": fields}

    assert close_calls(record(a=0.99, b=0.01)) == ""
    assert (
        close_calls(record(a=0.99, b=0.41, c=0.55, p=0.5))
        == "c (0.55, kept), b (0.41, dropped); the threshold is 0.5"
    )
    assert close_calls({**record(a=0.5), "rule": {"share": 0.5}}) == ""


def test_long_lists_are_shortened():
    assert shortened([]) == "nothing"
    assert shortened(["a", "b"]) == "a, b"
    assert shortened(["a,b", "c"]) == '"a,b", c'
    assert shortened([str(number) for number in range(14)]).endswith(
        "10, 11 and 2 more, see selection.json"
    )


def test_the_demo_compares_with_the_truth_and_writes_a_report(tmp_path, capsys):
    assert cli.main(["demo", "--rows", "5000", "--out", str(tmp_path / "demo")]) == 0
    told = capsys.readouterr().out
    kept = set(Selection.load(tmp_path / "demo" / "selection.json").kept)
    truth = tl.data.KnownTruth(seed=0)
    found, gone = len(kept & set(truth.useful)), len(set(truth.useless) - kept)
    assert (
        f"\nAgainst the ground truth: {found} of 12 useful fields kept, "
        f"{gone} of 10 useless fields dropped, " in told
    )
    assert f"Wrote {tmp_path}/demo: the report is {tmp_path}/demo/report.html" in told
    record = json.loads((tmp_path / "demo" / "report.json").read_text())
    assert {f["name"] for f in record["fields"] if f["kept"]} == kept
    assert (tmp_path / "demo" / "report.html").read_text().count("Against the ground truth") == 1


def test_useful_fields_that_were_dropped_are_counted_to_the_last():
    truth = tl.data.KnownTruth(seed=0)
    scores = {name: float(name not in truth.useful[:7]) for name in truth.fields.names}
    told = against_truth(tl.selection.select(truth.fields, scores, threshold=0.5), truth)
    assert told.startswith(
        "Against the ground truth: 5 of 12 useful fields kept, 0 of 10 useless fields dropped, "
        "0 of 4 redundant"
    )
    assert told.endswith(f"Useful, but dropped: {', '.join(truth.useful[:6])} and 1 more.")


def test_findings_of_inspect_are_printed_before_training_and_at_the_end(tmp_path, capsys):
    leaking = FRAME.with_columns(
        refunded=pl.when(pl.col("click") == 1).then(pl.lit("r")).otherwise(pl.lit("k"))
    )
    leaking.write_csv(tmp_path / "rows.csv")
    words = [
        "select",
        str(tmp_path / "rows.csv"),
        *FAST,
        "--epochs",
        "1",
        "--method",
        "random",
        "--out",
        str(tmp_path / "out"),
    ]
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    cure = (
        "refunded: same as the label 'click'. "
        "Unless it is known before the label is, leave it out: --drop refunded."
    )
    assert out.count("Warning: the label leaks into the inputs.") == out.count(cure) == 2
    assert "This result cannot be trusted: 'refunded' gives the label away." in out
    record = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [(one["kind"], one["column"]) for one in record["findings"]] == [("leak", "refunded")]
    assert "Read this first" in (tmp_path / "out" / "report.html").read_text()
    assert cli.main([*words, "--force", "--drop", "refunded", "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []


def test_few_rows_end_in_no_claim(tmp_path, capsys):
    FRAME.head(60).with_columns(click=pl.Series([0, 1, 1] * 20)).write_csv(tmp_path / "rows.csv")
    words = [
        "select",
        str(tmp_path / "rows.csv"),
        *FAST,
        "--seed",
        "1",
        "--out",
        str(tmp_path / "out"),
    ]
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert "40 positive rows of 60 (66.7 %): " in out
    assert re.search(
        r"among the test rows place an AUC within about ±0\.\d\d: fields that matter a little",
        out,
    )
    assert re.search(
        r"^All 4 fields stay: 6 test rows, \d of them positive, are too few to decide\.$",
        out,
        re.MULTILINE,
    )
    assert "can go" not in out


def test_predict_copies_columns(result, place, tmp_path, capsys):
    folder, *_ = result
    out = tmp_path / "scores.csv"
    words = ("predict", folder, place / "clicks.csv", "--out", out)
    assert cli.main([*map(str, words), "--id", "user,size", "--id", "click"]) == 0
    scores = pl.read_csv(out)
    assert scores.columns == ["user", "size", "click", "score"]
    assert scores["user"].to_list() == FRAME["user"].to_list()
    assert tl.auc(scores["click"].to_numpy(), scores["score"].to_numpy()) > 0.75
    capsys.readouterr()
    told = refused(capsys, *words, "--force", "--id", "usr")
    assert told == "There is no column 'usr' to copy. Did you mean 'user'?"
