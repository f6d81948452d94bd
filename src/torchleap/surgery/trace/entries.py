"""A dict as an input: what forward() asks of it, beyond reading entries by name, is written down and checked at each call."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch.fx.proxy import TraceError

from ..._common.errors import FieldError


class Entries(dict[Any, Any]):
    """A dict of a batch while it is traced. Whether an entry is there, and which there are, was so in the example only."""

    def __init__(self, entries: Mapping[Any, Any]) -> None:
        super().__init__(entries)
        self.example = tuple(entries)
        self.asked: set[Any] = set()  # entries of which it was asked whether they are there
        self.walks: list[str] = []  # how it was asked which entries there are

    @property
    def walked(self) -> bool:
        """Whether it was asked which entries there are."""
        return bool(self.walks)

    def replaced(self, changes: Mapping[Any, Any]) -> "Entries":
        """The same dict with other values; what is asked of it is asked of this one."""
        other = Entries({**dict(super().items()), **changes})
        other.asked, other.walks = self.asked, self.walks
        return other

    def __contains__(self, key: object) -> bool:
        self.asked.add(key)
        return super().__contains__(key)

    def __missing__(self, key: Any) -> Any:
        self.asked.add(key)
        raise KeyError(key)

    def get(self, key: Any, default: Any = None) -> Any:
        """As of a dict."""
        self.asked.add(key)
        return super().get(key, default)

    def __iter__(self) -> Iterator[Any]:  # dict(batch) and {**batch} come here as well, by keys()
        self.walks.append("__iter__")
        return super().__iter__()

    def __reversed__(self) -> Iterator[Any]:
        self.walks.append("__reversed__")
        return super().__reversed__()

    def __eq__(self, other: object) -> bool:
        self.walks.append("__eq__")
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __len__(self) -> int:
        self.walks.append("__len__")
        return super().__len__()

    def keys(self) -> Any:
        """As of a dict."""
        self.walks.append("keys")
        return super().keys()

    def values(self) -> Any:
        """As of a dict."""
        self.walks.append("values")
        return super().values()

    def items(self) -> Any:
        """As of a dict."""
        self.walks.append("items")
        return super().items()

    def copy(self) -> Any:
        """As of a dict."""
        self.walks.append("copy")
        return super().copy()


def _refused(self: Entries, *args: Any, **kwargs: Any) -> Any:
    raise TraceError("it changes the batch")


for _name in (
    "__setitem__",
    "__delitem__",
    "__ior__",
    "pop",
    "popitem",
    "clear",
    "update",
    "setdefault",
):
    setattr(Entries, _name, _refused)


def assumed_entries(
    name: str, absent: tuple[Any, ...], walked: bool, ordered: bool
) -> Iterator[str]:
    """Yield what is assumed about the entries of an argument."""
    if walked:
        yield f"`{name}` has no entries that were not in the example"
    elif absent:
        yield f"`{name}` has no {' and no '.join(sorted(map(repr, absent)))}"
    if ordered:
        yield f"the entries of `{name}` are in the order of the example"


def expect_entries(
    batch: Mapping[Any, Any],
    known: tuple[Any, ...],
    absent: tuple[Any, ...],
    needed: tuple[Any, ...],
    walked: bool,
    ordered: bool,
) -> None:
    """Refuse a batch on which forward() would have gone another way than on the example that surgery was tried on.

    Args:
        known: The example's entries.
        absent: Entries that forward() looked for in the example and did not find.
        needed: Entries that forward() looked for, found, and still reads.
        walked: Whether forward() walks over the entries, so that there may be no others.
        ordered: Whether they must be in the order of the example.
    """
    found = list(batch)
    extra = [key for key in found if key in absent or (walked and key not in known)]
    missing = [key for key in needed if key not in batch]
    order = [key for key in known if key in batch]
    if (
        not extra
        and not missing
        and (not ordered or [key for key in found if key in known] == order)
    ):
        return
    problem = (
        f"{', '.join(map(repr, extra))} was not in the example" if extra
        else f"{', '.join(map(repr, missing))} is missing" if missing
        else f"the entries are in another order than {', '.join(map(repr, order))}"
    )  # fmt: skip
    raise FieldError(
        f"Expected a batch with entries like those of the example that the model was pruned with, but {problem}, and forward() "
        "depends on that. Give such batches, or prune with example= such a batch."
    )
