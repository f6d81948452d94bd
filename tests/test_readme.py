"""The README's Python blocks run as printed, in order, and print what it says they print."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def blocks(path, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / path).read_text(), flags=re.DOTALL)


def run(path, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    for code in blocks(path, "python"):
        exec(compile(code, path, "exec"), namespace)
    return namespace, capsys.readouterr().out


def test_readme(monkeypatch, tmp_path, capsys):
    pytest.importorskip("torch_rechub", reason="the README's model comes from torch-rechub, which is not installed")
    namespace, printed = run("README.md", monkeypatch, tmp_path, capsys)
    assert set(namespace["selection"].kept) == {"item", "price"}
    assert (tmp_path / "selection.json").exists()
    (promised,) = blocks("README.md", "text")
    for line in promised.splitlines():  # the numbers may differ in the last digits on another machine
        words = [word for word in line.split() if not re.fullmatch(r"[\d.e+%-]+", word)]
        assert any(all(word in found.split() for word in words) for found in printed.splitlines()), line


@pytest.mark.parametrize("path", ["docs/attach.md"])
def test_docs(path, monkeypatch, tmp_path, capsys):
    assert blocks(path, "python")
    namespace, _ = run(path, monkeypatch, tmp_path, capsys)
    assert "plugin" in namespace


def test_the_main_code_block_is_ten_lines():
    lines = [line for line in blocks("README.md", "python")[1].splitlines() if line.strip()]
    assert len(lines) == 10
