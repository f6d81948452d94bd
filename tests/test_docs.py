"""The documentation agrees with the repository: links, files, pages, rooms and terms."""

import re
from pathlib import Path

import pytest

from tests.test_house import ROOMS

ROOT = Path(__file__).parent.parent
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


def test_every_file_that_the_architecture_names_exists():
    source = ROOT / "src" / "torchleap"
    named = re.findall(r"\b([\w/]+/[\w]+\.(?:py|c|html))\b", ARCHITECTURE)
    missing = [
        name for name in named if not (source / name).exists() and not (ROOT / name).exists()
    ]
    assert not missing


def test_the_glossary_defines_each_term_once():
    cells = re.findall(r"^\| \*\*(.+?)\*\* \|", GLOSSARY, flags=re.MULTILINE)
    terms = [term for cell in cells for term in cell.split(", ")]
    assert len(terms) > 50
    assert len(terms) == len(set(terms))
