"""The error classes of the project, and helpers that write values and names into their messages."""

from collections.abc import Iterable
from difflib import get_close_matches


class TorchleapError(ValueError):
    """Any bad input that torchleap refuses.

    The message states what was expected, what was found, and the cure.
    """


class FieldError(TorchleapError):
    """The fields do not describe the data: names, widths, dtypes or values."""


class AttachError(TorchleapError):
    """The gates cannot be attached at that place of that model."""


class SelectionError(TorchleapError):
    """A selection cannot be made, loaded or used."""


class SurgeryError(TorchleapError):
    """A model cannot be pruned, or a pruned model cannot be saved, loaded or exported."""


class DataError(TorchleapError):
    """A file or frame cannot be read as rows with a label."""


class MetricError(TorchleapError):
    """A metric is not defined on this input."""


class WriteError(TorchleapError, OSError):
    """A file cannot be written: no space is left, or the place does not allow it."""


class RemovedTableError(FieldError):
    """A pruned model reads a table that surgery has removed.

    This happens on a batch that takes another path through the model than the example with
    which the model was pruned.

    Args:
        tables: The names of the tables in the model.
        reader: The operation that needs their rows, such as "item()" or "the output".
    """

    def __init__(self, tables: Iterable[str], reader: str) -> None:
        self.tables = frozenset(tables)
        self.reader = reader
        names = ", ".join(map(repr, sorted(self.tables)))
        super().__init__(
            "Expected forward() to read removed tables for dropped fields alone, as it did with "
            "the example that the model was pruned with, but with this batch "
            f"{reader} needs {names}. Prune with example= such a batch, which keeps the table."
        )

    def __reduce__(self) -> tuple[type["RemovedTableError"], tuple[frozenset[str], str]]:
        return type(self), (self.tables, self.reader)


def shown(value: object, most: int = 60) -> str:
    """Return a value as text for a message: quoted and without control characters.

    Args:
        value: Any value; its `repr` is written.
        most: The largest number of characters; a longer text is cut.

    >>> shown("a" * 100, most=12)
    "'aaaaaaa...'"
    """
    text = repr(value)
    if len(text) <= most:
        return text
    return f"{text[: most - 4]}...{text[-1]}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a sentence with the known names that resemble `name`, or with the first of them all.

    >>> nearest("ctr_7", ["user_id", "ctr_7d"])
    "Did you mean 'ctr_7d'?"
    """
    names = list(known)
    close = get_close_matches(name, names, n=3, cutoff=0.4)
    if close:
        return f"Did you mean {' or '.join(map(shown, close))}?"
    listed = [shown(known_name) for known_name in names[:8]]
    if len(names) > len(listed):
        listed.append("...")
    return f"Known: {', '.join(listed) or 'none'}."
