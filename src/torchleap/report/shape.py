"""The shape of a record: which keys it may have, and what stands there."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .._common.checks import is_number, is_whole


@dataclass(frozen=True)
class Kind:
    """A plain value."""

    name: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True)
class Each:
    """A dict with any keys, all of whose values are of one shape."""

    shape: Any


def _is_finite(value: Any) -> bool:
    return is_number(value) and abs(value) < 1e300 and math.isfinite(value)


def _is_pair(value: Any) -> bool:
    if not isinstance(value, list | tuple) or len(value) != 2:
        return False
    return all(item is None or _is_finite(item) for item in value)


TEXT = Kind("text", lambda value: isinstance(value, str))
NUMBER = Kind("a number", _is_finite)
WIDTH = Kind("a whole number of at least 1", lambda value: is_whole(value) and 1 <= value < 1 << 53)
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
PAIR = Kind("two numbers", _is_pair)
CELL = Kind("text or a number", lambda value: isinstance(value, str | bool) or is_number(value))
WORDS = Kind("text or a list of it", lambda value: isinstance(value, str | list | tuple))
ANY = Kind("anything", lambda value: True)

# A dict is one with these keys, which may be left out; others may be there. A list of one shape is a list of any length.
_HEAD = {
    "title": TEXT,
    "created": TEXT,
    "command": TEXT,
    "machine": TEXT,
    "versions": Each(ANY),
    "settings": Each(ANY),
}
_FIELD = {
    **{
        "name": TEXT,
        "width": WIDTH,
        "kind": TEXT,
        "score": NUMBER,
        "kept": FLAG,
        "protected": FLAG,
        "cost": NUMBER,
    },
    **{
        "group": TEXT,
        "sparsity": NUMBER,
        "missing": NUMBER,
        "ids": NUMBER,
        "divergence": NUMBER,
        "price": NUMBER,
    },
    **{"role": TEXT, "bytes": NUMBER},
}
_POINT = {"fields": NUMBER, "dims": NUMBER, "value": NUMBER}
SHAPES: dict[str, dict[str, Any]] = {
    "select": {
        **_HEAD,
        "task": {
            **{
                "label": TEXT,
                "positive": CELL,
                "source": TEXT,
                "group": TEXT,
                "fields": NUMBER,
                "dims": NUMBER,
            },
            **{"rows": Each(NUMBER), "positives": Each(NUMBER)},
        },
        "findings": [{"kind": TEXT, "column": TEXT, "text": TEXT, "cure": TEXT}],
        "undecided": TEXT,
        "method": TEXT,
        "model": TEXT,
        "model_settings": Each(ANY),
        "training": Each(ANY),
        "rule": Each(ANY),
        "fields": [_FIELD],
        "trajectories": {"steps": [NUMBER], "gates": Each([NUMBER])},
        "history": [Each(ANY)],
        "curve": {
            "metric": TEXT,
            "order": [TEXT],
            "points": [_POINT],
            "retrained": [{**_POINT, "interval": PAIR, "label": TEXT}],
        },
        "metrics": {
            "before": Each(NUMBER),
            "after": Each(NUMBER),
            "difference": {"metric": TEXT, "value": NUMBER, "interval": PAIR},
        },
        "savings": {
            "parameters": PAIR,
            "bytes": PAIR,
            "multiply_adds": PAIR,
            "milliseconds": PAIR,
            "batch": NUMBER,
        },
        "cuts": [{"layer": TEXT, "before": TEXT, "after": TEXT, "parameters": NUMBER}],
        "notes": [TEXT],
        "seconds": Each(NUMBER),
    },
    "bench": {
        **_HEAD,
        "summary": WORDS,
        "tables": [{"title": TEXT, "columns": [CELL], "rows": [[CELL]], "notes": WORDS}],
        "curves": [
            {
                "title": TEXT,
                "x": TEXT,
                "y": TEXT,
                "notes": WORDS,
                "series": [{"name": TEXT, "points": [[NUMBER]]}],
            },
        ],
    },
}


def misfits(value: Any, shape: Any, where: str) -> Iterator[str]:
    """Yield what is not as the shape has it; None may stand anywhere."""
    if value is None:
        return
    if isinstance(shape, Kind):
        if not shape.holds(value):
            yield f"expected {shape.name} as {where}, but found {value!r:.40}"
    elif isinstance(shape, list):
        if not isinstance(value, list | tuple):
            yield f"expected a list as {where}, but found {value!r:.40}"
            return
        for place, item in enumerate(value):
            yield from misfits(item, shape[0], f"{where}[{place}]")
    elif not isinstance(value, Mapping):
        yield f"expected a dict as {where}, but found {value!r:.40}"
    else:
        keys = value if isinstance(shape, Each) else [key for key in shape if key in value]
        for key in keys:
            inner = shape.shape if isinstance(shape, Each) else shape[key]
            yield from misfits(value[key], inner, f"{where}.{key}"[:120])
