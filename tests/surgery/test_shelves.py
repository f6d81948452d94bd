"""The shelves of surgery import one way: each only from those before it."""

import ast
from pathlib import Path

import torchleap.surgery

FOLDER = Path(torchleap.surgery.__file__).parent
SHELVES = (
    "trial",
    "runtime",
    "trace",
    "rules",
    "write",
    "regions",
    "cuts",
    "attachment",
    "labels",
    "optimizers",
    "holdings",
    "recipe",
    "attachment",
    "plan",
    "prepare",
)


def imported(path):
    """The shelves that a file of surgery imports from."""
    depth = len(path.relative_to(FOLDER).parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == depth and node.module:
            yield node.module.split(".")[0]


def test_a_shelf_imports_only_from_those_before_it():
    paths = [path for path in FOLDER.rglob("*.py") if path.parent != FOLDER or path.stem in SHELVES]
    assert {path.relative_to(FOLDER).parts[0].removesuffix(".py") for path in paths} == set(SHELVES)
    for path in paths:
        shelf = path.relative_to(FOLDER).parts[0].removesuffix(".py")
        for other in imported(path):
            assert SHELVES.index(other) < SHELVES.index(shelf), f"{path} imports {other}"


def test_every_shelf_explains_itself():
    for path in FOLDER.rglob("__init__.py"):
        assert len(ast.get_docstring(ast.parse(path.read_text())).splitlines()) > 3
