"""The planner of the page: the groups of fields that a budget takes, in the library's own order."""

from collections.abc import Mapping
from typing import Any

from .._common.checks import is_number
from .._common.errors import FieldError, SelectionError
from ..fields import Field, Fields
from ..selection import rank
from .record import decision, dig

FIELD_KEYS = ("name", "width", "cost", "protected", "group")


def budget(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the groups that are kept or dropped as one, in the order in which a budget takes them.

    The result also has the limits of the slider and its start, in dimensions. It is None where
    the record lacks the widths or the scores of some fields.
    """
    records = record["fields"]
    scores = {field["name"]: field.get("score") for field in records}
    if not all(map(is_number, scores.values())):
        return None
    try:
        fields = Fields([_field(one) for one in records])
        groups = rank(fields, scores, dig(record, "path", "together") or ())
    except (FieldError, SelectionError, TypeError):
        return None
    protected = sum(group.width for group in groups if group.protected)
    least = protected or min(group.width for group in groups)
    kept = sum(field["width"] for field in records if decision(field) != "dropped")
    shown = []
    for group in groups:
        members = [fields.index(name) for name in group.names]
        shown.append({"members": members, "width": group.width})
    return {
        "groups": shown,
        "least": least,
        "most": fields.dims,
        "start": min(max(kept, least), fields.dims),
    }


def _field(record: Mapping[str, Any]) -> Field:
    known = {key: record[key] for key in FIELD_KEYS if record.get(key) is not None}
    return Field(**known)
