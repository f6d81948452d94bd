"""The few error classes, and what the checks that raise them share."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from numbers import Integral, Real


class TorchleapError(ValueError):
    """Any bad input that torchleap refuses; the message says what was expected, what was found, and the cure."""


class FieldError(TorchleapError):
    """The fields do not describe the data: names, widths, dtypes or values."""


class AttachError(TorchleapError):
    """The gates cannot be put at that place of that model."""


class SelectionError(TorchleapError):
    """A selection cannot be made, loaded or used."""


class SurgeryError(TorchleapError):
    """A model cannot be pruned, or a pruned model cannot be saved, loaded or exported."""


class DataError(TorchleapError):
    """A file or frame cannot be read as rows with a label."""


class MetricError(TorchleapError):
    """A metric is not defined on this input."""


class RemovedTableError(FieldError):
    """A pruned model reads a table that surgery has removed, on a batch unlike the example that it was pruned with.

    Args:
        tables: The names of the tables in the model.
        reader: What needs their rows, such as "item()" or "the output".
    """

    def __init__(self, tables: Iterable[str], reader: str) -> None:
        self.tables = frozenset(tables)
        self.reader = reader
        names = ", ".join(map(repr, sorted(self.tables)))
        super().__init__(
            "Expected forward() to read removed tables for dropped fields alone, as it did with the example that the "
            f"model was pruned with, but with this batch {reader} needs {names}. "
            "Prune with example= such a batch, which keeps the table."
        )

    def __reduce__(self) -> tuple[type["RemovedTableError"], tuple[frozenset[str], str]]:
        return type(self), (self.tables, self.reader)


class WriteError(TorchleapError, OSError):
    """A file cannot be written: no space is left, or the place does not allow it."""


def shown(value: object, most: int = 60) -> str:
    """Write a value for a message: quoted, without control characters, and never longer than `most`.

    >>> shown("a" * 100, most=12)
    "'aaaaaaa...'"
    """
    text = repr(value)
    if len(text) <= most:
        return text
    return f"{text[: most - 4]}...{text[-1]}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which known names resemble `name`.

    >>> nearest("ctr_7", ["user_id", "ctr_7d"])
    "Did you mean 'ctr_7d'?"
    """
    names = list(known)
    close = get_close_matches(name, names, n=3, cutoff=0.4)
    if close:
        return f"Did you mean {' or '.join(map(shown, close))}?"
    listed = ", ".join(map(shown, names[:8])) + (", ..." if len(names) > 8 else "")
    return f"Known: {listed or 'none'}."


def refuse_settings(expected: Mapping[str, bool]) -> None:
    """Raise all sentences that do not hold, together."""
    problems = [sentence for sentence, holds in expected.items() if not holds]
    if problems:
        raise TorchleapError("These settings cannot be used: " + "; ".join(problems) + ".")


def is_number(value: object) -> bool:
    """Whether it is a real number, numpy's included; True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_seed(value: object) -> bool:
    """Say whether every random generator takes it as a seed: scikit-learn's want 32 bits."""
    return isinstance(value, Integral) and is_whole(value) and 0 <= int(value) < 1 << 32


def is_whole(value: object) -> bool:
    """Whether it is a whole number, numpy's included; True and False are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)
