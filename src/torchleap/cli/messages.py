"""Messages of the library in the words of the command line: where it names a setting, the option is named."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from .._common.errors import DataError, SelectionError, TorchleapError
from .show import joined

LONGEST = 2_000  # characters of a message
OTHER_NAMES: dict[
    type[TorchleapError], dict[str, str]
] = {  # where an option is called otherwise than the setting
    DataError: {"threshold": "label_threshold", "overwrite": "force"},
    SelectionError: {"cost": "budget"},
}
_VALUE = r"""(\[[^\]]*\]|\{.*\}|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\.\.\.|True|[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)?"""
_SETTING = re.compile(rf"(?<![\w./'\"-])([a-z_]+)=(?!=){_VALUE}")
_RULE = re.compile(r"(?<![\w./'\"-])([a-z_]+) must ")
_CACHE = "cache=..., or TORCHLEAP_CACHE"  # a setting without an option


def in_options(text: str, options: Mapping[str, str]) -> str:
    """Name options where a message names settings; what has no option stays as it is.

    >>> in_options("Say which is 1: positive='no way'. Or: drop=['a', 'b'].", {"positive": "--positive", "drop": "--drop"})
    "Say which is 1: --positive 'no way'. Or: --drop a,b."
    """

    def replaced(found: re.Match[str]) -> str:
        name, value = found[1], found[2]
        if name not in options:
            return found[0]
        return f"{options[name]}{_written(value)}"

    text = text.replace(_CACHE, "the environment variable TORCHLEAP_CACHE")
    text = _SETTING.sub(replaced, text)
    return _RULE.sub(lambda found: f"{options.get(found[1], found[1])} must ", text)


def _written(value: str | None) -> str:
    """Write a value as it is typed behind an option."""
    if value is None or value == "True":
        return ""
    if value in ("...", "[...]"):
        return " A,B,C" if value == "[...]" else " ..."
    try:
        meant = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return ""
    if isinstance(meant, list):
        return f" {shlex.quote(joined(map(str, meant)).replace(', ', ','))}"
    if isinstance(meant, dict):
        return f" FILE.toml, which has {_as_toml(meant)}"
    return f" {shlex.quote(str(meant))}"


def _as_toml(columns: Mapping[str, Any]) -> str:
    """Write what is said about columns as a file has it: [columns.zip] kind = "categorical"."""
    found = []
    for name, said in columns.items():
        key = name if re.fullmatch(r"[\w-]+", name) else f'"{name}"'
        settings = said if isinstance(said, Mapping) else {"kind": said}
        lines = [f'{setting} = "{value}"' for setting, value in settings.items()]
        found.append(f"[columns.{key}] {' '.join(lines)}")
    return " ".join(found)


def bounded(text: str) -> str:
    """Return a message without control characters, of a length that a terminal can take."""
    clean = "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in text)
    return clean if len(clean) <= LONGEST else f"{clean[: LONGEST - 4]} ..."


def options_of(context: Any, error: type[TorchleapError] = DataError) -> dict[str, str]:
    """Return the options of the running command, by the names that messages use."""
    own = {
        param.name: param.opts[0]
        for param in context.command.params
        if param.opts[0].startswith("--")
    }
    others = next((names for kind, names in OTHER_NAMES.items() if issubclass(error, kind)), {})
    return own | {name: own[option] for name, option in others.items() if option in own}


def in_own_words(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command's errors name its options; those of a grid name the keys of its file already."""

    @wraps(command)
    def run(*arguments: Any, **settings: Any) -> None:
        try:
            command(*arguments, **settings)
        except TorchleapError as error:
            context = settings.get("context")
            if context is not None and settings.get("grid") is None:
                error.args = (in_options(str(error), options_of(context, type(error))),)
            raise

    return run
