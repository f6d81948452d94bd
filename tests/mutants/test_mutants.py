"""The tool behind `make mutants`: its list applies to the source, and survivors are reported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants import draw
from tests.mutants.catalogue import Mutant, load

ROOT = Path(__file__).parents[2]
CATALOGUE = load(Path(__file__).parent)


def test_every_mutant_applies_to_the_source_as_it_is():
    problems = {(m.file, m.why): m.problem(ROOT / CATALOGUE.package) for m in CATALOGUE.mutants}
    assert {place: problem for place, problem in problems.items() if problem} == {}


def test_there_are_enough_mutants_each_once_and_their_tests_exist():
    changes = [(m.file, m.old, m.new) for m in CATALOGUE.mutants]
    assert len(set(changes)) == len(changes) >= 110
    for test in {test for m in CATALOGUE.mutants for test in m.tests}:
        assert (ROOT / test.split("::")[0]).is_file(), test


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("return 1", "return 2", None),
        ("return", "yield", "its old text occurs 2 times instead of once"),
        ("absent", "", "its old text occurs 0 times instead of once"),
        ("return 1", "return 1", "it changes nothing"),
    ],
)
def test_a_mutant_that_cannot_be_made_says_why(old, new, problem, tmp_path):
    (tmp_path / "one.py").write_text("def one():\n    return 1\n\n\ndef two():\n    return 2\n")
    found = Mutant("one.py", old, new, "", ()).problem(tmp_path)
    assert found is None if problem is None else problem in found
    assert Mutant("two.py", old, new, "", ()).problem(tmp_path) == "there is no such file"
    with pytest.raises(SyntaxError):
        Mutant("one.py", "return 1", "return (", "", ()).applied(tmp_path)


SOURCE = """
def is_adult(age):
    return age >= 18


def is_child(age):
    return age < 12


def forever(age):
    return age
"""
TESTS = """
from people import ages


def test_children_and_adults():
    assert ages.is_adult(18) and not ages.is_adult(17)
    assert ages.is_child(3) and not ages.is_child(40)
"""
SETTINGS = """
package = "src/people"
preload = []
[tests]
"ages.py" = ["test_ages.py"]
"""
NOTICED = """
[[mutant]]
file = "ages.py"
old = "age >= 18"
new = "age > 18"
why = "a person of 18 is not an adult"
"""
UNNOTICED = """
[[mutant]]
file = "ages.py"
old = "age < 12"
new = "age < 13"
why = "a person of 12 is a child"
"""


@pytest.fixture
def toy(tmp_path):
    (tmp_path / "src" / "people").mkdir(parents=True)
    (tmp_path / "src" / "people" / "__init__.py").write_text("")
    (tmp_path / "src" / "people" / "ages.py").write_text(SOURCE)
    (tmp_path / "test_ages.py").write_text(TESTS)
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "settings.toml").write_text(SETTINGS)
    return tmp_path


def run(toy, entries, *only):
    (toy / "list" / "entries.toml").write_text(entries)
    command = [
        sys.executable,
        "-m",
        "tests.mutants",
        *only,
        "--root",
        str(toy),
        "--catalogue",
        str(toy / "list"),
    ]
    lean = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=ROOT, env=lean, capture_output=True, text=True, check=False)


def test_a_change_that_a_test_notices_is_killed_and_one_that_none_does_survives(toy):
    result = run(toy, NOTICED)
    assert (result.returncode, result.stderr) == (0, "")
    assert "0 of 1 survived" in result.stdout
    result = run(toy, NOTICED + UNNOTICED)
    assert result.returncode == 1
    assert "survived: ages.py: a person of 12 is a child" in result.stdout
    assert "ages                  2          1          0          1          0" in result.stdout
    assert "1 of 2 survived, 50.0%" in result.stdout
    assert (toy / "src" / "people" / "ages.py").read_text() == SOURCE  # only copies were changed


def test_a_list_or_a_suite_that_is_broken_is_reported_and_counts_for_nothing(toy):
    result = run(toy, NOTICED.replace("age >= 18", "age >= 21"))
    assert result.returncode == 2
    assert (
        "ages.py: a person of 18 is not an adult: its old text occurs 0 times instead of once"
        in result.stdout
    )
    result = run(toy, NOTICED.replace("age > 18", "age >"))
    assert result.returncode == 2
    assert "the changed file is not valid Python" in result.stdout
    (toy / "people").symlink_to(toy / "src" / "people")  # found before the copy
    result = run(toy, NOTICED)
    assert result.returncode == 2
    assert "not the changed copy of it" in result.stdout
    (toy / "people").unlink()
    result = run(toy, NOTICED, "gates")
    assert (result.returncode, result.stdout) == (2, "There is no mutant of 'gates'.\n")
    (toy / "test_ages.py").write_text(TESTS + "    assert ages.is_child(12)\n")
    result = run(toy, NOTICED)
    assert result.returncode == 2
    assert "The tests fail on the unchanged source" in result.stdout


def test_drawn_changes_are_valid_and_the_same_for_the_same_seed(capsys):
    source = "def f(a, b):\n    return a <= b and not a.any() or max(a, 3) - 1 > b\n"
    found = {source[start:end].strip() + " > " + new for start, end, new in draw.changes(source)}
    assert found == {
        "<= > <",
        "and > or",
        "not > ",
        "any > all",
        "or > and",
        "max > min",
        "3 > 4",
        "- > +",
        "1 > 2",
        "> > >=",
    }
    for start, end, new in draw.changes(source):
        compile(source[:start] + new + source[end:], "f", "exec")
    for _ in range(2):
        draw.main(["gates/leap.py", "3", "--seed", "5"])
    printed = capsys.readouterr().out
    assert printed[: len(printed) // 2] == printed[len(printed) // 2 :]
    assert printed.count("[[mutant]]") == 6
