"""The check of a record against its schema, the dataclasses of `torchleap.pipeline.record`."""

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

from .._common.checks import Check
from ..pipeline.record import is_finite

NUMBER = Check("a number", is_finite)
CHECKS = {
    str: Check("text", lambda value: isinstance(value, str)),
    bool: Check("true or false", lambda value: isinstance(value, bool)),
    int: NUMBER,
    float: NUMBER,
    Any: Check("anything", lambda value: True),
}


def misfits(value: Any, kind: Any, where: str) -> Iterator[str]:
    """Yield a sentence for each value that is not of its type.

    None fits every type, keys may be left out, and others may be there: so records of earlier
    versions and parts of records can be reported.

    Args:
        value: A plain value.
        kind: Its type: a dataclass, for a dict with these keys, or a type of one of its fields.
        where: The path of the value, such as "record.task".

    >>> list(misfits({"steps": [1, "x"]}, dict[str, list[int]], "record"))
    ["expected a number as record.steps[1], but found 'x'"]
    """
    if value is None:
        return
    kind = _without_none(kind)
    check = _check_of(kind)
    if check is not None:
        if not check.holds(value):
            yield _misfit(check.wanted, where, value)
    elif is_dataclass(kind) or issubclass(get_origin(kind), Mapping):
        yield from _misfits_of_dict(value, kind, where)
    elif isinstance(value, list | tuple):
        (inner,) = get_args(kind)
        for place, item in enumerate(value):
            yield from misfits(item, inner, f"{where}[{place}]")
    else:
        yield _misfit("a list", where, value)


def _misfits_of_dict(value: Any, kind: Any, where: str) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield _misfit("a dict", where, value)
        return
    if is_dataclass(kind):
        hints = _fields_of(kind)  # type: ignore[arg-type]
        kinds = {key: hint for key, hint in hints.items() if key in value}
    else:
        kinds = dict.fromkeys(value, get_args(kind)[1])
    for key, inner in kinds.items():
        yield from misfits(value[key], inner, f"{where}.{key}"[:120])


def _misfit(wanted: str, where: str, value: Any) -> str:
    return f"expected {wanted} as {where}, but found {value!r:.40}"


def _check_of(kind: Any) -> Check | None:
    """Return the check of a single value; None for a type that has parts."""
    if get_origin(kind) is Annotated:
        check: Check = kind.__metadata__[0]
        return check
    return CHECKS.get(kind)


def _without_none(kind: Any) -> Any:
    """Return the type X of `X | None`, and any other type as it is."""
    if get_origin(kind) not in (UnionType, Union):
        return kind
    (found,) = [one for one in get_args(kind) if one is not NoneType]
    return found


@cache
def _fields_of(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields by name."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar}
