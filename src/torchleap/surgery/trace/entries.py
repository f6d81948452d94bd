"""Trace an argument that is a dict: record which of its entries forward() asks for."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch.fx.proxy import TraceError


class Entries(dict[Any, Any]):
    """A dict of the batch while it is traced.

    Which entries a dict has is known for the example only, so each question about it is recorded.

    Attributes:
        example: The entries of the example, in order.
        queried: Entries that forward() looked for, given or not.
        walks: The methods by which forward() asked which entries there are.
    """

    def __init__(self, entries: Mapping[Any, Any]) -> None:
        super().__init__(entries)
        self.example = tuple(entries)
        self.queried: set[Any] = set()
        self.walks: list[str] = []

    @property
    def walked(self) -> bool:
        """Return whether forward() asked which entries there are."""
        return bool(self.walks)

    def replaced(self, changes: Mapping[Any, Any], only: Iterable[Any] | None = None) -> "Entries":
        """Return the dict with other values; it shares the record of questions with this one.

        Args:
            changes: The other values.
            only: The entries that it has; None is all of them.
        """
        values = {**dict(super().items()), **changes}
        other = Entries(values if only is None else {name: values[name] for name in only})
        other.queried = self.queried
        other.walks = self.walks
        return other

    def __contains__(self, key: object) -> bool:
        self.queried.add(key)
        return super().__contains__(key)

    def __missing__(self, key: Any) -> Any:
        self.queried.add(key)
        raise KeyError(key)

    def get(self, key: Any, default: Any = None) -> Any:
        """Return an entry or the default, like a dict."""
        self.queried.add(key)
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
        """Return the keys, like a dict."""
        self.walks.append("keys")
        return super().keys()

    def values(self) -> Any:
        """Return the values, like a dict."""
        self.walks.append("values")
        return super().values()

    def items(self) -> Any:
        """Return keys and values, like a dict."""
        self.walks.append("items")
        return super().items()

    def copy(self) -> Any:
        """Return a copy, like a dict."""
        self.walks.append("copy")
        return super().copy()


def _refused(self: Entries, *args: Any, **kwargs: Any) -> Any:
    raise TraceError("it changes the batch")


_CHANGES = "__setitem__ __delitem__ __ior__ pop popitem clear update setdefault"
for _name in _CHANGES.split():
    setattr(Entries, _name, _refused)


def assumed_entries(
    name: str, absent: tuple[Any, ...], walked: bool, ordered: bool
) -> Iterator[str]:
    """Yield the assumptions about the entries of an argument; arguments as in `expect_entries`."""
    if walked:
        yield f"`{name}` has no entries that were not in the example"
    elif absent:
        yield f"`{name}` has no {' and no '.join(sorted(map(repr, absent)))}"
    if ordered:
        yield f"the entries of `{name}` are in the order of the example"
