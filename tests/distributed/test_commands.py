"""The examples and the command line as torchrun starts them, on two processes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from torchleap import Selection

from ..training.test_fit import clicks
from .ranks_of import ROOT


def torchrun(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    call = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        *words,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        call, capture_output=True, text=True, check=False, timeout=240, env=environment
    )
    assert (done.returncode == 0) == (code == 0), done.stderr
    return done


def test_gates_in_a_ddp_loop() -> None:
    output = torchrun(str(ROOT / "examples" / "ddp.py"), "--steps", "300").stdout
    assert "The gates are the same on 2 ranks: True. Keep: clicks, price, query." in output
    full, kept = map(float, re.findall(r"0\.\d{4}", output.splitlines()[-1]))
    assert kept > full - 2e-3


def test_a_stream_resumes_and_its_drift_is_reported(tmp_path: Path) -> None:
    script = str(ROOT / "examples" / "stream.py")
    output = torchrun(script, "--steps", "1200", "--folder", str(tmp_path)).stdout
    assert "trend died" in output
    assert "season revived" in output
    assert "Keep: user, price, season." in output
    again = torchrun(script, "--steps", "1200", "--folder", str(tmp_path)).stdout  # nothing is left
    assert again.splitlines() == [output.splitlines()[-1]]


def test_select_on_two_processes(tmp_path: Path) -> None:
    clicks(3_000).with_columns(item="i" + clicks(3_000)["item"].cast(str)).write_parquet(
        tmp_path / "clicks.parquet"
    )
    words = (
        "-m",
        "torchleap.cli",
        "select",
        str(tmp_path / "clicks.parquet"),
        "--label",
        "click",
        "--epochs",
        "8",
    )
    done = torchrun(*words, "--batch", "64", "--out", str(tmp_path / "out"))
    assert done.stdout.count("AUC on 300 test rows") == 1  # one of them prints
    assert done.stderr.count("Ended after") == 3
    selection = Selection.load(tmp_path / "out" / "selection.json")
    assert "item" in selection.kept
    assert "user" in selection.dropped
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["after"]["auc"] > 0.75
    assert {"model", "report.html", "history.jsonl"} <= {
        path.name for path in (tmp_path / "out").iterdir()
    }
    assert not (tmp_path / "out" / ".state").exists()
    wrong = torchrun(*words, "--method", "leep", "--out", str(tmp_path / "other"), code=1)
    assert wrong.stderr.count("There is no method 'leep'") == 1
