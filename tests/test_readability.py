"""The figures of benchmarks/readability.py, counted by hand on a small tree."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "readability.py"

FIRST = '''"""Docstring of two lines,
which is counted."""

def short(x): return x

def longer(rows):
    """Tell the sign of each row."""
    a = 1; b = 2
    found = [1 if row > 0 else -1 if row < 0 else 0 for row in rows]
    return found, a, b
'''
SECOND = "x = 1  # %s\nsign = lambda value: 1 if value else 0\n" % ("y" * 100)


@pytest.fixture
def tree(tmp_path):
    package = tmp_path / "src" / "made"
    (package / "room").mkdir(parents=True)
    (package / "empty").mkdir()
    (package / "tests").mkdir()
    (package / "tests" / "test_first.py").write_text("assert True\n")
    (package / "__init__.py").write_text("")
    (package / "first.py").write_text(FIRST)
    (package / "room" / "second.py").write_text(SECOND)
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "README.md").write_text("It goes on anew. There is no file; a gate is no field.\n")
    return package


def counted(*arguments):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_small_tree_is_counted_as_by_hand(tree):
    run = counted(tree, "--against", tree / "room")
    assert run.returncode == 0, run.stderr
    rows = {}
    for line in run.stdout.splitlines()[1:]:
        title, *cells = [cell.strip() for cell in line.strip().split("  ") if cell.strip()]
        rows[title] = cells
    assert rows["flat modules + packages"] == ["1 + 1", "1 + 0"]
    assert rows["source lines"] == ["12", "2"]
    assert rows["lines over 100 characters"] == ["1 (8.3 %)", "1 (50.0 %)"]
    assert rows["comprehensions per 100 lines"] == ["8.3", "0.0"]
    assert rows["conditional expressions per 100 lines"] == ["25.0", "50.0"]
    assert rows["chained conditional expressions"] == ["1", "0"]
    assert rows["docstring share of lines"] == ["25.0 %", "0.0 %"]
    assert rows["function length without docstring, median / max"] == ["2.5 / 4", "0 / 0"]
    assert rows["files over 400 lines"] == ["0", "0"]
    assert rows["statements after ; or : on a line"] == ["2", "0"]
    assert rows["goes on, go on, gone on"] == ["1", "0"]  # a README belongs to the package alone
    assert rows["anew"] == ["1", "0"]
    assert rows["tell, tells, told"] == ["1", "0"]
    assert rows["is no, are no"] == ["1", "0"]


def test_a_folder_without_python_is_refused(tmp_path):
    run = counted(tmp_path)
    assert run.returncode == 1
    assert "Expected Python files below" in run.stderr
