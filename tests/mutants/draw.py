"""Draw mutants at random, so that the survivors are not those of changes chosen by hand.

    python -m tests.mutants.draw gates/leap.py 8 --seed 1 >> tests/mutants/drawn.toml

prints 8 changes of the file: a comparison that includes its limit or not, `and` for `or`, `+` for
`-`, another number, and the like. One that provably changes no result is taken out of the list
again; `drawn.toml` gives the reason.
"""

import argparse
import ast
import random
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "torchleap"
OPERATORS = {
    **{ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">")},
    **{
        ast.Eq: ("==", "!="),
        ast.NotEq: ("!=", "=="),
        ast.In: ("in", "not in"),
        ast.NotIn: ("not in", "in"),
    },
    **{
        ast.Is: ("is", "is not"),
        ast.IsNot: ("is not", "is"),
        ast.And: ("and", "or"),
        ast.Or: ("or", "and"),
    },
    **{
        ast.Add: ("+", "-"),
        ast.Sub: ("-", "+"),
        ast.Mult: ("*", "/"),
        ast.Div: ("/", "*"),
        ast.Mod: ("%", "*"),
    },
    **{
        ast.BitAnd: ("&", "|"),
        ast.BitOr: ("|", "&"),
        ast.FloorDiv: ("//", "*"),
        ast.Pow: ("**", "*"),
    },
}
NAMES = {
    "any": "all",
    "all": "any",
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
}
SILENT = (ast.Raise, ast.Assert, ast.JoinedStr, ast.arg)
Change = tuple[int, int, str]  # from and to which character, and what is written there


def changes(source: str) -> list[Change]:
    """Return every small change of a source that this module knows of."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    text = source.encode()

    def at(line: int, column: int) -> int:
        return len(text[: starts[line - 1] + column].decode())

    def span(node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)

    found: list[Change] = []
    for node in _spoken(ast.parse(source)):
        if isinstance(node, ast.Compare | ast.BoolOp):
            sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else node.values
            kinds = node.ops if isinstance(node, ast.Compare) else [node.op] * (len(sides) - 1)
            pairs = zip(sides, kinds, sides[1:], strict=False)
            found += [c for a, op, b in pairs for c in _between(source, span(a)[1], span(b)[0], op)]
        elif isinstance(node, ast.BinOp):
            found += _between(source, span(node.left)[1], span(node.right)[0], node.op)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            start, _ = span(node)
            found.append((start, start + len("not "), ""))
        elif isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
            new = not node.value if isinstance(node.value, bool) else node.value + 1
            found.append((*span(node), repr(new)))
        elif isinstance(node, ast.Name | ast.Attribute):
            start, end = span(node)
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name in NAMES:
                found.append((end - len(name), end, NAMES[name]))
    return found


def _spoken(tree: ast.AST) -> Iterator[ast.expr]:
    """Walk over the expressions whose value matters: not messages, types or `strict=`."""
    types = [getattr(tree, "returns", None), getattr(tree, "annotation", None)]
    if (
        isinstance(tree, ast.Call)
        and isinstance(tree.func, ast.Name)
        and tree.func.id == "isinstance"
    ):
        types.append(tree.args[1])
    for child in ast.iter_child_nodes(tree):
        printed = isinstance(child, ast.FunctionDef) and child.name in (
            "__repr__",
            "__str__",
            "extra_repr",
        )
        strict = isinstance(child, ast.keyword) and child.arg == "strict"
        if isinstance(child, SILENT) or child in types or printed or strict:
            continue
        if isinstance(child, ast.expr):
            yield child
        yield from _spoken(child)


def _between(source: str, start: int, end: int, kind: ast.AST) -> list[Change]:
    """Return the change of the operator that stands between two operands."""
    old, new = OPERATORS.get(type(kind), ("", ""))
    match = re.search(re.escape(old).replace(r"\ ", r"\s+"), source[start:end]) if old else None
    return [(start + match.start(), start + match.end(), new)] if match else []


def entry(source: str, change: Change) -> tuple[str, str]:
    """Return the old and new text of the lines around a change, enough to be unique."""
    start, end, new = change
    first, last = source.rfind("\n", 0, start) + 1, source.find("\n", end)
    while source.count(source[first:last]) > 1:
        first = source.rfind("\n", 0, first - 1) + 1
    old = source[first:last]
    return old, source[first:start] + new + source[end:last]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print drawn mutants as TOML."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.draw")
    parser.add_argument("file", help="relative to the package")
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    source = (PACKAGE / options.file).read_text(encoding="utf-8")
    found = changes(source)
    for change in sorted(random.Random(options.seed).sample(found, options.count)):
        old, new = entry(source, change)
        was = source[change[0] : change[1]].strip()
        sys.stdout.write(
            f"[[mutant]]\nfile = {options.file!r}\nold = '''\n{old}'''\nnew = '''\n{new}'''\n"
            f"why = 'drawn: {was} became {change[2] or 'nothing'}'\n\n"
        )


if __name__ == "__main__":
    main()
