"""Messages of the library in the words of the command line: settings become options."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from .._common.errors import DataError, SelectionError, TorchleapError
from ..selection.rule import RULES
from .lists import joined
from .options import parameter_of

LONGEST = 2_000  # characters of a message
OTHER_NAMES: dict[type[TorchleapError], dict[str, str]] = {
    # the parameter of a setting, where an error names the setting otherwise
    DataError: {"threshold": "label_threshold", "overwrite": "force"},
    SelectionError: {rule.name: parameter_of(rule) for rule in RULES.values()},
    TorchleapError: {"fractions": "pruned"},
}
_VALUE = (
    r"(\[[^\]]*\]|\{.*\}"  # a list, a dict
    r"""|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""  # text
    r"|\.\.\.|True|[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)?"
)
_SETTING = re.compile(rf"(?<![\w./'\"-])([a-z_]+)=(?!=){_VALUE}")
_MUST = re.compile(r"(?<![\w./'\"-])([a-z_]+) must ")
_CACHE = "cache=..., or TORCHLEAP_CACHE"  # a setting without an option


def in_options(text: str, options: Mapping[str, str]) -> str:
    """Return a message that names options in place of settings; other settings stay.

    Args:
        text: The message of the library.
        options: The option of each setting that has one.

    >>> options = {"positive": "--positive", "drop": "--drop"}
    >>> in_options("Give the value: positive='no way'. Or: drop=['a', 'b'].", options)
    "Give the value: --positive 'no way'. Or: --drop a,b."
    """

    def with_value(found: re.Match[str]) -> str:
        name, value = found[1], found[2]
        if name not in options:
            return found[0]
        return f"{options[name]}{_written(value)}"

    def alone(found: re.Match[str]) -> str:
        return f"{options.get(found[1], found[1])} must "

    text = text.replace(_CACHE, "the environment variable TORCHLEAP_CACHE")
    text = _SETTING.sub(with_value, text)
    return _MUST.sub(alone, text)


def _written(value: str | None) -> str:
    """Return a value as it is typed behind an option."""
    if value is None or value == "True":
        return ""
    if value == "...":
        return " ..."
    if value == "[...]":
        return " A,B,C"
    try:
        meant = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return ""
    if isinstance(meant, list):
        names = joined(map(str, meant)).replace(", ", ",")
        return f" {shlex.quote(names)}"
    if isinstance(meant, dict):
        return f" FILE.toml, which has {_as_toml(meant)}"
    return f" {shlex.quote(str(meant))}"


def _as_toml(columns: Mapping[str, Any]) -> str:
    """Return the settings of columns as TOML in one line.

    >>> _as_toml({"zip": "categorical"})
    '[columns.zip] kind = "categorical"'
    """
    found = []
    for name, settings in columns.items():
        key = name if re.fullmatch(r"[\w-]+", name) else f'"{name}"'
        if not isinstance(settings, Mapping):
            settings = {"kind": settings}
        lines = [f'{setting} = "{value}"' for setting, value in settings.items()]
        found.append(f"[columns.{key}] {' '.join(lines)}")
    return " ".join(found)


def bounded(text: str) -> str:
    """Return a message without control characters, of a length that a terminal can take."""
    clean = "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in text)
    if len(clean) <= LONGEST:
        return clean
    return f"{clean[: LONGEST - 4]} ..."


def options_of(context: Any, error: type[TorchleapError] = DataError) -> dict[str, str]:
    """Return the options of the running command, by the names that messages use.

    Args:
        context: The context of the command.
        error: The kind of error whose message is translated.
    """
    own = {}
    for parameter in context.command.params:
        if parameter.opts[0].startswith("--"):
            own[parameter.name] = parameter.opts[0]
    found = dict(own)
    for kind, names in OTHER_NAMES.items():
        if issubclass(error, kind):
            found |= {name: own[other] for name, other in names.items() if other in own}
    return found


def in_own_words(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose errors name its options; those of a grid name the keys of its file."""

    @wraps(command)
    def run(**options: Any) -> None:
        try:
            command(**options)
        except TorchleapError as error:
            context = options.get("context")
            if context is not None and options.get("grid") is None:
                error.args = (in_options(str(error), options_of(context, type(error))),)
            raise

    return run
