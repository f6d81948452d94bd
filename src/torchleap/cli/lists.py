"""Options with several values: lists of names, and numbers by name, written as in CSV."""

import csv
from collections.abc import Iterable

from .._common.errors import TorchleapError


def listed(given: str | None) -> list[str]:
    """Return the words of a list; one that contains a comma is in double quotes, as in CSV.

    >>> listed('a, b,"c,d"')
    ['a', 'b', 'c,d']
    """
    return [word for word in _words(given or "") if word]


def joined(names: Iterable[str]) -> str:
    """Return the list that `listed` reads as these names.

    >>> joined(["a", "b", "c,d"])
    'a, b, "c,d"'
    """
    return ", ".join(map(_quoted, names))


def _quoted(name: str) -> str:
    if "," not in name and not name.startswith('"'):
        return name
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def names_of(given: str | None) -> list[str] | None:
    """Return the names of columns, one for each, so that an empty one is not passed over."""
    if given is None:
        return None
    return _words(given)


def separator_of(given: str | None) -> str | None:
    r"""Return a separator; a tab may be given as a word.

    >>> separator_of("tab")
    '\t'
    """
    if given in ("\\t", "tab"):
        return "\t"
    return given


def numbers_of(given: str, option: str) -> tuple[float, ...]:
    """Return the numbers of a list.

    Args:
        given: The list, such as "0.5,0.25".
        option: The option that it was given by, for the message.
    """
    try:
        return tuple(float(word) for word in listed(given))
    except ValueError as error:
        raise TorchleapError(
            f"{option} must be numbers such as 0.5,0.25, but is {given!r}."
        ) from error


def numbers_by_name(given: str | None, option: str) -> dict[str, float]:
    """Return the numbers of a list such as name=2.5,"other,one"=1 by their names.

    Args:
        given: The list; None is an empty one.
        option: The option that it was given by, for the message.
    """
    found = {}
    for word in listed(given):
        name, equals, number = word.rpartition("=")
        try:
            found[name] = float(number)
        except ValueError:
            equals = ""
        if not equals or not name:
            raise TorchleapError(f"{option} must be NAME=NUMBER,..., but has {word!r}.")
    return found


def _words(given: str) -> list[str]:
    try:
        *words, rest = next(csv.reader([f"{given},"], skipinitialspace=True))
    except csv.Error as error:
        raise TorchleapError(
            f"Expected words with commas between them, but found {given!r}: {error}."
        ) from error
    if rest:  # the comma that was put behind the last word became part of it
        raise TorchleapError(
            f'Expected a,b or "a,b",c with every double quote closed, but found {given!r}.'
        )
    return [word.strip() for word in words]
