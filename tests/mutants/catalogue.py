"""The catalogue of mutants: small wrong changes to the source that some test must notice."""

import ast
import tomllib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutant:
    """One wrong change.

    Attributes:
        file: The changed file, relative to the package.
        old: Text that occurs exactly once in it.
        new: What stands there instead.
        why: What goes wrong for a user.
        tests: The tests of which at least one must fail.
    """

    file: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...]

    @property
    def module(self) -> str:
        """The row of the table that it is counted in: a package, or a single file."""
        return self.file.split("/")[0].removesuffix(".py")

    def problem(self, package: Path) -> str | None:
        """Return why the change cannot be made in this source, or None."""
        path = package / self.file
        if not path.is_file():
            return "there is no such file"
        source = path.read_text(encoding="utf-8")
        found = source.count(self.old)
        if found != 1:
            return f"its old text occurs {found} times instead of once"
        return "it changes nothing" if self.old == self.new else None

    def applied(self, package: Path) -> str:
        """Return the changed file; raises SyntaxError where it is not valid Python."""
        source = (package / self.file).read_text(encoding="utf-8").replace(self.old, self.new)
        ast.parse(source, filename=self.file)
        return source


@dataclass(frozen=True)
class Catalogue:
    """Mutants, and what they have in common.

    Attributes:
        package: The folder of the package, relative to the repository.
        preload: Modules that every test imports; they are imported once, before any mutant runs.
        mutants: The changes, in the order of the files.
    """

    package: str
    preload: tuple[str, ...]
    mutants: tuple[Mutant, ...]


def load(folder: Path) -> Catalogue:
    """Read `settings.toml` and every other TOML file in a folder.

    `settings.toml` gives the package, the modules to import beforehand, and the tests of each
    file. The other files hold lists of `[[mutant]]`; one that names no tests has those of its file.
    """
    settings = tomllib.loads((folder / "settings.toml").read_text(encoding="utf-8"))
    mutants = []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("mutant", []):
            tests = entry.pop("tests", None) or settings["tests"][entry["file"]]
            mutants.append(Mutant(**entry, tests=tuple(tests)))
    return Catalogue(settings["package"], tuple(settings["preload"]), tuple(mutants))
