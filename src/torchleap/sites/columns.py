"""The columns of one of several sites, where at= leaves open which fields arrive there."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .._common.errors import AttachError, FieldError
from ..fields import Fields
from .values import by_name, not_fields

if TYPE_CHECKING:
    from .site import Site


def find_columns(site: "Site", fields: Fields, value: Any) -> slice:
    """Return the columns of the fields that arrive at one of several sites."""
    value = by_name(value, site.label)
    if isinstance(value, Mapping):
        columns = _columns_of_names(site, fields, value)
    elif isinstance(value, Tensor):
        columns = _columns_of_tensor(site, fields, value)
    else:
        raise not_fields(value, site.label)
    is_last = site is site.siblings[-1] and isinstance(value, Tensor)
    is_incomplete = is_last and columns.stop != fields.dims
    width = columns.stop - columns.start
    if width == 0 or columns.stop > fields.dims or is_incomplete:
        raise FieldError(
            f"{site.label} receives {width} columns, {columns.stop} with those of the sites "
            f"before it, but the fields sum to {fields.dims}. {fields.describe()}"
        )
    fields.gates_of(columns)  # raises if they cut through a field or a group
    return columns


def _columns_of_names(site: "Site", fields: Fields, value: Mapping[str, Any]) -> slice:
    names = [name for name in fields.names if name in value]
    if not names:
        return slice(0, 0)
    start = fields.columns(names[0]).start
    stop = fields.columns(names[-1]).stop
    if stop - start != sum(fields[name].width for name in names):
        raise FieldError(
            f"{site.label} receives {names}, which are not neighbours in fields=. "
            "List each site's fields together."
        )
    return slice(start, stop)


def _columns_of_tensor(site: "Site", fields: Fields, value: Tensor) -> slice:
    width = value.flatten(1).shape[1]
    is_first = not any(one.columns for one in site.siblings)
    start = 0 if width == fields.dims and is_first else _first_column(site)
    return slice(start, start + width)


def _first_column(site: "Site") -> int:
    start = 0
    for earlier in site.siblings[: site.siblings.index(site)]:
        if earlier.columns is None:
            raise AttachError(
                f"{site.label} is reached before at={earlier.at!r}, whose width is not known yet. "
                "List the sites in the order in which the model reaches them, or give "
                "example= to attach()."
            )
        start = max(start, earlier.columns.stop)
    return start
