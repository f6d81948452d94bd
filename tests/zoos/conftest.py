from pathlib import Path

# Some import their zoo; none holds doctests.
collect_ignore = [
    path.name for path in Path(__file__).parent.glob("*.py") if not path.name.startswith("test_")
]
