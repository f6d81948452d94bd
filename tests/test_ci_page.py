"""docs/ci.md: its script trains, checks and opens a ticket, and its files are what they claim."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.test_decide import rows
from tests.test_readme import blocks

pytest.importorskip("typer")
pytest.importorskip("rich")

PAGE = "docs/ci.md"


def command(path, text):
    """Write a program that the script finds by its name."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def place(tmp_path):
    """A folder with rows of the past, fresh rows, the script and the programs that it calls."""
    (script,) = blocks(PAGE, "sh")
    (tmp_path / "nightly.sh").write_text(script)
    (tmp_path / "bin").mkdir()
    command(tmp_path / "bin" / "torchleap", f'exec "{sys.executable}" -m torchleap.cli "$@"')
    command(tmp_path / "bin" / "gh", 'printf "%s\\n" "$@" > ticket.txt')
    rows(1200).write_parquet(tmp_path / "past.parquet")
    rows(900, seed=5).write_parquet(tmp_path / "fresh.parquet")
    return tmp_path


def night(place, **settings):
    """Run the script as a job would; return its exit code and what it printed."""
    variables = {
        **os.environ,
        "PATH": f"{place / 'bin'}:{os.environ['PATH']}",
        "HISTORY": "past.parquet",
        "FRESH": "fresh.parquet",
        "LABEL": "click",
        "OPTIONS": "--method random --share 0.5 --epochs 1 --model mlp",
        "OMP_NUM_THREADS": "1",
        **settings,
    }
    done = subprocess.run(
        ["sh", "nightly.sh"], cwd=place, env=variables, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_a_safe_result_is_served_and_one_that_is_not_certified_opens_a_ticket(place):
    code, printed = night(place, MARGIN="0.9")
    assert (code, printed.count("Safe: the AUC loses at most 0.9")) == (0, 1), printed
    assert (place / "served" / "model").is_dir()
    assert not (place / "candidate").exists()
    assert not (place / "ticket.txt").exists()
    before = (place / "served" / "layout.json").read_text()
    code, printed = night(place, MARGIN="0.000001")
    assert code == 3, printed
    ticket = (place / "ticket.txt").read_text()
    assert "The smaller model is not certified on fresh.parquet" in ticket
    assert "95 % interval" in ticket
    assert (place / "served" / "layout.json").read_text() == before


def test_bad_rows_fail_the_job_without_a_ticket(place):
    rows(900, seed=5).drop("size").write_parquet(place / "fresh.parquet")
    code, printed = night(place, MARGIN="0.9")
    assert code == 2
    assert "lacks the column 'size'" in printed
    assert not (place / "ticket.txt").exists()
    assert not (place / "served").exists()


def test_the_workflow_and_the_cron_line_run_the_script_with_its_variables():
    (script,) = blocks(PAGE, "sh")
    (workflow,) = blocks(PAGE, "yaml")
    (line,) = blocks(PAGE, "text")
    for text in (workflow, line):
        assert "sh nightly.sh" in text
        for name in ("HISTORY", "FRESH", "LABEL"):
            assert name in text
            assert f"${name}" in script
    minute, hour, *days = line.split()[:5]
    assert (minute, hour, days) == ("5", "3", ["*", "*", "*"])
    assert f'cron: "{minute} {hour} * * *"' in workflow
    assert "%F" in line.replace("\\%", "%")
    assert "%" not in line.replace("\\%", "")


def test_the_workflow_is_yaml():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    content = yaml.safe_load(blocks(PAGE, "yaml")[0])
    assert content["jobs"]["nightly"]["steps"][-1]["if"] == "always()"
    assert content["permissions"]["issues"] == "write"


def test_every_option_of_the_page_exists():
    from typer.testing import CliRunner

    from torchleap import cli

    text = (Path(__file__).parent.parent / PAGE).read_text()
    shown = ""
    for name in ("select", "check"):
        shown += CliRunner().invoke(cli.build_app(), [name, "--help"]).stdout
    for option in ("--margin", "--relative", "--ab", "--json", "--no-full", "--group", "--time"):
        assert option in text
        assert f"{option} " in shown
