"""The zoos whose models are tried: which module has them, and what has to be installed."""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from tests.zoos.run import Combination


@dataclass(frozen=True)
class Zoo:
    """A zoo.

    Attributes:
        name: Its name, as in the table.
        module: The module in `tests/zoos` with its combinations.
        package: The package that has to be installed.
    """

    name: str
    module: str
    package: str

    @property
    def installed(self) -> bool:
        """Whether the zoo can be imported here."""
        return find_spec(self.package) is not None

    def combinations(self) -> list[Combination]:
        """Return the combinations of the zoo."""
        return list(import_module(f"tests.zoos.{self.module}").COMBINATIONS)


ZOOS = [
    Zoo("deepctr-torch", "deepctr", "deepctr_torch"),
    Zoo("torch-rechub", "rechub", "torch_rechub"),
    Zoo("torchfm", "torchfm", "torchfm"),
    Zoo("fuxictr", "fuxictr", "fuxictr"),
    Zoo("rtdl/tabm", "rtdl", "tabm"),
    Zoo("recbole", "recbole", "recbole"),
    Zoo("pytorch-widedeep", "widedeep", "pytorch_widedeep"),
    Zoo("pytorch-frame", "frame", "torch_frame"),
    Zoo("pytorch-tabular", "tabular", "pytorch_tabular"),
    Zoo("deeptab", "deeptab", "deeptab"),
]
