"""The documentation agrees with the repository: links, files, pages, rooms and terms."""

import re
from pathlib import Path

import pytest

from tests.test_house import ROOMS

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "torchleap"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()


def prose(path):
    return re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_to_a_file(page):
    targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", prose(page))
    files = [target for target in targets if "://" not in target]
    missing = [target for target in files if not (page.parent / target).exists()]
    assert not missing


def test_the_index_lists_every_page():
    linked = re.findall(r"\]\((\w+\.md)\)", (ROOT / "docs" / "index.md").read_text())
    pages = {page.name for page in ROOT.glob("docs/*.md")}
    assert sorted(linked) == sorted(pages - {"index.md"})


def test_the_architecture_describes_the_rooms_in_the_order_of_imports():
    described = re.findall(r"^\| `(\w+)(?:/|\.py)` \|", ARCHITECTURE, flags=re.MULTILINE)
    assert tuple(described) == ROOMS[:-1]


def test_every_path_that_the_architecture_names_exists():
    named = re.findall(r"\b(\w+/[\w/]+(?:\.\w+|/))", ARCHITECTURE)
    missing = [
        name for name in named if not (SOURCE / name).exists() and not (ROOT / name).exists()
    ]
    assert len(named) > 100
    assert not missing


def test_the_main_files_of_every_room_exist():
    rooms = re.findall(r"^\| `(\w+)/` \|.*\|(.*)\|$", ARCHITECTURE, flags=re.MULTILINE)
    assert len(rooms) == len(ROOMS[:-1]) - 2  # fields.py and plugin.py have no other files
    for room, files in rooms:
        missing = [
            name
            for name in re.findall(r"`([\w./]+)`", files)
            if not (SOURCE / room / name).exists()
        ]
        assert not missing, room


def test_every_registry_and_class_that_the_architecture_names_is_in_its_file():
    found = re.findall(r"`([A-Z]\w+)`(?: or `\w+`)?(?:,| in) `([\w/]+\.py)`", ARCHITECTURE)
    assert {name for name, _ in found} >= {
        "METHODS",
        "BACKBONES",
        "METRICS",
        "OBJECTIVES",
        "FORMATS",
    }
    for name, path in found:
        assert re.search(rf"^(class )?{name}\b", (SOURCE / path).read_text(), flags=re.MULTILINE), (
            name
        )


def test_the_order_of_rooms_is_the_same_for_contributors():
    listed = re.findall(
        r"^    (\w.*?)   ", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE
    )
    assert tuple(" ".join(listed).split()) == ROOMS[:-1]


def test_the_glossary_defines_each_term_once():
    cells = re.findall(r"^\| \*\*(.+?)\*\* \|", GLOSSARY, flags=re.MULTILINE)
    terms = [term for cell in cells for term in cell.split(", ")]
    assert len(terms) > 50
    assert len(terms) == len(set(terms))
