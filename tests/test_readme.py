"""The README's Python blocks run as printed, in order, and print what it says they print."""

import re
from pathlib import Path

import pytest
from torch import nn

from torchleap.bench.grid import Grid
from torchleap.surgery.rules.base import OPAQUE
from torchleap.surgery.rules.registry import LAYERS

ROOT = Path(__file__).parent.parent


def blocks(path, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / path).read_text(), flags=re.DOTALL)


def printed_blocks(path):
    """Return the blocks of text that follow a block of Python: the output that a page promises."""
    pattern = r"```python\n[^`]*```\n\n```text\n(.*?)```"
    return re.findall(pattern, (ROOT / path).read_text(), flags=re.DOTALL)


def tolerance(cell):
    """Return the difference of a fraction or a gate that no reader would notice."""
    if cell.endswith("%"):
        return 0.003
    if "e-" in cell:  # a price, which is compared relatively
        return 0.0
    return 0.05


def value(cell):
    return float(cell.rstrip("%")) / (100 if cell.endswith("%") else 1)


def run(path, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    for code in blocks(path, "python"):
        exec(compile(code, path, "exec"), namespace)
    return namespace, capsys.readouterr().out


def test_readme(monkeypatch, tmp_path, capsys):
    pytest.importorskip(
        "torch_rechub", reason="the README's model comes from torch-rechub, which is not installed"
    )
    namespace, printed = run("README.md", monkeypatch, tmp_path, capsys)
    assert set(namespace["selection"].kept) == {"item", "price"}
    assert (tmp_path / "selection.json").exists()
    promised, plan = blocks("README.md", "text")
    first, header, *rows = promised.splitlines()
    assert [first, header] == printed.splitlines()[:2]
    found = {line.split()[0]: line.split()[1:] for line in printed.splitlines()[2:7]}
    for row in rows:
        name, *numbers = row.split()
        for wanted, number in zip(numbers, found[name], strict=True):
            close = pytest.approx(value(wanted), rel=0.1, abs=tolerance(wanted))
            assert value(number) == close, name  # the last digits differ on other machines
    assert plan in printed
    assert (tmp_path / "small" / "manifest.json").exists()


@pytest.mark.parametrize(
    "path",
    [
        "docs/attach.md",
        "docs/pruning.md",
        "docs/data.md",
        "docs/training.md",
        "docs/methods.md",
        "docs/drift.md",
    ],
)
def test_docs(path, monkeypatch, tmp_path, capsys):
    assert blocks(path, "python")
    namespace, printed = run(path, monkeypatch, tmp_path, capsys)
    assert "plugin" in namespace or "task" in namespace
    for promised in printed_blocks(path):
        assert promised in printed


def test_the_page_about_zoos_prunes_a_model_of_a_zoo(monkeypatch, tmp_path, capsys):
    pytest.importorskip("torch_rechub", reason="the page's model comes from torch-rechub")
    namespace, printed = run("docs/zoos.md", monkeypatch, tmp_path, capsys)
    assert "('item', 'price')" in printed
    assert namespace["small"](namespace["batch"](7)[0]).shape == (7,)


def test_the_grid_of_the_results_page_can_be_loaded(tmp_path):
    (grid,) = blocks("docs/results.md", "toml")
    (tmp_path / "grid.toml").write_text(grid)
    loaded = Grid.load(tmp_path / "grid.toml")
    assert {"mine", "truth@9"} <= {recipe.name for recipe in loaded.data}
    assert "mean_price" in loaded.methods
    assert "large" in loaded.models


def test_the_page_about_surgery_adds_a_rule(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(LAYERS, nn.PReLU, OPAQUE)  # which also removes the page's rule afterwards
    _, printed = run("docs/surgery.md", monkeypatch, tmp_path, capsys)
    plans = [block for block in blocks("docs/surgery.md", "text") if block.startswith("Plan")]
    assert printed == "".join(plans)


def test_the_main_code_block_is_ten_lines():
    lines = [line for line in blocks("README.md", "python")[1].splitlines() if line.strip()]
    assert len(lines) == 10
