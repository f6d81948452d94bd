"""The examples and benchmarks run: short, in a process of their own, as a user would start them."""

import subprocess
import sys
from pathlib import Path

import pytest

from torchleap.mix import native

ROOT = Path(__file__).parent.parent


def run(script, *arguments):
    result = subprocess.run(
        [sys.executable, str(ROOT / script), *arguments], capture_output=True, text=True, check=False, timeout=300
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_demo_prints_the_gates_beside_the_truth_and_draws_them(tmp_path):
    pytest.importorskip("rich", reason="the demo needs rich")
    pytest.importorskip("matplotlib", reason="the demo's picture needs matplotlib")
    output = run("examples/demo.py", "--steps", "130", "--picture", str(tmp_path / "gates.png"))
    assert "LeAP on 26 fields, 1,664 dimensions" in output
    assert "main_sparse_256" in output
    assert "Test AUC with the gates as learnt" in output
    assert (tmp_path / "gates.png").read_bytes()[:4] == b"\x89PNG"


def test_overhead_prints_ratios_and_memory():
    first, header, ratios, _, memory = run("benchmarks/overhead.py", "--quick", "--case", "(b)").splitlines()
    assert "torchleap mixes by" in first
    assert header.split()[-5:] == ["loop", "gather", "torch", "cyclic", "torchleap"]
    assert all(float(ratio) > 0.5 for ratio in ratios.split()[-5:])
    assert len([float(copies) for copies in memory.split()[-5:]]) == 5


@pytest.mark.skipif(isinstance(native.load(), str), reason="the native kernel has not been compiled")
def test_roofline_prints_shares_of_a_copy():
    last = run("benchmarks/roofline.py", "--repeats", "2", "--case", "39 fields").splitlines()[-1]
    assert last.startswith("39 fields x 8")
    assert last.count("%") == 2
