"""A dict as an input: what forward() asks of it, beyond reading entries by name, is written down and checked at each call."""

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import FieldError


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

    def get(self, key: Any, default: Any = None) -> Any:
        """As of a dict."""
        self.asked.add(key)
        return super().get(key, default)

    def pop(self, key: Any, *default: Any) -> Any:
        """As of a dict."""
        self.asked.add(key)
        return super().pop(key, *default)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """As of a dict."""
        self.asked.add(key)
        return super().setdefault(key, default)

    def __iter__(self) -> Iterator[Any]:  # dict(batch) and {**batch} come here as well, by keys()
        self.walks.append("__iter__")
        return super().__iter__()

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
    if not extra and not missing and (not ordered or [key for key in found if key in known] == order):
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
