"""Count how a source tree reads: its rooms, density, docstrings, lengths, and words to avoid.

    python benchmarks/readability.py                           src/torchleap and docs/ beside it
    python benchmarks/readability.py --against /other/src/torchleap   two columns
    python benchmarks/readability.py .venv/lib/python3.12/site-packages/opacus

Lines are all physical lines of the .py files below a path, blank lines and comments included;
folders called tests are left out.
"""

import argparse
import ast
import io
import re
import statistics
import tokenize
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "torchleap"
LONG_LINE = 100  # characters
LONG_FILE = 400  # lines
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (ast.Module, ast.ClassDef, *FUNCTIONS)
UNITS = "row|step|gate|field|batch|rank|column|run|second|epoch"

# The words that the style guide replaces: a title, and the pattern that finds them, ignoring case.
WORDS = (
    ("look (evaluation)", r"\blook(s|_every)?\b|after_look|looks_since"),
    ("goes on, go on, gone on", r"\b(go|goes|going|gone|went) on\b"),
    ("anew", r"\banew\b"),
    ("tell, tells, told", r"\b(tell|tells|told|telling)\b"),
    ("whole", r"\b(whole|wholly)\b(?! number)"),
    ("is no, are no", r"(?<!there )\b(is|are) no\b(?! (longer|more|less))"),
    ("a step, a row (per)", rf"\b(\d+|rows|bytes|seconds|numbers|one) an? ({UNITS})\b"),
    ("by lot, dice", r"\bby lot\b|\bdice\b"),
    ("of which the truth is known", r"\bof which\b|\bmade (log|data|rows|world)\b"),
    ("does for, in small", r"\bdoes for\b|\bin small\b"),
    ("learnt", r"\blearnt\b"),
    ("hear, stand still", r"\bhears?\b|\bstands? still\b"),
    ("that is there, if it is there", r"\b(that|which) (is|are) there\b|\bif it is there\b"),
    ("docstring with What", r'"""What\b'),
)


def count(path: Path) -> dict[str, str]:
    """Return the figures of the tree at `path` by their titles, ready to print."""
    texts = {file: read(file) for file in sources(path, "*.py")}
    if not texts:
        raise SystemExit(f"Expected Python files below {path}, but found none.")
    trees = [ast.parse(text) for text in texts.values()]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    lines = [line for text in texts.values() for line in text.splitlines()]
    hundreds = len(lines) / 100
    long_lines = sum(len(line) > LONG_LINE for line in lines)
    comprehensions = sum(isinstance(node, COMPREHENSIONS) for node in nodes)
    conditionals = [node for node in nodes if isinstance(node, ast.IfExp)]
    functions = [node for node in nodes if isinstance(node, FUNCTIONS)]
    lengths = [length(node) - docstring_lines(node) for node in functions] or [0]
    sizes = [len(text.splitlines()) for text in texts.values()]
    modules, packages = ground_floor(path)
    documented = sum(docstring_lines(node) for node in nodes)
    return {
        "flat modules + packages": f"{modules} + {packages}",
        "source lines": f"{len(lines):,}",
        f"lines over {LONG_LINE} characters": f"{long_lines:,} ({long_lines / hundreds:.1f} %)",
        "comprehensions per 100 lines": f"{comprehensions / hundreds:.1f}",
        "conditional expressions per 100 lines": f"{len(conditionals) / hundreds:.1f}",
        "chained conditional expressions": f"{sum(map(is_chained, conditionals)):,}",
        "docstring share of lines": f"{documented / hundreds:.1f} %",
        "function length without docstring, median / max": (
            f"{statistics.median(lengths):g} / {max(lengths)}"
        ),
        f"files over {LONG_FILE} lines": f"{sum(size > LONG_FILE for size in sizes)}",
        "statements after ; or : on a line": f"{sum(map(crowded, trees)):,}",
    }


def sources(path: Path, pattern: str) -> list[Path]:
    """Return the files below `path` that match, without those of folders called tests."""
    found = sorted(path.rglob(pattern))
    return [file for file in found if "tests" not in file.relative_to(path).parts]


def read(file: Path) -> str:
    """Return the text of a source file in the encoding that it declares."""
    content = file.read_bytes()
    encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    return content.decode(encoding)


def ground_floor(path: Path) -> tuple[int, int]:
    """Return the number of modules and of packages directly in `path`, without __init__.py."""
    modules = [file for file in path.glob("*.py") if not file.name.startswith("__")]
    folders = {file.relative_to(path).parts[0] for file in sources(path, "*/**/*.py")}
    return len(modules), len(folders)


def length(node: ast.AST) -> int:
    """Return the number of lines of a function, from `def` to its end."""
    return node.end_lineno - node.lineno + 1  # type: ignore[attr-defined]


def docstring_lines(node: ast.AST) -> int:
    """Return the number of lines of the docstring of a module, class or function; 0 without one."""
    if not isinstance(node, DOCUMENTED) or ast.get_docstring(node, clean=False) is None:
        return 0
    return length(node.body[0])


def is_chained(node: ast.IfExp) -> bool:
    """Return whether a conditional expression has another one inside."""
    return any(isinstance(inner, ast.IfExp) for inner in ast.walk(node) if inner is not node)


def crowded(tree: ast.Module) -> int:
    """Return the number of statements that begin on a line where another one begins or ends."""
    return sum(_crowded_in(node) for node in ast.walk(tree))


def _crowded_in(node: ast.AST) -> int:
    found = 0
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, [])
        if not isinstance(block, list) or not block:  # the body of a lambda is not a list
            continue
        if isinstance(node, ast.stmt) and block[0].lineno == node.lineno:
            found += 1
        found += sum(a.end_lineno == b.lineno for a, b in pairwise(block))
    return found


def words(path: Path) -> Counter[str]:
    """Return how often each entry of the word list occurs in the source and documentation."""
    found: Counter[str] = Counter()
    for file in prose(path):
        text = file.read_text(encoding="utf-8", errors="replace")
        for title, pattern in WORDS:
            found[title] += len(re.findall(pattern, text, flags=re.IGNORECASE))
    return found


def prose(path: Path) -> Iterator[Path]:
    """Yield the source files below `path`, and README.md and docs/*.md of its checkout."""
    for ending in ("*.py", "*.c", "*.js", "*.html"):
        yield from sources(path, ending)
    for root in (path.parent, path.parent.parent):
        if (root / "pyproject.toml").exists():
            yield from root.glob("README.md")
            yield from (root / "docs").rglob("*.md")


def report(paths: list[Path]) -> str:
    """Return a table with one column per path."""
    figures = [count(path) for path in paths]
    spoken = [words(path) for path in paths]
    rows = [["", *map(str, paths)]]
    for title in figures[0]:
        rows.append([title, *(found[title] for found in figures)])
    rows.append(["words to avoid", *(f"{found.total():,}" for found in spoken)])
    for title, _ in WORDS:
        rows.append([f"  {title}", *(f"{found[title]:,}" for found in spoken)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, default=[SOURCE], help="Packages to count.")
    parser.add_argument("--against", type=Path, help="A package to count in a column of its own.")
    arguments = parser.parse_args()
    paths = list(arguments.paths)
    if arguments.against is not None:
        paths.append(arguments.against)
    print(report(paths))


if __name__ == "__main__":
    main()
