"""Plain values: numbers, text, lists and dicts as JSON knows them, and the files that hold them."""

import hashlib
import json
import math
import os
import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from .checks import is_number, is_whole
from .errors import TorchleapError, shown
from .files import write_atomically
from .text import first_line

KEY = "key"  # the entry that holds the key of the others
MOST_DIGITS = 20


def plain(
    value: Any,
    where: str,
    *,
    nan_as_none: bool = False,
    refused: type[TorchleapError] = TorchleapError,
) -> Any:
    """Return a copy of a value in JSON's own types; what was written as JSON equals it when read.

    Mappings become dicts with text as keys, tuples become lists, and numpy's numbers Python's.

    Args:
        value: Numbers, text, None, and lists, tuples and mappings of such values.
        where: The name of the value in messages, such as "settings".
        nan_as_none: Write None for NaN and infinity, which JSON lacks; by default they are refused.
        refused: The error to raise for any other value.

    >>> plain({"alpha": 1e-3, "clip": (1, 2)}, "settings")
    {'alpha': 0.001, 'clip': [1, 2]}
    """
    try:
        return _plain(value, where, nan_as_none=nan_as_none, refused=refused)
    except RecursionError as error:
        raise refused(
            "Expected lists and dicts within each other to a depth that Python can follow, but "
            f"{where} is deeper. Make it again."
        ) from error


def _plain(value: Any, where: str, *, nan_as_none: bool, refused: type[TorchleapError]) -> Any:
    """Return a copy of a value in JSON's own types, as `plain` does for the outermost value."""
    inner = partial(_plain, nan_as_none=nan_as_none, refused=refused)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): inner(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [inner(item, f"{where}[{place}]") for place, item in enumerate(value)]
    if is_whole(value):
        return int(value)
    if is_number(value) and abs(value) < math.inf:
        return float(value)
    if is_number(value) and nan_as_none:
        return None
    found = f"{shown(value)}, of type {type(value).__name__}"
    raise refused(f"Expected finite numbers, text, lists and dicts, but {where} is {found}.")


def as_json(value: Any, indent: int | None = None) -> str:
    r"""Return a plain value as JSON that ends with a new line; NaN and infinity are a ValueError.

    Args:
        value: A plain value; `plain` makes one.
        indent: How many spaces to indent by; None writes a single line.

    >>> as_json({"step": 8})
    '{"step": 8}\n'
    """
    return json.dumps(value, indent=indent, allow_nan=False) + "\n"


def write_json(path: str | os.PathLike[str], value: Any, indent: int | None = None) -> None:
    """Write a plain value to a JSON file atomically; the arguments are those of `as_json`."""
    write_atomically(path, as_json(value, indent))


def parse_json(content: str | bytes) -> Any:
    """Return the value of JSON that holds Unicode text and numbers of at most 64 bits.

    Anything else is a ValueError, however large or deep the content is.
    """
    try:
        found = json.loads(content, parse_int=_bounded_int, parse_constant=_refuse_constant)
        json.dumps(found, ensure_ascii=False).encode()  # refuses one half of a surrogate pair
    except (RecursionError, MemoryError) as error:
        raise ValueError("it is nested too deeply") from error
    return found


def _bounded_int(digits: str) -> int:
    if len(digits) > MOST_DIGITS or abs(int(digits)) >= 1 << 63:
        raise ValueError(f"found the number {digits[:MOST_DIGITS]}..., which is too large")
    return int(digits)


def _refuse_constant(word: str) -> None:
    raise ValueError(f"found {word}, which is not a number")


def read_json(
    path: str | os.PathLike[str],
    what: str,
    refused: type[TorchleapError] = TorchleapError,
    cure: str = "",
) -> Any:
    """Read a JSON file and return its value.

    Args:
        path: The file.
        what: The thing that the file should hold, for the message, such as "a selection".
        refused: The error to raise if the file does not hold JSON.
        cure: A last sentence of that message, such as "Save the model again."
    """
    try:
        return parse_json(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        problem = f"{path} is not {what}: expected JSON, but {first_line(error)}."
        raise refused(f"{problem} {cure}".rstrip()) from error


def read_toml(
    path: str | os.PathLike[str],
    refused: type[TorchleapError] = TorchleapError,
) -> dict[str, Any]:
    """Read a TOML file whose numbers have at most 64 bits and return its content.

    Args:
        path: The file.
        refused: The error to raise if the file does not hold that.
    """
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        parse_json(json.dumps(content, default=str))
    except (ValueError, RecursionError, MemoryError) as error:
        raise refused(f"{path} is not TOML: {first_line(error)}.") from error
    return content


def key_of(content: Any) -> str:
    """Return a short name of a value, the same for the same content: 24 hexadecimal digits.

    The order of the keys of a dict does not matter. A value that JSON lacks is taken as its text.

    >>> key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})
    True
    """
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def with_key(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a file with an entry that holds the key of the other entries."""
    return {**content, KEY: key_of(content)}


def fits_key(content: Mapping[str, Any]) -> bool:
    """Return whether what `with_key` returned is unchanged; this shows accidents, not attacks."""
    others = {name: value for name, value in content.items() if name != KEY}
    return content.get(KEY) == key_of(others)
