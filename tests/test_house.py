"""The rules of the house: imports point one way and are silent, and the library never prints."""

import ast
import subprocess
import sys
from pathlib import Path

import torchleap

SOURCE = Path(__file__).parent.parent / "src" / "torchleap"
ROOMS = (
    "_common",
    "fields",
    "selection",
    "objectives",
    "distributed",
    "native",
    "mix",
    "gates",
    "sites",
    "surgery",
    "export",
    "plugin",
    "integrations",
    "data",
    "models",
    "training",
    "callbacks",
    "methods",
    "evidence",
    "pipeline",
    "bench",
    "report",
    "cli",
    "__init__",
)

HEAVY = {
    "sklearn",
    "rich",
    "matplotlib",
    "pandas",
    "torch_rechub",
    "typer",
    "polars",
    "pyarrow",
    "xgboost",
}


def room(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_rooms(path):
    """The rooms that a file imports from, whatever the number of dots."""
    depth = len(path.relative_to(SOURCE).parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or node.level != depth:
            continue  # not relative to the package itself
        if node.module:
            yield node.module.split(".")[0]
        else:
            yield from (alias.name for alias in node.names)


def test_a_module_imports_only_from_rooms_above_it():
    files = list(SOURCE.rglob("*.py"))
    assert {room(path) for path in files} == set(ROOMS)
    for path in files:
        for other in imported_rooms(path):
            assert ROOMS.index(other) < ROOMS.index(room(path)), f"{path.name} imports {other}"


def test_importing_is_silent_light_and_leaves_the_random_state_alone():
    code = (
        "import torch, sys; before = torch.get_rng_state(); import torchleap; "
        "assert torch.equal(before, torch.get_rng_state()); "
        f"heavy = {HEAVY} & set(sys.modules); assert not heavy, heavy"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_the_library_never_prints_or_evaluates():
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"print", "eval", "exec", "input"}, path


def test_every_public_name_is_listed_and_can_be_imported():
    for name in torchleap.__all__:
        assert getattr(torchleap, name) is not None
    assert set(torchleap._NAMES) | set(torchleap._MODULES) <= set(torchleap.__all__)


def test_every_departure_from_the_paper_is_marked():
    assert (SOURCE / "gates" / "leap.py").read_text().count("NOTE[PAPER]") >= 5
