"""Stand-ins for packages that a zoo imports, but that models of tables do not use."""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class Absent(ModuleType):
    """A module in which every name is an empty class."""

    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class Stubs(MetaPathFinder, Loader):
    """Find modules of packages that are not installed, as `Absent`.

    Args:
        packages: The names of the packages.
    """

    def __init__(self, packages: tuple[str, ...]) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Return a spec for the packages and the modules in them."""
        if name.split(".")[0] not in self.packages:
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the stand-in."""
        return Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the stand-in as it is."""


def install(*packages: str) -> None:
    """Put stand-ins in the place of those packages that are not installed."""
    absent = tuple(package for package in packages if find_spec(package) is None)
    if absent:
        sys.meta_path.append(Stubs(absent))
