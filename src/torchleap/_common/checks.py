"""Checks of settings, written as data: all that is wrong is reported in one error.

The settings of a frozen dataclass carry their range beside their default; their kind follows
from their type, and one call in `__post_init__` checks them all:

    @dataclass(frozen=True)
    class Training:
        batch: int = setting(4096, at_least=1)
        lr: float = setting(1e-3, above=0)
        steps: int | None = setting(None, at_least=1)
        schedule: Literal["constant", "cosine"] = "constant"

        def __post_init__(self) -> None:
            check_settings(self)

The arguments of a function are checked one beside the other:

    check_arguments(
        lr=number(lr, above=0),
        every=whole(every, at_least=1, of="batches"),
    )
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from types import UnionType
from typing import (
    Any,
    Literal,
    NamedTuple,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
)

from .errors import TorchleapError, nearest

LARGEST_SEED = (1 << 32) - 1  # scikit-learn's generators take 32 bits
Chosen = TypeVar("Chosen")  # a frozen dataclass of settings
Value = TypeVar("Value")


class Limits(TypedDict, total=False):
    """The limits of a number by name; each may be left out."""

    above: float
    at_least: float
    below: float
    at_most: float


@dataclass(frozen=True)
class Range:
    """The numbers between limits; a limit that is None does not apply.

    >>> str(Range(above=0, at_most=1)), 0.5 in Range(above=0, at_most=1)
    ('above 0 and at most 1', True)
    """

    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None

    def __contains__(self, value: Any) -> bool:
        """Return whether a number lies between the limits; NaN never does if there is one."""
        return bool(
            (self.above is None or value > self.above)
            and (self.at_least is None or value >= self.at_least)
            and (self.below is None or value < self.below)
            and (self.at_most is None or value <= self.at_most)
        )

    def __str__(self) -> str:
        if self.at_least is not None and self.at_most is not None:
            return f"from {self.at_least:,} to {self.at_most:,}"
        limits = {
            "above": self.above,
            "at least": self.at_least,
            "below": self.below,
            "at most": self.at_most,
        }
        given = [f"{word} {limit:,}" for word, limit in limits.items() if limit is not None]
        return " and ".join(given)


class Check(NamedTuple):
    """One thing that a value must be.

    Attributes:
        wanted: The words for it, which follow "must be".
        holds: Returns whether a value, of any type, is that.
    """

    wanted: str
    holds: Callable[[Any], bool]

    def problem(self, value: object) -> str:
        """Return what is wrong with a value, as the end of a sentence; "" if nothing is."""
        if self.holds(value):
            return ""
        return f"must be {self.wanted}, but is {value!r}"


def is_number(value: object) -> bool:
    """Return whether a value is a real number, numpy's included; True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: object) -> bool:
    """Return whether a value is a whole number, numpy's included; True and False are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_seed(value: object) -> bool:
    """Return whether every random generator takes a value as its seed: 0 to 2 ** 32 - 1."""
    return isinstance(value, Integral) and is_whole(value) and 0 <= int(value) <= LARGEST_SEED


def number(value: object, **limits: Unpack[Limits]) -> str:
    """Return what is wrong with a value that must be a finite number within limits.

    >>> number(-1, above=0)
    'must be a number above 0, but is -1'
    >>> number(0.5, above=0)
    ''
    """
    return _number(Range(**limits)).problem(value)


def whole(value: object, *, of: str = "", **limits: Unpack[Limits]) -> str:
    """Return what is wrong with a value that must be a whole number within limits.

    Args:
        value: The value, of any type.
        of: The unit, in the plural, for the message; left out by default.
        limits: The limits, as in `Range`.

    >>> whole(0, at_least=1)
    'must be a whole number of at least 1, but is 0'
    >>> whole(2.5, at_least=1, of="batches")
    'must be a whole number of batches, at least 1, but is 2.5'
    """
    return _whole(Range(**limits), of).problem(value)


def in_range(value: object, **limits: Unpack[Limits]) -> str:
    """Return what is wrong with a value that must compare as within limits.

    Unlike `number`, this also takes infinity and tensors and arrays of no dimension.

    >>> in_range(-1, above=0)
    'must be above 0, but is -1'
    """
    found = Range(**limits)
    return Check(str(found), lambda given: _compares(given, found)).problem(value)


def one_of(value: object, known: tuple[Any, ...]) -> str:
    """Return what is wrong with a value that must be one of those known.

    >>> one_of("steep", ("constant", "cosine"))
    "must be one of constant, cosine, but is 'steep'"
    """
    return _one_of(known).problem(value)


def check_arguments(also: Mapping[str, bool] | None = None, /, **problems: str) -> None:
    """Raise a TorchleapError with all problems of the arguments of a function, by their names.

    Args:
        also: More sentences, and whether they hold.
        problems: What `number`, `whole`, `in_range` and `one_of` return.

    >>> check_arguments(lr=number(1e-3, above=0), steps=whole(8, at_least=1))
    """
    found = {f"{name} {problem}": not problem for name, problem in problems.items()}
    refuse_settings({**found, **(also or {})})


def setting(default: Value, **limits: Unpack[Limits]) -> Value:
    """Return the field of a dataclass whose numbers have limits, for `check_settings`.

    Args:
        default: The default of the setting.
        limits: The limits, as in `Range`; without any, the number may also be negative.
    """
    return field(default=default, metadata={"range": Range(**limits)})


def check_settings(chosen: object, also: Mapping[str, bool] | None = None) -> None:
    """Raise a TorchleapError with all settings of a dataclass that are not of their type or range.

    Numbers must be finite and, unless `setting` gives another range, at least 0. A setting whose
    type is a union, such as `int | None`, must fit one of its types.

    Args:
        chosen: The dataclass.
        also: More sentences, such as about two settings together, and whether they hold.
    """
    kinds = get_type_hints(type(chosen))
    found: dict[str, bool] = {}
    for one in fields(chosen):  # type: ignore[arg-type]
        allowed = one.metadata.get("range", Range(at_least=0))
        problem = _check_of(kinds[one.name], allowed).problem(getattr(chosen, one.name))
        found[f"{one.name} {problem}"] = not problem
    refuse_settings({**found, **(also or {})})


def with_settings(chosen: Chosen, changes: Mapping[str, Any]) -> Chosen:
    """Return a copy of a dataclass of settings with some of them changed.

    Args:
        chosen: The dataclass.
        changes: New values by name; an unknown name is refused with the nearest known one.
    """
    known = [one.name for one in fields(chosen)]  # type: ignore[arg-type]
    for name in changes:
        if name not in known:
            cure = nearest(str(name), known)
            raise TorchleapError(f"{type(chosen).__name__} has no setting {name!r}. {cure}")
    return replace(chosen, **changes)  # type: ignore[type-var]


def refuse_settings(expected: Mapping[str, bool]) -> None:
    """Raise a TorchleapError with all sentences that do not hold.

    Args:
        expected: Sentences without a full stop, and whether they hold. A sentence states what is
            expected and what was found.
    """
    problems = [sentence for sentence, holds in expected.items() if not holds]
    if problems:
        raise TorchleapError(f"These settings cannot be used: {'; '.join(problems)}.")


def _number(allowed: Range) -> Check:
    limits = str(allowed).replace("at least", "of at least", 1)
    wanted = f"a number {limits}" if limits else "a finite number"

    def holds(value: Any) -> bool:
        return is_number(value) and abs(value) < math.inf and value in allowed

    return Check(wanted, holds)


def _whole(allowed: Range, of: str = "") -> Check:
    wanted = "a whole number"
    limits = str(allowed)
    if of:
        wanted += f" of {of}"
        limits = limits and f", {limits}"
    elif limits:
        limits = f" {limits.replace('at least', 'of at least', 1)}"
    return Check(wanted + limits, lambda value: is_whole(value) and value in allowed)


def _one_of(known: tuple[Any, ...]) -> Check:
    return Check(f"one of {', '.join(map(str, known))}", lambda value: value in known)


def _compares(value: Any, allowed: Range) -> bool:
    try:
        return value in allowed
    except (TypeError, ValueError, RuntimeError):  # text, or many numbers at once
        return False


def _check_of(kind: Any, allowed: Range) -> Check:
    """Return the check of a declared type; numbers in it must lie within the range."""
    origin = get_origin(kind)
    if origin in (UnionType, Union):
        checks = [_check_of(one, allowed) for one in get_args(kind)]
        wanted = " or ".join(check.wanted for check in checks)
        return Check(wanted, lambda value: any(check.holds(value) for check in checks))
    if origin is Literal:
        return _one_of(get_args(kind))
    if origin is tuple:
        return _tuple(get_args(kind), allowed)
    return _check_of_class(origin or kind, allowed)


def _tuple(kinds: tuple[Any, ...], allowed: Range) -> Check:
    """Return the check of a tuple of one type, of any length or, without `...`, of a fixed one."""
    each = _check_of(kinds[0], allowed)
    length = None if Ellipsis in kinds else len(kinds)
    size = "" if length is None else f" of {length}"

    def holds(value: Any) -> bool:
        if not isinstance(value, tuple) or length not in (None, len(value)):
            return False
        return all(each.holds(one) for one in value)

    return Check(f"a tuple{size} (each {each.wanted})", holds)


def _check_of_class(kind: Any, allowed: Range) -> Check:
    if kind is int:
        return _whole(allowed)
    if kind is float:
        return _number(allowed)
    if kind is Any:
        return Check("anything", lambda value: True)
    words = {bool: "True or False", str: "a text", type(None): "None"}
    return Check(words.get(kind, f"a {kind.__name__}"), lambda value: isinstance(value, kind))
