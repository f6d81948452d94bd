"""The examples and benchmarks run, each in a process of its own, as a user would start them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from torchleap.mix import native

ROOT = Path(__file__).parent.parent


def run(script, *arguments):
    result = subprocess.run(
        [sys.executable, str(ROOT / script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_picture_is_drawn_from_the_report_of_the_demo(tmp_path):
    pytest.importorskip("matplotlib", reason="the demo's picture needs matplotlib")
    roles = {"useful": "main", "copy": "redundant", "noise": "noise"}
    fields = [
        {"name": name, "role": role, "worth": 0.1 - place / 15, "kept": place < 2}
        for place, (name, role) in enumerate(roles.items())
    ]
    points = []
    for count, metric in ((3, 0.7), (2, 0.8), (1, 0.6)):
        interval = {"metric": metric, "low": metric - 0.01, "high": metric + 0.01}
        points.append({"kept": list(roles)[:count], **interval})
    record = {"fields": fields, "path": {"metric": "auc", "points": points}}
    (tmp_path / "report.json").write_text(json.dumps(record))
    picture = tmp_path / "gates.png"
    output = run("examples/demo.py", str(tmp_path), "--picture", str(picture))
    assert output.startswith("Drawn: ")
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_overhead_prints_ratios_and_memory():
    output = run("benchmarks/overhead.py", "--quick", "--case", "(b)")
    first, header, ratios, _, memory = output.splitlines()
    assert "torchleap mixes by" in first
    assert header.split()[-5:] == ["loop", "gather", "torch", "cyclic", "torchleap"]
    assert all(float(ratio) > 0.5 for ratio in ratios.split()[-5:])
    assert len([float(copies) for copies in memory.split()[-5:]]) == 5


@pytest.mark.skipif(native.load() is None, reason="the native kernel has not been compiled")
def test_roofline_prints_fractions_of_a_copy():
    last = run("benchmarks/roofline.py", "--repeats", "2", "--case", "39 fields").splitlines()[-1]
    assert last.startswith("39 fields x 8")
    assert last.count("%") == 2


def test_pruning_is_printed_step_by_step_and_ends_with_the_same_auc_in_a_smaller_model():
    output = run("examples/prune.py")
    assert "0      Linear(1,664, 64) => Linear(" in output
    assert "No longer read: input columns" in output
    (line,) = [line for line in output.splitlines() if line.startswith("Test AUC")]
    full, pruned, tuned = map(float, re.findall(r"0\.\d+", line))
    assert pruned > full - 1e-3
    assert tuned > full - 1e-3


def test_the_cost_of_pruning_is_printed_with_means_and_with_zeros():
    header, row = run("benchmarks/pruning.py", "--seeds", "1", "--steps", "600").splitlines()
    assert header.split() == ["seed", "dims", "cut", "full", "masked", "means", "zeros", "tuned"]
    _, _, _, masked, means, zeros, _ = map(float, row.replace(",", "").split())
    assert abs(masked - means) < 1e-5
    assert zeros < means


def test_serving_prints_throughput_and_bytes():
    output = run("benchmarks/serving.py", "--quick")
    assert output.count("50% dropped") == 2
    assert "gone: first layer 50.0%, tables 50.0%" in output
    # three models, two kinds of input, and one batch without the dropped columns
    assert output.count("PyTorch") == 7


def test_simulated_certificates_are_counted_in_tables():
    pytest.importorskip("polars", reason="tasks need polars")
    output = run("benchmarks/certificate.py", "--quick", "--pairs", "20")
    assert output.count("Wrong statements where the true loss equals the margin") == 2
    assert "Power for models that are equally good" in output
    assert "Slices: a damage of 0.02 AUC in 2 % of the rows" in output
    assert " !" not in output.split("Power", maxsplit=1)[0].replace("; !", "")


def test_loading_prints_times_beside_polars_and_rates_beside_a_data_loader():
    pytest.importorskip("polars", reason="reading data needs polars")
    output = run("benchmarks/loading.py", "--quick")
    assert output.count("x polars") == 2
    assert output.count("million rows/s") == 3


def test_methods_are_compared_in_one_table():
    pytest.importorskip("polars", reason="tasks need polars")
    output = run("examples/compare_methods.py", "--methods", "none,random,sfs", "--rows", "3000")
    lines = output.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["method", "none", "random", "sfs"]
    assert 0.5 < float(lines[2].split()[3]) < 1
