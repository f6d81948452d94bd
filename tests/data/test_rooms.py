"""The rooms inside data: a Task knows no files, files know no sets, and nothing goes back up."""

import ast
from pathlib import Path

from torchleap import data

SOURCE = Path(data.__file__).parent
ROOMS = ("task", "files", "sets", "synthetic")


def room(parts):
    """The room of a module by its path inside data; the modules of a Task are one room."""
    return parts[0] if parts and parts[0] in ROOMS else "task"


def imported_rooms(path):
    parts = path.relative_to(SOURCE).parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and 0 < node.level <= len(parts):
            package = parts[: len(parts) - node.level]
            yield room((*package, *(node.module or "").split(".")))


def test_a_module_imports_only_from_rooms_before_its_own():
    for path in SOURCE.rglob("*.py"):
        if path == SOURCE / "__init__.py":
            continue
        own = room(path.relative_to(SOURCE).parts)
        for other in imported_rooms(path):
            assert ROOMS.index(other) <= ROOMS.index(own), f"{path} imports {other}"
